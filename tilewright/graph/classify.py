"""What an operator is, read off its definition: map, view, reduce, contract or program.

Whole-program decisions never look at operator names. `facts(node)` has everything that fusion,
packing and costs need to know about a definition; it is memoised per operator and input types.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Index, Load, Reduce, Tensor, Value
from tilewright.ir.extremes import guess
from tilewright.ir.node import Constant, Input, Item, Node, Op, topological
from tilewright.ir.operator import composed_alone, definition, is_composed, stages
from tilewright.ir.positions import linear_index
from tilewright.ir.scalar import cost_of
from tilewright.ir.types import TensorType, TupleType, Type

UNIT, OTHER = -1, -2  # an operand axis of size 1; an axis read in any other way


@dataclass(frozen=True)
class Access:
    """One read of an operand. `axes[a]` is the domain axis that alone indexes operand axis a."""

    operand: int
    index: tuple[Dim, ...]
    axes: tuple[int, ...]
    affine: bool

    def pointwise(self, source: Sequence[Dim], domain: Sequence[Dim]) -> bool:
        """Is this read at exactly the index of the domain?"""
        return same_index(self.axes, source, domain)


@dataclass(frozen=True, eq=False)
class Facts:
    """A definition, understood. The domain is the output's axes followed by the reduction axes."""

    kind: str
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    reduce: Reduce | None = None
    accesses: tuple[Access, ...] = ()
    flops: int = 0  # per point of the domain
    reshape: bool = False  # a view that keeps every element's row-major position
    pointwise: bool = (
        False  # a map of operands read at the (broadcast) output index, of nothing else
    )
    outer: int | None = None  # a reduction of trailing axes: how many axes are left of them

    @property
    def axes(self) -> tuple[Sym, ...]:
        own = self.outputs[0].axes if self.outputs else ()
        return own + (self.reduce.axes if self.reduce else ())

    @property
    def domain(self) -> tuple[Dim, ...]:
        return tuple(E.extent(a) for a in self.axes)

    @property
    def inner(self) -> tuple[Dim, ...]:
        """Extents of the reduction axes."""
        return tuple(E.extent(a) for a in self.reduce.axes) if self.reduce else ()


_SOURCE = Facts("source")
_OPAQUE = Facts("program")


def classify(n: Node) -> str:
    """map, view, reduce, contract, program or source; an item counts with its program."""
    return facts(n).kind


def contractions(n: Node) -> int:
    """How many sums of products it is computed by, itself or what it is written in terms of."""
    return sum(facts(x).kind == "contract" for x in written_as(n))


def multiply_adds(n: Node) -> int:
    """Of these sums of products."""
    found = (facts(x) for x in written_as(n))
    return sum(guess(_size(f.domain)) for f in found if f.kind == "contract")


def written_as(n: Node) -> list[Node]:
    """An operator, or those that it is written in terms of."""
    if not is_composed(n.op):
        return [n]
    inputs, outputs = composed_alone(n)
    return [x for y in topological(outputs, stop=inputs.values()) for x in written_as(y)]


def facts(n: Node) -> Facts:
    # Cached with the node: hashing an operator and its types costs more than the lookup.
    found = n.facts
    if found is None:
        found = n.facts = _understand(n)
    return found


def _understand(n: Node) -> Facts:
    op = n.op
    if isinstance(op, (Input, Constant)):
        return _SOURCE
    if isinstance(op, Item) or hasattr(op, "interpret"):
        return _OPAQUE
    return _facts(type(op), op, tuple([x.type for x in n.inputs]))


