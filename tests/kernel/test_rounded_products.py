"""Products of float32 whose kernel says how precise they are (`input_precision`): by instructions
for tf32 and bfloat16, on the executor of threads and emulated."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tests.lang.tile.threads_running import run_emulated, run_threads, scheduled
from tests.seeds import drawn
from tilewright.base.errors import TilewrightError
from tilewright.ir.types import f32, i32
from tilewright.kernel.banks import conflicts
from tilewright.kernel.check import verify
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument
from tilewright.lang.tile.ir import Kernel


@tw.jit
def product_kernel(
    a, b, c, K, am, ak, bk, bn, cm, HOW: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK_K)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, K, BLOCK_K):
        x = tl.load(a + i[:, None] * am + (first + k)[None, :] * ak)
        y = tl.load(b + (first + k)[:, None] * bk + j[None, :] * bn)
        total = tl.dot(x, y, total, input_precision=HOW)
    tl.store(c + i[:, None] * cm + j[None, :], total)


def cut(x: np.ndarray) -> np.ndarray:
    """What an instruction takes for numbers of float32."""
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


def described(x: object) -> Argument:
    if isinstance(x, int):
        return Argument.constant(1) if x == 1 else Argument.scalar(i32, 16, True)
    return Argument.pointer(f32, 16)


class Product:
    def __init__(
        self, how: str, m: int, n: int, k: int, block: int, turned: str, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        self.a, self.b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        self.c = np.full((m, n), np.nan, np.float32)
        x = np.ascontiguousarray(self.a.T) if "a" in turned else self.a
        y = np.ascontiguousarray(self.b.T) if "b" in turned else self.b
        steps = {"am": 1, "ak": m} if "a" in turned else {"am": k, "ak": 1}
        steps |= {"bk": 1, "bn": k} if "b" in turned else {"bk": n, "bn": 1}
        given = {"a": x, "b": y, "c": self.c, "K": k, **steps, "cm": n}
        constants = {"HOW": how, "M": m, "N": n, "BLOCK_K": block}
        about = {n: Argument.constant(v) for n, v in constants.items()}
        about |= {n: described(v) for n, v in given.items()}
        self.kernel: Kernel = translate(product_kernel, about)
        self.values = [
            v.reshape(-1) if isinstance(v, np.ndarray) else v
            for v in given.values()
            if isinstance(v, np.ndarray) or v != 1
        ]

    def off(self) -> float:
        """By how much of the largest sum of sizes the result is off."""
        a, b = self.a.astype(np.float64), self.b.astype(np.float64)
        return float(np.abs(self.c - a @ b).max() / (np.abs(a) @ np.abs(b)).max())


CASES = {
    "tf32": ("nvptx.mma.tf32", 1, 2.0**-10),
    "tf32x3": ("nvptx.mma.tf32", 3, 2.0**-19),
    "bf16x3": ("bf16", 3, 2.0**-15),
    "bf16x6": ("bf16", 6, 2.0**-19),
}


@pytest.mark.parametrize("how", drawn(list(CASES), 3))
@pytest.mark.parametrize("seed", drawn(range(8), 1))
def test_a_product_is_as_precise_as_its_kernel_says(how: str, seed: int) -> None:
    name, count, precise = CASES[how]
    rng = np.random.default_rng(seed)
    m, n = (int(x) for x in rng.choice([16, 32], 2))
    turned = str(rng.choice(["", "a", "b", "ab"]))
    p = Product(how, m, n, 32, int(rng.choice([16, 32])), turned, seed)
    warps = int(rng.choice([1, 2, 4]))
    lines = [x for x in nest_text(scheduled(p.kernel, warps)[1]).splitlines() if " by nvptx." in x]
    used = [x for x in lines if name in x and ("mma" in x or "wgmma" in x)]
    assert len(used) >= count, f"{m} x {n}, {turned!r}, {warps} warps"
    run_threads(p.kernel, (1,), p.values, warps)
    assert p.off() < precise, f"{m} x {n}, {turned!r}, {warps} warps: off by {p.off():.1e}"


@pytest.mark.parametrize("turned", ["", "ab"])
def test_code_for_tf32_multiplies_the_first_bits(turned: str) -> None:
    p = Product("tf32", 32, 16, 32, 16, turned, 7)
    run_emulated(p.kernel, (1,), p.values)
    np.testing.assert_allclose(p.c, cut(p.a) @ cut(p.b), rtol=1e-5, atol=1e-5)
    assert p.off() > 2.0**-15  # numbers are rounded indeed


@pytest.mark.parametrize("how", ["tf32", "tf32x3"])
def test_threads_that_read_words_are_at_different_banks(how: str) -> None:
    """Four rows of the second operand, eight words of each; and results in pairs of words."""
    p = Product(how, 64, 64, 64, 32, "", 5)
    assert not conflicts(scheduled(p.kernel, 4)[1])


def test_infinite_numbers_stay_infinite() -> None:
    p = Product("tf32x3", 16, 16, 16, 16, "", 3)
    p.a[0, 0] = p.b[3, 5] = np.inf
    run_threads(p.kernel, (1,), p.values, 1)
    want = p.a @ p.b
    assert (np.isinf(p.c) == np.isinf(want)).all() and not np.isnan(p.c).any()


@pytest.mark.parametrize(("how", "capability"), [("ieee", 90), ("tf32", 75)])
def test_no_instruction_rounds_what_is_to_be_exact(how: str, capability: int) -> None:
    """Nor where a GPU has none: nothing is gained by rounding there."""
    p = Product(how, 32, 32, 32, 32, "", 1)
    text = nest_text(scheduled(p.kernel, 4, capability)[1])
    assert "mma" not in text and "tf32" not in text


def test_loops_that_do_not_round_are_not_the_instruction() -> None:
    p = Product("tf32", 16, 16, 16, 16, "", 2)
    text = nest_text(scheduled(p.kernel, 1)[1])
    verify(parse_nest(text))
    plain = re.sub(r"tf32\((\w+\[[^\]]*\])\)", r"\1", text)
    assert plain != text
    with pytest.raises(TilewrightError, match=r"nvptx\.mma\.tf32 computes mul\(tf32"):
        verify(parse_nest(plain))
