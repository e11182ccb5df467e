"""Random matrix products on warps: sizes, the order of either operand's axes, batches, what is done
to the results, tiles. The schedule is run on the executor of threads, its code emulated."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np

from tests.generators import checked
from tests.gpu import emulate
from tests.gpu.replays import replays
from tilewright import targets
from tilewright.kernel import simt
from tilewright.kernel.banks import Turns
from tilewright.kernel.check import verify
from tilewright.kernel.group import Group
from tilewright.kernel.interpret import run_group
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.targets import nvptx

EPILOGUES = {
    "plain": "{c}",
    "bias": "{c} + cast<f32>(v[y.j])",
    "relu": "max({c} * 0.5, 0.0)",
}


@dataclass(frozen=True)
class Product:
    """What is multiplied: `across` are operands whose rows run across the sum (k, i) and (k, j)."""

    rows: int
    columns: int
    deep: int
    batch: int = 1
    dtype: str = "bf16"
    across: tuple[bool, bool] = (False, True)
    epilogue: str = "plain"

    def group(self) -> Group:
        m, n, k, t = self.rows, self.columns, self.deep, self.dtype
        b, at, of = ("", "", "") if self.batch == 1 else (f"{self.batch},", "c.b,", "y.b,")
        a_shape, a_index = (f"{k},{m}", "c.r0,c.i") if self.across[0] else (f"{m},{k}", "c.i,c.r0")
        w_shape, w_index = (f"{k},{n}", "c.r0,c.j") if self.across[1] else (f"{n},{k}", "c.j,c.r0")
        value = f"cast<f32>(a[{at}{a_index}]) * cast<f32>(w[{w_index}])"
        batch = [f"in {self.batch}"] if self.batch > 1 else []
        loops = ", ".join([*(f"c.b {x}" for x in batch), f"c.i in {m}, c.j in {n}, c.r0 in {k}"])
        over = ", ".join([*(f"y.b {x}" for x in batch), f"y.i in {m}, y.j in {n}"])
        result = EPILOGUES[self.epilogue].format(c=f"c[{of}y.i,y.j]")
        bias = f"  in v: {t}[{n}]\n" if self.epilogue == "bias" else ""
        return parse_group(f"""
group product
  in a: {t}[{b}{a_shape}]
  in w: {t}[{w_shape}]
{bias}  out y: {t}[{b}{m},{n}]
  local c: f32[{b}{m},{n}]
  c[{at}c.i,c.j] add= {value} for {loops} from 0.0
  y[{of}y.i,y.j] = cast<{t}>({result}) for {over}
""")

    def arguments(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(self.rows * self.columns + self.deep)
        return {
            b.name: (rng.integers(-4, 5, [int(str(d)) for d in b.shape]) / 2).astype(b.dtype.numpy)
            for b in self.group().inputs
        }

    def nest(self, multiprocessors: int = 1, name: str = "cuda:90") -> Nest:
        """By the default schedule for a GPU with so many multiprocessors."""
        target = nvptx.with_numbers(targets.get(name), multiprocessors=multiprocessors)
        trace, nest = default_schedule(self.group(), target)
        by = "Pipeline" if self.dtype == "f32" else "mma"
        text = replays(self.group(), trace, nest)
        assert by in text, f"{self} is not multiplied in tiles"
        return nest


def check(p: Product, nest: Nest, emulated: bool = True, name: str = "cuda:90") -> None:
    """Right on the executor and emulated, in the fewest turns of the memory banks."""
    verify(nest)
    given = p.arguments()
    want = run_group(p.group(), given)["y"].astype(np.float64)
    banks: dict[str, Turns] = {}
    got = simt.run(nest, given, banks=banks)["y"].astype(np.float64)
    np.testing.assert_array_equal(got, want)
    assert not any(t.conflicts for t in banks.values()), banks
    if emulated:
        got = emulate.run(nest, given, target=targets.get(name))["y"].astype(np.float64)
        np.testing.assert_array_equal(got, want)


def drawn(seed: int) -> tuple[Product, int, str]:
    """A product, so many multiprocessors, and a target."""
    rng = random.Random(seed)
    size = lambda: 16 * rng.choice([1, 1, 2, 2, 3, 4])  # noqa: E731
    p = Product(
        size(),
        size(),
        size() + 16,
        rng.choice([1, 1, 2]),
        rng.choice(["bf16", "f16"]),
        (rng.random() < 0.5, rng.random() < 0.5),
        rng.choice(list(EPILOGUES)),
    )
    many, name = rng.choice([1, 4, 16]), "cuda:90"
    if rng.random() < 0.5:  # any sizes, by single warps or by threads
        name = rng.choice(["cuda:80", "cuda:80", "cuda:75"])
        rows, columns, deep = (rng.randint(16, 70) for _ in range(3))
        dtype = "f32" if name == "cuda:75" else rng.choice(["bf16", "f16", "f32"])
        p = replace(p, rows=rows, columns=columns, deep=deep, dtype=dtype)
    return p, many, name


def check_seed(seed: int) -> None:
    p, multiprocessors, name = drawn(seed)
    check(p, p.nest(multiprocessors, name), name=name)


GENERATOR = checked("gpu-products", check_seed)
