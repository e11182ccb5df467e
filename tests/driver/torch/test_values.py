"""Tensors of every kind go in and come out as in eager: layouts, aliasing, mutation, containers."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

import tilewright as tw
from tests.capture.running import assert_same, check, session
from tests.seeds import crossed


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def same(function: Callable, *args: Any) -> Any:
    """Natively and strictly, the way a user would call it; twice, to take the short way too."""
    with torch.no_grad():
        expected_args = copy.deepcopy(args)
        expected = function(*expected_args)
        fast = tw.compile(function, *copy.deepcopy(args), strict=True)
        for _ in range(2):
            ours_args = copy.deepcopy(args)
            ours = fast(*ours_args)
            assert_same(ours, expected)
            assert_same(ours_args, expected_args)
    return fast


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(3, 4, 5),
    "permuted": lambda: torch.randn(5, 3, 4).permute(1, 2, 0),
    "sliced": lambda: torch.randn(3, 9, 5)[:, 1:9:2],
    "offset": lambda: torch.randn(70)[7:67].reshape(3, 4, 5),
    "expanded": lambda: torch.randn(3, 1, 5).expand(3, 4, 5),
    "expanded and permuted": lambda: torch.randn(5, 3).t()[:, None].expand(3, 4, 5),
    "overlapping": lambda: torch.randn(20).as_strided((3, 4, 5), (3, 2, 1)),
    "channels last": lambda: torch.randn(3, 4, 5, 2).to(memory_format=torch.channels_last)[..., 0],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str) -> None:
    same(lambda x: (x * 2, x.sum(1), x + x.flip(2)), LAYOUTS[name]())


OUTPUTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "permuted": lambda x: (x + 1).t(),
    "gaps": lambda x: (x + 1)[:, ::2],
    "expanded": lambda x: (x + 1).sum(0).expand(3, -1),
    "expanded with gaps": lambda x: (x + 1).sum(0)[None, ::2].expand(3, -1),
    "the input": lambda x: (x, x + 1),
    "a view of the input": lambda x: (x.t(), x[1:], x.view(-1)),
    "one result twice": lambda x: (lambda y: (y, y, y.view(-1)))(x + 1),
    "nested": lambda x: {"a": [x + 1, (x * 2,)], "b": {"c": x.sum(), "n": 3, "s": "text"}},
    "numbers and nothing": lambda x: (x + 1, None, 2, 3.5, x.shape[0], x.dtype),
    "nothing computed": lambda x: x,
    "0-d": lambda x: (x.sum(), x[0, 0], torch.tensor(3.0) + x.mean()),
    "empty": lambda x: (x[:0] + 1, x[:0].sum(0), torch.cat([x[:0], x])),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs(name: str) -> None:
    same(OUTPUTS[name], torch.randn(3, 4))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), ()])
def test_empty_and_scalar_inputs(shape: tuple[int, ...]) -> None:
    same(lambda x: (x * 2 + 1, x.sum(), x.reshape(-1)), torch.randn(shape))


def add_into(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x * 2


def write_slice(x: torch.Tensor) -> torch.Tensor:
    x[1:, ::2] = 7
    return x.sum()


def through_a_view(x: torch.Tensor) -> torch.Tensor:
    x.t()[0].mul_(3)
    return x + 1


def twice(x: torch.Tensor) -> None:
    x.add_(1)
    x.mul_(2)


def swap(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    x.copy_(x.flip(0))
    return y


@pytest.mark.parametrize(
    ("function", "layout"),
    crossed(
        [add_into, write_slice, through_a_view, twice, swap], ["plain", "permuted", "sliced"], 3
    ),
)
def test_mutated_inputs(function: Callable, layout: str) -> None:
    x = {
        "plain": torch.randn(4, 4),
        "permuted": torch.randn(4, 4).t(),
        "sliced": torch.randn(4, 9)[:, 1:9:2],
    }[layout]
    same(function, x)


def test_a_changed_argument_that_is_the_result_is_computed_once() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.mul_(0.5).add_(y)

    x, y = torch.ones(7), torch.ones(7)
    fast = tw.compile(f, x, y)
    assert fast(x, y) is x
    assert torch.equal(x, torch.full((7,), 1.5))
    assert [b.slot for u in fast.units for s in u.segments for b in s.segment.buffers] == [
        "new.in0"
    ]


def test_aliased_inputs_one_of_them_mutated() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    def call(base: torch.Tensor) -> torch.Tensor:
        return program(base[:3], base[1:])

    same(call, torch.randn(4, 2))


def test_examples_are_left_alone() -> None:
    x, before = torch.zeros(3), torch.get_rng_state()
    fast = tw.compile(lambda t: t.add_(1) + torch.rand(3), x)
    assert torch.equal(x, torch.zeros(3))
    assert torch.equal(torch.get_rng_state(), before)
    fast(x)
    assert torch.equal(x, torch.ones(3))


def test_buffers_change_in_place() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(2, 5))
            self.register_buffer("place", torch.zeros((), dtype=torch.int64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            cache = self.get_buffer("cache")
            cache.index_copy_(1, self.get_buffer("place").view(1), x.view(2, 1))
            self.get_buffer("place").add_(1)
            return cache.sum(1)

    plain, ours = Counter(), Counter()
    fast = tw.compile(ours, torch.ones(2), strict=True)
    with torch.no_grad():
        for k in range(4):
            x = torch.randn(2) + k
            assert_same(fast(x), plain(x))
    assert_same(ours.state_dict(), plain.state_dict())


def test_shared_weights() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)
            self.outer.weight = self.inner.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.outer(self.inner(x).relu())

    same(Tied(), torch.randn(3, 4))


def test_mutation_under_the_interpreter_too() -> None:
    check(add_into, torch.randn(3, 3), using=session())


def test_keywords_and_defaults() -> None:
    def program(x: torch.Tensor, *, scale: float = 2.0, flag: bool = True) -> torch.Tensor:
        return x * scale if flag else x

    fast = tw.compile(program, strict=True)
    x = torch.randn(3)
    with torch.no_grad():
        assert_same(fast(x), x * 2)
        assert_same(fast(x, scale=3.0), x * 3)
        assert_same(fast(x, flag=False), x)
        assert_same(fast(x), x * 2)


def test_gradients_flow() -> None:
    layer = nn.Linear(4, 3)
    fast = tw.compile(lambda x: layer(x).tanh().sum(), strict=True)
    x = torch.randn(2, 4, requires_grad=True)
    ours = torch.autograd.grad(fast(x), [x, *layer.parameters()])
    eager = torch.autograd.grad(layer(x).tanh().sum(), [x, *layer.parameters()])
    assert_same(ours, eager)


def test_gradients_of_what_is_filled_at_indices() -> None:
    """Torch's own decomposition of it is not functional in some versions."""

    def filled(x: torch.Tensor) -> Any:
        at = torch.tensor([0, -1])
        return x.index_fill(1, at, 2.0), x.t().index_fill(1, at, x[0, 0].detach()), x.sum()

    fast = tw.compile(filled, strict=True)
    x = torch.randn(3, 4, requires_grad=True)
    seeds = torch.randn(3, 4), torch.randn(4, 3), torch.ones(())
    ours, eager = fast(x), filled(x)
    assert_same([y.detach() for y in ours], [y.detach() for y in eager])
    (mine,), (right,) = (torch.autograd.grad(y, x, seeds) for y in (ours, eager))
    assert torch.equal(mine, right)


