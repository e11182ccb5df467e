"""How compile time grows with the size of a program: families of deep, wide and long programs.

    python -m tests.driver.scaling                       # the table: seconds at n, 2n, 4n, 8n
    python -m tests.driver.scaling chain bitonic         # some families
    python -m tests.driver.scaling --large               # large programs, one size each

A family makes a program of any size. Every program is compiled without a cache, run once and
compared with the same program run by PyTorch or by the interpreter. Seconds are those of the
processor, so that other processes count for little. The exponent is the slope of the time over the
size, both in logarithms, from n to 8n: 1 is linear, 2 is quadratic. Both seconds and exponent are
of what is done here; in brackets are the seconds with what PyTorch takes to capture the program.
What a compilation costs however small the program is (that of n = 1) is subtracted first.
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

import tilewright as tw
import tilewright.language as tl
from tilewright.base import knobs
from tilewright.driver.torch import backend
from tilewright.driver.torch.backend import Session

Run = Callable[[], Any]


@dataclass(frozen=True)
class Family:
    """`make(n)` gives a call that compiles and runs the program, and one that says what is right.

    `first` is the size at which growth is measured, `large` a size that has to be possible.
    """

    name: str
    make: Callable[[int], tuple[Run, Run]]
    first: int
    large: tuple[int, ...]


FAMILIES: dict[str, Family] = {}


def torch_calls(function: Callable[..., Any], args: Sequence[Tensor]) -> tuple[Run, Run]:
    torch._dynamo.reset()
    return (lambda: tw.compile(function)(*args)), (lambda: function(*args))


def _torch(first: int, *large: int) -> Callable[[Any], Any]:
    """A family of torch programs: `make(n)` gives a function and its arguments."""

    def register(make: Callable[[int], tuple[Callable[..., Any], Sequence[Tensor]]]) -> Any:
        def both(n: int) -> tuple[Run, Run]:
            torch.manual_seed(n)
            return torch_calls(*make(n))

        FAMILIES[make.__name__] = Family(make.__name__, both, first, large)
        return make

    return register


def _tile(first: int, *large: int) -> Callable[[Any], Any]:
    """A family of tile kernels: `make(n)` gives a call that launches a fresh kernel, and what it
    returns when it is right."""

    def register(make: Callable[[int], tuple[Run, Run]]) -> Any:
        def seeded(n: int) -> tuple[Run, Run]:
            torch.manual_seed(n)
            return make(n)

        FAMILIES[make.__name__] = Family(make.__name__, seeded, first, large)
        return make

    return register


# ---- torch programs


@_torch(100, 1000, 5000)
def chain(n: int) -> Any:
    """Elementwise operators, one after another."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        for k in range(n):
            x = x * y if k % 3 else x + y
        return x

    return function, (torch.rand(8, 33), torch.rand(8, 33) * 0.01 + 0.99)


