"""Capture or train on a random target of a few thousand parameters: what kill_test.py kills.

python scripts/kill_tiny.py capture trace.npz
python scripts/kill_tiny.py train checkpoint.safetensors
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from specsim.acceptance.trace import save_trace  # noqa: E402
from specsim.drafter.capture import capture  # noqa: E402
from specsim.drafter.corpus import DOMAINS  # noqa: E402
from specsim.drafter.drafting import Sampling  # noqa: E402
from specsim.drafter.generate import Written, write  # noqa: E402
from specsim.drafter.loss import LossConfig  # noqa: E402
from specsim.drafter.runner import draw_texts  # noqa: E402
from specsim.drafter.textstore import Text, log_sum  # noqa: E402
from specsim.drafter.train import TrainConfig, Trainer  # noqa: E402
from tests.drafter_world import small_drafter, small_target  # noqa: E402

TARGET = small_target()


def written(count: int) -> list[Written]:
    prompts = iter([([3, 5, 2 + i % 5, 7], i % 3) for i in range(count)])
    generator = torch.Generator().manual_seed(0)
    return list(
        write(
            TARGET, prompts, generator, slots=8, max_new_tokens=20, capacity=24, eos_id=0,
            layers=(0, 1),
        )
    )  # fmt: skip


def make_trace(path: Path) -> None:
    trace = capture(
        small_drafter(TARGET),
        written(160),
        TARGET.logits,
        Sampling(),
        torch.Generator().manual_seed(9),
        domain_names=DOMAINS,
        metadata={"status": "synthetic", "model": "random weights"},
    )
    save_trace(trace, path)


def train(path: Path) -> None:
    texts = [
        Text(
            torch.tensor(one.tokens), one.prompt_tokens, one.domain, torch.cat(one.features),
            torch.cat(one.hidden), log_sum(torch.cat(one.hidden).float(), TARGET.embed.weight),
        )
        for one in written(24)
    ]  # fmt: skip
    config = TrainConfig(
        steps=40, sequences=4, anchors=6, learning_rate=5e-3, seed=3, checkpoint_every=5,
        loss=LossConfig(soft_label=0.5),
    )  # fmt: skip
    trainer = Trainer(small_drafter(TARGET), config)
    if path.is_file():
        trainer.load(path)
    trainer.run(lambda count, generator: draw_texts(texts, count, generator), checkpoint=path)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"capture": make_trace, "train": train}[sys.argv[1]](Path(sys.argv[2]))