def test_gradients_that_arrive_in_another_layout() -> None:
    fast = tw.compile(lambda x: x.sin() * 2, strict=True)
    x = torch.randn(3, 4, requires_grad=True)
    seed = torch.randn(4, 3).t()
    (ours,) = torch.autograd.grad(fast(x), x, seed)
    assert_same(ours, x.cos().detach() * 2 * seed)


def test_results_go_where_the_caller_says() -> None:
    layer = nn.Linear(4, 3).requires_grad_(False)

    def program(x: torch.Tensor) -> Any:
        y = layer(x)
        return {"y": y, "t": y.relu().t()}

    x = torch.randn(5, 4)
    fast = tw.compile(program, strict=True)
    out = {"y": torch.empty(5, 3), "t": torch.empty(5, 3).t()}
    found = fast(x, out=out)
    assert found["y"] is out["y"] and found["t"] is out["t"]
    assert_same(out, program(x))
    with pytest.raises(tw.Invalid, match="out= for result 0 is"):
        fast(x, out=[torch.empty(5, 2), torch.empty(3, 5)])
    with pytest.raises(tw.Invalid, match="out= holds 1"):
        fast(x, out=torch.empty(5, 3))
    with pytest.raises(tw.Unsupported, match="shares memory"):
        tw.compile(lambda t: t.view(-1), x)(x, out=torch.empty(20))