@lru_cache(maxsize=1024)
def _facts(_: type[Op], op: Op, types: tuple[Type, ...]) -> Facts:
    if is_composed(op):
        raise Invalid(f"{op.name} is a composition; decompose the graph before fusing it")
    ins, outs = definition(op, tuple(_tensor(t, op) for t in types))
    found = list(stages(outs))
    out = outs[0]
    if len(outs) > 1 and _of_one_reduction(found, outs):
        reduce = found[0].body
        assert isinstance(reduce, Reduce)
        reads = [v for v in E.walk(reduce.body) if isinstance(v, Load)]
        accesses = tuple(_access(v, ins, found[0].axes + reduce.axes) for v in reads)
        return Facts("reduce", ins, (found[0],), reduce, accesses, _weight(reduce) + 1)
    if len(outs) != 1 or found != [out] or out.kind != "compute":
        return Facts("program", ins, outs)
    assert out.body is not None
    inside = list(E.walk(out.body))
    reduces = [v for v in inside if isinstance(v, Reduce)]
    if len(reduces) > 1:
        return Facts("program", ins, outs)
    reduce = reduces[0] if reduces else None
    if reduce is not None and not _stands_alone(out.body, reduce):
        return Facts("program", ins, outs)
    domain = out.axes + (reduce.axes if reduce else ())
    accesses = tuple(_access(v, ins, domain) for v in inside if isinstance(v, Load))
    flops = _weight(out.body)
    if reduce is not None:
        kind = "contract" if _is_contraction(reduce) else "reduce"
        outer = None if kind == "contract" else _outer(accesses, ins, out, reduce)
        return Facts(kind, ins, outs, reduce, accesses, flops + 1, outer=outer)
    # A concat whose other parts are empty reads one of several inputs: a map, not a renaming.
    # What the caller is told is written by its own rule.
    view = isinstance(out.body, Load) and len(accesses) == len(ins) == 1 and not op.told
    return Facts(
        "view" if view else "map",
        ins,
        outs,
        accesses=accesses,
        flops=flops,
        reshape=view and _keeps_position(accesses[0], ins, out),
        pointwise=not any(isinstance(v, Index) for v in inside)
        and all(_broadcast(a, ins[a.operand].shape, out.shape) for a in accesses),
    )


def _of_one_reduction(found: list[Tensor], outs: tuple[Tensor, ...]) -> bool:
    """Are several results maps of one reduction, which carries what they need?"""
    first, *rest = found
    plain = all(t.kind == "compute" for t in found) and isinstance(first.body, Reduce)
    return plain and all(o in rest for o in outs) and all(t.inputs() == (first,) for t in rest)


def _tensor(t: Type, op: Op) -> TensorType:
    if isinstance(t, TupleType):
        raise Invalid(f"{op.name} takes a tuple; only item(n, k) does")
    return t


def _weight(body: Value) -> int:
    """Scalar operations per point. What computes an index is left out: it runs once per row."""
    total, stack, seen = 0, [body], set()
    while stack:
        v = stack.pop()
        if id(v) in seen:
            continue
        seen.add(id(v))
        stack.extend(v.args)
        # functions of constants and indices alone cost nothing worth counting
        if isinstance(v, Fn) and not all(isinstance(a, (Const, Index)) for a in v.args):
            total += cost_of(v.name)
    return total


def _stands_alone(body: Value, reduce: Reduce) -> bool:
    """Is everything around the reduction a scalar function of its result, such as a cast?"""
    stack = [body]
    while stack:
        v = stack.pop()
        if v is reduce or isinstance(v, Const):
            continue
        if not isinstance(v, Fn):
            return False
        stack.extend(v.args)
    return True


def _access(v: Load, ins: tuple[Tensor, ...], domain: tuple[Sym, ...]) -> Access:
    assert isinstance(v.source, Tensor)
    positions = {a: k for k, a in enumerate(domain)}
    axes: list[int] = []
    for i, d in zip(v.index, v.source.shape, strict=True):
        if D.is_sym(i):
            axes.append(positions.get(D.the_sym(i), OTHER))
        else:
            axes.append(UNIT if d == 1 and i == 0 else OTHER)
    affine = all(
        D.coefficient(i, s) is not None for i in v.index for s in D.symbols(i) if s in positions
    )
    return Access(ins.index(v.source), v.index, tuple(axes), affine)


def same_index(axes: Sequence[int], source: Sequence[Dim], domain: Sequence[Dim]) -> bool:
    """Does an access read a tensor of shape `source` at exactly the index of the domain?"""
    if len(source) != len(domain):
        return False
    return all(
        D.known_eq(s, d) and (a == k or D.known_eq(d, 1))
        for k, (a, s, d) in enumerate(zip(axes, source, domain, strict=True))
    )


