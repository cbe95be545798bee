"""`specsim trace train`: train a drafter for the embedded target."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from specsim.cli.common import Json, Quiet, answer, progress
from specsim.cli.trace import drafter_folder, prompts_of

Head = Literal["none", "vanilla", "gated", "rnn"]
Flag = Annotated[bool, Parameter(negative=())]


def train(
    *,
    out: Path,
    corpus: Annotated[tuple[Path, ...], Parameter(negative=())] = (),
    text: Path | None = None,
    tokens: int = 500_000,
    max_new_tokens: int = 192,
    steps: int = 2000,
    layers: int = 2,
    gamma: int = 7,
    head: Head = "vanilla",
    rank: int = 64,
    draft_vocab: int = 8192,
    learning_rate: float = 8e-4,
    deepspec_loss: Flag = False,
    stop_gradient: Flag = False,
    start_from: str | None = None,
    from_scratch: Flag = False,
    soft_label: float = 0.5,
    seed: int = 0,
    threads: int | None = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Train a DSpark drafter for the embedded target on text that the target writes.

    Everything is kept in the folder OUT and taken up again by the same command: OUT/text grows to
    --tokens, OUT/checkpoint.safetensors goes on to --steps, and the drafter is OUT/config.json and
    OUT/model.safetensors. OUT/text.npz holds the text as token ids, small enough to keep; another
    run takes it with --text.

    Parameters
    ----------
    out
        Folder of the run.
    corpus
        JSONL files of prompts; none takes the default corpus, which needs no download.
    text
        Token ids that were written before (npz, such as profiles/drafters/smollm2_text.npz).
    tokens
        Answer tokens to write before training.
    max_new_tokens
        Longest answer.
    steps
        Optimiser steps in all, those of earlier runs included.
    layers
        Drafter layers.
    gamma
        Drafts a block.
    head
        Sequential head; none is DFlash with a confidence head.
    rank
        Rank of the sequential head.
    draft_vocab
        Most frequent tokens that can be drafted.
    learning_rate
        Its peak.
    deepspec_loss
        The released code's loss: L1 without the half, decay constant 4.
    stop_gradient
        Keep the confidence loss out of the backbone.
    start_from
        Begin with this drafter's sizes and weights (a folder, or a shipped one such as
        smollm2_dspark); --layers, --gamma, --head, --rank and --draft-vocab are not read then.
    from_scratch
        Do not start from the target's last layers.
    soft_label
        Starting weight of the fading soft-label term.
    seed
        Of everything drawn.
    threads
        CPU threads; 1 if the machine is busy, else as many as there are cores.
    """
    from specsim.drafter import opening, runner
    from specsim.drafter.checkpoint import read_config, save_drafter
    from specsim.drafter.loss import LossConfig, Losses
    from specsim.drafter.textstore import load_shard, shards, write_token_file
    from specsim.drafter.train import TrainConfig
    from specsim.errors import InputError

    for name, value, least in (
        ("--tokens", tokens, 0),
        ("--max-new-tokens", max_new_tokens, 2),
        ("--steps", steps, 1),
        ("--layers", layers, 1),
        ("--gamma", gamma, 1),
        ("--rank", rank, 1),
        ("--draft-vocab", draft_vocab, 1),
        ("--soft-label", soft_label, 0),
    ):
        if not least <= value < math.inf:
            raise InputError(f"{name} is {value}, at least {least} is needed")
    if not 0 < learning_rate < 1:
        raise InputError(f"--learning-rate is {learning_rate}, legal is above 0 and below 1")
    start = None if start_from is None else drafter_folder(start_from)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out} cannot be made: {error.strerror or error}") from error
    prompts = prompts_of(corpus, seed)
    opening.set_threads(threads)
    target = opening.open_target(opening.EMBEDDED)
    if text is not None:
        runner.restore_store(out / "text", target, text)
    with progress(quiet=quiet) as show:
        answer_tokens = runner.fill_store(
            out / "text",
            target,
            prompts,
            tokens=tokens,
            max_new_tokens=max_new_tokens,
            seed=seed,
            progress=show,
        )
        texts = [t for p in shards(out / "text") for t in load_shard(p, target.embedding_VD)]
        if texts:
            write_token_file(out / "text.npz", texts)
        config = TrainConfig(
            steps=steps,
            sequences=4,
            anchors=24,
            learning_rate=learning_rate,
            bfloat16=opening.fast_bfloat16(),
            seed=seed,
            loss=LossConfig(deepspec=deepspec_loss, soft_label=soft_label),
        )
        trainer = runner.make_trainer(
            target,
            texts,
            config,
            layers=layers,
            gamma=gamma,
            markov_rank=0 if head == "none" else rank,
            head="vanilla" if head == "none" else head,
            draft_vocab=draft_vocab,
            stop_gradient=stop_gradient,
            from_target=not from_scratch,
            start_from=start,
        )
        checkpoint = out / "checkpoint.safetensors"
        if checkpoint.is_file():
            trainer.load(checkpoint)

        def tell(step: int, losses: Losses) -> None:
            seen = (
                f"loss {float(losses.total.detach()):.3f}, c* {float(losses.accept_K.mean()):.3f}"
            )
            show(step, steps, seen)

        trainer.run(
            lambda n, g: runner.draw_texts(texts, n, g),
            checkpoint=checkpoint,
            on_step=tell,
        )
    about = {
        **target.about,
        "steps": trainer.step,
        "blocks": trainer.step * config.sequences * config.anchors,
        "learning_rate": learning_rate,
        "seed": seed,
        "answer_tokens": answer_tokens,
        "loss": asdict(config.loss),
        "loss_temperature": 1.0,
    }
    if start is not None:
        about["started_from"] = read_config(start).get("specsim_training", start_from)
    save_drafter(
        trainer.drafter, out, num_target_layers=30, shared=True, extra={"specsim_training": about}
    )
    done = f"drafter after {trainer.step} steps in {out}\n"
    answer({"folder": str(out), "steps": trainer.step}, done, json=json)
    return 0
