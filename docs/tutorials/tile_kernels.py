"""Kernels over tiles: from the first one to its machine code, and to its mistakes.

    python docs/tutorials/tile_kernels.py              # all sections, a few seconds
    python docs/tutorials/tile_kernels.py looking_inside checking

A kernel is a Python function in Triton's language. It is written for one program, which works on a
tile of elements at once; a launch runs as many programs as the grid says, on all threads. It takes
CPU tensors of torch, or numpy arrays as on this page.

Read from top to bottom. Every section is a function that runs what the text above it says, and
checks it. Larger kernels, timed against torch, are in `examples/tiles`.
"""

from __future__ import annotations

import argparse
import inspect
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import tilewright as tw
import tilewright.language as tl
from tilewright.base import knobs

rng = np.random.default_rng(0)
console = Console(highlight=False, soft_wrap=True)


def show(*lines: object) -> None:
    for line in lines:
        console.print(str(line), markup=False)


def show_first(text: str, count: int) -> None:
    """The first lines of a long text."""
    lines = text.rstrip().splitlines()
    show(*(f"    {line}" for line in lines[:count]))
    if len(lines) > count:
        show(f"    … {len(lines)} lines")


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


# ---- 1. A first kernel
#
# `tl.program_id(0)` is the number of this program. `tl.arange(0, BLOCK)` is a tile: the numbers
# from 0 to BLOCK, which has to be a power of two and known when the kernel is compiled
# (`tl.constexpr`). A pointer plus a tile is a tile of pointers; `tl.load` reads what they point to.
#
# An argument that is an array arrives as a pointer to its first element. In square brackets stands
# the grid: 4 programs here.


@tw.jit
def double_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 2 * tl.load(x + at))


def first_kernel() -> None:
    """a first kernel"""
    x = normal(256)
    out = np.empty_like(x)
    double_kernel[(4,)](x, out, BLOCK=64)
    np.testing.assert_array_equal(out, 2 * x)
    show(f"doubled {x.size} numbers with 4 programs of 64")


# ---- 2. Masks
#
# 1000 is no multiple of 64. The last program's tile reaches past the end, and a mask says which of
# its elements exist: others are neither read nor written. Where the value of a masked element
# matters, `other=` says what it is; without it, it is undefined.
#
# A grid may be a function of the arguments; `tw.cdiv` divides and rounds up.


@tw.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    total = tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside)
    tl.store(out + at, total, mask=inside)


def masks() -> None:
    """masks: sizes that no block divides"""
    x, y = normal(1000), normal(1000)
    # One more than there is room for: it has to stay what it is.
    room = np.full(1001, 7, np.float32)
    add_kernel[lambda meta: (tw.cdiv(meta["n"], meta["BLOCK"]),)](x, y, room, 1000, BLOCK=64)
    np.testing.assert_array_equal(room[:1000], x + y)
    assert room[1000] == 7
    show("added 1000 numbers with 16 programs of 64; the 1001st is as it was")


# ---- 3. Reductions
#
# `tl.sum`, `tl.max` and their like put the elements of a tile together, along an axis. A row of a
# matrix as one tile is read once, whatever is done to it. The padding of the tile is minus
# infinity: it is never the maximum, and its exponential is 0.


@tw.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    values = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    raised = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * columns + at, raised / tl.sum(raised, axis=0), mask=inside)


def reductions() -> None:
    """reductions: a softmax in one pass"""
    rows, columns = 32, 200
    x = normal(rows, columns)
    out = np.empty_like(x)
    softmax_kernel[(rows,)](x, out, columns, BLOCK=tw.next_power_of_2(columns))
    raised = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, raised / raised.sum(1, keepdims=True), rtol=1e-5)
    show(
        f"softmax of {rows} rows; their sums lie between {out.sum(1).min()} and {out.sum(1).max()}"
    )


# ---- 4. Two axes, and products
#
# `m[:, None]` is a column of indices and `n[None, :]` a row; added they give a matrix of pointers.
# `tl.dot` multiplies two such tiles and adds the product to a third. It becomes the instructions
# that the processor multiplies matrices with, on operands that are first copied into the order in
# which these read them: write large tiles, the copy is repaid by every row that uses it.


