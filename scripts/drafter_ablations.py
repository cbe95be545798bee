"""Train drafters for the tiny target and measure them: reports/drafter/ablations.json.

    python scripts/drafter_ablations.py

Makes the data of `reports/drafter` (depth, block size, sequential head, three drafters, and the
draft loop's share of a round). A run that is already in the file is not repeated; delete the file
to start over. About twenty minutes of one core.

Drafters with and without the Markov head are compared on the same texts, without sampling noise:
given a text y, block position k is reached with probability S = prod over j < k of
min(1, q(y_j) / p(y_j)), and accepts with probability c = sum min(p, q), so the conditional
acceptance is sum(S c) / sum(S) over anchors. Intervals of the difference resample texts.
"""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specsim.acceptance.lint import conditional_acceptance
from specsim.drafter import smollm2, tiny
from specsim.drafter.capture import answer_laws, couple
from specsim.drafter.corpus import DOMAINS
from specsim.drafter.drafting import Sampling
from specsim.drafter.dspark import DSpark, DSparkConfig
from specsim.drafter.eagle import Eagle3
from specsim.drafter.generate import Written, write
from specsim.drafter.llama import Llama
from specsim.drafter.loss import LossConfig
from specsim.drafter.runner import draw_texts
from specsim.drafter.textstore import Text, log_sum
from specsim.drafter.train import TrainConfig, Trainer
from specsim.rng import stream

OUT = Path(__file__).parents[1] / "reports" / "drafter" / "ablations.json"
CACHE = smollm2.cache_dir().parent / "tiny-target"
LAYERS = (0, 1, 2)
TARGET_STEPS, DRAFTER_STEPS = 350, 160
TEXTS_TRAIN, TEXTS_TEST, PROMPT, ANSWER = 700, 240, 24, 104


def target() -> tuple[Llama, dict[str, float]]:
    """The tiny target, trained once; parameters are kept in the user's cache."""
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    model = tiny.new(0)
    path = CACHE / "target.safetensors"
    if path.is_file():
        with safe_open(str(path), framework="pt") as file:
            how = json.loads((file.metadata() or {}).get("how", "{}"))
        if how:
            model.load_state_dict(load_file(str(path)))
            return model.eval(), how
    losses: list[float] = []
    batches = tiny.windows(DOMAINS, stream(0, "tiny/windows"), batch=24, length=160)
    began = time.process_time()
    tiny.train(model, batches, steps=TARGET_STEPS, progress=lambda _, loss: losses.append(loss))
    how = {"loss": float(np.mean(losses[-20:])), "cpu_s": time.process_time() - began}
    CACHE.mkdir(parents=True, exist_ok=True)
    parameters = {k: v.contiguous() for k, v in model.state_dict().items()}
    save_file(parameters, str(path), metadata={"how": json.dumps(how)})
    return model.eval(), how


def texts(model: Llama, seed: int, count: int) -> list[Written]:
    """Texts that the target wrote after the first characters of fresh ones of each domain."""
    rng = stream(seed, "tiny/prompts")
    streams = [tiny.sentences(domain, rng) for domain in DOMAINS]
    prompts = [(tiny.encode(next(streams[i % 3]))[:PROMPT], i % 3) for i in range(count)]
    generator = torch.Generator().manual_seed(seed)
    return list(
        write(
            model, iter(prompts), generator, slots=192, max_new_tokens=ANSWER,
            capacity=PROMPT + ANSWER, eos_id=tiny.EOS, layers=LAYERS,
        )
    )  # fmt: skip


def as_text(one: Written, head: torch.Tensor) -> Text:
    hidden = torch.cat(one.hidden)
    features = torch.cat(one.features)
    sums = log_sum(hidden.float(), head)
    ids = torch.tensor(one.tokens)
    return Text(ids, one.prompt_tokens, one.domain, features, hidden, sums)


def build(
    model: Llama, kind: str, depth: int, gamma: int, *, seed: int
) -> tuple[DSpark | Eagle3, DSparkConfig]:
    c = model.config
    config = DSparkConfig(
        vocab_size=c.vocab_size, d_model=c.d_model, num_layers=depth, num_heads=c.num_heads,
        num_kv_heads=c.num_kv_heads, head_dim=c.head_dim, d_ffn=c.d_ffn, rope_base=c.rope_base,
        norm_eps=c.norm_eps, gamma=gamma, target_layer_ids=LAYERS, mask_token_id=tiny.MASK,
        draft_vocab_size=c.vocab_size, markov_rank=32 if kind == "markov" else 0,
        confidence=kind == "markov",
    )  # fmt: skip
    torch.manual_seed(seed)
    drafter: DSpark | Eagle3 = Eagle3(config) if kind == "eagle" else DSpark(config)
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(model.embed.weight)
        drafter.lm_head.weight.copy_(model.embed.weight)
    return drafter, config


