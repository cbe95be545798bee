"""Training a DSpark drafter on text that the target wrote.

Axes: B sequences of a step, A anchors of a sequence, G slots, N positions, D width, V draft
vocabulary. The caller decides how long by steps, never by the clock; progress goes to a callback.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from specsim.drafter.dspark import BlockLayer, DSpark, DSparkConfig
from specsim.drafter.llama import Llama, LlamaLayer
from specsim.drafter.loss import LossConfig, Losses, block_loss, position_weight
from specsim.drafter.tensors import read_tensors, write_tensors
from specsim.drafter.textstore import Text
from specsim.errors import InputError


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How to train.

    Attributes:
        steps: optimiser steps of the whole schedule, resumed runs included.
        sequences: sequences a step (B).
        anchors: anchors drawn of each, uniformly without replacement (A).
        learning_rate: its peak.
        warmup: share of the steps that it rises.
        bfloat16: whether matrix products run in bfloat16 (GPUs, CPUs with AMX).
        checkpoint_every: steps between checkpoints.
        patience: evaluations without a better loss before it stops early; 0 for never.
        seed: draws anchors and sequences.
    """

    steps: int
    sequences: int = 8
    anchors: int = 32
    learning_rate: float = 6e-4
    warmup: float = 0.04
    weight_decay: float = 0.0
    clip: float = 1.0
    bfloat16: bool = False
    checkpoint_every: int = 200
    patience: int = 0
    seed: int = 0
    loss: LossConfig = field(default_factory=LossConfig)


@dataclass(frozen=True, slots=True)
class Batch:
    """B sequences, padded, with A anchors each; `valid_BAG` marks slots inside the text."""

    features_BNMD: Tensor
    following_BN: Tensor
    anchor_BA: Tensor
    position_BA: Tensor
    previous_BAG: Tensor
    next_BAG: Tensor
    hidden_BAGD: Tensor
    log_sum_BAG: Tensor
    valid_BAG: Tensor


def collate(
    texts: Sequence[Text], anchors: int, gamma: int, generator: torch.Generator
) -> Batch | None:
    """Draw anchors among the answers' tokens and gather what each slot is scored against.

    Returns:
        The batch, or None where no text has an anchor.
    """
    usable = [t for t in texts if len(t.tokens_N) - t.prompt_tokens >= 2]
    if not usable:
        return None
    width = max(len(t.features_NMD) for t in usable)
    batch = len(usable)
    features = usable[0].features_NMD.new_zeros(batch, width, *usable[0].features_NMD.shape[1:])
    following = torch.zeros(batch, width, dtype=torch.long)
    position = torch.zeros(batch, anchors, dtype=torch.long)
    drawn = torch.zeros(batch, anchors, dtype=torch.bool)
    offset = torch.arange(gamma)
    slots: list[tuple[Tensor, ...]] = []
    for b, text in enumerate(usable):
        features[b, : len(text.features_NMD)] = text.features_NMD
        following[b, : len(text.features_NMD)] = text.tokens_N[1:]
        last = len(text.tokens_N) - 2
        choice = torch.randperm(last - text.prompt_tokens + 1, generator=generator)[:anchors]
        position[b, : len(choice)] = choice.sort().values + text.prompt_tokens
        position[b, len(choice) :] = text.prompt_tokens
        drawn[b, : len(choice)] = True
        at = position[b, :, None] + offset
        inside = (at <= last) & drawn[b, :, None]
        at = at.clamp(max=last)
        slots.append(
            (
                text.tokens_N[at],
                text.tokens_N[at + 1],
                text.hidden_ND[at],
                text.log_sum_N[at],
                inside,
            )
        )
    previous, target, hidden, sums, valid = (torch.stack(part) for part in zip(*slots, strict=True))
    anchor = previous[..., 0]
    return Batch(features, following, anchor, position, previous, target, hidden, sums, valid)


