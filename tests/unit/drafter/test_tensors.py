"""Files of tensors and token ids: damaged ones are named, a full disk leaves no half file."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from specsim.archive import write_npz  # noqa: E402
from specsim.drafter.checkpoint import save_drafter  # noqa: E402
from specsim.drafter.generate import Written, reread  # noqa: E402
from specsim.drafter.opening import OpenTarget  # noqa: E402
from specsim.drafter.runner import read_texts  # noqa: E402
from specsim.drafter.tensors import read_tensors, write_tensors  # noqa: E402
from specsim.drafter.textstore import (  # noqa: E402
    Text,
    read_token_file,
    save_shard,
    write_token_file,
)
from specsim.drafter.train import TrainConfig, Trainer  # noqa: E402
from specsim.errors import InputError  # noqa: E402
from tests.drafter_world import small_drafter, small_target  # noqa: E402


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file may grow past 8 kB: the system itself refuses, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _write_checkpoint(folder: Path) -> None:
    Trainer(small_drafter(small_target()), TrainConfig(steps=1)).save(folder / "c.safetensors")


def _write_drafter(folder: Path) -> None:
    save_drafter(small_drafter(small_target()), folder, num_target_layers=3)


def _write_shard(folder: Path) -> None:
    text = Written([1] * 100, 3, 0, [torch.zeros(99, 2, 32)], [torch.zeros(99, 32)])
    save_shard(folder / "shard_00000.safetensors", [text], torch.zeros(11, 32))


def _write_arrays(folder: Path) -> None:
    write_npz(folder / "t.npz", {"a": np.random.default_rng(0).random(5000)})


@pytest.mark.parametrize(
    "write",
    [_write_checkpoint, _write_drafter, _write_shard, _write_arrays],
    ids=lambda f: f.__name__,
)
def test_a_full_disk_leaves_no_half_file(tmp_path: Path, full_disk: None, write) -> None:
    with pytest.raises(InputError, match=r"cannot write .*free some disk space"):
        write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tensors_come_back_and_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.safetensors"
    write_tensors({"x": torch.arange(3)}, path, metadata={"source": "here"})
    assert read_tensors(path)["x"].tolist() == [0, 1, 2]
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]
    for content in (b"", b"xx", path.read_bytes()[:-1]):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"a.safetensors is not a whole safetensors file"):
            read_tensors(path)
    path.unlink()
    with pytest.raises(InputError, match="is missing"):
        read_tensors(path)


GOOD = {
    "train_token": np.array([3, 5, 2, 9, 9], dtype=np.uint16), "train_length": [3, 2],
    "train_prompt_tokens": [2, 1], "train_domain": [0, 2],
}  # fmt: skip


def test_token_ids_come_back(tmp_path: Path) -> None:
    path = tmp_path / "ids.npz"
    np.savez(path, **GOOD)
    assert read_token_file(path) == [([3, 5, 2], 2, 0), ([9, 9], 1, 2)]


def test_token_ids_are_written_as_they_are_read(tmp_path: Path) -> None:
    rows = [([3, 5, 2], 2, 0), ([9, 9], 1, 2)]
    none = torch.zeros(0)
    for top, dtype in ((9, np.uint16), (70_000, np.uint32)):
        rows.append(([top, 1], 1, 1))
        texts = [Text(torch.tensor(ids), p, d, none, none, none) for ids, p, d in rows]
        for part in ("train", "held_out"):
            path = tmp_path / f"{part}.npz"
            write_token_file(path, texts, part=part)
            assert read_token_file(path, part=part) == rows
            assert np.load(path)[f"{part}_token"].dtype == dtype


def test_texts_are_read_in_the_files_order_as_they_were_written(tmp_path: Path) -> None:
    target = small_target()
    texts = [([3, 5, *([2 + i % 7] * (i % 13 + 1))], 2, i % 3) for i in range(130)]
    arrays = {
        "token": np.concatenate([t for t, _, _ in texts]).astype(np.uint16),
        "length": [len(t) for t, _, _ in texts],
        "prompt_tokens": [p for _, p, _ in texts],
        "domain": [d for _, _, d in texts],
    }
    path = tmp_path / "ids.npz"
    np.savez(path, **{f"held_out_{name}": value for name, value in arrays.items()})
    opened = OpenTarget(target, list, target.embed.weight, 11, 64, None, {})
    seen: list[int] = []
    parts = read_texts(
        opened, path, part="held_out", layers=(0, 1), progress=lambda n, total, _: seen.append(n)
    )
    found = [one for part in parts for one in part]
    assert seen == [96, 130]
    assert [(one.tokens, one.prompt_tokens, one.domain) for one in found] == texts
    for one, text in list(zip(found, texts, strict=True))[::17]:
        (alone,) = reread(target, [text], (0, 1))
        torch.testing.assert_close(one.hidden[0], alone.hidden[0], atol=0.02, rtol=0.02)
    short = OpenTarget(target, list, target.embed.weight, 11, 9, None, {})
    with pytest.raises(InputError, match=r"texts of up to 15 tokens, but .* a context of 9"):
        next(read_texts(short, path, part="held_out", layers=(0, 1)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_length": [3, 9]}, "5 token ids for lengths that add up to 12"),
        ({"train_domain": [0]}, "2 prompts, 1 domains"),
        ({"train_prompt_tokens": [3, 1]}, "every text needs a prompt and an answer"),
        ({"train_prompt_tokens": [0, 1]}, "every text needs a prompt and an answer"),
        ({"train_domain": [0, 7]}, "a domain is 7, legal is 0 to 2"),
        ({"train_token": np.array(["a"])}, "a list of whole numbers is needed"),
        (
            {name: np.zeros(0, dtype=np.uint16) for name in GOOD},
            "every text needs a prompt and an answer",
        ),
    ],
)
def test_token_ids_that_do_not_fit_together_are_refused(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    path = tmp_path / "ids.npz"
    np.savez(path, **(GOOD | change))
    with pytest.raises(InputError, match=message):
        read_token_file(path)


def test_files_that_are_no_token_ids_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ids.npz"
    np.savez(path, other=[1])
    whole = path.read_bytes()
    for content in (whole, whole[:100], b"hello", b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"an npz file of token ids|specsim file of tok"):
            read_token_file(path)
    with pytest.raises(InputError, match="no such file of token ids"):
        read_token_file(tmp_path / "none.npz")
