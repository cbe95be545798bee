"""Check the runner on the embedded target: reports/drafter/first_tokens.json.

    python scripts/drafter_checks.py [--prompts FILE.jsonl] [--samples 50000]

For a fixed set of held-out prompts, one real round each: the drafter proposes, the target verifies,
and the first token that the round decides is counted. Counts are held against the target's law by a
G-test, for three sampling settings and two planted bugs. The logits of both models are computed
once a prompt (all samples share its one round); every sample goes through the library's own
`propose` and `verify`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2

from specsim.drafter import opening
from specsim.drafter.corpus import DOMAINS, default_corpus, read_corpus, split
from specsim.drafter.drafting import Proposal, Sampling, propose
from specsim.drafter.speculate import verify
from specsim.rng import stream
from specsim.scenario.locate import shipped

ROOT = Path(__file__).parents[1]
OUT = ROOT / "reports" / "drafter" / "first_tokens.json"
CHUNK = 40
Rule = Callable[[torch.Tensor, Proposal, torch.Generator], tuple[torch.Tensor, torch.Tensor]]


def g_statistic(count_V: np.ndarray, law_V: np.ndarray) -> tuple[float, int]:
    """G and degrees of freedom; cells expected below 5 are pooled; an impossible token is inf."""
    if count_V[law_V == 0].any():
        return float("inf"), 1
    expected = law_V * count_V.sum()
    rare = expected < 5
    count = np.append(count_V[~rare], count_V[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    count, expected = count[expected > 0], expected[expected > 0]
    seen = count > 0
    return float(2 * np.sum(count[seen] * np.log(count[seen] / expected[seen]))), len(count) - 1


class OneRound:
    """A drafter that has computed one block and offers it to any number of rows."""

    def __init__(self, drafter: Any, anchor: torch.Tensor, position: torch.Tensor, context: Any):
        self.config, self.token_id_V = drafter.config, drafter.token_id_V
        block = drafter.begin(anchor[:, None], position[:, None], context)
        self.scores = block.step(anchor[:, None])
        self.rows = 1

    def begin(self, anchor_BA: torch.Tensor, position_BA: torch.Tensor, context: Any) -> OneRound:
        self.rows = len(anchor_BA)
        return self

    def step(self, previous_BA: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits and confidence logits of the first slot, the only one that is asked for."""
        return tuple(part.expand(self.rows, *part.shape[1:]) for part in self.scores)


def sharpened(law: torch.Tensor, proposal: Proposal, generator: torch.Generator) -> Any:
    """Planted: the target's side at temperature 0.7, the drafter's at 1."""
    sharp = law ** (1 / 0.7)
    return verify(sharp / sharp.sum(-1, keepdim=True), proposal, generator)


def argmax_drafts(law: torch.Tensor, proposal: Proposal, generator: torch.Generator) -> Any:
    """Planted: the most likely token is drafted, and accepted as if it had been sampled."""
    proposal.token_BG.copy_(proposal.law_BGV.argmax(-1))
    return verify(law, proposal, generator)


def power(law_V: np.ndarray, samples: int, rng: np.random.Generator) -> float | None:
    """Smallest shift in total variation that p < 0.001 sees 9 times in 10; None: none of these.

    The shift is a mixture with the law at twice the temperature. Where one token alone is possible,
    any other is seen at once, and the shift is 0.
    """
    if np.count_nonzero(law_V) == 1:
        return 0.0
    flat = law_V**0.5
    flat /= flat.sum()
    for share in np.geomspace(0.0005, 1.0, 34):
        moved = (1 - share) * law_V + share * flat
        hits = 0
        for _ in range(40):
            g, dof = g_statistic(rng.multinomial(samples, moved).astype(float), law_V)
            hits += chi2.sf(g, dof) < 1e-3
        if hits >= 36:
            return float(np.abs(moved - law_V).sum() / 2)
    return None


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=Path, nargs="*", default=[])
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument(
        "--drafter", type=Path, default=shipped("profiles") / "drafters" / "smollm2_dspark"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    target = opening.open_target(opening.EMBEDDED, dtype="float32")
    drafter = opening.open_drafter(args.drafter, target)
    corpus = read_corpus(args.prompts) if args.prompts else default_corpus(stream(0, "checks"))
    _, held = split(corpus)
    chosen = [
        next(p for p in held if p.domain == d and len(target.encode(p)) < 120) for d in DOMAINS
    ]
    each = args.samples // len(chosen)
    settings: list[tuple[str, Sampling, Rule]] = [
        ("T = 1", Sampling(), verify),
        ("T = 0.7", Sampling(temperature=0.7), verify),
        ("T = 1, top-p 0.9", Sampling(top_p=0.9), verify),
        ("planted: argmax drafts", Sampling(), argmax_drafts),
        ("planted: target at 0.7, drafter at 1", Sampling(), sharpened),
    ]
    body: dict[str, Any] = {"samples": each * len(chosen), "prompts": len(chosen), "tests": {}}
    rng = stream(0, "checks/power")
    for name, sampling, rule in settings:
        total, freedom, accepted, smallest = 0.0, 0, 0, []
        for number, prompt in enumerate(chosen):
            generator = opening.torch_generator(number, f"checks/{name}")
            ids = torch.tensor([target.encode(prompt)])
            count = torch.tensor([ids.shape[1]])
            cache = target.model.new_cache(1, 256)
            hidden, features = target.model(ids, count, cache, drafter.config.target_layer_ids)
            anchor = target.model.logits(hidden[:, -1]).argmax(-1)
            context = drafter.context(features, torch.cat((ids[:, 1:], anchor[None]), 1))
            hidden, _ = target.model(anchor[None], torch.tensor([1]), cache)
            law = sampling.law(target.model.logits(hidden[:, -1]))
            once = OneRound(drafter, anchor, count, context)
            seen = np.zeros(target.vocab_size)
            for start in range(0, each, CHUNK):
                rows = min(CHUNK, each - start)
                one = propose(
                    once, anchor.expand(rows), count.expand(rows), context, sampling, generator,
                    length=1, vocab_size=target.vocab_size,
                )  # fmt: skip
                laws = law[:, None].expand(rows, 2, -1)
                took, following = rule(laws, one, generator)
                first = torch.where(took > 0, one.token_BG[:, 0], following)
                seen += np.bincount(first.numpy(), minlength=target.vocab_size)
                accepted += int((took > 0).sum())
            plain = law[0].double().numpy()
            plain /= plain.sum()
            g, dof = g_statistic(seen, plain)
            total, freedom = total + g, freedom + dof
            if rule is verify:
                smallest.append(power(plain, each, rng))
        p_value = float(chi2.sf(total, freedom))
        body["tests"][name] = {
            "G": round(total, 2), "dof": freedom, "p_value": p_value,
            "accepted_share": round(accepted / (each * len(chosen)), 4),
            "power_tv_shift": [None if s is None else round(s, 5) for s in smallest],
        }  # fmt: skip
        print(name, body["tests"][name], flush=True)
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