def initialise_from_target(drafter: DSpark, target: Llama, *, scale: float = 0.5) -> None:
    """Start from the target: its last layers, outputs scaled, and fc = the last chosen feature.

    Total variation has almost no gradient while draft and target hardly overlap; from here it has.
    """
    config, source = drafter.config, target.config
    if (config.d_model, config.num_heads, config.d_ffn) != (
        source.d_model,
        source.num_heads,
        source.d_ffn,
    ):
        raise InputError(
            f"a drafter of width {config.d_model}, {config.num_heads} heads and ffn {config.d_ffn} "
            f"cannot start from a target of {source.d_model}, {source.num_heads} and {source.d_ffn}"
        )
    kv = source.num_kv_heads * source.head_dim
    last = list(target.layers)[-config.num_layers :]
    with torch.no_grad():
        for layer, old in zip(drafter.layers, last, strict=True):
            assert isinstance(layer, BlockLayer)
            assert isinstance(old, LlamaLayer)
            q, k, v = torch.split(old.qkv.weight.float(), [source.d_model, kv, kv])
            gate, up = old.gate_up.weight.float().chunk(2)
            attention, mlp = layer.self_attn, layer.mlp
            for new, value in (
                (attention.q_proj.weight, q),
                (attention.k_proj.weight, k),
                (attention.v_proj.weight, v),
                (attention.o_proj.weight, old.out.weight.float() * scale),
                (mlp.gate_proj.weight, gate),
                (mlp.up_proj.weight, up),
                (mlp.down_proj.weight, old.down.weight.float() * scale),
                (layer.input_layernorm.weight, old.norm_attn),
                (layer.post_attention_layernorm.weight, old.norm_ffn),
            ):
                new.copy_(value)
        drafter.fc.weight.mul_(0.1)
        drafter.fc.weight[:, -config.d_model :] += torch.eye(config.d_model)
        drafter.norm.weight.copy_(target.norm)


def new_drafter(
    config: DSparkConfig, target: Llama, token_id_V: Tensor, *, from_target: bool
) -> DSpark:
    """Make a drafter over the target's embedding and the head rows of its draft vocabulary."""
    drafter = DSpark(config)
    with torch.no_grad():
        drafter.embed_tokens.weight.copy_(target.embed.weight)
        drafter.lm_head.weight.copy_(target.embed.weight[token_id_V])
    drafter.token_id_V = token_id_V.clone()
    if from_target:
        initialise_from_target(drafter, target)
    return drafter


def trainable(drafter: DSpark) -> DSpark:
    """Make a loaded drafter learn again: all of it but the copies of the target's parts."""
    drafter.train().requires_grad_(True)
    drafter.embed_tokens.requires_grad_(False)
    drafter.lm_head.requires_grad_(False)
    return drafter


