"""Attention as one kernel: every mask, dtype and shape, judged by float64, and why where not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

import tilewright as tw
from tests.seeds import crossed, drawn, every_run, named
from tilewright.driver.looking import explain
from tilewright.graph import key_blocks
from tilewright.ir.target import Target
from tilewright.targets import default

Function = Callable[..., torch.Tensor]


def compiled(f: Function, *args: torch.Tensor) -> tuple[torch.Tensor, str]:
    """The result, no worse than twice eager's own error, and what was made of the program."""
    with torch.no_grad():
        fast = tw.compile(f)
        got, eager = fast(*args), f(*args)
        exact = f(*(x.double() if x.is_floating_point() else x for x in args))
    known = torch.isfinite(exact)
    assert torch.equal(torch.isfinite(got), known)
    error, own = (
        torch.where(known, x.double() - exact, 0.0).abs().max().item() for x in (got, eager)
    )
    top = torch.where(known, exact, 0.0).abs().max().item()
    assert error <= 2 * own + 4 * torch.finfo(got.dtype).eps * top, (error, own)
    return got, report(fast)


@pytest.fixture(autouse=True)
def no_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    """How fast kernels could be is nothing that these tests look at, and takes time to estimate."""
    monkeypatch.setattr(explain, "roofed", lambda *_: [])


def report(fast: Any) -> str:
    """What was made of a program, every kernel and its schedule."""
    text = tw.explain(fast)
    return "\n".join([str(text), *(f"{x.group}\n{x.trace}" for x in text.kernels)])


def heads(*shape: int, keys: tuple[int, ...] = (), dtype: Any = torch.float32) -> list[Any]:
    torch.manual_seed(sum(shape))
    keys = keys or shape
    return [torch.randn(*s, dtype=dtype) for s in (shape, keys, keys)]


def unfused(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask.to(scores.dtype)
    return torch.softmax(scores, -1) @ v


# A head of whole vectors: a narrower one is not packed.
WIDE = 2 * default().lanes(32)
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "square": ((2, 3, 64, 16), ()),
    "blocks": ((1, 2, 144, 32), ()),
    "ragged": ((2, 3, 13, 16), (2, 3, 77, 16)),
    "prime": ((1, 4, 101, 24), ()),
    "long": ((1, 2, 40, 16), (1, 2, 1100, 16)),
    "no-batch": ((144, 16), ()),
    "one-batch-axis": ((6, 40, 16), ()),
    "no-batch-ragged": ((173, 24), (173, 24)),
    "sums-in-blocks": ((1, 2, 1100, 16), ()),
    "one-key": ((2, 4, 32, 16), (2, 4, 1, 16)),
    "narrow": ((2, 4, 32, 3), (2, 4, 32, 3)),
}


# Resembling a later test: of scales and masks, of work that is skipped, of axes in blocks.
ALIKE = ("square", "blocks", "no-batch", "one-batch-axis")
MORE = [
    pytest.param(shape, causal, marks=pytest.mark.slow)
    for shape in ALIKE
    for causal in (False, True)
]


@every_run(0, 2, 4, 5, 6)
@pytest.mark.parametrize(
    ("shape", "causal"),
    [*crossed([x for x in SHAPES if x not in ALIKE], [False, True], 2), *MORE],
)
def test_shapes(shape: str, causal: bool) -> None:
    q, keys = SHAPES[shape]
    args = heads(*q, keys=keys)
    _, text = compiled(lambda q, k, v: attention(q, k, v, is_causal=causal), *args)
    assert "chain(" in text or shape in ("one-key", "narrow")


@pytest.mark.parametrize("shape", drawn(["ragged", "square", "blocks"], quick=1))
def test_found_from_the_unfused_pattern(shape: str) -> None:
    q, keys = SHAPES[shape]
    args = heads(*q, keys=keys)
    mask = torch.randn(q[0], 1, q[2], (keys or q)[2])
    assert "chain(" in compiled(unfused, *args)[1]
    assert "chain(" in compiled(unfused, *args, mask)[1]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(dtype: torch.dtype) -> None:
    args = heads(2, 3, 48, 16, dtype=dtype)
    assert "chain(" in compiled(lambda q, k, v: attention(q, k, v, is_causal=True), *args)[1]
    compiled(unfused, *args)


