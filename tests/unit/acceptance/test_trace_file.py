"""Whatever bytes stand in a trace file, the reader says one sentence or reads a sound trace."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest

from specsim.acceptance.trace import load_trace
from specsim.errors import InputError

N, GAMMA = 60, 4


def _write(path, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "confidence_NG": rng.random((N, GAMMA)).astype(np.float32),
        "num_accepted_N": rng.integers(0, GAMMA + 1, N).astype(np.uint8),
        "sequence_offset_S1": np.array([0, 30, N]),
        "sequence_domain_S": np.zeros(2, np.uint8),
        "metadata": np.array(json.dumps({"domain_names": ["x"]})),
    } | changes
    np.savez_compressed(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def _read(path):
    try:
        return load_trace(path).gamma
    except InputError as error:
        return error


@pytest.mark.parametrize("seed", range(60))
def test_flipped_and_cut_bytes_never_escape_as_another_error(tmp_path, seed) -> None:
    path = _write(tmp_path / "t.npz")
    rng, raw = np.random.default_rng(seed), bytearray(path.read_bytes())
    if seed % 5 == 0:
        del raw[int(rng.integers(len(raw))) :]
    else:
        for at in rng.integers(len(raw), size=1 + seed % 4):
            raw[at] ^= int(rng.integers(1, 256))
    path.write_bytes(bytes(raw))
    found = _read(path)
    assert found == GAMMA or (str(path) in str(found) and "\n" not in str(found))


BAD = {
    "domains of no sequence": {"sequence_domain_S": np.zeros(0, np.uint8), "metadata": None},
    "domains that are text": {"sequence_domain_S": np.array(["a", "b"]), "metadata": None},
    "offsets of an unsigned type that fall": {"sequence_offset_S1": np.array([0, 80, N], "u8")},
    "draft probabilities that are text": {"draft_prob_NG": np.full((N, GAMMA), "a")},
    "draft probabilities that are NaN": {"draft_prob_NG": np.full((N, GAMMA), np.nan)},
    "draft probabilities above 1": {"draft_prob_NG": np.full((N, GAMMA), 2.0)},
    "complex acceptance rates": {"accept_rate_NG": np.full((N, GAMMA), 1j)},
    "acceptance rates below 0": {"accept_rate_NG": np.full((N, GAMMA), -0.5)},
    "NaN in the metadata": {"metadata": np.array('{"model": NaN}')},
    "confidences of one axis": {"confidence_NG": np.full(N, 0.5)},
    "confidences of no draft": {"confidence_NG": np.zeros((N, 0))},
    "confidences that are counts": {"confidence_NG": np.ones((N, GAMMA), np.int64)},
    "a confidence above 1": {"confidence_NG": np.full((N, GAMMA), 1.5)},
    "counts of too few blocks": {"num_accepted_N": np.zeros(N - 1, np.uint8)},
    "counts of another type": {"num_accepted_N": np.zeros(N, np.int32)},
    "more accepted than drafted": {"num_accepted_N": np.full(N, GAMMA + 1, np.uint8)},
    "domains of another type": {"sequence_domain_S": np.zeros(2, np.int64)},
    "domains without a name": {"sequence_domain_S": np.ones(2, np.uint8)},
    "draft probabilities of another shape": {"draft_prob_NG": np.zeros((N, GAMMA - 1))},
    "metadata that is a number": {"metadata": np.array(3)},
    "metadata that is a list": {"metadata": np.array("[1]")},
    "metadata that is no JSON": {"metadata": np.array("{")},
    "metadata that is no text": {
        "metadata": np.array([2**31], np.uint32).view("U1")[0:1].reshape(())
    },
    "domain names that are one text": {"metadata": np.array('{"domain_names": "x"}')},
    "domain names that are numbers": {"metadata": np.array('{"domain_names": [1]}')},
}


@pytest.mark.parametrize("name", BAD)
def test_an_impossible_array_is_named(tmp_path, name) -> None:
    path = _write(tmp_path / "t.npz", **BAD[name])
    with pytest.raises(InputError) as caught:
        load_trace(path)
    assert str(path) in str(caught.value)
    (key, *_) = (key for key in BAD[name] if BAD[name][key] is not None)
    assert key in str(caught.value)


def test_other_archives_and_arrays_are_no_trace(tmp_path) -> None:
    members = tmp_path / "members.npz"
    with zipfile.ZipFile(members, "w") as archive:
        for name in ("confidence_NG", "num_accepted_N", "sequence_offset_S1", "sequence_domain_S"):
            archive.writestr(name, "x")
    with pytest.raises(InputError, match="cannot be read as an npz trace"):
        load_trace(members)
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    with pytest.raises(InputError, match="cannot be read as an npz trace"):
        load_trace(tmp_path / "array.npz")


def test_unsigned_offsets_mean_the_same(tmp_path) -> None:
    # 8-bit offsets would wrap where a block's length is taken off.
    trace = load_trace(_write(tmp_path / "t.npz", sequence_offset_S1=np.array([0, 2, N], "u1")))
    assert trace.sequence_offset_S1.dtype == np.int64
    assert trace.whole_block_N().sum() == N - 2 - (GAMMA - 1)


def test_gaps_are_legal_in_acceptance_rates_alone(tmp_path) -> None:
    rate_NG = np.full((N, GAMMA), np.nan)
    assert load_trace(_write(tmp_path / "t.npz", accept_rate_NG=rate_NG)).gamma == GAMMA