@tw.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        a_mask = (m < M)[:, None] & (k < K)[None, :]
        b_mask = (k < K)[:, None] & (n < N)[None, :]
        a_block = tl.load(a + m[:, None] * K + k[None, :], mask=a_mask, other=0.0)
        b_block = tl.load(b + k[:, None] * N + n[None, :], mask=b_mask, other=0.0)
        total = tl.dot(a_block, b_block, total)
    tl.store(c + m[:, None] * N + n[None, :], total, mask=(m < M)[:, None] & (n < N)[None, :])


def matrices() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return normal(150, 90), normal(90, 110), np.empty((150, 110), np.float32)


def check_product(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)


def products() -> None:
    """two axes, and products"""
    a, b, c = matrices()
    grid = (tw.cdiv(150, 64), tw.cdiv(110, 32))
    matmul_kernel[grid](a, b, c, 150, 110, 90, BM=64, BN=32, BK=32)
    check_product(a, b, c)
    show(f"150 x 90 times 90 x 110 on a grid of {grid}")


# ---- 5. Constants that are measured
#
# Which blocks are best depends on the sizes and on the machine. `tw.autotune` times every
# configuration when one of the arguments named in `key` has a new value, and launches the fastest.
# Times are cached on disk, one by one: of a longer list only the new configurations are timed.
#
# Arguments that autotune chooses are left out of the launch; the grid sees what was chosen.


tuned_matmul = tw.autotune(
    [tw.Config({"BM": m, "BN": n, "BK": k}) for m, n, k in ((32, 32, 32), (64, 64, 64))],
    key=["M", "N", "K"],
    warmup=1,
    rep=5,
)(matmul_kernel)


def blocks(meta: dict[str, Any]) -> tuple[int, int]:
    return tw.cdiv(meta["M"], meta["BM"]), tw.cdiv(meta["N"], meta["BN"])


def tuning() -> None:
    """autotune: constants that are measured"""
    a, b, c = matrices()
    tuned_matmul[blocks](a, b, c, 150, 110, 90)
    check_product(a, b, c)
    show(f"the faster of two, here and now: {tuned_matmul.best_config.kwargs}")


# ---- 6. Looking inside
#
# A launch gives back the kernel that it ran; `warmup` makes the same without running it. `asm`
# holds its texts, from what was said to what runs:
#
#     ttir    the kernel in whole tiles, as the source says it, with promoted types
#     nest    loops over memory, scheduled: `parallel` over the grid, `lane` for vectors
#     trace   the steps that made this nest of the plain loops, one per line
#     llir    the LLVM module that the nest is printed to
#     asm     the machine's instructions
# `signature` says what the kernel was made for: an integer that is 1 is a constant of it, one that
# 16 divides is known to be (that is where aligned, unmasked vectors come from). Other kinds of
# arguments are another kernel.


def looking_inside() -> None:
    """looking inside"""
    x = normal(1024)
    kernel = add_kernel.warmup(x, x, x.copy(), 1024, BLOCK=64, grid=(16,))
    show(kernel)
    for form, count in (("ttir", 14), ("nest", 14), ("trace", 8), ("llir", 8), ("asm", 8)):
        show("", f"{form}:")
        show_first(kernel.asm[form], count)


# ---- 7. What does not compile
#
# A kernel that cannot be is refused with its line, the place in it, and what to write instead.


@tw.jit
def odd_kernel(x, out):
    at = tl.arange(0, 100)
    tl.store(out + at, tl.load(x + at))


def messages() -> str:
    """what does not compile"""
    x = normal(100)
    try:
        odd_kernel[(1,)](x, x.copy())
    except tw.TilewrightError as problem:
        show(problem)
        return str(problem)
    raise AssertionError("100 is no power of two")


# ---- 8. Step by step
#
# With TILEWRIGHT_INTERPRET=1 a kernel is plain Python on numpy, one program after the other.
# `print` prints, `breakpoint()` stops, a debugger walks line by line; tiles show their elements. It
# is slow and it is the same language: each function has one definition, used here and by the
# compiler.
#
# The switch is read when a kernel is first launched with arguments of a kind. (On this page it is
# thrown for a moment by `knobs`, and a debugger is played by a function.)


