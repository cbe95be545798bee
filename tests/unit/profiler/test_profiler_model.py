"""The timed forward does what a decode-verify forward does: layouts and masks agree."""

from __future__ import annotations

from typing import Any

import pytest

from specsim.cost.shape import SHAPES, ModelShape
from specsim.errors import InputError
from specsim.profiler.workload import Case, spread

torch = pytest.importorskip("torch")

from specsim.profiler.model import DecodeModel  # noqa: E402

SMALL = ModelShape(layers=2, d_model=32, heads=4, kv_heads=2, head_dim=8, ffn=48, vocab=64)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def model(shape: ModelShape = SMALL, **options: Any) -> DecodeModel:
    made = DecodeModel(shape, device="cpu", dtype="float32", pool_tokens=256, **options)
    generator = torch.Generator().manual_seed(1)
    made._pool.copy_(torch.randn(made._pool.shape, generator=generator))
    return made


def hidden(made: DecodeModel, rows: Any) -> None:
    """Make the next work read these inputs."""
    made._inputs = lambda count, columns=None: rows  # type: ignore[method-assign]


@pytest.mark.parametrize("kv", ["contiguous", "paged"])
def test_ragged_rows_equal_the_same_rows_in_a_uniform_step(kv: Any) -> None:
    rows = torch.randn(6, 32, generator=torch.Generator().manual_seed(2))
    made = model(kv=kv)
    hidden(made, rows)
    whole = made.work(Case("verify", (3, 3), 20))()
    pool = made._pool.clone()
    made = model(kv=kv)
    hidden(made, rows[:5])
    ragged = made.work(Case("verify", (3, 2), 20))()
    torch.testing.assert_close(ragged, whole[:5])
    assert not torch.equal(pool, made._pool)  # the sixth token was not written


def test_a_later_token_does_not_change_an_earlier_one() -> None:
    rows = torch.randn(4, 32, generator=torch.Generator().manual_seed(2))
    made = model()
    hidden(made, rows)
    before = made.work(Case("verify", (4,), 20))()
    changed = rows.clone()
    changed[3] += 1.0
    made = model()
    hidden(made, changed)
    after = made.work(Case("verify", (4,), 20))()
    torch.testing.assert_close(after[:3], before[:3])
    assert not torch.allclose(after[3], before[3])


def test_verifying_at_once_equals_decoding_one_by_one() -> None:
    rows = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    made = model()
    hidden(made, rows)
    at_once = made.work(Case("verify", (3,), 20))()
    made = model()
    singly = []
    for step in range(3):
        hidden(made, rows[step : step + 1])
        singly.append(made.work(Case("verify", (1,), 20 + step))())
    torch.testing.assert_close(torch.cat(singly), at_once, rtol=1e-4, atol=1e-5)


def test_a_draft_block_is_not_causal() -> None:
    rows = torch.randn(8, 32, generator=torch.Generator().manual_seed(2))
    made = model(draft_layers=1)
    layer = made._draft[0]

    def attended(values: Any) -> Any:
        layout = made._layout(Case("draft", (4, 4), 20), causal=False)
        return made._attention(layer, 0, values, layout)

    before = attended(rows)
    changed = rows.clone()
    changed[3] += 1.0
    after = attended(changed)
    assert not torch.allclose(after[0], before[0])
    torch.testing.assert_close(after[4:], before[4:])  # another request


def test_experts_equal_the_sum_over_each_tokens_choice() -> None:
    made = model(SHAPES["tiny-moe"])
    layer = made._layers[0]
    x = torch.randn(5, 128, generator=torch.Generator().manual_seed(2))
    found = made._mlp(layer, x)
    chosen = (x @ layer["router"].T).topk(2, dim=-1).indices
    expected = torch.zeros_like(x)
    for row in range(5):
        for expert in [*chosen[row].tolist(), 8]:  # expert 8 is the shared one
            expected[row] += made._gated(layer["experts"][expert], x[row : row + 1])[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_every_part_runs_and_has_its_shape() -> None:
    made = model(draft_layers=1)
    assert made.work(Case("verify", spread(7, 3), 20))().shape == (7, 64)
    assert made.work(Case("draft", (4,) * 3, 20))().shape == (3,)
    accepted, sampled = made.work(Case("sampler", spread(7, 3), 0))()
    assert accepted.shape == (7, 1)
    assert sampled.shape == (3,)


def test_what_cannot_be_timed_is_refused() -> None:
    with pytest.raises(InputError, match="latent attention"):
        DecodeModel(SHAPES["deepseek-v3"], device="cpu", dtype="float32", pool_tokens=64)
    with pytest.raises(InputError, match='no dtype "float99"'):
        DecodeModel(SMALL, device="cpu", dtype="float99", pool_tokens=64)
    with pytest.raises(InputError, match="has no drafter"):
        model().work(Case("draft", (4,), 20))
    with pytest.raises(InputError, match="pool is too small"):
        model().work(Case("verify", (1,) * 20, 200))