def test_results_do_not_go_where_operands_lie() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.softmax(-1).cumsum(-1) + x.sum(0), x * 2

    both = torch.randn(8, 4)
    x = both[:4]
    fast = tw.compile(program, x, strict=True)
    expected = program(x)
    fresh = torch.empty(4, 4)
    for out, what in (((x, fresh), "input 0"), ((fresh, fresh), "out= for result 0")):
        with pytest.raises(tw.Invalid, match=f"shares memory with {what}"):
            fast(x, out=out)
    # Another part of the same storage is not the operand's memory.
    assert_same(fast(x, out=(both[4:], fresh)), expected)


@torch._dynamo.config.patch(recompile_limit=2)
def test_out_of_a_function_that_is_compiled_no_more() -> None:
    fast = tw.compile(lambda x, text: x * len(text))
    x = torch.randn(4)
    for text in ("a", "ab"):
        fast(x, text)
    with pytest.raises(tw.Unsupported, match="was compiled 2 times"):
        fast(x, "abc", out=torch.empty(4))


def test_a_compiled_function_can_be_copied() -> None:
    x = torch.randn(4)
    fast = tw.compile(lambda x: x * 2, x)
    assert_same(copy.copy(fast)(x), x * 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_running_statistics_keep_their_dtype(dtype: torch.dtype) -> None:
    """Torch announces 32 bits for those of 16 bits."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3).to(dtype)
    ours, eager = (torch.nn.BatchNorm1d(5).to(dtype) for _ in range(2))
    fast = torch.compile(ours, backend="tilewright", options={"strict": True})
    for _ in range(2):
        torch.testing.assert_close(fast(x), eager(x), atol=1e-2, rtol=2e-2)
    torch.testing.assert_close(ours.running_mean, eager.running_mean, atol=1e-2, rtol=2e-2)
    torch.testing.assert_close(ours.running_var, eager.running_var, atol=1e-2, rtol=2e-2)


def test_an_operator_that_gives_another_dtype_than_it_announced() -> None:
    """What follows reads it as announced, and not its bytes as if they were."""
    library = torch.library.Library("tilewright_tests", "FRAGMENT")
    library.define("narrow(Tensor x) -> Tensor")
    library.impl("narrow", lambda x: x.bfloat16(), "CPU")
    library.impl("narrow", lambda x: torch.empty_like(x, dtype=torch.float32), "Meta")
    narrow = torch.ops.tilewright_tests.narrow.default
    x = torch.randn(5)
    torch._dynamo.reset()
    with torch.no_grad():
        got = torch.compile(lambda x: narrow(x) * 2, backend="tilewright")(x)
    torch.testing.assert_close(got, x.bfloat16().float() * 2)


@pytest.mark.parametrize(
    ("dtype", "number"),
    crossed([torch.uint8, torch.int8, torch.int16], [-1, 300, -70_000], step=3),
)
def test_numbers_that_a_narrow_integer_cannot_hold_wrap_as_in_eager(
    dtype: torch.dtype, number: int
) -> None:
    x = torch.tensor([0, 1, 44, 45, 100, 127], dtype=dtype)

    def compared(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x < number, x <= number, x > number, x >= number, x == number, x != number

    for got, want in zip(tw.compile(compared, x)(x), compared(x), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("axis", [0, 1])
def test_views_of_changed_inputs_of_any_size(axis: int) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        last = x.chunk(2, axis)[-1]
        x.add_(1)
        return x * 2, last

    fast = torch.compile(f, backend="tilewright", dynamic=True)
    for n in (7, 16, 9):
        x = torch.randn(n, n + 1, 2)
        y = x.clone()
        got, want = fast(x), f(y)
        assert torch.equal(x, y)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
        assert got[1].storage_offset() == want[1].storage_offset()
        got[1].zero_()  # it is a view
        assert x.chunk(2, axis)[-1].abs().max() == 0