def same_prefix(axes: Sequence[int], shape: Sequence[Dim], count: int) -> bool:
    """Are the first `count` axes of the operand the first `count` axes of the domain?"""
    return len(axes) >= count and all(
        a == k or D.known_eq(d, 1)
        for k, (a, d) in enumerate(zip(axes[:count], shape[:count], strict=True))
    )


def _broadcast(a: Access, source: Sequence[Dim], out: Sequence[Dim]) -> bool:
    skip = len(out) - len(source)
    return skip >= 0 and all(
        x in (k + skip, UNIT) or D.known_eq(d, 1)
        for k, (x, d) in enumerate(zip(a.axes, source, strict=True))
    )


def _keeps_position(a: Access, ins: tuple[Tensor, ...], out: Tensor) -> bool:
    source = ins[a.operand]
    if not D.known_eq(_size(source.shape), _size(out.shape)):
        return False
    unit: dict[Sym, Dim] = {s: 0 for s in out.axes if D.known_eq(E.extent(s), 1)}
    there = D.substitute(linear_index(a.index, source.shape), unit)
    here = D.substitute(linear_index([D.as_int(s) for s in out.axes], out.shape), unit)
    return D.known_eq(_digits_joined(there), here)


def _digits_joined(x: Dim) -> Dim:
    """A sum in which digits of a number are put together: 64*(j//64%4) + j%64 is j%256, and
    256*(j//256) + j%256 is j."""
    while isinstance(x, D.Int):
        terms = [(mono[0], c) for mono, c in x.terms if len(mono) == 1]
        digits = [(q, c) for q, c in terms if isinstance(q, D.Quo)]
        made = next((y for low in digits for high in digits if (y := _joined(low, high))), None)
        if made is None:
            return x
        x = x + made[0] - made[1]
    return x


def _joined(low: tuple[D.Quo, int], high: tuple[D.Quo, int]) -> tuple[Dim, Dim] | None:
    """(what two neighbouring digits are together, what they are now), each with its factor."""
    (q, c), (r, d) = low, high
    if q.op != "mod" or not isinstance(q.b, int) or d != c * q.b:
        return None
    now = c * D.from_atom(q) + d * D.from_atom(r)
    rest = D.floordiv(q.a, q.b)
    if D.known_eq(D.from_atom(r), rest):
        return c * q.a, now
    if r.op == "mod" and isinstance(r.b, int) and D.known_eq(r.a, rest):
        return c * D.mod(q.a, q.b * r.b), now
    return None


def _size(shape: Sequence[Dim]) -> Dim:
    n: Dim = 1
    for d in shape:
        n = n * d
    return n


def _outer(
    accesses: tuple[Access, ...], ins: tuple[Tensor, ...], out: Tensor, reduce: Reduce
) -> int | None:
    """How many axes precede the reduced ones, where these are exactly the trailing axes."""
    if not accesses:
        return None
    main = max(accesses, key=lambda a: len(a.axes))
    count = len(main.axes) - len(reduce.axes)
    rank = len(out.shape)
    whole = (*range(count), *range(rank, rank + len(reduce.axes)))
    in_order = rank == count or (
        rank == len(main.axes) and all(D.known_eq(d, 1) for d in out.shape[count:])
    )
    same = all(same_prefix(a.axes, ins[a.operand].shape, min(count, len(a.axes))) for a in accesses)
    return count if count >= 0 and main.axes == whole and in_order and same else None


# ---- contractions


def _is_contraction(reduce: Reduce) -> bool:
    found = factors(reduce)
    return found is not None and found[0].source is not found[1].source


def factors(reduce: Reduce) -> tuple[Load, Load] | None:
    """The two loads whose products a sum adds up, each perhaps cast or zero outside its range."""
    if reduce.combine != "add" or reduce.dtype.is_bool:
        return None
    body = _bare(reduce.body)
    if not (isinstance(body, Fn) and body.name == "mul"):
        return None
    a, b = (_bare(x) for x in body.args)
    if not (isinstance(a, Load) and isinstance(b, Load)):
        return None
    plain = not any(True for x in (a, b) for i in x.index for _ in D.data_values(i))
    return (a, b) if plain else None