@_torch(50, 1000)
def where_chain(n: int) -> Any:
    """Choices, each between what came before and something of it."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        for k in range(n):
            x = torch.where(x > k % 5, x - y, x * 2 + k % 3)
        return x

    whole = torch.randint(0, 4, (2, 8, 33)).float()  # exact, so that no choice is a close one
    return function, (whole[0], whole[1])


@_torch(8, 64, 192)
def recurrence(n: int) -> Any:
    """A scan written out: every step reads a slice of its inputs, and all steps are stacked."""

    def function(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        h = torch.zeros_like(b[:, 0])
        out = []
        for t in range(n):
            h = a[:, t] * h + b[:, t]
            out.append((h * c[:, t, None, :]).sum(-1))
        return torch.stack(out, 1)

    return function, (torch.rand(2, n, 16, 4), torch.rand(2, n, 16, 4), torch.rand(2, n, 4))


@_torch(8, 64, 192)
def plain_recurrence(n: int) -> Any:
    """The same without a reduction: all steps fit one kernel of maps."""

    def function(a: Tensor, b: Tensor) -> Tensor:
        h = torch.zeros_like(b[0])
        out = []
        for t in range(n):
            h = a[t] * h + b[t]
            out.append(h)
        return torch.stack(out)

    return function, (torch.rand(n, 65), torch.rand(n, 65))


@_torch(25, 200)
def cat_inputs(n: int) -> Any:
    """Many inputs joined along an axis."""

    def function(*xs: Tensor) -> Tensor:
        return torch.cat(xs, 1)

    return function, [torch.rand(4, 3 + k % 3) for k in range(n)]


@_torch(25, 200)
def stacked(n: int) -> Any:
    """Results of many small operators stacked."""

    def function(x: Tensor) -> Tensor:
        return torch.stack([x * (k + 1.0) for k in range(n)]).sum(0)

    return function, (torch.rand(6, 7),)


@_torch(50, 2000)
def side_by_side(n: int) -> Any:
    """Many operators that read one input, all summed."""

    def function(x: Tensor) -> Tensor:
        total = torch.zeros_like(x)
        for k in range(n):
            total = total + torch.sin(x * (k + 1.0))
        return total

    return function, (torch.rand(6, 7),)


@_torch(50, 2000)
def many_results(n: int) -> Any:
    """Many operators that read one input, each a result."""

    def function(x: Tensor) -> list[Tensor]:
        return [torch.cos(x + k) for k in range(n)]

    return function, (torch.rand(6, 7),)


@_torch(25, 400)
def reductions(n: int) -> Any:
    """Many reductions of one input."""

    def function(x: Tensor) -> Tensor:
        return torch.stack([torch.exp(x - k * 0.01).sum(1) for k in range(n)], 1)

    return function, (torch.rand(5, 40),)


@_torch(10, 100)
def residual(n: int) -> Any:
    """Blocks of norm, product and activation, each added to its input."""
    weights = [torch.rand(16, 16) * 0.1 for _ in range(n)]

    def function(x: Tensor) -> Tensor:
        for w in weights:
            x = x + torch.tanh(F.layer_norm(x, (16,)) @ w)
        return x

    return function, (torch.rand(5, 16),)


@_torch(20, 500)
def norms(n: int) -> Any:
    """Norms without products between them: rows that could all be one kernel."""

    def function(x: Tensor) -> Tensor:
        for _ in range(n):
            x = x + torch.softmax(x * 0.5, -1)
        return x

    return function, (torch.rand(5, 32),)


@_torch(25, 500)
def many_inputs(n: int) -> Any:
    """Many inputs, each with a result of its own and all in one sum."""

    def function(*xs: Tensor) -> list[Tensor]:
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return [total, *(x * total for x in xs)]

    return function, [torch.rand(9) for _ in range(n)]


@_torch(25, 500)
def doubled(n: int) -> Any:
    """Every value is read twice: written out as a tree there would be two to the n of them."""

    def function(x: Tensor) -> Tensor:
        for _ in range(n):
            x = torch.sin(x) * torch.cos(x)
        return x

    return function, (torch.rand(9, 5),)


@_torch(12, 200)
def shifted(n: int) -> Any:
    """Every value is read at two places: computing it again there doubles the work each time."""

    def function(x: Tensor) -> Tensor:
        for _ in range(n):
            x = 0.5 * (x + torch.roll(x, 1, 0))
        return x

    return function, (torch.rand(40),)


# ---- tile kernels


@tw.jit
def _chain(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at)
    for k in tl.static_range(N):
        v = tl.where(v > k % 5, v - 2, v * 2 + k % 3)  # whole numbers: exact
    tl.store(out + at, v)


@tw.jit
def _doubled(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at)
    for _ in tl.static_range(N):
        v = tl.sin(v) * tl.cos(v)
    tl.store(out + at, v)


@tw.jit
def _integers(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at)
    for k in tl.static_range(N):
        v = (v * 3 + k) ^ (v // 5)
    tl.store(out + at, v)


@tw.jit
def _accesses(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for k in tl.static_range(N):
        tl.store(out + k * BLOCK + at, tl.load(x + k * BLOCK + at) + k)


@tw.jit
def _running(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    h = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(N):
        h = h * 0.5 + tl.load(x + k * BLOCK + at)
        tl.store(out + k * BLOCK + at, h)


@tw.jit
def _sums(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    v = tl.load(x + at)
    for _ in tl.static_range(N):
        v = v - tl.sum(v, 0) / (2 * BLOCK)
    tl.store(out + at, v)


@tw.jit
def _bitonic(x, out, LOG: tl.constexpr):
    at = tl.arange(0, 2**LOG)
    v = tl.load(x + at)
    for i in tl.static_range(1, LOG + 1):
        for j in tl.static_range(i):
            d: tl.constexpr = 2 ** (i - 1 - j)
            pairs = tl.reshape(v, (2 ** (LOG - i + j), 2, d))
            mask = tl.arange(0, 2)[None, :, None]
            left = tl.sum(pairs * (1 - mask), 1)[:, None, :]
            right = tl.sum(pairs * mask, 1)[:, None, :]
            left = tl.reshape(tl.broadcast_to(left, pairs.shape), v.shape)
            right = tl.reshape(tl.broadcast_to(right, pairs.shape), v.shape)
            down = ((at >> i) & 1) != 0
            v = tl.where((left > right) != down, left + right - v, v)
    tl.store(out + at, v)


@tw.jit
def _gathered_sort(x, out, LOG: tl.constexpr):
    at = tl.arange(0, 2**LOG)
    v = tl.load(x + at)
    for i in tl.static_range(1, LOG + 1):
        for j in tl.static_range(i):
            d: tl.constexpr = 2 ** (i - 1 - j)
            other = tl.gather(v, at ^ d, 0)
            low = (at & d) == 0
            up = ((at >> i) & 1) == 0
            v = tl.where(low == up, tl.minimum(v, other), tl.maximum(v, other))
    tl.store(out + at, v)


def _launch(kernel: Any, x: Tensor, size: int, **constants: int) -> Run:
    fresh = tw.jit(kernel.fn)  # nothing that was compiled before

    def run() -> Tensor:
        out = torch.zeros(size, dtype=x.dtype)
        fresh[(1,)](x, out, **constants)
        return out

    return run


@_tile(50, 500, 1000)
def tile_chain(n: int) -> Any:
    x = torch.randint(0, 4, (64,)).float()

    def right() -> Tensor:
        v = x
        for k in range(n):
            v = torch.where(v > k % 5, v - 2, v * 2 + k % 3)
        return v

    return _launch(_chain, x, 64, N=n, BLOCK=64), right


@_tile(25, 200)
def tile_doubled(n: int) -> Any:
    x = torch.rand(64)

    def right() -> Tensor:
        v = x
        for _ in range(n):
            v = torch.sin(v) * torch.cos(v)
        return v

    return _launch(_doubled, x, 64, N=n, BLOCK=64), right


@_tile(25, 500)
def tile_integers(n: int) -> Any:
    x = torch.randint(0, 1000, (64,), dtype=torch.int32)

    def right() -> Tensor:
        v = x
        for k in range(n):
            v = (v * 3 + k) ^ torch.div(v, 5, rounding_mode="trunc")
        return v

    return _launch(_integers, x, 64, N=n, BLOCK=64), right


@_tile(25, 500)
def tile_accesses(n: int) -> Any:
    x = torch.rand(n * 64)
    right = lambda: x + torch.arange(n).repeat_interleave(64)  # noqa: E731
    return _launch(_accesses, x, n * 64, N=n, BLOCK=64), right


@_tile(8, 64, 192)
def tile_running(n: int) -> Any:
    x = torch.rand(n * 64)

    def right() -> Tensor:
        h, out = torch.zeros(64), []
        for row in x.reshape(n, 64):
            h = h * 0.5 + row
            out.append(h)
        return torch.cat(out)

    return _launch(_running, x, n * 64, N=n, BLOCK=64), right


@_tile(16, 200)
def tile_sums(n: int) -> Any:
    x = torch.rand(64)

    def right() -> Tensor:
        v = x
        for _ in range(n):
            v = v - v.sum() / 128
        return v

    return _launch(_sums, x, 64, N=n, BLOCK=64), right


def _sort(kernel: Any, n: int) -> Any:
    """n is the number of steps: log * (log + 1) / 2 of them sort 2 ** log elements."""
    log = round((math.sqrt(8 * n + 1) - 1) / 2)
    x = torch.rand(2**log)
    return _launch(kernel, x, 2**log, LOG=log), lambda: x.sort().values


@_tile(6, 28, 36)
def bitonic(n: int) -> Any:
    return _sort(_bitonic, n)


@_tile(6, 28, 36)
def gathered_sort(n: int) -> Any:
    return _sort(_gathered_sort, n)


# ---- measuring


@dataclass(frozen=True)
class Measured:
    family: str
    size: int
    seconds: float
    whole: float = 0.0
    error: str = ""

    def __str__(self) -> str:
        return self.error or f"{self.seconds:.2f} ({self.whole:.2f})"


def measure(family: Family, n: int) -> Measured:
    """Compile without a cache and run, in seconds of the processor, all of it in this process."""
    own: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            began = time.process_time()
            try:
                return function(*args)
            finally:
                own.append(time.process_time() - began)

        return call

    here = {knobs.cache.name: "0", knobs.compile_processes.name: "0"}
    with (
        torch.no_grad(),
        patch.dict(os.environ, here),
        patch.object(Session, "_unit", timed(Session._unit)),
        patch.object(backend, "rolled", timed(backend.rolled)),
    ):
        run, right = family.make(n)
        expected = right()
        gc.collect()
        began = time.process_time()
        try:
            got = run()
        except Exception as e:  # a table of what fails is the purpose
            cause = e.__cause__ or e
            return Measured(family.name, n, math.nan, error=type(cause).__name__)
        whole = time.process_time() - began
    seconds = sum(own) if own else whole
    try:
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4, equal_nan=True)
    except AssertionError:
        return Measured(family.name, n, seconds, whole, "wrong")
    return Measured(family.name, n, seconds, whole)


def exponent(base: float, found: Sequence[Measured]) -> float:
    """Growth from the first to the last size of those that were compiled."""
    done = [m for m in found if not m.error]
    if len(done) < 2:
        return math.nan
    a, b = done[0], done[-1]
    least = 0.02  # what cannot be distinguished from noise
    rise = max(b.seconds - base, least) / max(a.seconds - base, least)
    return math.log(rise) / math.log(b.size / a.size)


def growth(family: Family, limit: float) -> tuple[list[Measured], float]:
    base = measure(family, 1).seconds
    found: list[Measured] = []
    for factor in (1, 2, 4, 8):
        found.append(measure(family, family.first * factor))
        if found[-1].error or found[-1].seconds > limit:
            break
    return found, exponent(0.0 if math.isnan(base) else base, found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("families", nargs="*", metavar="FAMILY")
    parser.add_argument("--large", action="store_true", help="the large sizes instead of growth")
    parser.add_argument("--limit", type=float, default=20, help="seconds after which to stop")
    options = parser.parse_args()
    chosen = [FAMILIES[name] for name in options.families or FAMILIES]
    torch._dynamo.config.recompile_limit = 10_000
    measure(FAMILIES["chain"], 2)  # what only the first compilation of all loads
    measure(FAMILIES["tile_chain"], 2)
    console = Console()
    table = Table(
        "family", *(("n", "seconds") if options.large else ("n", "1", "2", "4", "8", "exponent"))
    )
    for family in chosen:
        if options.large:
            for n in family.large:
                table.add_row(family.name, str(n), found := str(measure(family, n)))
                console.print(f"{family.name} {n}: {found}")
            continue
        found, slope = growth(family, options.limit)
        cells = [str(m) for m in found] + [""] * (4 - len(found))
        table.add_row(family.name, str(family.first), *cells, f"{slope:.2f}")
        console.print(f"{family.name}: {' '.join(cells)} {slope:.2f}")
    console.print(table)


if __name__ == "__main__":
    main()
