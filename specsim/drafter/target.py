"""What a target must offer, and any Hugging Face causal LM made to offer it.

p = target law. Axes: B sequences, T new tokens, M chosen layers, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from specsim.errors import InputError, MissingDependencyError


class Cache(Protocol):
    """What is kept of the tokens read so far; lowering `length_B` rolls back."""

    length_B: Tensor

    def take_rows(self, row: Tensor) -> None:
        """Keep the sequences `row`, in that order."""


class Target(Protocol):
    """A causal LM: prefix -> hidden states, chosen layer outputs and logits."""

    def new_cache(self, batch: int, capacity: int) -> Any:
        """Return an empty cache for `batch` sequences of up to about `capacity` tokens."""

    def __call__(
        self, ids_BT: Tensor, count_B: Tensor, cache: Any, layers: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor]:
        """Read the first count_B tokens of each row: hidden [B, T, D], features [B, T, M, D]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V]."""


class SlotCache:
    """Cache of a Hugging Face model: slots are only added; a mask says which are still real.

    The library's own caches cannot hold rows of unequal length. Every read adds as many slots to
    all rows; padding and rolled-back tokens stay there and are masked.
    """

    def __init__(self, past: Any, batch: int) -> None:
        self.past = past
        self.position_BS = torch.zeros(batch, 0, dtype=torch.long)
        self.real_BS = torch.zeros(batch, 0, dtype=torch.bool)
        self._length_B = torch.zeros(batch, dtype=torch.long)

    @property
    def length_B(self) -> Tensor:
        """Tokens of each sequence."""
        return self._length_B

    @length_B.setter
    def length_B(self, value: Tensor) -> None:
        self.real_BS = self.real_BS & (self.position_BS < value[:, None])
        self._length_B = value

    def add(self, count_B: Tensor, new: int) -> Tensor:
        """Make room for `new` slots; returns the positions [B, T] of the new tokens."""
        step = torch.arange(new)
        position = self._length_B[:, None] + step
        self.position_BS = torch.cat((self.position_BS, position), dim=1)
        self.real_BS = torch.cat((self.real_BS, step < count_B[:, None]), dim=1)
        self._length_B = self._length_B + count_B
        return position

    def take_rows(self, row: Tensor) -> None:
        """Keep the sequences `row`, in that order."""
        self.past.batch_select_indices(row if row.dtype != torch.bool else row.nonzero()[:, 0])
        self.position_BS, self.real_BS = self.position_BS[row], self.real_BS[row]
        self._length_B = self._length_B[row]


class HuggingFaceTarget:
    """A causal LM of the transformers library.

    Features are decoder layer outputs taken by hooks, so that no layer is normed and the last
    one may be asked for. What goes in and comes out is on the CPU wherever the model is.
    """

    def __init__(self, model: Any) -> None:
        self.model = model.eval()
        self.config = model.config.get_text_config()
        self.layers = _decoder_layers(model)
        self._base = model.get_decoder() if hasattr(model, "get_decoder") else model.model

    @classmethod
    def load(cls, name: str, *, dtype: str, device: str) -> HuggingFaceTarget:
        """Load a model by hub name or folder.

        Raises:
            InputError: it is not there (no network, no such name).
        """
        try:
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise MissingDependencyError(
                "transformers is needed for --target: pip install 'specsim-serving[drafter]'"
            ) from error
        try:
            model = AutoModelForCausalLM.from_pretrained(name, dtype=getattr(torch, dtype))
        except (OSError, ValueError) as error:
            first = str(error).strip().splitlines()[0]
            raise InputError(
                f"target {name!r} cannot be loaded: {first}; give a hub name (with network access) "
                "or a folder with config.json and safetensors"
            ) from error
        return cls(model.to(device))

    def new_cache(self, batch: int, capacity: int) -> SlotCache:
        """Return an empty cache; `capacity` is only a hint here."""
        from transformers import DynamicCache

        del capacity
        return SlotCache(DynamicCache(), batch)

    @torch.inference_mode()
    def __call__(
        self, ids_BT: Tensor, count_B: Tensor, cache: SlotCache, layers: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor]:
        """Read the next tokens of every sequence; see `Llama.forward`."""
        kept: dict[int, Tensor] = {}
        hooks = [self.layers[i].register_forward_hook(_keeper(kept, i)) for i in layers if i >= 0]
        position = cache.add(count_B, ids_BT.shape[1])
        # Query t of row b sees the real slots that are not newer than itself.
        order = torch.arange(cache.real_BS.shape[1])
        own = order[-ids_BT.shape[1] :]
        see = cache.real_BS[:, None, :] & (order <= own[:, None])
        see = see | (order == own[:, None])  # padding sees itself: a row without keys gives NaN
        mask = torch.where(see[:, None], 0.0, torch.finfo(self.dtype).min)
        device = self._base.device
        try:
            out = self._base(
                input_ids=ids_BT.to(device),
                position_ids=position.to(device),
                attention_mask=mask.to(device, self.dtype),
                past_key_values=cache.past,
                use_cache=True,
            )
        finally:
            for hook in hooks:
                hook.remove()
        hidden = out.last_hidden_state
        if -1 in layers:
            kept[-1] = self.model.get_input_embeddings()(ids_BT.to(device))
        if not layers:
            return hidden.cpu(), torch.zeros(*hidden.shape[:2], 0, hidden.shape[-1])
        return hidden.cpu(), torch.stack([kept[i] for i in layers], dim=2).cpu()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        found: torch.dtype = self.model.dtype
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of final hidden states."""
        scores: Tensor = self.model.get_output_embeddings()(hidden.to(self._base.device)).float()
        softcap = getattr(self.config, "final_logit_softcapping", None)
        return (scores if not softcap else torch.tanh(scores / softcap) * softcap).cpu()


def _decoder_layers(model: Any) -> nn.ModuleList:
    for module in model.modules():
        layers = getattr(module, "layers", None) or getattr(module, "h", None)
        if isinstance(layers, nn.ModuleList):
            return layers
    raise InputError(f"{type(model).__name__} has no list of decoder layers that specsim knows")


def _keeper(kept: dict[int, Tensor], index: int) -> Any:
    def hook(module: nn.Module, args: Any, output: Any) -> None:
        kept[index] = output[0] if isinstance(output, tuple) else output

    return hook