def _bare(v: Value) -> Value:
    """Without casts, and without selects that put zero where an index is out of range."""
    while isinstance(v, Fn):
        if v.name == "cast":
            v = v.args[0]
        elif v.name == "select" and _is_zero(v.args[2]) and not any(E.loads(v.args[0])):
            v = v.args[1]
        else:
            return v
    return v


def _is_zero(v: Value) -> bool:
    return isinstance(v, Const) and v.value == 0 and not math.copysign(1, v.value) < 0


@dataclass(frozen=True)
class Contraction:
    """A sum of products: which output axes each operand carries, by position in the output."""

    left: int  # operand number
    right: int  # operand number; it carries the lane axis
    lane: int  # the output axis along which vectors run
    rows: tuple[int, ...]  # output axes that only the left operand has: the right one is reused
    columns: tuple[int, ...]  # output axes that only the right operand has
    batch: tuple[int, ...]  # output axes of both
    right_axes: tuple[int, ...]  # domain axis of each axis of the right operand


def contraction(n: Node) -> Contraction | None:
    """The structure of a matrix product or a convolution; None where no operand is plainly indexed.

    The right operand is read at plain symbols only (a weight, or the second matrix) and has output
    axes of its own; the one with the innermost output axis is preferred: vectors run along it.
    """
    f = facts(n)
    return _contraction(f) if f.kind == "contract" else None


@lru_cache(maxsize=1024)
def _contraction(f: Facts) -> Contraction | None:
    assert f.reduce is not None
    found = factors(f.reduce)
    assert found is not None
    rank = len(f.outputs[0].axes)
    out = f.outputs[0].axes
    uses = [_out_axes(x, out) for x in found]
    best: Contraction | None = None
    for k, load in enumerate(found):
        assert isinstance(load.source, Tensor)
        own = tuple(sorted(uses[k] - uses[1 - k]))
        access = next(a for a in f.accesses if f.inputs[a.operand] is load.source)
        used = [a for a in access.axes if a != UNIT]
        # grouped convolutions: the lane axis also picks the group of the other operand
        lanes = own or tuple(a for a in sorted(uses[k]) if _hidden(found[1 - k], out[a]))
        if not lanes or OTHER in access.axes or len(set(used)) != len(used):
            continue
        other = next(p for p, x in enumerate(f.inputs) if x is found[1 - k].source)
        rows = tuple(sorted(uses[1 - k] - uses[k]))
        both = tuple(sorted(uses[k] & uses[1 - k]))
        c = Contraction(other, access.operand, lanes[-1], rows, own, both, access.axes)
        if best is None or lanes[-1] == rank - 1:
            best = c
    return best


def _out_axes(load: Load, out: tuple[Sym, ...]) -> set[int]:
    free = frozenset().union(*(D.symbols(i) for i in load.index)) if load.index else frozenset()
    return {k for k, a in enumerate(out) if a in free}


def _hidden(load: Load, s: Sym) -> bool:
    """Does the symbol index the load only inside a quotient?"""
    found = [i for i in load.index if s in D.symbols(i)]
    return bool(found) and all(D.coefficient(i, s) is None for i in found)


# ---- sizes


def nbytes(t: TensorType) -> Dim:
    return t.size * t.dtype.bytes


def flops(n: Node) -> int:
    """Estimated additions and multiplications; functions such as exp count as several."""
    f = facts(n)
    if f.kind in ("source", "program") and not f.outputs:
        return 0
    if f.kind == "program":
        return sum(
            guess(_size([E.extent(a) for a in t.axes])) * max(1, _stage_flops(t))
            for t in stages(f.outputs)
        )
    return guess(_size(f.domain)) * f.flops


def _stage_flops(t: Tensor) -> int:
    assert t.body is not None
    total = 0
    for v in E.walk(t.body):
        if isinstance(v, Fn):
            total += cost_of(v.name)
        elif isinstance(v, Reduce):
            total += guess(_size([E.extent(a) for a in v.axes]))
    return total
