"""Proving rules: by normal form for all sizes, and by exact evaluation at random points.

Both have to agree. Evaluation tries every dtype the rule is for: whole numbers over their full
range (arithmetic wraps, so equality is exact), floats with NaN, infinities and both zeros where the
rule says that nothing changes, and in float64 within rounding where it says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Input, Node, topological
from tilewright.ir.pattern import Rule
from tilewright.ir.types import DTYPES, TENSOR_DTYPES, DType, as_dtype, f32, f64, i64
from tilewright.rewrites.normal_form import nodes_equal
from tilewright.rewrites.subject import Maker, subject_of

POINTS = 6  # subjects per dtype
FORMS = 4  # symbolic subjects


@dataclass(frozen=True)
class Proof:
    """Whether the rule holds, and what decided it."""

    holds: bool
    detail: str

    def __bool__(self) -> bool:
        return self.holds


def prove(rule: Rule, points: int = POINTS, forms: int = FORMS, seed: int = 0) -> Proof:
    """Check the rule by the method it names; the detail says what fails, with the seed."""
    tried = 0
    for dtype in _dtypes(rule):
        for k in range(points):
            maker = Maker(seed + 1000 * k + dtype.bits, dtype=dtype)
            sides = _sides(rule, maker)
            if sides is None:
                return Proof(False, f"does not apply to its own subject (seed {seed}, {dtype})")
            wrong = compare(*sides, rule.changes, seed + k)
            if wrong:
                return Proof(False, f"{wrong} (seed {seed}, point {k}, {dtype})")
            tried += 1
    if rule.proof == "evaluation":
        return Proof(True, f"equal at {tried} points")
    for k in range(forms):
        maker = Maker(seed + k, symbolic=True, dtype=_form_dtype(rule))
        sides = _sides(rule, maker)
        if sides is None:
            return Proof(False, f"does not apply to symbolic sizes (seed {seed + k})")
        try:
            if not nodes_equal(*sides):
                return Proof(False, f"the normal forms differ (seed {seed + k})")
        except Unsupported as why:
            return Proof(False, f"no normal form: {why.what}")
    return Proof(True, f"equal at {tried} points and as normal forms of {forms} symbolic subjects")


def _sides(rule: Rule, maker: Maker) -> tuple[Node, Node] | None:
    left = subject_of(rule, maker)
    applied = rule.apply(left)
    return None if applied is None else (left, applied[0])


def _dtypes(rule: Rule) -> list[DType]:
    if rule.changes == "rounding":
        return [f64] + ([i64] if "i" in rule.dtypes else [])
    return [d for d in TENSOR_DTYPES.values() if d.kind in rule.dtypes]


def _form_dtype(rule: Rule) -> DType:
    kind = rule.dtypes[0]
    return {"f": f32, "i": i64, "u": DTYPES["u8"], "b": DTYPES["bool"]}[kind]


# ---- evaluation


def inputs_of(*nodes: Node) -> tuple[Node, ...]:
    return tuple(n for n in topological(nodes) if isinstance(n.op, Input))


def random_argument(n: Node, rng: np.random.Generator, special: bool) -> np.ndarray:
    """Values over the whole range of the dtype; `special` mixes in NaN, infinities and zeros."""
    shape, dtype = tuple(int(d) for d in n.shape if isinstance(d, int)), n.dtype
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        wide = rng.integers(info.min, info.max, shape, dtype=dtype.numpy, endpoint=True)
        small = rng.integers(0, 4, shape).astype(dtype.numpy)
        return np.where(rng.random(shape) < 0.3, small, wide)
    values = rng.standard_normal(shape) * 4
    if special:
        odd = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, 6e4], shape)
        values = np.where(rng.random(shape) < 0.4, odd, values)
    return as_dtype(values, dtype)


def compare(left: Node, right: Node, changes: str, seed: int) -> str | None:
    """How the two sides differ at a random point, or None."""
    if left.type != right.type:
        return f"the types differ: {left.type!r} and {right.type!r}"
    ins = inputs_of(left, right)
    rng = np.random.default_rng(seed)
    args = [random_argument(n, rng, special=changes != "rounding") for n in ins]
    try:
        a, b = evaluate(Graph("sides", ins, (left, right)), args)
    except (Invalid, IndexError) as why:
        return f"evaluation fails: {why}"
    return difference(a, b, changes)


def difference(a: np.ndarray, b: np.ndarray, changes: str) -> str | None:
    if a.dtype.kind != "f":
        return None if np.array_equal(a, b) else "the sides differ in whole numbers"
    if changes == "rounding":
        scale = max(1.0, float(np.max(np.abs(a), initial=0.0)))
        wrong = np.max(np.abs(a - b), initial=0.0)
        return None if wrong <= 1e-9 * scale else f"the sides differ by {wrong:g}"
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if changes == "nothing":
        same &= np.isnan(a) | (np.signbit(a) == np.signbit(b))
    return None if same.all() else f"the sides differ: {a[~same][0]} and {b[~same][0]}"