class Trainer:
    """A drafter, its optimiser and its place in the schedule; one object a run."""

    def __init__(self, drafter: DSpark, config: TrainConfig) -> None:
        self.drafter = drafter
        self.config = config
        self.step = 0
        self.generator = torch.Generator().manual_seed(config.seed)
        self.parameters = {n: p for n, p in drafter.named_parameters() if p.requires_grad}
        self.optimiser = torch.optim.AdamW(
            self.parameters.values(),
            lr=config.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=config.weight_decay,
            fused=True,
        )
        inverse = torch.full((drafter.config.vocab_size,), -1)
        inverse[drafter.token_id_V] = torch.arange(len(drafter.token_id_V))
        self._draft_index_V = inverse

    def losses(self, batch: Batch, *, soft_label: float = 0.0) -> Losses:
        """Score one batch; slots past the text's end have no weight."""
        drafter = self.drafter
        keep = batch.valid_BAG.flatten()
        with torch.no_grad():
            hidden = batch.hidden_BAGD.flatten(0, 2)[keep].float()
            scores = hidden @ drafter.lm_head.weight.T
            target = (scores - batch.log_sum_BAG.flatten()[keep][:, None]).exp_()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.bfloat16):
            context = drafter.context(batch.features_BNMD, batch.following_BN)
            logits, confidence = drafter.score(batch.previous_BAG, batch.position_BA, context)
        gamma = drafter.config.gamma
        weight = position_weight(gamma, deepspec=self.config.loss.deepspec)
        weight = weight.expand(len(keep) // gamma, gamma).flatten()[keep]
        return block_loss(
            logits.flatten(0, 2)[keep],
            None if confidence is None else confidence.flatten()[keep],
            target,
            self._draft_index_V[batch.next_BAG.flatten()[keep]],
            weight,
            self.config.loss,
            soft_label=soft_label,
        )

    def learning_rate(self) -> float:
        """Rate of the present step: linear rise, then cosine down to 2 % of the peak."""
        c = self.config
        rise = max(1, round(c.warmup * c.steps))
        if self.step < rise:
            return c.learning_rate * (self.step + 1) / rise
        done = min(1.0, (self.step - rise) / max(1, c.steps - rise))
        return c.learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))

    def update(self, batch: Batch) -> Losses:
        """Take one optimiser step.

        Raises:
            InputError: the loss is not finite; parameters are untouched by it.
        """
        fade = max(0.0, 1 - 2 * self.step / self.config.steps)
        losses = self.losses(batch, soft_label=self.config.loss.soft_label * fade)
        if not torch.isfinite(losses.total):
            found = float(losses.total.detach())
            raise InputError(
                f"the training loss is {found} at step {self.step}: the last good checkpoint "
                "is kept; lower --learning-rate and resume"
            )
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate()
        self.optimiser.zero_grad(set_to_none=True)
        losses.total.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.config.clip)
        self.optimiser.step()
        self.step += 1
        return losses

    def run(
        self,
        next_texts: Callable[[int, torch.Generator], Sequence[Text]],
        *,
        checkpoint: Path | None = None,
        until: int | None = None,
        on_step: Callable[[int, Losses], None] | None = None,
        evaluate: Callable[[], float] | None = None,
    ) -> None:
        """Train to `until` (default: the schedule's end), from wherever this trainer is.

        Args:
            next_texts: gives that many sequences, drawn with the generator.
            checkpoint: file to write every `checkpoint_every` steps and at the end.
            until: step to stop before.
            on_step: progress, called after each step.
            evaluate: held-out loss at each checkpoint, for early stopping.
        """
        best, bad = math.inf, 0
        end = self.config.steps if until is None else min(until, self.config.steps)
        while self.step < end:
            texts = next_texts(self.config.sequences, self.generator)
            batch = collate(texts, self.config.anchors, self.drafter.config.gamma, self.generator)
            if batch is None:
                raise InputError("no text is long enough for an anchor: generate more text")
            losses = self.update(batch)
            if on_step is not None:
                on_step(self.step, losses)
            if self.step % self.config.checkpoint_every == 0 or self.step == end:
                if checkpoint is not None:
                    self.save(checkpoint)
                if evaluate is not None and self.config.patience:
                    score = evaluate()
                    best, bad = (score, 0) if score < best else (best, bad + 1)
                    if bad >= self.config.patience:
                        return

    def save(self, path: Path) -> None:
        """Write parameters, optimiser moments, step and generator, whole or not at all.

        Raises:
            InputError: the disk is full or the folder cannot be written.
        """
        tensors = {f"param.{n}": p.detach().contiguous() for n, p in self.parameters.items()}
        for name, parameter in self.parameters.items():
            state = self.optimiser.state.get(parameter, {})
            for key in ("exp_avg", "exp_avg_sq", "step"):
                if key in state:
                    tensors[f"{key}.{name}"] = state[key].detach().clone()
        tensors["schedule.step"] = torch.tensor(self.step)
        tensors["schedule.generator"] = self.generator.get_state()
        tensors["token_id"] = self.drafter.token_id_V
        write_tensors(tensors, path)

    def load(self, path: Path) -> None:
        """Take up a run where `save` left it.

        Raises:
            InputError: the checkpoint is damaged or of another drafter.
        """
        tensors = read_tensors(path)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                found = tensors.get(f"param.{name}")
                if found is None or found.shape != parameter.shape:
                    raise InputError(
                        f"{path}: tensor {name}: expected {list(parameter.shape)}, found "
                        f"{'none' if found is None else list(found.shape)}: it belongs to another "
                        "drafter"
                    )
                parameter.copy_(found)
                if f"exp_avg.{name}" in tensors:
                    self.optimiser.state[parameter] = {
                        key: tensors[f"{key}.{name}"] for key in ("step", "exp_avg", "exp_avg_sq")
                    }
        self.step = int(tensors["schedule.step"])
        self.generator.set_state(tensors["schedule.generator"])
