"""The page in a real browser: silent, offline, and its hover, filter and menus work."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specsim.study.reports import write_report
from specsim.study.run import run_scenario
from tests.study_world import FRONTIER, write_scenario

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and CHROMEDRIVER), reason="no chromium and chromedriver on this machine"
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    path = write_scenario(folder, question=FRONTIER)
    directory = run_scenario(str(path), out=folder / "runs").directory
    return write_report(directory, format="html")


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Any]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--window-size=1100,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(CHROMEDRIVER))
    try:
        driver.get(page.as_uri())
        yield driver
    finally:
        driver.quit()


def test_no_console_message_and_no_request_but_the_file(browser: Any, page: Path) -> None:
    sent = [
        message["params"]["request"]["url"]
        for entry in browser.get_log("performance")
        if (message := json.loads(entry["message"])["message"])["method"]
        == "Network.requestWillBeSent"
    ]
    assert page.as_uri() in sent  # else the log is not what we think
    assert [url for url in sent if not url.startswith(("data:", page.as_uri()))] == []
    assert browser.get_log("browser") == []


def test_hover_tells_the_numbers_of_a_mark(browser: Any) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By

    mark = browser.find_element(By.CSS_SELECTOR, "#frontier figure:not([hidden]) g.mark")
    browser.execute_script("document.documentElement.style.scrollBehavior = 'auto'")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    hit = mark.find_element(By.CSS_SELECTOR, ".hit")
    ActionChains(browser).move_to_element(hit).perform()
    tip = browser.find_element(By.ID, "tip")
    assert tip.is_displayed()
    shown = tip.text.splitlines()
    assert shown == mark.get_attribute("data-tip").split("|")
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h2")).perform()
    assert not tip.is_displayed()


def test_the_keyboard_reaches_marks_too(browser: Any) -> None:
    from selenium.webdriver.common.by import By

    mark = browser.find_elements(By.CSS_SELECTOR, "#frontier figure:not([hidden]) g.mark")[1]
    browser.execute_script("arguments[0].focus()", mark)
    tip = browser.find_element(By.ID, "tip")
    assert tip.text.splitlines()[0] == mark.get_attribute("data-tip").split("|")[0]
    browser.execute_script("arguments[0].blur()", mark)


def test_a_button_takes_a_policy_out_of_charts_and_tables(browser: Any) -> None:
    from selenium.webdriver.common.by import By

    chip = browser.find_element(By.CSS_SELECTOR, '.chip[data-name="topk"]')
    index = chip.get_attribute("data-policy")

    def shown() -> tuple[int, int]:
        drawn = browser.find_elements(
            By.CSS_SELECTOR, f'#frontier figure:not([hidden]) [data-policy="{index}"]'
        )
        rows = browser.find_elements(By.CSS_SELECTOR, "#frontier tbody tr")
        names = [r.find_element(By.TAG_NAME, "td").text for r in rows if r.is_displayed()]
        return sum(d.is_displayed() for d in drawn), names.count("topk")

    before = shown()
    assert min(before) >= 1
    browser.execute_script("arguments[0].click()", chip)
    assert chip.get_attribute("aria-pressed") == "false"
    assert shown() == (0, 0)
    browser.execute_script("arguments[0].click()", chip)
    assert shown() == before


def test_menus_change_the_chart_and_headings_sort(browser: Any) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.select import Select

    menu = Select(browser.find_element(By.CSS_SELECTOR, '[data-menu="frontier"]'))
    menu.select_by_visible_text("inferencex")
    figure = browser.find_element(By.CSS_SELECTOR, "#frontier figure:not([hidden]) svg")
    assert "1 / median TPOT" in figure.text
    menu.select_by_visible_text("paper")
    head = browser.find_elements(By.CSS_SELECTOR, "#frontier th button")[2]
    for order in (1, -1):
        browser.execute_script("arguments[0].click()", head)
        cells = browser.find_elements(By.CSS_SELECTOR, "#frontier tbody tr td:nth-child(3)")
        keys = [c.get_attribute("data-key") for c in cells]
        values = [float(key) for key in keys if key]
        assert values == sorted(values, reverse=order < 0)
        assert keys[len(values) :] == [""] * (len(keys) - len(values))  # no value goes last


def test_light_and_dark_and_a_phone_without_scrolling_sideways(browser: Any) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True},
    )
    assert browser.execute_script("return document.documentElement.scrollWidth") == 390
    colours = set()
    for _ in range(2):
        browser.execute_script("document.getElementById('theme').click()")
        colours.add(
            browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        )
    assert len(colours) == 2
    assert browser.get_log("browser") == []
