"""Small files that claim to be large: refused before anything is allocated."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from specsim.acceptance.trace import load_trace
from specsim.archive import read_npz
from specsim.errors import InputError, ScenarioError
from specsim.scenario.load import load_scenario
from tests.fuzz_targets import archive, npy, safetensors

MIB = 1 << 20
NAMES = ("confidence_NG", "num_accepted_N", "sequence_offset_S1", "sequence_domain_S")


@contextmanager
def within(limit_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit_bytes
    finally:
        tracemalloc.stop()


def header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (63 - (len(text) + 10) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_a_header_that_claims_a_terabyte(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    members = [(f"{name}.npy", npy(np.zeros(2))) for name in NAMES]
    members[0] = (members[0][0], header("(250000000000,)") + b"\0" * 64)
    path.write_bytes(archive(members))
    with within(8 * MIB), pytest.raises(InputError, match="which is 1000000000000 bytes, but 64"):
        load_trace(path)


def test_zeros_packed_a_thousandfold(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        with made.open(f"{NAMES[0]}.npy", "w", force_zip64=True) as member:
            member.write(header(f"({257 * MIB},)", "|u1"))
            for _ in range(257):
                member.write(bytes(MIB))
        for name in NAMES[1:]:
            made.writestr(f"{name}.npy", npy(np.zeros(2)))
    assert path.stat().st_size < MIB
    with within(8 * MIB), pytest.raises(InputError, match="claims to unpack to"):
        load_trace(path)


def test_a_member_that_is_longer_than_its_directory_says(tmp_path: Path) -> None:
    good = archive([("a.npy", npy(np.arange(100)))])
    at = good.rindex(b"PK\x01\x02")
    size = struct.unpack_from("<I", good, at + 24)[0]
    for offset in (at + 24, 22):  # in the directory, and before the member
        changed = bytearray(good)
        struct.pack_into("<I", changed, offset, size - 8)
        path = tmp_path / "a.npz"
        path.write_bytes(bytes(changed))
        if offset == 22:
            # zipfile goes by the directory, which is right.
            assert len(read_npz(path, required=["a"], what="test")["a"]) == 100
            continue
        with pytest.raises(InputError, match="damaged"):
            read_npz(path, required=["a"], what="test")


def test_objects_are_never_read(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(InputError, match="pickles are never read"):
        read_npz(path, required=["a"], what="test")


def test_arrays_come_back_as_they_were_written(tmp_path: Path) -> None:
    wanted = {
        "f": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "c": np.arange(6, dtype=np.uint8).reshape(2, 3),
        "s": np.array("text"),
        "e": np.zeros((0, 3), np.float16),
    }
    for save in (np.savez, np.savez_compressed):
        path = tmp_path / "a.npz"
        save(path, **wanted)
        found = read_npz(path, required=["f", "c", "s"], optional=["e", "not_there"], what="test")
        assert found.keys() == wanted.keys()
        for name, array in wanted.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_array_equal(found[name], array)
            found[name][...] = found[name]  # writable, as arrays from np.load are


def test_members_outside_the_folder_are_nobodys_business(tmp_path: Path) -> None:
    path = tmp_path / "inner" / "a.npz"
    path.parent.mkdir()
    path.write_bytes(archive([("a.npy", npy(np.arange(3))), ("../escaped.npy", b"x")]))
    assert list(read_npz(path, required=["a"], what="test")) == ["a"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["inner"]


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        LAUGHS,
        "a: &a {b: *a}\n",
        "[" * 5_000,
        "{a: " * 2_000,
        "- " * 5_000 + "x\n",
        "a: " + "x" * 200_000,
        "!!python/object/apply:os.system [id]\n",
    ],
    ids=["laughs", "itself", "brackets", "braces", "dashes", "long", "python"],
)  # fmt: skip
def test_yaml_bombs_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError):
        load_scenario(path)


def test_a_config_cannot_ask_for_more_than_its_weights_hold(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from specsim.drafter.checkpoint import load_drafter

    config = {
        "hidden_size": 8192, "num_attention_heads": 64, "num_hidden_layers": 4,
        "vocab_size": 1_000_000, "intermediate_size": 1_000_000, "block_size": 7,
        "target_layer_ids": [1], "mask_token_id": 0,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes(safetensors(b"{}", b""))
    with pytest.raises(InputError, match="found none"):
        load_drafter(tmp_path)
    for name, value in (("num_hidden_layers", 10**9), ("hidden_size", -1), ("block_size", 10**6)):
        (tmp_path / "config.json").write_text(json.dumps(config | {name: value}))
        with pytest.raises(InputError, match=r"is legal|at least 1"):
            load_drafter(tmp_path)


@pytest.mark.parametrize("size", [0, 2**40, 2**63])
def test_safetensors_headers_that_lie(size: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from specsim.drafter.textstore import load_shard

    path = tmp_path / "shard_0.safetensors"
    path.write_bytes(struct.pack("<Q", size) + b"{}")
    with pytest.raises(InputError, match=r"not a whole safetensors file|no whole shard"):
        load_shard(path, None)  # type: ignore[arg-type]


def test_an_index_names_files_of_its_own_folder_only(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from specsim.drafter.checkpoint import load_drafter
    from tests.fuzz_targets import CONFIG

    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for name in ("../other.safetensors", "/etc/passwd", "a/b.safetensors", "model.bin"):
        index = {"weight_map": {"a": name}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(InputError, match="no file of this checkpoint's own folder"):
            load_drafter(tmp_path)
