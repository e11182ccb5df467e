"""Calls in a row with changing numbers, sizes and sharing; what such draws found stays here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tilewright as tw
from tests.driver.random_calls import check_seed, draw
from tests.seeds import drawn
from tilewright.base.errors import Unsupported
from tilewright.driver.torch import backend as torch_backend

FROM_DATA = {"capture_dynamic_output_shape_ops": True, "capture_scalar_outputs": True}


def same(f: Callable, *calls: tuple[Any, ...], dynamic: bool | None = None) -> Any:
    """Every call gives eager's results and leaves its arguments as eager does."""
    torch._dynamo.reset()
    fast = torch.compile(f, backend="tilewright", dynamic=dynamic)
    for args in calls:
        ours, eager = (
            [x.clone() if isinstance(x, torch.Tensor) else x for x in args] for _ in range(2)
        )
        got, expected = fast(*ours), f(*eager)
        torch.testing.assert_close(got, expected, equal_nan=True)
        torch.testing.assert_close(ours, eager, equal_nan=True)
    return fast


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(12.0).view(3, 4) / 4 - 1


def test_numbers_that_change_are_arguments(x):
    fast = same(
        lambda x, n: (x * n, torch.full((3,), n) + x[:, 0], x - n // 2, x + n**2 - n % 3),
        *((x, n) for n in (2, 3, 5, -4, 1 << 20)),
    )
    assert len(tw.explain(fast).programs) <= 2  # one for the first number, one for all others


def test_numbers_as_sizes_bounds_and_steps(x):
    same(
        lambda x, n, k: (
            x.reshape(-1)[: min(n, k)] * n,
            x.reshape(-1)[-k:] + 1,
            torch.arange(n, n + 10, k) * 2,
            torch.zeros(k, n) + k,
        ),
        *((x, n, k) for n, k in ((2, 3), (3, 2), (5, 4), (7, 6))),
    )


def test_a_schedule_of_floats(x):
    def step(x: torch.Tensor, rate: float, decay: float) -> torch.Tensor:
        return x - rate * (x + decay * x)

    same(step, *((x, 0.1 / k, 0.01 * k) for k in range(1, 5)))


def test_floats_are_numbers_to_operators_in_eager(x):
    # The bounds of arange are numbers in torch's eyes: a tensor in their place is refused.
    same(lambda x, n: torch.arange(n * 1.0, n + 4.5, 0.5) + n, (x, 1), (x, 2), (x, 3))


def test_a_graph_returns_python_numbers(x):
    same(lambda x, n, s: (x * s, n * 2, s * 0.5, n > 2), (x, 1, 0.5), (x, 2, 0.25), (x, 3, 1.5))


def test_sizes_read_from_data(x):
    with torch._dynamo.config.patch(FROM_DATA):
        same(lambda x, i: x[: i.item()] * 2, *((x, torch.tensor(k)) for k in (2, 1, 3)))
        same(
            lambda x, w: torch.zeros_like(x).index_add(0, (w > 0).nonzero()[:, 0], x[w > 0].tanh()),
            *((x, torch.tensor(w)) for w in ([1, 0, 1], [0, 0, 1], [1, 1, 1])),
        )
        same(
            lambda x, i: (torch.full((i.item(),), 1.5) * i.item(), x * (i.item() * 0.5)),
            *((x, torch.tensor(k)) for k in (2, 4)),
        )


def test_a_number_made_of_a_size_that_is_read_from_data(x):
    def half(x: torch.Tensor, w: torch.Tensor) -> Any:
        rows = x[: (w > 0).sum().item()]
        return rows * 2, rows.shape[0] * 0.5

    with torch._dynamo.config.patch(FROM_DATA):
        same(half, *((x, torch.tensor(w)) for w in ([1, 0, 2], [0, 0, 1])), dynamic=True)


def test_powers_wrap_around():
    w = torch.arange(-4, 70)
    same(lambda w: (torch.pow(2, w), torch.pow(-3, w), w * (2**62) * 4), (w,))


def test_tensors_without_elements():
    none = torch.zeros(0, 4)
    same(lambda y: (y.softmax(-1), y.softmax(-1).sum(), (y * 2).sum(0)), (none,))

    def shrinks(w: torch.Tensor) -> torch.Tensor:
        w[1:] -= 1
        return w + 1

    same(shrinks, (torch.ones(1, 4, dtype=torch.int8),))


def test_strides_made_of_a_size_that_no_shape_has():
    check_seed(1536778286)  # of results without elements, whose memory is made on the fast path


def test_an_update_at_a_literal_index():
    x = torch.arange(2.0)
    same(lambda x: x.index_fill(0, torch.tensor([0]), 2) * 3, (x,), dynamic=True)


def test_a_view_of_a_copy_does_not_share_memory_with_the_input():
    y = torch.arange(4.0).half()
    fast = torch.compile(
        lambda y: y.clone().view(torch.uint8).view(torch.float16), backend="tilewright"
    )
    got = fast(y)
    assert torch.equal(got, y)
    assert got.untyped_storage().data_ptr() != y.untyped_storage().data_ptr()


def test_a_view_of_what_eager_computes_is_a_view():
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.dropout(x)
        z = F.dropout(x + 1)
        return y[1:].t(), z, z.unsqueeze(0), z.view(-1)[2:5], y.view(-1) * 2

    fast = torch.compile(f, backend="tilewright", options={"random": "eager"})
    seen = []
    for run in (f, fast):
        torch.manual_seed(3)
        out = run(torch.arange(12.0).view(3, 4))
        seen.append(([v.tolist() for v in out], [v.stride() for v in out], _homes(out)))
    assert seen[0] == seen[1]
    assert seen[1][2] == [(0, 4), (1, 0), (1, 0), (1, 2), (4, 0)]


def _homes(out: tuple[torch.Tensor, ...]) -> list[tuple[int, int]]:
    """By result: the first one that shares its storage, and where in it this one begins."""
    storages = [v.untyped_storage().data_ptr() for v in out]
    return [
        (storages.index(s), int(v.storage_offset())) for s, v in zip(storages, out, strict=True)
    ]


@torch.library.custom_op("tests_calls::by_columns", mutates_args=())
def by_columns(x: torch.Tensor) -> torch.Tensor:
    return x.t().clone().t()


@by_columns.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)  # by rows, which it is not