def measure(drafter: DSpark | Eagle3, model: Llama, held: list[Written]) -> dict[str, Any]:
    """Conditional acceptance by position and acceptance length, over whole blocks."""
    generator = torch.Generator().manual_seed(7)
    gamma = drafter.config.gamma
    accepted: list[list[int]] = [[], [], []]
    for one in held:
        if len(one.tokens) - one.prompt_tokens <= gamma + 1:
            continue
        laws = answer_laws(one, model.logits, drafter.token_id_V, Sampling())
        blocks = couple(drafter, one, laws, Sampling(), generator)
        accepted[one.domain] += blocks.num_accepted_A[
            : len(blocks.num_accepted_A) - gamma + 1
        ].tolist()
    out: dict[str, Any] = {}
    for name, values in zip(DOMAINS, accepted, strict=True):
        counts = np.array(values)
        rate = conditional_acceptance(counts, gamma)
        reached = [(counts >= k).sum() for k in range(gamma)]
        out[name] = {
            "conditional": [round(float(r), 4) for r in rate],
            "standard_error": [
                round(float(np.sqrt(r * (1 - r) / max(1, n))), 4)
                for r, n in zip(rate, reached, strict=True)
            ],
            "acceptance_length": round(1 + float(counts.mean()), 4),
            "blocks": len(counts),
        }
    return out


@torch.inference_mode()
def reach_and_accept(
    drafter: DSpark | Eagle3, model: Llama, held: list[Written]
) -> list[tuple[int, np.ndarray, np.ndarray]]:
    """For each text: domain, sum over whole blocks of S [G] and of S c [G] (see the top)."""
    gamma = drafter.config.gamma
    out = []
    for one in held:
        tokens = torch.tensor(one.tokens)
        anchors = len(tokens) - one.prompt_tokens - gamma
        if anchors < 1:
            continue
        p_NV = answer_laws(one, model.logits, drafter.token_id_V, Sampling())
        position = torch.arange(one.prompt_tokens, one.prompt_tokens + anchors)
        context = drafter.context(torch.cat(one.features)[None], tokens[None, 1:])
        block = drafter.begin(tokens[position][None], position[None], context)
        reach = torch.ones(anchors, dtype=torch.float64)
        reached, accepted = np.zeros(gamma), np.zeros(gamma)
        for k in range(gamma):
            q = Sampling().law(block.step(tokens[position + k][None])[0][0])
            p = p_NV[k : k + anchors]
            true = tokens[position + k + 1][:, None]
            reached[k] = reach.sum()
            accepted[k] = (reach * torch.minimum(p, q).sum(-1)).sum()
            reach = reach * (q.gather(1, true) / p.gather(1, true))[:, 0].clamp(max=1)
        out.append((one.domain, reached, accepted))
    return out


def compare(
    first: list[tuple[int, np.ndarray, np.ndarray]],
    second: list[tuple[int, np.ndarray, np.ndarray]],
) -> dict[str, Any]:
    """First minus second, by domain: conditional acceptance at each position, 95 % over texts."""
    rng = stream(0, "ablations/compare")
    out: dict[str, Any] = {}
    for index, domain in enumerate(DOMAINS):
        data = np.array(
            [(a[1], a[2], b[1], b[2]) for a, b in zip(first, second, strict=True) if a[0] == index]
        )  # [texts, 4, G]
        weights = rng.multinomial(len(data), np.full(len(data), 1 / len(data)), size=2000)
        sums = np.einsum("rt,tcg->rcg", np.vstack((np.ones(len(data)), weights)), data)
        rate, other = sums[:, 1] / sums[:, 0], sums[:, 3] / sums[:, 2]
        low, high = np.quantile((rate - other)[1:], (0.025, 0.975), axis=0)
        out[domain] = {
            "first": rate[0].round(4).tolist(), "second": other[0].round(4).tolist(),
            "difference": (rate - other)[0].round(4).tolist(),
            "low": low.round(4).tolist(), "high": high.round(4).tolist(),
        }  # fmt: skip
    return out


