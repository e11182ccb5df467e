"""Random chains of operations on 16-bit floats, judged by exact arithmetic.

python -m tests.lang.tile.random_narrow --count 100 [--first SEED]

A chain is a kernel and a list of steps. The oracle computes every step in float64 (fma in
fractions), which is exact or rounds harmlessly, and rounds to the dtype of the result at once.
Native code and stepping have to give the same bits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction

import numpy as np

from tests.lang.tile.random_operations import operation
from tests.lang.tile.random_running import launched
from tests.lang.tile.random_values import FLOATS
from tests.lang.tile.random_writer import ArraySpec, Kernel, Statement, Writer
from tests.seeds import run_seeds
from tilewright.ir.types import from_memory

HALVES = ("float16", "bfloat16")
WIDE = ("float32", "float64")
CONSTANTS = (3.0, 100.0, 0.1, -0.5, 1.7, 1000.0, -100.0, 2.0**-20)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """float64 numbers as the nearest of a dtype, ties to even, as float64."""
    if dtype == "float64":
        return x
    if dtype != "bfloat16":
        return x.astype({"float16": np.float16, "float32": np.float32}[dtype]).astype(np.float64)
    # No dtype of numpy: in units of the last place, of which there are none below 2^-133.
    _, exponent = np.frexp(np.where(np.isfinite(x), x, 0.0))
    unit = np.maximum(exponent - 8, -133)
    r = np.ldexp(np.rint(np.ldexp(x, -unit)), unit)
    return np.where(np.isfinite(x) & (np.abs(r) >= 2.0**128), np.copysign(np.inf, x), r)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: str) -> np.ndarray:
    """a * b + c rounded once: the exact sum as a double whose last bit says if more follows."""
    out = a * b + c
    for k in np.flatnonzero(np.isfinite(a) & np.isfinite(b) & np.isfinite(c)):
        exact = Fraction(float(a[k])) * Fraction(float(b[k])) + Fraction(float(c[k]))
        near = exact.numerator / exact.denominator
        if Fraction(near) != exact and int(np.float64(near).view(np.uint64)) & 1 == 0:
            near = math.nextafter(near, math.inf if exact > Fraction(near) else -math.inf)
        if exact:
            out[k] = near
    return rounded(out, dtype)


Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Step:
    """A line of a kernel, and what it does to arrays of float64 by name."""

    text: str
    run: Callable[[Arrays], None]
    body: tuple[Step, ...] = ()  # of a loop

    def statement(self) -> Statement:
        return Statement(self.text, [s.statement() for s in self.body] if self.body else None)


@dataclass
class Chain:
    kernel: Kernel
    steps: list[Step]
    outputs: dict[str, str]  # the variable in each output


@dataclass
class _Maker:
    random: random.Random
    size: int
    block: int
    dtypes: dict[str, str] = field(default_factory=dict)  # of variables
    count: int = 0

    def name(self, dtype: str) -> str:
        self.count += 1
        name = f"v{self.count}"
        self.dtypes[name] = dtype
        return name

    def pick(self, dtype: str | None = None) -> str:
        """A variable, one of the last more often."""
        found = [n for n, d in self.dtypes.items() if dtype in (None, d)]
        return self.random.choice([*found, *found[-2:], *found[-2:]])

    def define(self, dtype: str, text: str, f: Callable[[Arrays], np.ndarray]) -> Step:
        name = self.name(dtype)

        def run(v: Arrays) -> None:
            v[name] = rounded(f(v), dtype)

        return Step(f"{name} = {text}", run)

    def sign(self, dtype: str) -> str:
        """Products of wider floats are left out: adding to one may be one instruction (fma)."""
        return self.random.choice("+-*" if dtype in HALVES else "+-")

    # ---- steps

    def step(self) -> Step:
        kind = self.random.choices(
            "binary constant sum same cast divide root fma where extreme whole loop".split(),
            (6, 6, 3, 3, 5, 2, 2, 2, 2, 2, 1, 2),
        )[0]
        return getattr(self, f"_{kind}")()

    def _binary(self) -> Step:
        a = self.pick()
        b, sign = self.pick(self.dtypes[a]), self.sign(self.dtypes[a])
        return self.define(self.dtypes[a], f"{a} {sign} {b}", lambda v: _apply(sign, v[a], v[b]))

    def _constant(self) -> Step:
        a, k = self.pick(), self.random.choice(CONSTANTS)
        d = self.dtypes[a]
        sign = self.sign(d)
        number = rounded(np.array(k), d)
        if self.random.random() < 0.3:
            return self.define(d, f"{k} {sign} {a}", lambda v: _apply(sign, number, v[a]))
        return self.define(d, f"{a} {sign} {k}", lambda v: _apply(sign, v[a], number))

    def _sum(self) -> Step:
        """Large numbers that leave again: what stays shows where it was rounded."""
        a, k = self.pick(), self.random.choice((100.0, 1000.0, 0.75))
        d = self.dtypes[a]
        return self.define(d, f"{a} + {k} - {k}", lambda v: rounded(v[a] + k, d) - k)

    def _same(self) -> Step:
        a = self.pick()
        text, f = self.random.choice([(f"-{a}", np.negative), (f"tl.abs({a})", np.abs)])
        return self.define(self.dtypes[a], text, lambda v: f(v[a]))

    def _cast(self) -> Step:
        a = self.pick()
        to = self.random.choice([d for d in (*HALVES, *HALVES, *WIDE) if d != self.dtypes[a]])
        return self.define(to, f"{a}.to(tl.{to})", lambda v: v[a])

    def _divide(self) -> Step:
        """`/` of 16-bit floats is one of float32; fdiv divides them as they are."""
        a = self.pick()
        d = self.dtypes[a]
        b = self.pick(d)
        if self.random.random() < 0.5:
            return self.define(d, f"tl.fdiv({a}, {b})", lambda v: _apply("/", v[a], v[b]))
        wide = "float32" if d in HALVES else d
        return self.define(wide, f"{a} / {b}", lambda v: _apply("/", v[a], v[b]))

    def _root(self) -> Step:
        a = self.pick()
        d = self.dtypes[a]
        if d in WIDE:
            return self.define(d, f"tl.sqrt({a})", lambda v: np.sqrt(v[a]))
        text = f"tl.sqrt({a}.to(tl.float32)).to(tl.{d})"
        return self.define(d, text, lambda v: rounded(np.sqrt(v[a]), "float32"))

    def _fma(self) -> Step:
        found = [n for n, d in self.dtypes.items() if d != "float64"]
        if not found:
            return self._binary()
        a = self.random.choice(found)
        d = self.dtypes[a]
        b, c = self.pick(d), self.pick(d)
        return self.define(d, f"tl.fma({a}, {b}, {c})", lambda v: fused(v[a], v[b], v[c], d))

    def _where(self) -> Step:
        a = self.pick()
        b = self.pick(self.dtypes[a])
        text = f"tl.where({a} < {b}, {a}, {b})"
        return self.define(self.dtypes[a], text, lambda v: np.where(v[a] < v[b], v[a], v[b]))

    def _extreme(self) -> Step:
        """The greater or the lesser one; bfloat16 is compared, and left, as float32."""
        a = self.pick()
        d = self.dtypes[a]
        b, sign = self.pick(d), self.random.choice((1, -1))
        wide = "float32" if d == "bfloat16" else d
        name = "maximum" if sign == 1 else "minimum"

        def extreme(v: Arrays) -> np.ndarray:
            x, y = sign * v[a], sign * v[b]
            return sign * np.where((x == 0) & (y == 0), x + y, np.fmax(x, y))

        return self.define(wide, f"tl.{name}({a}, {b})", extreme)

    def _whole(self) -> Step:
        to, by = self.random.choice(HALVES), self.random.choice((1, 17, 333, -777))
        numbers = (np.arange(self.size) * by).astype(np.float64)
        text = f"(tl.arange(0, {self.block}) * {by}).to(tl.{to})"
        return self.define(to, text, lambda v: numbers)

    def _loop(self) -> Step:
        """A tile that a loop carries."""
        a = self.pick(self.random.choice([d for d in self.dtypes.values() if d in HALVES]))
        d = self.dtypes[a]
        b, sign, times = self.pick(d), self.random.choice("+-"), self.random.randrange(2, 5)
        number = self.random.choice((0.5, 1.7, 0.1))
        factor = rounded(np.array(number), d)

        def once(v: Arrays) -> None:
            v[a] = rounded(_apply(sign, rounded(v[a] * factor, d), v[b]), d)

        def run(v: Arrays) -> None:
            for _ in range(times):
                once(v)

        body = (Step(f"{a} = {a} * {number} {sign} {b}", once),)
        return Step(f"for i in range({times}):", run, body)


def _apply(sign: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[sign](a, b)


def chain(seed: int, steps: int | None = None) -> Chain:
    """The chain of a seed."""
    rng = random.Random(seed)
    size = rng.choice([1, 7, 16, 64, 128])
    m = _Maker(rng, size, 1 << (size - 1).bit_length())
    offsets = f"tl.arange(0, {m.block})"
    mask = "" if m.block == m.size else f", mask={offsets} < {m.size}, other=0.0"
    arrays: dict[str, ArraySpec] = {}
    body: list[Step] = []
    for k in range(rng.randrange(2, 4)):
        dtype = rng.choice(HALVES)
        reach = rng.choice([1.0, 8.0, 300.0, 2.0**-14, math.inf])
        arrays[f"x{k}"] = ArraySpec(dtype, 0, m.size - 1, (-reach, reach, None))
        name = m.name(dtype)
        body.append(Step(f"{name} = tl.load(x{k} + {offsets}{mask})", lambda v: None))
    loads = len(body)
    body += [m.step() for _ in range(steps or rng.choice([2, 3, 5, 8, 12]))]
    used = list(m.dtypes)[loads:] or list(m.dtypes)
    outputs = {f"o{k}": n for k, n in enumerate(rng.sample(used, min(3, len(used))) + used[-1:])}
    where = offsets if not mask else f"{offsets}, mask={offsets} < {m.size}"
    stores = []
    for o, n in outputs.items():
        arrays[o] = ArraySpec(m.dtypes[n], 0, m.size - 1, (0.0, 0.0, 1.0), output=True)
        at, _, masked = where.partition(", mask")
        stores.append(Statement(f"tl.store({o} + {at}, {n}{', mask' + masked if masked else ''})"))
    statements = [*(s.statement() for s in body), *stores]
    errors = dict.fromkeys(outputs, 0.0)
    k = Kernel(seed, (1,), [], statements, dict.fromkeys(arrays, ""), arrays, {}, errors)
    return Chain(k, body, outputs)


def failure(c: Chain) -> str | None:
    """Where a chain's results differ from the oracle's, if they do."""
    for how in ("stepping", "native"):
        arrays = launched(c.kernel, how)
        data = {n: from_memory(a.elements, a.element).astype(np.float64) for n, a in arrays.items()}
        values = {f"v{k + 1}": data[n] for k, n in enumerate(n for n in data if n[0] == "x")}
        with np.errstate(all="ignore"):
            for step in c.steps:
                step.run(values)
        for o, n in c.outputs.items():
            want, got = np.broadcast_to(values[n], data[o].shape), data[o]
            # A NaN is a NaN; zeros have a sign.
            same = (np.isnan(want) & np.isnan(got)) | (
                (want == got) & (np.signbit(want) == np.signbit(got))
            )
            if not same.all():
                at = int(np.flatnonzero(~same)[0])
                return (
                    f"seed {c.kernel.seed}: {n} [{at}] is {got[at]!r} {how} and {want[at]!r} "
                    f"exactly ({int((~same).sum())} of {same.size} differ)\n{c.kernel.source()}"
                )
    return None


# ---- within any random kernel


@operation(4)
def narrow_chain(w: Writer) -> None:
    """Operations on 16-bit floats that every implementation rounds alike."""
    v = w.choose(lambda x: x.dtype in HALVES and x.exact and x.mag <= 100)
    if v is None:
        return
    for _ in range(w.rng.randrange(1, 4)):
        text, mag = w.rng.choice(
            [
                (f"{v.name} * 3", 3 * v.mag),
                (f"{v.name} + 100 - 100", v.mag + 100),
                (f"{v.name} * 0.1", 0.1 * v.mag),
                (f"{v.name} * {v.name}", v.mag * v.mag),
                (f"({v.name} - 1.7) * {v.name}", (v.mag + 1.7) * v.mag),
            ]
        )
        mag = mag * (1 + 2.0**-6) + 1.0
        if mag > FLOATS[v.dtype][1] / 8:
            return
        made = w.define(text, replace(v, name="", mag=mag, grain=None, err=0.0))
        if made is None:
            return
        v = made


def check_seed(seed: int) -> None:
    """Raises with a chain of as few steps as still fail."""
    found = failure(chain(seed))
    if found is None:
        return
    shorter = (failure(chain(seed, n)) for n in range(1, 12))
    raise AssertionError(next((f for f in shorter if f is not None), found))


if __name__ == "__main__":
    raise SystemExit(run_seeds(check_seed, "chains", 200, __doc__))