def test_scale_and_masks() -> None:
    args = heads(2, 3, 32, 16)
    seen = torch.rand(2, 3, 32, 32) > 0.5
    seen[:, :, 4] = False
    got, text = compiled(lambda q, k, v, m: attention(q, k, v, m, scale=0.3), *args, seen)
    assert "chain(" in text
    assert torch.equal(got[:, :, 4], torch.zeros(2, 3, 16))
    for shape in ((32, 32), (2, 1, 1, 32), (2, 3, 32, 32)):
        bias = torch.randn(shape)
        assert "chain(" in compiled(lambda q, k, v, m: attention(q, k, v, m), *args, bias)[1]


def test_additive_minus_infinity() -> None:
    args = heads(2, 2, 16, 24)
    hidden = torch.where(torch.rand(16, 16) > 0.5, 0.0, float("-inf"))
    hidden[:, 0] = 0
    assert "chain(" in compiled(lambda q, k, v, m: attention(q, k, v, m), *args, hidden)[1]


@pytest.mark.parametrize("window", drawn([5, 1, 40], quick=1))
def test_sliding_windows_are_skipped(window: int) -> None:
    def local(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i = torch.arange(q.shape[-2])[:, None]
        j = torch.arange(k.shape[-2])[None]
        return attention(q, k, v, (j <= i) & (i - j < window))

    _, text = compiled(local, *heads(1, 2, 144, 16))
    assert "chain(" in text and "Trim(" in text


def test_causal_work_is_skipped() -> None:
    args = heads(1, 2, 144, 16)
    _, text = compiled(lambda q, k, v: attention(q, k, v, is_causal=True), *args)
    assert "Trim(" in text
    _, text = compiled(lambda q, k, v: attention(q, k, v), *args)
    assert "Trim(" not in text


def spelled_out(window: int) -> Function:
    """Keys later than `window` are hidden from a query, by -inf in its scores."""

    def local(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(window)
        return scores.masked_fill(later, float("-inf")).softmax(-1) @ v

    return local


@pytest.mark.parametrize("n", drawn([144, 200, 48], quick=1))
def test_work_is_skipped_where_a_condition_makes_scores_infinite(n: int) -> None:
    _, text = compiled(spelled_out(1), *heads(1, 4, n, 16))
    assert "chain(" in text and text.count("Trim(") >= 3


@pytest.mark.parametrize("window", drawn([-3, 0, -150], quick=1))
def test_rows_that_see_nothing_are_no_numbers(window: int) -> None:
    got, text = compiled(spelled_out(window), *heads(1, 2, 144, 16))
    assert "chain(" in text
    assert torch.isnan(got[0, :, 0]).all()


@every_run(0)
@pytest.mark.parametrize(("n", "f"), crossed([48, 144, 200], [attention, unfused], 3))
def test_lowest_numbers_are_skipped_where_each_row_sees_something(n: int, f: Function) -> None:
    """Some models add the lowest number, not -inf: a row that sees nothing is an average then."""
    lowest = torch.finfo(torch.float32).min
    bias = torch.randn(1, 2, n, n)

    def biased(least: int) -> Function:
        def g(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            i, j = torch.arange(n)[:, None], torch.arange(n)[None]
            return f(q, k, v, torch.where(i - j >= least, b, lowest))

        return g

    assert "Trim(" in compiled(biased(0), *heads(1, 2, n, 16), bias)[1]
    assert "Trim(" not in compiled(biased(1), *heads(1, 2, n, 16), bias)[1]


def test_rows_with_a_number_that_is_none_stay_so() -> None:
    q, k, v = heads(1, 2, 144, 16)
    q[0, 0, 5], k[0, 1, 70] = float("nan"), float("inf")
    compiled(spelled_out(1), q, k, v)


def test_shared_heads_are_not_repeated() -> None:
    q, k, v = heads(2, 8, 48, 16, keys=(2, 2, 48, 16))
    _, text = compiled(lambda q, k, v: attention(q, k, v, is_causal=True, enable_gqa=True), q, k, v)
    assert "chain(" in text
    assert "expand" not in text
    mask = torch.rand(2, 8, 48, 48) > 0.3
    assert (
        "chain("
        in compiled(lambda q, k, v, m: attention(q, k, v, m, enable_gqa=True), q, k, v, mask)[1]
    )


def test_repeated_heads_are_read_once() -> None:
    def grouped(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (x[:, :, None].expand(2, 2, 4, 48, 16).reshape(2, 8, 48, 16) for x in (k, v))
        return attention(q, k, v)

    _, text = compiled(grouped, *heads(2, 8, 48, 16, keys=(2, 2, 48, 16)))
    assert "chain(" in text and "expand" not in text.split("chain(")[1].splitlines()[0]


def test_heads_that_are_transposed_around_it() -> None:
    def block(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        b, length, width = x.shape
        q, k, v = (y.view(b, length, 4, width // 4).transpose(1, 2) for y in (x @ w).chunk(3, -1))
        out = attention(q, k, v, is_causal=True)
        return out.transpose(1, 2).reshape(b, length, width)

    torch.manual_seed(0)
    x, w = torch.randn(2, 40, 64), torch.randn(64, 192) / 8
    assert "chain(" in compiled(block, x, w)[1]


def test_what_is_not_one_kernel_says_why() -> None:
    q, k, v = heads(2, 3, 32, 16)

    def both(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        p = torch.softmax(q @ k.transpose(-1, -2), -1)
        return p @ v, p

    with torch.no_grad():
        fast = tw.compile(both)
        for got, want in zip(fast(q, k, v), both(q, k, v), strict=True):
            torch.testing.assert_close(got, want)
    text = report(fast)
    assert "chain(" not in text and "more than one consumer" in text
    # One query, as in decoding: nothing to keep.
    one, k, v = heads(1, 4, 1, 16, keys=(1, 4, 64, 16))
    assert "chain(" not in compiled(lambda q, k, v: attention(q, k, v), one, k, v)[1]


@pytest.mark.parametrize("dtype", drawn([torch.float32, torch.float64], quick=1))
def test_gradients_stay_right(dtype: torch.dtype) -> None:
    most = 1e-4 if dtype == torch.float32 else 1e-12
    args = [x.requires_grad_() for x in heads(2, 3, 32, 16, dtype=dtype)]
    fast = tw.compile(lambda q, k, v: attention(q, k, v, is_causal=True))
    wide = [x.detach().double().requires_grad_() for x in args]
    for f, given in ((fast, args), (lambda *x: attention(*x, is_causal=True), wide)):
        f(*given).square().sum().backward()
    for x, y in zip(args, wide, strict=True):
        assert x.grad is not None and y.grad is not None
        torch.testing.assert_close(x.grad.double(), y.grad, rtol=most, atol=most)


def test_symbolic_batches() -> None:
    fast = tw.compile(lambda q, k, v: attention(q, k, v, is_causal=True))
    with torch.no_grad():
        for batch in (2, 3, 5):
            args = heads(batch, 2, 40, 16)
            for x in args:
                torch._dynamo.mark_dynamic(x, 0)
            torch.testing.assert_close(fast(*args), attention(*args, is_causal=True))
    assert "chain(" in report(fast)


@pytest.mark.slow
def test_symbolic_lengths() -> None:
    """Of what `test_symbolic_widths` calls with more sizes."""
    fast = tw.compile(lambda q, k, v: attention(q, k, v, is_causal=True), dynamic=True)
    with torch.no_grad():
        for length in (16, 31, 64):
            args = heads(1, 2, length, 16)
            torch.testing.assert_close(fast(*args), attention(*args, is_causal=True))


@pytest.mark.parametrize("causal", drawn([True, False], quick=1))
def test_symbolic_widths(causal: bool) -> None:
    """Nothing runs in eager, and as many values as keys are no other size."""
    torch._dynamo.reset()
    call = lambda q, k, v: attention(q, k, v, is_causal=causal)  # noqa: E731
    fast = tw.compile(call, dynamic=True, strict=True)
    with torch.no_grad():
        for batch, length, width in [(2, 40, 16), (1, 1, 1), (3, 17, 64), (1, 33, 7), (2, 5, 80)]:
            args = heads(batch, 2, length, width)
            torch.testing.assert_close(fast(*args), call(*args))
    assert len(tw.explain(fast).programs[0].dims) == 5  # batch, heads, both lengths, width
    for width in (8, 24):
        args = [x.requires_grad_() for x in heads(1, 2, 9, width)]
        wanted = torch.autograd.grad(call(*args).square().sum(), args)
        for got, want in zip(torch.autograd.grad(fast(*args).square().sum(), args), wanted):
            torch.testing.assert_close(got, want)


def test_other_numbers_of_values_than_keys_are_refused() -> None:
    torch._dynamo.reset()
    fast = tw.compile(lambda q, k, v: attention(q, k, v), dynamic=True)
    q, k, v = heads(1, 2, 9, 8)
    fast(q, k, v)
    with pytest.raises(RuntimeError):
        fast(q, k, torch.cat([v, v], 2))


# ---- keys in blocks


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a hundred keys are blocks of at most 96."""
    made, scratch = key_blocks.KeyBlocks.on, 100 * 4 * key_blocks.TILE_ROWS
    # Programs are cached: neither find nor leave one that has other blocks.
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")

    def small(given: key_blocks.KeyBlocks, target: Target) -> key_blocks.KeyBlocks:
        return replace(made(given, target), block=96, hidden=96, scratch=scratch)

    monkeypatch.setattr(key_blocks.KeyBlocks, "on", small)
    monkeypatch.setattr(key_blocks, "MANY_KEYS", 100)


def in_blocks(text: str) -> bool:
    """Is all of attention one kernel that keeps running results?"""
    return "rescaling" in text and "column(" not in text and "contract(" not in text


def is_one_kernel(text: str) -> bool:
    """Is all of attention one kernel that knows whole rows of scores?"""
    return "chain(" in text and not any(x in text for x in ("rescaling", "column(", "contract("))


LONG = {
    "even": ((2, 3, 64, 16), (2, 3, 192, 16)),
    "ragged-keys": ((2, 3, 64, 16), (2, 3, 200, 16)),
    "ragged-rows": ((1, 3, 149, 16), (1, 3, 200, 16)),
    "few-rows": ((2, 2, 9, 16), (2, 2, 300, 16)),
    "one-batch-axis": ((6, 130, 24), (6, 130, 24)),
    "no-batch": ((200, 16), (200, 16)),
}


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q, k, v, is_causal=True)


SPELLINGS = [attention, causal, unfused, spelled_out(1), spelled_out(-3)]


@every_run(2, 3)
@pytest.mark.parametrize(("shape", "f"), crossed(LONG, SPELLINGS, 5))
def test_blocks(small_blocks: None, shape: str, f: Function) -> None:
    q, keys = LONG[shape]
    assert in_blocks(compiled(f, *heads(*q, keys=keys))[1])


MASKS = [(48, 200), (2, 1, 1, 200), (2, 3, 48, 200), (1, 200)]


@every_run(1, 2)
@pytest.mark.parametrize(
    ("shape", "kind"), crossed(MASKS, ["bias", "unfused bias", "condition"], 3)
)
def test_blocks_with_masks(small_blocks: None, shape: tuple[int, ...], kind: str) -> None:
    args = heads(2, 3, 48, 16, keys=(2, 3, 200, 16))
    f = unfused if kind == "unfused bias" else attention
    mask = torch.randn(shape)
    if kind == "condition":
        mask = mask > 0
        mask[..., 100:] = False  # a block of which nothing is seen
    assert in_blocks(compiled(lambda q, k, v, m: f(q, k, v, m), *args, mask)[1])


@pytest.mark.parametrize("window", drawn([5, 1, 130], quick=1))
def test_blocks_of_sliding_windows(small_blocks: None, window: int) -> None:
    def local(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        i = torch.arange(q.shape[-2])[:, None]
        j = torch.arange(k.shape[-2])[None]
        return attention(q, k, v, (j <= i) & (i - j < window))

    _, text = compiled(local, *heads(1, 2, 200, 16))
    assert in_blocks(text) and "Trim(" in text


@pytest.mark.parametrize("is_causal", drawn([True, False], quick=1))
def test_blocks_of_shared_heads(small_blocks: None, is_causal: bool) -> None:
    args = heads(2, 8, 148, 16, keys=(2, 2, 200, 16))
    _, text = compiled(
        lambda q, k, v: attention(q, k, v, is_causal=is_causal, enable_gqa=True), *args
    )
    assert in_blocks(text)


@pytest.mark.parametrize("dtype", drawn([torch.bfloat16, torch.float16], quick=1))
def test_blocks_of_dtypes(small_blocks: None, dtype: torch.dtype) -> None:
    args = heads(2, 3, 48, 16, keys=(2, 3, 200, 16), dtype=dtype)
    assert in_blocks(compiled(causal, *args)[1])
    assert in_blocks(compiled(unfused, *args)[1])


def test_blocks_of_doubles(small_blocks: None) -> None:
    args = heads(2, 3, 48, 16, keys=(2, 3, 200, 16), dtype=torch.float64)
    fast = tw.compile(causal)
    with torch.no_grad():
        torch.testing.assert_close(fast(*args), causal(*args), rtol=1e-12, atol=1e-14)
    assert in_blocks(report(fast))


def test_blocks_keep_what_is_no_number(small_blocks: None) -> None:
    q, k, v = heads(1, 2, 144, 16)
    q[0, 0, 5], k[0, 1, 120] = float("nan"), float("inf")
    compiled(spelled_out(1), q, k, v)
    seen = torch.rand(144, 144) > 0.5
    seen[7] = False
    got, _ = compiled(lambda q, k, v, m: attention(q, k, v, m), *heads(1, 2, 144, 16), seen)
    assert torch.equal(got[:, :, 7], torch.zeros(1, 2, 16))


def test_many_keys() -> None:
    """As large as blocks are by default."""
    args = heads(1, 4, 40, WIDE, keys=(1, 4, 6000, WIDE))
    assert in_blocks(compiled(attention, *args)[1])
    args = heads(1, 1, 1100, WIDE)
    assert in_blocks(compiled(causal, *args)[1])


def test_one_block_is_one_kernel_as_before() -> None:
    for f, keys in ((attention, 2000), (causal, 512)):
        text = compiled(f, *heads(1, 4, 48, WIDE, keys=(1, 4, keys, WIDE)))[1]
        assert "chain(" in text and "rescaling" not in text


@pytest.mark.parametrize(
    "f",
    [causal, *(pytest.param(f, marks=pytest.mark.slow) for f in (attention, unfused))],
    ids=named,
)
def test_any_length(f: Function) -> None:
    """Rows and keys in numbers that nobody knows when it is compiled."""
    fast = tw.compile(f)
    with torch.no_grad():
        for length in (77, 81, 2, 5, 16, 73, 240, 241, 500):
            args = heads(1, 2, length, 16)
            torch.testing.assert_close(fast(*args), f(*args), rtol=1e-5, atol=1e-5)
    text = report(fast)
    assert "for any s" in text and is_one_kernel(text) and "no fallbacks" in text


def test_any_number_of_keys() -> None:
    fast = tw.compile(attention)
    with torch.no_grad():
        for keys in (300, 400, 7, 1000):
            args = heads(1, 2, 33, 16, keys=(1, 2, keys, 16))
            torch.testing.assert_close(fast(*args), attention(*args), rtol=1e-5, atol=1e-5)
    assert is_one_kernel(report(fast))


def test_decoding_with_any_number_of_keys() -> None:
    fast = tw.compile(attention)
    with torch.no_grad():
        for keys in (30, 40, 7, 1000):
            args = heads(1, 2, 1, 16, keys=(1, 2, keys, 16))
            torch.testing.assert_close(fast(*args), attention(*args), rtol=1e-5, atol=1e-5)
    text = report(fast)
    assert "no fallbacks" in text and "rescaling" not in text
