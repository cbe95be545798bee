"""The dense coupled trace: at every anchor, the block the drafter proposes there (decision 1).

p = target law, q = draft law. For a text y_1..y_N that the target wrote, row i holds the block
drafted with anchor y_i, drawn *given* the text by the reverse of speculative sampling, so that a
lossless policy can be replayed from one trace: accepted = min(verify_len, num_accepted), next
anchor = i + accepted + 1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specsim.archive import read_npz, write_npz
from specsim.errors import InputError
from specsim.jsontext import read_json

MAX_ANCHORS = 200_000_000
MAX_GAMMA = 64
_REQUIRED = ("confidence_NG", "num_accepted_N", "sequence_offset_S1", "sequence_domain_S")
_OPTIONAL = ("accept_rate_NG", "draft_prob_NG")
_LAST_CHARACTER = 0x10FFFF
_ROUNDING = 1e-3  # sums over a vocabulary may come out a little above 1


@dataclass(frozen=True, slots=True)
class DenseTrace:
    """Blocks at every anchor of S sequences, N anchors in all, gamma drafts each.

    Attributes:
        confidence_NG: P(draft k accepted | earlier ones were), as the head said, `[N, gamma]`.
        num_accepted_N: accepted drafts of the block under full verification, uint8 `[N]`.
        sequence_offset_S1: anchors of sequence s are rows `offset[s] .. offset[s+1] - 1`, `[S+1]`.
        sequence_domain_S: index into `domain_names`, uint8 `[S]`.
        domain_names: what the text is about, such as ("math", "code", "chat").
        accept_rate_NG: sum(min(p, q)) at draft k, NaN past the first rejection; or None.
        draft_prob_NG: q(x_k), probability of the token that the drafter sampled; or None.
        metadata: where the trace comes from: model, drafter, temperature, status
            (measured | synthetic), and `tilted` if it was moved.
    """

    confidence_NG: NDArray[np.floating[Any]]
    num_accepted_N: NDArray[np.uint8]
    sequence_offset_S1: NDArray[np.int64]
    sequence_domain_S: NDArray[np.uint8]
    domain_names: tuple[str, ...]
    accept_rate_NG: NDArray[np.floating[Any]] | None = None
    draft_prob_NG: NDArray[np.floating[Any]] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise InputError(f"trace: {problem}")
        # Whatever integers the file holds: arithmetic on unsigned ones would wrap.
        object.__setattr__(
            self, "sequence_offset_S1", self.sequence_offset_S1.astype(np.int64, copy=False)
        )

    @property
    def gamma(self) -> int:
        """Draft tokens a block."""
        return int(self.confidence_NG.shape[1])

    @property
    def num_anchors(self) -> int:
        """N."""
        return int(self.confidence_NG.shape[0])

    @property
    def num_sequences(self) -> int:
        """S."""
        return len(self.sequence_domain_S)

    def whole_block_N(self) -> NDArray[np.bool_]:
        """Say which blocks fit into their sequence, bool `[N]`.

        A sequence's text has one token more than it has anchors (the last token anchors nothing),
        so the blocks of its last gamma - 1 anchors are cut short by the end: their counts are
        biased, and statistics by position and replay leave them out.
        """
        whole_N = np.ones(self.num_anchors, dtype=bool)
        for start, end in zip(
            self.sequence_offset_S1[:-1], self.sequence_offset_S1[1:], strict=True
        ):
            whole_N[max(start, end - self.gamma + 1) : end] = False
        return whole_N

    def domain_N(self) -> NDArray[np.uint8]:
        """Return the domain index of every anchor, uint8 `[N]`."""
        return np.repeat(self.sequence_domain_S, np.diff(self.sequence_offset_S1))

    def _problem(self) -> str:
        """Say what is wrong with the arrays, or nothing."""
        c, accepted, offset = self.confidence_NG, self.num_accepted_N, self.sequence_offset_S1
        if c.ndim != 2 or not 1 <= c.shape[1] <= MAX_GAMMA or not 1 <= c.shape[0] <= MAX_ANCHORS:
            return (
                f"confidence_NG has shape {c.shape}; legal are [N, gamma] with 1 <= N <= "
                f"{MAX_ANCHORS} and 1 <= gamma <= {MAX_GAMMA}"
            )
        if not np.issubdtype(c.dtype, np.floating):
            return f"confidence_NG has dtype {c.dtype}; legal are float16, float32, float64"
        bad = ~((c >= 0) & (c <= 1))
        if bad.any():
            row, k = np.argwhere(bad)[0]
            return (
                f"confidence_NG[{row}, {k}] is {c[row, k]}; a probability in [0, 1] is needed "
                f"({int(bad.sum())} such values)"
            )
        if accepted.shape != (c.shape[0],) or accepted.dtype != np.uint8:
            return (
                f"num_accepted_N has shape {accepted.shape} and dtype {accepted.dtype}; "
                f"[{c.shape[0]}] of uint8 is needed"
            )
        if accepted.max(initial=0) > c.shape[1]:
            row = int(np.argmax(accepted > c.shape[1]))
            return f"num_accepted_N[{row}] is {accepted[row]}, more than gamma = {c.shape[1]}"
        if (
            offset.ndim != 1
            or not np.issubdtype(offset.dtype, np.integer)
            or len(offset) < 2
            or offset[0] != 0
            or offset[-1] != c.shape[0]
            or (offset[1:] < offset[:-1]).any()
        ):
            return (
                "sequence_offset_S1 must rise from 0 to the number of anchors "
                f"({c.shape[0]}) in integers"
            )
        if self.sequence_domain_S.shape != (len(offset) - 1,):
            return (
                f"sequence_domain_S has shape {self.sequence_domain_S.shape}; one domain for each "
                f"of the {len(offset) - 1} sequences is needed"
            )
        if self.sequence_domain_S.dtype != np.uint8:
            return f"sequence_domain_S has dtype {self.sequence_domain_S.dtype}; uint8 is needed"
        if self.sequence_domain_S.max(initial=0) >= len(self.domain_names):
            return (
                f"sequence_domain_S names domain {self.sequence_domain_S.max()}, but there are "
                f"only {len(self.domain_names)} domain names"
            )
        for name, array, gaps in (
            ("accept_rate_NG", self.accept_rate_NG, True),
            ("draft_prob_NG", self.draft_prob_NG, False),
        ):
            if array is None:
                continue
            if array.shape != c.shape or not np.issubdtype(array.dtype, np.floating):
                return (
                    f"{name} has shape {array.shape} and dtype {array.dtype}; floats of "
                    f"confidence_NG's shape {c.shape} are needed"
                )
            bad = ~((array >= 0) & (array <= 1 + _ROUNDING)) & ~(gaps & np.isnan(array))
            if bad.any():
                row, k = np.argwhere(bad)[0]
                return (
                    f"{name}[{row}, {k}] is {array[row, k]}; a probability in [0, 1] is needed "
                    f"({int(bad.sum())} such values)"
                )
        return ""


def load_trace(path: Path) -> DenseTrace:
    """Read a trace from `path` (npz, no pickle).

    Raises:
        InputError: the file is missing, is no trace, or holds impossible values.
    """
    optional = (*_OPTIONAL, "metadata")
    arrays = read_npz(path, required=_REQUIRED, optional=optional, what="trace")
    metadata = _metadata(arrays.pop("metadata"), path) if "metadata" in arrays else {}
    if not isinstance(metadata, dict):
        raise InputError(f"{path}: metadata is not a JSON object")
    names = metadata.get("domain_names")
    if names is None:
        domain_S = arrays["sequence_domain_S"]
        count = 1 + int(domain_S.max(initial=0)) if domain_S.dtype == np.uint8 else 1
        names = [f"domain_{i}" for i in range(count)]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{path}: metadata.domain_names is not a list of names")
    try:
        return DenseTrace(**arrays, domain_names=tuple(names), metadata=metadata)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _metadata(array: NDArray[Any], path: Path) -> Any:
    # numpy takes any 32 bits for a character, and Python falls over those that are none.
    if array.shape != () or array.dtype.kind != "U":
        raise InputError(f"{path}: metadata is {array.dtype} {array.shape}, not one text")
    if array.dtype.itemsize and array.reshape(1).view(np.uint32).max() > _LAST_CHARACTER:
        raise InputError(f"{path}: metadata is no text: it holds numbers that are no characters")
    # NaN is legal in Python's JSON and in no other.
    value, problem = read_json(str(array), where=f"{path}: metadata", nan=False)
    if problem is not None:
        raise InputError(str(problem))
    return value


def save_trace(trace: DenseTrace, path: Path) -> None:
    """Write `trace` to `path` as a compressed npz; metadata goes in as JSON text.

    Raises:
        InputError: the disk is full or the folder cannot be written.
    """
    metadata = dict(trace.metadata) | {"domain_names": list(trace.domain_names)}
    arrays: dict[str, Any] = {name: getattr(trace, name) for name in _REQUIRED}
    arrays |= {name: getattr(trace, name) for name in _OPTIONAL if getattr(trace, name) is not None}
    write_npz(path, arrays | {"metadata": np.array(json.dumps(metadata, sort_keys=True))})
