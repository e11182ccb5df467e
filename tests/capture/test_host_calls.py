"""Operators that run in eager inside a compiled graph are given what eager would give them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.library import custom_op

from tests.seeds import every_run


@custom_op("tw_host_calls::strides", mutates_args=())
def strides(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.tensor([*x.shape, *x.stride(), *y.shape, *y.stride()])


@strides.register_fake
def _(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.empty(2 * x.dim() + 2 * y.dim(), dtype=torch.int64)


@custom_op("tw_host_calls::like", mutates_args=())
def like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x).copy_(x)


@like.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@custom_op("tw_host_calls::first_in_memory", mutates_args=())
def first_in_memory(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((3,), (1,)) * 1.0


@first_in_memory.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty((3,))


def given_again(x: torch.Tensor) -> Any:
    y = like((x + 1).t())
    return y, y.sum(), y + 1, strides(y, y.t())


CASES: dict[str, Callable[[torch.Tensor], Any]] = {
    "permuted": lambda x: strides((x + 1).t(), x + 1),
    "with gaps": lambda x: strides((x + 1)[:, ::2], (x + 1)[1:].t()),
    "expanded": lambda x: strides((x + 1).expand(2, *x.shape), (x + 1)[:, :1].expand(*x.shape)),
    "overlapping": lambda x: strides((x + 1).unfold(0, 2, 1), (x + 1)[:, ::2].unfold(0, 2, 1)),
    "views of inputs": lambda x: strides(x.t(), x[1:, ::2]),
    "copies of inputs": lambda x: strides(x.t().clone(), x.t().contiguous()),
    "complex": lambda x: strides(torch.complex(x, x + 1).t(), x),
    "memory is read": lambda x: (first_in_memory((x + 1).t()), first_in_memory(x[1:].t())),
    "results": lambda x: (like((x + 1).t()), like((x + 1).t()) + 1, like(x[:, ::2])),
    "given again": given_again,
}
INPUTS = {
    "contiguous": lambda: torch.randn(4, 6),
    "permuted": lambda: torch.randn(6, 4).t(),
    "with gaps": lambda: torch.randn(8, 12)[::2, ::2],
}


def every(x: torch.Tensor) -> list[Any]:
    return [f(x) for f in CASES.values()]


@every_run(1)
@pytest.mark.parametrize("kind", INPUTS)
def test_operands_have_the_strides_of_eager(kind: str) -> None:
    torch._dynamo.reset()
    x = INPUTS[kind]()
    for name, want, found in zip(CASES, every(x), torch.compile(every, backend="tilewright")(x)):
        if isinstance(want, torch.Tensor):
            want, found = (want,), (found,)
        for a, b in zip(want, found, strict=True):
            assert a.stride() == b.stride(), name
            torch.testing.assert_close(b, a, msg=lambda m, name=name: f"{name}: {m}")


def test_strides_that_depend_on_sizes() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return strides((x + 1).t(), (x * 2)[:, ::2]) + strides(x.t(), (x + 1).unfold(0, 2, 1)[0])

    torch._dynamo.reset()
    fast = torch.compile(f, backend="tilewright", dynamic=True)
    for shape in ((4, 6), (7, 3)):
        x = torch.randn(shape)
        assert fast(x).tolist() == f(x).tolist()


def test_a_view_of_an_input_is_not_copied() -> None:
    """An operator that is given one sees the memory of the input."""
    seen: list[int] = []

    @custom_op("tw_host_calls::where", mutates_args=())
    def where(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.data_ptr())
        return x.sum()

    @where.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return x.new_empty(())

    x = torch.randn(4, 6)
    torch._dynamo.reset()
    torch.compile(lambda x: where(x[1:].t()) + 1, backend="tilewright")(x)
    assert seen == [x[1:].data_ptr()]