def draft_share(drafter: DSpark | Eagle3, model: Llama) -> dict[str, float]:
    """CPU time of the parts of a round of 32 sequences, in ms: parallel part, head loop, target."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, tiny.VOCAB, (32, 64), generator=generator)
    gamma = drafter.config.gamma
    count = torch.full((32,), 64)
    cache = model.new_cache(32, 96)
    spent = {"block_ms": 0.0, "loop_ms": 0.0, "verify_ms": 0.0}
    rounds = 20
    with torch.inference_mode():
        _, features = model(ids, count, cache, LAYERS)
        context = drafter.context(features, torch.roll(ids, -1, 1))
        for repeat in range(rounds + 2):
            if repeat == 2:  # the first two warm up
                spent = dict.fromkeys(spent, 0.0)
            begin = time.process_time()
            block = drafter.begin(ids[:, -1:], torch.full((32, 1), 64), context)
            middle = time.process_time()
            previous = ids[:, -1:]
            for _ in range(gamma):
                logits, _ = block.step(previous)
                previous = Sampling().law(logits).argmax(-1)
            end = time.process_time()
            cache.length_B = count.clone()
            model.logits(model(ids[:, : gamma + 1], torch.full((32,), gamma + 1), cache)[0])
            spent["block_ms"] += 1e3 * (middle - begin) / rounds
            spent["loop_ms"] += 1e3 * (end - middle) / rounds
            spent["verify_ms"] += 1e3 * (time.process_time() - end) / rounds
    return {name: round(value, 3) for name, value in spent.items()}


# Steps and training texts of a run.
SHORT, LONG = (DRAFTER_STEPS, TEXTS_TRAIN), (4 * DRAFTER_STEPS, TEXTS_TRAIN)
LONGEST = (16 * DRAFTER_STEPS, 4 * TEXTS_TRAIN)
RUNS = [
    ("markov", 2, 7, SHORT), ("none", 2, 7, SHORT), ("eagle", 1, 7, SHORT),
    ("markov", 2, 11, SHORT), ("none", 2, 11, SHORT),
    ("markov", 2, 3, SHORT), ("none", 2, 3, SHORT),
    ("markov", 1, 7, SHORT), ("markov", 3, 7, SHORT),
    ("markov", 2, 7, LONG), ("none", 2, 7, LONG),
    ("markov", 2, 7, LONGEST), ("none", 2, 7, LONGEST), ("eagle", 1, 7, LONGEST),
]  # fmt: skip


def title(kind: str, depth: int, gamma: int, effort: tuple[int, int]) -> str:
    """Name of a run; the usual numbers of steps and texts are not said."""
    steps, count = effort
    more = "" if steps == DRAFTER_STEPS else f" steps {steps}"
    more += "" if count == TEXTS_TRAIN else f" texts {count}"
    return f"{kind} depth {depth} gamma {gamma}{more}"


def training_texts(model: Llama, count: int) -> list[Text]:
    """Texts to learn from, those that are too short left out."""
    long = [t for t in texts(model, 1, count) if len(t.tokens) > PROMPT + 20]
    return [as_text(one, model.embed.weight) for one in long]


def main() -> None:
    torch.set_num_threads(1)
    body: dict[str, Any] = json.loads(OUT.read_text()) if OUT.is_file() else {"runs": {}}
    model, how = target()
    model.requires_grad_(False)
    body["target"] = {
        **how,
        "steps": TARGET_STEPS,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    held = texts(model, 2, TEXTS_TEST)
    train = {TEXTS_TRAIN: training_texts(model, TEXTS_TRAIN)}
    body["texts"] = {
        "train_tokens": sum(len(t.tokens_N) - t.prompt_tokens for t in train[TEXTS_TRAIN]),
        "held_out": len(held),
    }
    sums: dict[str, list[tuple[int, np.ndarray, np.ndarray]]] = {}
    for kind, depth, gamma, effort in RUNS:
        name = title(kind, depth, gamma, effort)
        if name in body["runs"]:
            continue
        steps, count = effort
        if count not in train:
            train[count] = training_texts(model, count)
        drafter, _ = build(model, kind, depth, gamma, seed=depth)
        config = TrainConfig(
            steps=steps, sequences=8, anchors=16, learning_rate=3e-3, seed=4,
            loss=LossConfig(soft_label=0.5),
        )  # fmt: skip
        trainer = Trainer(drafter, config)
        began = time.process_time()
        trainer.run(partial(draw_texts, train[count]))
        drafter.eval().requires_grad_(False)
        body["runs"][name] = {
            "kind": kind, "depth": depth, "gamma": gamma, "steps": steps, "texts": count,
            "cpu_s": round(time.process_time() - began, 1),
            "domains": measure(drafter, model, held),
            "round": draft_share(drafter, model),
        }  # fmt: skip
        sums[name] = reach_and_accept(drafter, model, held)
        head = title("markov", depth, gamma, effort)
        if kind == "none" and head in sums:
            pairs = body.setdefault("markov_minus_none", {})
            pairs[name.removeprefix("none ")] = compare(sums[head], sums[name])
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(json.dumps(body, indent=1) + "\n")
        found = body["runs"][name]["domains"]
        print(
            name,
            body["runs"][name]["cpu_s"],
            {d: v["conditional"] for d, v in found.items()},
            flush=True,
        )


if __name__ == "__main__":
    main()