def test_a_view_of_a_result_that_torch_announces_with_other_strides(x):
    same(lambda x: by_columns(x)[1:, 2:], (x,))


@pytest.mark.parametrize("reentrant", [False, True])
def test_dropout_under_a_checkpoint_is_dropped_alike_twice(reentrant):
    fast = torch.compile(
        lambda x: checkpoint(lambda t: F.dropout(t * 1.0, 0.5), x, use_reentrant=reentrant),
        backend="tilewright",
    )
    x = torch.ones(500, requires_grad=True)
    y = fast(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, y.detach())
    assert 150 < int((y > 0).sum()) < 350
    assert not tw.explain(fast).fallbacks


def test_eager_random_numbers_under_a_checkpoint_are_eagers():
    def f(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda t: F.dropout(t.sin(), 0.5).tanh(), x, use_reentrant=False)

    fast = torch.compile(f, backend="tilewright", options={"random": "eager"})
    gradients = []
    for run in (f, fast):
        torch.manual_seed(3)
        x = torch.arange(8.0).requires_grad_()
        run(x).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def _breaks(x: torch.Tensor) -> torch.Tensor:
    try:
        torch._dynamo.graph_break()
        return x * 2
    finally:
        pass


@pytest.mark.parametrize("compiler", [tw.compile, lambda f: torch.compile(f, backend="tilewright")])
def test_explain_tells_why_nothing_was_compiled(compiler):
    torch._dynamo.reset()
    fast = compiler(_breaks)
    fast(torch.ones(3))
    explanation = tw.explain(fast)
    (event,) = explanation.graph_breaks
    assert "_breaks runs in eager" in event.message and "graph_break" in event.message
    assert event.where is not None and "test_random_calls.py" in event.where
    assert "no native code" in str(explanation)


def test_a_graph_without_native_form_runs_in_eager_by_name(monkeypatch, x):
    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported("nothing is translated today")

    monkeypatch.setattr(torch_backend, "translate", refuse)
    fast = tw.compile(lambda x: x.add_(1) * 2)
    given = x.clone()
    assert torch.equal(fast(given), (x + 1) * 2) and torch.equal(given, x + 1)
    (event,) = tw.explain(fast).fallbacks
    assert "a whole graph runs in eager: nothing is translated today" in event.message
    with pytest.raises(Unsupported, match="nothing is translated"):
        tw.compile(lambda x: x * 2, strict=True)(x)


def test_a_seed_is_a_program():
    assert draw(5).text == draw(5).text
    scope = draw(5).module()
    assert callable(scope["f"]) and callable(scope["call0"])


@pytest.mark.slow
@pytest.mark.parametrize("seed", drawn(range(40), quick=7))
def test_random_calls(seed):
    check_seed(seed)