@tw.jit
def clipped_kernel(x, out, n, top, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=0.0)
    low = tl.minimum(values, top)
    breakpoint()
    tl.store(out + at, low, mask=at < n)


def stepping() -> None:
    """step by step, with a breakpoint"""
    x, out = np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    stops = []

    def debugger() -> None:
        frame = inspect.currentframe()
        kernel = frame.f_back if frame is not None else None
        assert kernel is not None
        stops.append(kernel.f_lineno)
        show(f"stopped in {kernel.f_code.co_name}, values = {kernel.f_locals['values']!r}")

    hook, sys.breakpointhook = sys.breakpointhook, debugger
    try:
        with knobs.interpret.override(True):
            clipped_kernel[(2,)](x, out, 6, 3.0, BLOCK=4)
    finally:
        sys.breakpointhook = hook
    assert len(stops) == 2  # once per program
    np.testing.assert_array_equal(out, np.minimum(x, 3))


# ---- 9. Mistakes, by their line
#
# TILEWRIGHT_CHECK_TILES=1 runs kernels step by step and watches. It finds accesses outside of the
# arguments, values without meaning that reach memory, and programs that touch the same element in
# no order. None of these has to show in a result, today, on this machine.
#
# The first kernel below forgot its mask. In the second all programs add to the same element: each
# reads, adds and writes, and what another wrote in between is lost. `tl.atomic_add` would be right.


@tw.jit
def forgot_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at)
    tl.store(out + at, values)


@tw.jit
def racing_kernel(x, total, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(total, tl.load(total) + tl.sum(tl.load(x + at), axis=0))


def checking() -> list[str]:
    """mistakes, by their line"""
    launches: list[Callable[[], Any]] = [
        lambda: forgot_kernel[(2,)](normal(100), np.zeros(128, np.float32), BLOCK=64),
        lambda: racing_kernel[(4,)](normal(256), np.zeros(1, np.float32), BLOCK=64),
    ]
    found = []
    with knobs.tile_check.override(True):
        for launch in launches:
            try:
                launch()
            except tw.TilewrightError as problem:
                found.append(str(problem))
    for text in found:
        show(text, "")
    assert len(found) == len(launches), "each of them has a mistake"
    return found


# ---- 10. Files that say `import triton`
#
# `python -m tilewright.triton --device cpu script.py` runs such a file as it is: `triton` and
# `triton.language` are ours, and tensors that it creates on a GPU are on the CPU. In a program of
# your own, `tilewright.triton.install(device="cpu")` before the import does the same.

SCRIPT = """\
import torch
import triton
import triton.language as tl


@triton.jit
def square_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n)
    tl.store(out + at, values * values, mask=at < n)


x = torch.randn(1000, device="cuda")
out = torch.empty_like(x)
square_kernel[(triton.cdiv(1000, 128),)](x, out, 1000, BLOCK=128)
print("right" if torch.equal(out, x * x) else "wrong")
"""


def triton_files() -> str:
    """files that say `import triton`"""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "square.py")
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "tilewright.triton", "--device", "cpu", str(script)]
        run = subprocess.run(command, capture_output=True, text=True)
    show(f"square.py says: {(run.stdout or run.stderr).strip()}")
    return run.stdout.strip()


SECTIONS: tuple[Callable[[], Any], ...] = (
    first_kernel,
    masks,
    reductions,
    products,
    tuning,
    looking_inside,
    messages,
    stepping,
    checking,
    triton_files,
)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs sections; gives back what each of them gave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = [s.__name__ for s in SECTIONS]
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(names)}; all by default")
    given = parser.parse_args(argv)
    unknown = [s for s in given.sections if s not in names]
    if unknown:
        parser.error(f"no section {', '.join(unknown)}: there are {', '.join(names)}")
    found = {}
    for number, section in enumerate(SECTIONS, 1):
        if not given.sections or section.__name__ in given.sections:
            console.rule(f"{number}. {section.__doc__}", align="left")
            found[section.__name__] = section()
            console.print()
    return found


if __name__ == "__main__":
    main()
