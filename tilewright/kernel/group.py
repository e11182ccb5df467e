"""Group form: what one fused kernel computes. Stages over index functions, in order; no loops.

A stage `t[where] combine= value` holds for every point of its axes and reduction axes. Three shapes
cover everything: a map (where = axes, no combine), a reduction (combine over reduction axes,
starting from `init`) and an ordered update (a computed `where`: scatter; or a value that reads the
stage itself at an earlier index: scan).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.combine import Combine, identity
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import (
    Load,
    Reduce,
    Tensor,
    Value,
    const,
    extent,
    load,
    loads,
    make_reduce,
    rewrite,
)
from tilewright.ir.maps import Map
from tilewright.ir.node import Constant, Input, Item, Node
from tilewright.ir.operator import definition, stages
from tilewright.ir.types import DType, TensorType, TupleType
from tilewright.kernel.axis import axis_name, axis_named, first_name
from tilewright.kernel.swizzle import Swizzled


@dataclass(frozen=True)
class PackedAs:
    """The layout in which a kernel takes an argument: the caller's array of this shape, laid out by
    the map."""

    map: Map
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class Buffer:
    """Named memory.

    scope: "in", "out" (arguments), "local" (owned by one iteration of where it is allocated),
    "register" (local, indexed by constants only), "memory" (all there is).

    A pointer is an argument of which nothing but the address is known: it has one index, of either
    sign, and is read and written wherever the nest says, but only there. Two pointers may be into
    the same memory. Of "memory" the index is an address, in bytes.
    """

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    scope: str
    packed_as: PackedAs | None = None  # of an argument; see steps/relayout.py
    pointer: bool = False
    swizzle: Swizzled | None = None  # of shared memory: where its elements lie
    layout: Map | None = None  # of an argument that comes packed (graph/pack.py): how it lies
    alignment: int = 0  # of a pointer: bytes that its address is known to be a multiple of
    told: bool = False  # of a result: it is memory of the host, and zero is not written there

    @property
    def unit(self) -> int:
        """How far an index moves from one element to the next."""
        return self.dtype.bytes if self.scope == "memory" else 1

    @property
    def size(self) -> Dim:
        n: Dim = 1
        for d in self.shape:
            n = n * d
        return n

    def strides(self) -> tuple[Dim, ...]:
        out: list[Dim] = []
        n: Dim = 1
        for d in reversed(self.shape):
            out.append(n)
            n = n * d
        return tuple(reversed(out))


# The shape of what has no size that is known.
ANYWHERE: tuple[Dim, ...] = (D.INF,)


def pointer_buffer(name: str, dtype: DType, scope: str, alignment: int = 0) -> Buffer:
    """An argument that is an address of elements: "in" where they are only read."""
    return Buffer(name, dtype, ANYWHERE, scope, pointer=True, alignment=alignment)


def memory_buffer(name: str, dtype: DType) -> Buffer:
    """Elements at addresses that are computed or read from somewhere."""
    return Buffer(name, dtype, ANYWHERE, "memory", pointer=True)


@dataclass(frozen=True)
class Stage:
    name: str
    axes: tuple[Sym, ...]
    raxes: tuple[Sym, ...]
    where: tuple[Dim, ...]
    value: Value
    combine: Combine | None = None
    init: Value | None = None  # over variables `first_name(name, k)` of the buffer's shape
    ordered: bool = False
    chain: int = 0  # of a sum: the most terms that are added one after the other; 0: any number
    runs: bool = False  # of an ordered update: places that follow each other are mostly equal

    @property
    def is_map(self) -> bool:
        return self.init is None and self.combine is None and not self.ordered

    @property
    def is_reduce(self) -> bool:
        return bool(self.raxes) or (self.combine is not None and not self.ordered)


PRECISIONS = ("reassociate", "strict")
ROLES = ("scores", "weights", "sums", "end", "points", "changes", "products")


@dataclass(frozen=True)
class Group:
    name: str
    buffers: tuple[Buffer, ...]  # inputs, outputs, then one per internal stage
    stages: tuple[Stage, ...]
    # "reassociate": steps may change the order in which floats are accumulated; "strict": none does
    precision: str = "reassociate"
    # The roles of stages in the kernel, as fusion knows them (graph/cluster.py).
    roles: tuple[tuple[str, str], ...] = ()

    def role(self, what: str) -> Stage | None:
        """The stage that is this in the kernel, if one is."""
        found = next((name for role, name in self.roles if role == what), None)
        return None if found is None else self.stage(found)

    def buffer(self, name: str) -> Buffer:
        for b in self.buffers:
            if b.name == name:
                return b
        raise Invalid(f"group {self.name} has no buffer {name}")

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.scope == "in")

    @property
    def outputs(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.scope == "out")

    def stage(self, name: str) -> Stage:
        for s in self.stages:
            if s.name == name:
                return s
        raise Invalid(f"group {self.name} has no stage {name}")

    def dims(self) -> tuple[str, ...]:
        """Names of the symbolic dimensions, sorted."""
        return tuple(sorted(s.name for s in self.dim_symbols()))

    def dim_symbols(self) -> set[Sym]:
        out: set[Sym] = set()
        for b in self.buffers:
            for d in b.shape:
                out |= D.symbols(d)
        for s in self.stages:
            for a in (*s.axes, *s.raxes):
                out |= D.symbols(extent(a))
            out |= set(s.value.symbols()).union(*(D.symbols(w) for w in s.where))
        return {x for x in out if not axis_named(x.name).stage}


class GroupBuilder:
    def __init__(self, name: str) -> None:
        self.name = name
        self.buffers: dict[str, Buffer] = {}
        self.stages: list[Stage] = []
        self.count = 0

    def fresh(self) -> str:
        self.count += 1
        return f"t{self.count - 1}"

    def tensor(
        self, t: Tensor, buffer: str, names: Mapping[Tensor, str], scope: str, in_place: bool
    ) -> None:
        """Append the stage(s) of one definition, writing `buffer`."""
        assert t.body is not None
        own = {**names, t: buffer}

        def named(x: Load) -> Value:
            src = x.source
            return load(own[src], x.index, x.dtype) if isinstance(src, Tensor) else x

        axes = tuple(
            D.the_sym(D.var(axis_name(buffer, k), extent(a))) for k, a in enumerate(t.axes)
        )
        table: dict[Sym, Dim] = {a: D.as_int(b) for a, b in zip(t.axes, axes, strict=True)}
        self.buffers[buffer] = Buffer(buffer, t.dtype, t.shape, scope)
        body = rewrite(t.body, table, named)
        # An output that is a reduction becomes a local reduction and a copy: every output has a
        # plain store, which is where a schedule places everything else.
        if isinstance(body, Reduce) and t.kind == "compute" and scope != "out":
            self.reduce(buffer, axes, body)
            return
        body = self.hoist(body, axes)
        if t.kind == "update":
            assert t.where is not None and t.base is not None
            where = tuple(self._where(w, table, named) for w in t.where)
            shape = [D.var(first_name(buffer, k), d) for k, d in enumerate(t.shape)]
            init = None if in_place else load(own[t.base], shape, t.dtype)
            self.stages.append(Stage(buffer, axes, (), where, body, t.combine, init, True))
            return
        where = tuple(D.as_int(a) for a in axes)
        self.stages.append(Stage(buffer, axes, (), where, body, ordered=t.kind == "scan"))

    def _where(self, w: Dim, table: Mapping[Sym, Dim], named: Any) -> Dim:
        return D.substitute(w, table, lambda v: rewrite(v, table, named))

    def reduce(self, buffer: str, axes: tuple[Sym, ...], r: Reduce) -> None:
        raxes = tuple(
            D.the_sym(D.var(axis_name(buffer, k, "r"), extent(a))) for k, a in enumerate(r.axes)
        )
        body = r.body.substitute({a: D.as_int(b) for a, b in zip(r.axes, raxes, strict=True)})
        body = self.hoist(body, (*axes, *raxes))
        where = tuple(D.as_int(a) for a in axes)
        self.stages.append(
            Stage(buffer, axes, raxes, where, body, r.combine, identity(r.combine, r.dtype))
        )

    def hoist(self, v: Value, axes: tuple[Sym, ...]) -> Value:
        """Reductions inside an expression become stages, over the axes they depend on."""
        keep_all = isinstance(v, Reduce)  # the whole value: its axes are the stage's own

        def out(r: Reduce) -> Value:
            used = [a for a in axes if a in r.symbols() or keep_all]
            name = self.fresh()
            mine = tuple(
                D.the_sym(D.var(axis_name(name, k), extent(a))) for k, a in enumerate(used)
            )
            self.buffers[name] = Buffer(name, r.dtype, tuple(extent(a) for a in used), "local")
            moved = r.substitute({a: D.as_int(b) for a, b in zip(used, mine, strict=True)})
            assert isinstance(moved, Reduce)
            self.reduce(name, mine, moved)
            return load(name, [D.as_int(a) for a in used], r.dtype)

        return rewrite(v, on_reduce=out)


def build_group(
    name: str,
    nodes: Sequence[Node],
    inputs: Sequence[Node],
    outputs: Sequence[Node],
    in_place: Mapping[Node, Node] | None = None,
    roles: Sequence[tuple[str, Node]] = (),
) -> Group:
    """The group of a cluster of primitive nodes (topological order).

    Inputs are a0…, outputs y0…, the rest t0… A node with a role gives it to its reduction.
    """
    reductions: dict[Node, str] = {}
    b = GroupBuilder(name)
    names: dict[Node, str] = {}
    packed = {n.inputs[0]: n.op.unpacks for n in nodes if n.op.unpacks is not None}
    for k, n in enumerate(inputs):
        names[n] = f"a{k}"
        b.buffers[f"a{k}"] = Buffer(f"a{k}", n.dtype, n.shape, "in", layout=packed.get(n))
    wanted = {n: f"y{k}" for k, n in enumerate(outputs)}
    items = {(n.inputs[0], n.op.k): n for n in nodes if isinstance(n.op, Item)}
    literals: dict[str, Value] = {}
    for n in nodes:
        if isinstance(n.op, (Input, Item)) or n in names:
            continue
        if isinstance(n.op, Constant):
            if n.op.literal.array.size != 1:
                raise Invalid(f"{n!r}: a constant array inside a cluster must be one of its inputs")
            names[n] = b.fresh()
            literals[names[n]] = const(n.op.literal.array.reshape(-1)[0].item(), n.dtype)
            continue
        ins, outs = definition(n.op, tuple(x.ttype for x in n.inputs))
        local: dict[Tensor, str] = {p: names[x] for p, x in zip(ins, n.inputs, strict=True)}
        several = isinstance(n.type, TupleType)
        results = [items.get((n, k)) for k in range(len(outs))] if several else [n]
        final: dict[Tensor, str] = {}
        for t, res in zip(outs, results, strict=True):
            if res is not None and t.body is not None and t not in final:
                final[t] = wanted[res] if res in wanted else b.fresh()
                names[res] = final[t]
        for t in stages(outs):
            buf = final.get(t) or b.fresh()
            scope = "out" if buf in wanted.values() else "local"
            place = in_place is not None and any(wanted.get(o) == buf for o in in_place)
            before = len(b.stages)
            b.tensor(t, buf, local, scope, place)
            local[t] = buf
            for k, st in enumerate(b.stages[before:], before):
                if st.raxes:
                    reductions[n] = st.name
                    b.stages[k] = replace(st, chain=n.op.chain)
                elif st.ordered and n.op.runs:
                    b.stages[k] = replace(st, runs=True)
        for t, res in zip(outs, results, strict=True):
            if res is not None and res not in names:  # an output that is an input or another output
                buf = wanted.get(res) or b.fresh()
                names[res] = buf
                _copy(b, buf, local[t], t, "out" if res in wanted else "local")
    missing = [n for n in outputs if n not in names]
    if missing:
        raise Invalid(f"cluster {name} does not compute its output {missing[0]!r}")
    done = _inline_literals(b.stages, literals)
    order = {"in": 0, "out": 1}
    # Outputs in the requested order, whichever of them was computed first.
    positions = {buf: k for k, buf in enumerate(wanted.values())}
    for n in outputs:
        if n.op.told:
            b.buffers[names[n]] = replace(b.buffers[names[n]], told=True)
    bufs = sorted(
        b.buffers.values(), key=lambda x: (order.get(x.scope, 2), positions.get(x.name, 0))
    )
    found = {**names, **reductions}
    named = tuple((role, found[n]) for role, n in roles if n in found)
    return Group(name, tuple(bufs), tuple(done), roles=named)


def copy_group(name: str, t: TensorType) -> Group:
    """The elements of one tensor in another, in the order of memory."""
    source, target = (Buffer(x, t.dtype, (t.size,), k) for x, k in (("a0", "in"), ("y0", "out")))
    axis = D.the_sym(D.var(axis_name("y0", 0), t.size))
    index = (D.as_int(axis),)
    stage = Stage("y0", (axis,), (), index, load("a0", index, t.dtype))
    return Group(name, (source, target), (stage,))


def _copy(b: GroupBuilder, buf: str, src: str, t: Tensor, scope: str) -> None:
    axes = tuple(D.the_sym(D.var(axis_name(buf, k), d)) for k, d in enumerate(t.shape))
    idx = tuple(D.as_int(a) for a in axes)
    b.buffers[buf] = Buffer(buf, t.dtype, t.shape, scope)
    b.stages.append(Stage(buf, axes, (), idx, load(src, idx, t.dtype)))


def _inline_literals(found: list[Stage], literals: Mapping[str, Value]) -> list[Stage]:
    if not literals:
        return found
    swap = lambda x: literals.get(x.source, x) if isinstance(x.source, str) else x  # noqa: E731

    def value(v: Value) -> Value:
        return rewrite(v, on_load=swap)

    out = []
    for s in found:
        init = None if s.init is None else value(s.init)
        # Of an ordered update, where it writes may be read from a literal as well.
        where = tuple(w if isinstance(w, int) else D.substitute(w, {}, value) for w in s.where)
        out.append(replace(s, where=where, value=value(s.value), init=init))
    return out


def readers(group: Group, name: str) -> list[Stage]:
    """Stages other than itself that read a buffer."""
    out = []
    for s in group.stages:
        vals = [
            s.value,
            *((s.init,) if s.init is not None else ()),
            *(v for w in s.where for v in D.data_values(w)),
        ]
        if s.name != name and any(x.source == name for v in vals for x in loads(v)):
            out.append(s)
    return out


def as_reduce(s: Stage) -> Value:
    return make_reduce(s.combine or "add", s.raxes, s.value)
