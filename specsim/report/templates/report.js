"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const tip = document.getElementById("tip");

  // Marks: what data-tip says, beside the pointer or the mark that has the focus.
  const show = (mark, x, y) => {
    const [head, ...lines] = mark.dataset.tip.split("|");
    tip.replaceChildren();
    const bold = document.createElement("b");
    bold.textContent = head;
    tip.append(bold);
    for (const line of lines) {
      const row = document.createElement("div");
      row.textContent = line;
      tip.append(row);
    }
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, x + 14), innerWidth - box.width - 8);
    const top = y + 16 + box.height > innerHeight ? y - box.height - 12 : y + 16;
    tip.style.left = `${left}px`;
    tip.style.top = `${Math.max(8, top)}px`;
  };
  const hide = () => { tip.hidden = true; };
  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest?.(".mark");
    if (mark) show(mark, event.clientX, event.clientY);
    else if (!document.activeElement?.classList.contains("mark")) hide();
  });
  const beside = () => {
    const mark = document.activeElement?.closest(".mark");
    if (!mark) return hide();
    const box = mark.getBoundingClientRect();
    show(mark, box.x + box.width / 2, box.y + box.height / 2);
  };
  document.addEventListener("focusin", beside);
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  // The tip goes along with a mark that has the focus: tabbing to it may scroll the page.
  addEventListener("scroll", beside, { passive: true });

  // Which policies are shown, in every chart and table at once.
  const off = new Set();
  const needle = new Map();
  const refresh = () => {
    const names = new Set(all(".chip[aria-pressed=false]").map((chip) => chip.dataset.name));
    for (const drawn of all("figure [data-policy]")) {
      if (!drawn.classList.contains("published"))
        drawn.classList.toggle("off", off.has(drawn.dataset.policy));
    }
    for (const table of all("table")) {
      const column = Number(table.dataset.policyColumn);
      const text = needle.get(table.dataset.table) ?? "";
      for (const row of table.tBodies[0].rows) {
        const gone = column >= 0 && names.has(row.cells[column].textContent);
        row.hidden = gone || !row.textContent.toLowerCase().includes(text);
      }
    }
  };
  for (const chip of all(".chip")) {
    chip.addEventListener("click", () => {
      const pressed = chip.getAttribute("aria-pressed") === "true";
      chip.setAttribute("aria-pressed", String(!pressed));
      if (pressed) off.add(chip.dataset.policy); else off.delete(chip.dataset.policy);
      refresh();
    });
  }
  for (const field of all("[data-find]")) {
    field.addEventListener("input", () => {
      needle.set(field.dataset.find, field.value.trim().toLowerCase());
      refresh();
    });
  }

  // Menus pick one chart of a section.
  for (const menu of all("[data-menu]")) {
    menu.addEventListener("change", () => {
      all(`figure[data-of="${menu.dataset.menu}"]`).forEach((figure, n) => {
        figure.hidden = n !== menu.selectedIndex;
      });
    });
  }

  // Tables sort by the heading clicked; what has no value goes last either way.
  for (const table of all("table")) {
    all("th", table).forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        all("th", table).forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const key = (row) => row.cells[column].dataset.key;
        const rows = [...table.tBodies[0].rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === "" || y === "") return (x === "") - (y === "");
          const order = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
          return down ? -order : order;
        });
        table.tBodies[0].append(...rows);
      });
    });
  }

  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
})();
