"""Proving rules: by normal form for all sizes, and by exact evaluation. Both have to agree.

Evaluation tries every dtype that the rule is for: whole numbers over their full range (arithmetic
wraps, so equality is exact), floats with NaN, infinities and both zeros where the rule says that
nothing changes, and in float64 within rounding where it says so, then by the operators' references
too. A rule of one operand of at most 16 bits, or of two of 8, is evaluated on all there are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir import dim as D
from tilewright.ir.dim import Sym
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Input, Node, topological
from tilewright.ir.pattern import Rule
from tilewright.ir.types import TENSOR_DTYPES, DType, TensorType, as_dtype, f64, from_memory, i64
from tilewright.ops.control import by_references
from tilewright.rewrites.proofs.equality import nodes_equal
from tilewright.rewrites.subject import Maker, subject_of

# Subjects per dtype of a rule that is proved, of which one is enough where all values are tried,
# and of one that rests on them.
POINTS, POINTS_OF_TESTED = 3, 20
FORMS = 4  # symbolic subjects of the first dtype of each kind; one of each other dtype
# How floats are read by what a rule may change, and what a proof then says.
READING = {"nothing": "bits", "sign of zero": "numbers", "rounding": "reals"}
SAYS = {
    "nothing": "bit for bit",
    "sign of zero": "but for the sign of zero",
    "rounding": "over the reals, rounding differs",
}
# Of all values of an operand, and all pairs: more take too long.
MOST_VALUES = 1 << 16


@dataclass(frozen=True)
class Proof:
    """Whether the rule holds as it says, by what, and for which dtypes."""

    holds: bool
    detail: str
    proved: tuple[DType, ...] = ()  # by normal form
    complete: tuple[DType, ...] = ()  # evaluated on all values
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.holds


def prove(rule: Rule, points: int = 0, forms: int = FORMS, seed: int = 0) -> Proof:
    """Check the rule by normal form and by evaluation; one that says `tested` has no normal form.
    The detail says what fails, with the seed."""
    start = time.perf_counter()
    points = points or (POINTS_OF_TESTED if rule.tested else POINTS)
    tried, complete, wrong = evaluated(rule, points, seed)
    if wrong:
        return Proof(False, wrong)
    proved, unproved = proved_dtypes(rule, forms, seed)
    took = time.perf_counter() - start
    said = f"equal at {tried} points"
    if complete:
        said += f", for all values of {', '.join(map(str, complete))}"
    if not unproved and proved:
        said = f"one normal form for {', '.join(map(str, proved))}; {said}"
        if rule.tested:
            said = f"says that it is tested, and is proved: {said}"
        return Proof(not rule.tested, said, proved, complete, took)
    if rule.tested:
        return Proof(True, f"{said}; tested: {rule.tested}", proved, complete, took)
    return Proof(False, unproved or f"does not apply to symbolic sizes (seed {seed})")


# ---- normal form


def proved_dtypes(rule: Rule, forms: int, seed: int) -> tuple[tuple[DType, ...], str]:
    """The dtypes for which both sides have one normal form, and what is in the way of others.

    A guard may refuse some dtypes, so long as one of each kind is left.
    """
    proved: list[DType] = []
    for kind in rule.dtypes:
        mine = [d for d in TENSOR_DTYPES.values() if d.kind == kind]
        applied = [d for d in mine if _sides(rule, Maker(seed, True, d)) is not None]
        if not applied:
            return tuple(proved), f"does not apply to symbolic sizes (seed {seed}, {mine[0]})"
        for j, dtype in enumerate(applied):
            why = _unproved(rule, dtype, range(forms) if j == 0 else range(j, j + 1), seed)
            if why:
                return tuple(proved), why
            proved.append(dtype)
    return tuple(proved), ""


def _unproved(rule: Rule, dtype: DType, subjects: range, seed: int) -> str | None:
    for k in subjects:
        where = f"(seed {seed}, subject {k}, {dtype})"
        sides = _sides(rule, Maker(seed + k, True, dtype))
        if sides is None:
            return f"does not apply to symbolic sizes {where}"
        try:
            if not nodes_equal(*sides, READING[rule.changes]):
                return f"the normal forms differ {where}"
        except Unsupported as why:
            return f"no normal form: {why.what} {where}"
    return None


def symbolic_sides(rule: Rule, seed: int = 0) -> tuple[Node, Node] | None:
    """Both sides on a subject of all sizes; None where the rule does not apply to one."""
    mine = [d for d in TENSOR_DTYPES.values() if d.kind in rule.dtypes]
    found = (_sides(rule, Maker(seed, True, d)) for d in mine)
    return next((x for x in found if x is not None), None)


def _sides(rule: Rule, maker: Maker) -> tuple[Node, Node] | None:
    left = subject_of(rule, maker)
    applied = rule.apply(left)
    return None if applied is None else (left, applied[0])


# ---- evaluation


def evaluated(rule: Rule, points: int, seed: int) -> tuple[int, tuple[DType, ...], str | None]:
    """(points that were tried, dtypes of which all values were, what is wrong)."""
    tried = 0
    complete: list[DType] = []
    for dtype in _dtypes(rule):
        every = _every_value(rule, dtype)
        for k in range(points if every is None or rule.tested else 1):
            sides = _sides(rule, Maker(seed + 1000 * k + dtype.bits, dtype=dtype))
            if sides is None:
                return tried, (), f"does not apply to its own subject (seed {seed}, {dtype})"
            wrong = compare(*sides, rule.changes, seed + k)
            if not wrong and rule.changes == "rounding" and dtype.is_float:
                wrong = compare_references(*sides, seed + k)
            if wrong:
                return tried, (), f"{wrong} (seed {seed}, point {k}, {dtype})"
            tried += 1
        if every is not None:
            left, right, args = every
            a, b = evaluate(Graph("sides", inputs_of(left), (left, right)), args)
            wrong = difference(a, b, rule.changes)
            if wrong:
                return tried, (), f"{wrong} (all values of {dtype})"
            complete.append(dtype)
    return tried, tuple(complete), None


def _dtypes(rule: Rule) -> list[DType]:
    if rule.changes == "rounding":
        return [f64] + ([i64] if "i" in rule.dtypes else [])
    return [d for d in TENSOR_DTYPES.values() if d.kind in rule.dtypes]


def _every_value(rule: Rule, dtype: DType) -> tuple[Node, Node, list[np.ndarray]] | None:
    """The two sides of an elementwise rule over operands that hold all values together."""
    if rule.subject is not None or rule.changes == "rounding":
        return None
    count = len(inputs_of(subject_of(rule, Maker(0, dtype=dtype))))
    values = 2 if dtype.is_bool else 1 << dtype.bits
    if values**count > MOST_VALUES:
        return None
    sides = _sides(rule, Maker(0, dtype=dtype, one_shape=(values**count,)))
    if sides is None:
        return None
    each = all_values(dtype)
    at = np.indices((values,) * count).reshape(count, -1)
    return *sides, [each[k] for k in at]


def all_values(dtype: DType) -> np.ndarray:
    """Every value of a dtype of at most 16 bits, as the interpreter represents them."""
    if dtype.is_bool:
        return np.array([False, True])
    codes = np.arange(1 << dtype.bits).astype(f"u{dtype.bytes}")
    return from_memory(codes.view(dtype.memory), dtype)


def inputs_of(*nodes: Node) -> tuple[Node, ...]:
    return tuple(n for n in topological(nodes) if isinstance(n.op, Input))


def random_argument(
    n: Node, rng: np.random.Generator, special: bool, sizes: Mapping[str, int] | None = None
) -> np.ndarray:
    """Values over the whole range of the dtype, with some zeros; `special` mixes in NaN, infinities
    and more zeros of both signs."""
    shape, dtype = tuple(int(D.evaluate(d, sizes or {})) for d in n.shape), n.dtype
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.is_int:
        info = np.iinfo(dtype.numpy)
        wide = rng.integers(info.min, info.max, shape, dtype=dtype.numpy, endpoint=True)
        few = np.array([0, 1, 2, 3, info.min, info.max], dtype=dtype.numpy)
        return np.where(rng.random(shape) < 0.4, rng.choice(few, shape), wide)
    values = rng.standard_normal(shape) * 4 * (rng.random(shape) < 0.98)
    if special:
        odd = rng.choice([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40, 6e4], shape)
        values = np.where(rng.random(shape) < 0.4, odd, values)
    return as_dtype(values, dtype)


def _symbols(*nodes: Node) -> Iterator[Sym]:
    tensors = (n.type for n in topological(nodes) if isinstance(n.type, TensorType))
    found = {s.name: s for t in tensors for d in t.shape for s in D.symbols(d)}
    yield from (found[name] for name in sorted(found))


def at_a_point(nodes: Sequence[Node], special: bool, seed: int) -> list[np.ndarray]:
    """The values of nodes for random inputs. Symbols of shapes get random sizes."""
    ins = inputs_of(*nodes)
    rng = np.random.default_rng(seed)
    sizes: dict[str, int] = {}
    for s in _symbols(*nodes):
        low = D.bounds(s.lo)[0]
        sizes[s.name] = int(rng.integers(low, low + 5))
    args = [random_argument(n, rng, special, sizes) for n in ins]
    return evaluate(Graph("point", ins, tuple(nodes)), args, sizes)


def compare(left: Node, right: Node, changes: str, seed: int) -> str | None:
    """How the two sides differ at a random point, or None."""
    if left.type != right.type:
        return f"the types differ: {left.type!r} and {right.type!r}"
    try:
        a, b = at_a_point((left, right), changes != "rounding", seed)
    except (Invalid, IndexError) as why:
        return f"evaluation fails: {why}"
    return difference(a, b, changes)


def compare_references(left: Node, right: Node, seed: int) -> str | None:
    """The same by the operators' references, which are written apart from the definitions that a
    normal form is made of."""
    ins, rng = inputs_of(left, right), np.random.default_rng(seed)
    args = [random_argument(n, rng, False) for n in ins]
    with np.errstate(all="ignore"):
        a, b = by_references(Graph("point", ins, (left, right)), args)
    wrong = difference(np.asarray(a), np.asarray(b), "rounding")
    return f"by references, {wrong}" if wrong else None


def difference(a: np.ndarray, b: np.ndarray, changes: str) -> str | None:
    if a.dtype.kind != "f":
        return None if np.array_equal(a, b) else "the sides differ in whole numbers"
    if changes == "rounding":
        defined = np.isfinite(a)
        if not np.array_equal(defined, np.isfinite(b)):
            return "one side is defined where the other is not"
        a, b = a[defined], b[defined]
        scale = max(1.0, float(np.max(np.abs(a), initial=0.0)))
        wrong = np.max(np.abs(a - b), initial=0.0)
        return None if wrong <= 1e-9 * scale else f"the sides differ by {wrong:g}"
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if changes == "nothing":
        same &= np.isnan(a) | (np.signbit(a) == np.signbit(b))
    return None if same.all() else f"the sides differ: {a[~same][0]} and {b[~same][0]}"
