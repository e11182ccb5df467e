"""Instructions as declarations: a small tensor expression, where its operands lie, its emission.

A nest never calls an instruction. Its loops stay, marked as tensor loops, and go on saying what is
computed; every executor but the emitter runs them as they are. `match` proves that they compute the
declared expression on memory laid out as declared, when Tensorize marks them and again when code is
emitted, so nothing can come between.

    c[c.i] add= cast<i32>(a[c.p]) * cast<i32>(b[c.i,c.p]) for c.i in n, c.p in 4
    maps: a (1), b (4, 1), c (1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Load, Value, extent, loads
from tilewright.ir.product import Product
from tilewright.ir.scalar import SCALARS
from tilewright.kernel.axis import axis_named
from tilewright.kernel.dependence import linear_index
from tilewright.kernel.fragments import (
    WARP,
    lane_function,
    outermost,
    parse_fragment,
    placed,
    without_zeros,
)
from tilewright.kernel.group import Group
from tilewright.kernel.guards import conditions, copied, unlike_bounds
from tilewright.kernel.nest import (
    TENSOR,
    Loop,
    Nest,
    Stmt,
    Store,
    instructions,
    mentions,
    seek,
    walk,
)
from tilewright.kernel.swizzle import Swizzled, multiple
from tilewright.kernel.text import parse_group
from tilewright.kernel.views import View, box_behind, box_in

ROW_BYTES = 16  # that a thread gives the address of
ANY = None  # a stride that is passed to the instruction
Sizes = Mapping[str, "int | None"]  # extent per axis; None where only the running program knows


class Ask(NamedTuple):
    """Cache lines to prefetch, and the level of the cache that they go to."""

    lines: int
    level: int = 1


class Emission(Protocol):
    """The body of an instruction for sizes; one that also prefetches lines from `%ahead.0` on,
    `%ahead.1`, …, a few with every step."""

    def __call__(self, sizes: Sizes, ahead: tuple[Ask, ...] = (), /) -> str: ...


@dataclass(frozen=True)
class Intrinsic:
    """One instruction, or a family of them sized by what it is matched with.

    `expression` is one stage in the text form of groups, its output first among equals: the last
    buffer. `maps` gives the stride of every axis of every operand. `emission(sizes)` is the body of
    an LLVM function of the operands' addresses (`%a`), the strides they leave open (`%a.0`, in
    elements) and the sizes that are not constant (`%size.k`).
    """

    name: str
    expression: str
    maps: Mapping[str, tuple[int | None, ...]]
    emission: Callable[[Sizes], str] = field(repr=False)
    declares: tuple[str, ...] = ()
    features: tuple[str, ...] = ()  # LLVM's names of the features that it needs
    multiples: Mapping[str, int] = field(default_factory=dict)  # of an axis's extent
    dynamic: tuple[str, ...] = ()  # axes whose extent need not be a constant
    exact: bool = True  # does it round as its loops do?
    ahead: Emission | None = field(default=None, repr=False)  # the body that also prefetches
    enter: tuple[str, ...] = ()  # LLVM, once where a function begins that uses it
    leave: tuple[str, ...] = ()  # and before it returns
    # Of an instruction that a whole warp does together: the operands that lie in the registers of
    # its threads (kernel/fragments.py), and of one in memory the element whose address each thread
    # gives, as functions of `lane`, by axis. Their `maps` are not used.
    fragments: Mapping[str, str] = field(default_factory=dict)
    addresses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    warps: int = 1  # so many of a block do it together, along thread.z
    # Operands that lie in shared memory, swizzled so, from a multiple of its period on.
    tiles: Mapping[str, Swizzled] = field(default_factory=dict)
    # It goes on while threads do: its results are there, and its reads over, after a Wait for
    # products.
    asynchronous: bool = False
    # A copy by the copy engine, issued by one thread of the block: `s`, a box of an argument with
    # so many axes. The body is given the tensor map (`%s`), the box's first index, innermost first
    # (`%s.0`, as i32) and the memory barrier that counts its bytes (`%arrived`).
    engine: int = 0
    # It adds to memory as a Store that is atomic does, through shared memory of its warp: the body
    # is given the address (`%staged`), `staged(sizes)` says how many bytes.
    atomic: bool = False
    staged: Callable[[Sizes], int] | None = field(default=None, repr=False)
    product: Product | None = None  # its description for default schedules, if they may use it

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def team(self) -> Mapping[str, int]:
        """The threads that do it together, by axis."""
        several = {"thread.z": self.warps} if self.warps > 1 else {}
        return {**WARP, **several} if self.fragments else {}

    @cached_property
    def group(self) -> Group:
        """The expression, read and checked when it is first needed: there are more declarations
        than a program uses."""
        g = parse_group(self.expression)
        lost = [
            b.name
            for b in g.buffers
            if b.name not in self.fragments and len(self.maps.get(b.name, ())) != len(b.shape)
        ]
        if len(g.stages) != 1 or lost:
            what = f"no map for {', '.join(lost)}" if lost else "it is not one stage"
            raise Invalid(f"the declaration of {self.name} is incomplete: {what}")
        return g


INTRINSICS: dict[str, Intrinsic] = {}


def product_text(p: Product) -> str:
    """The expression of a product; groups of the steps of the sum are adjacent in b."""
    least = p.tile[2] if p.tile is not None else 1
    head = f"""
group product where rows: 1..{p.rows}, columns: {p.lanes}..{p.columns}, depth: {least}.."""
    if p.group == 1:
        shape, index = ("depth,rows", "c.k,c.i") if p.loads == "rows" else ("rows,depth", "c.i,c.k")
        return f"""{head}
  in a: {p.a}[{shape}]
  in b: {p.b}[depth,columns]
  out c: {p.c}[rows,columns]
  c[c.i,c.j] add= a[{index}] * b[c.k,c.j] for c.i in rows, c.j in columns, c.k in depth
"""
    n = p.group
    value = f"cast<{p.c}>(a[c.i,{n}*c.k+c.p]) * cast<{p.c}>(b[c.k,c.j,c.p])"
    return f"""{head}
  in a: {p.a}[rows,{n}*depth]
  in b: {p.b}[depth,columns,{n}]
  out c: {p.c}[rows,columns]
  c[c.i,c.j] add= {value} for c.i in rows, c.j in columns, c.k in depth, c.p in {n}
"""


def declare_product(
    p: Product,
    emission: Emission,
    declares: tuple[str, ...],
    features: tuple[str, ...] = (),
    enter: tuple[str, ...] = (),
    leave: tuple[str, ...] = (),
) -> Product:
    """Makes the instruction of a product known: its expression, where its operands lie and which
    sizes it takes follow from the record. `emission` also takes lines to prefetch as it goes."""
    steps = {"k": p.tile[2]} if p.tile is not None else {}
    declare(
        Intrinsic(
            p.instruction,
            product_text(p),
            {
                "a": (ANY, ANY if p.loads == "each" else 1),
                "b": (ANY, 1) if p.group == 1 else (ANY, p.group, 1),
                "c": (ANY, 1),
            },
            emission,
            declares,
            features,
            {"j": p.lanes, **steps},
            ("i",) if steps else ("i", "k"),
            exact=p.c.is_int,
            enter=enter,
            leave=leave,
            ahead=emission,
            product=p,
        )
    )
    return p


def products(*names: str) -> tuple[Product, ...]:
    """Declared products by the names of their instructions, for a target."""
    out: list[Product] = []
    for name in names:
        found = INTRINSICS[name].product if name in INTRINSICS else None
        if found is None:
            known = ", ".join(sorted(n for n, i in INTRINSICS.items() if i.product is not None))
            raise Invalid(f"there is no product {name!r}", hint=f"declared are {known}")
        out.append(found)
    return tuple(out)


def declare(i: Intrinsic) -> Intrinsic:
    """Makes an instruction known by its name."""
    if i.name in INTRINSICS:
        raise Invalid(f"there is an instruction {i.name} already")
    INTRINSICS[i.name] = i
    return i


@dataclass(frozen=True)
class Operand:
    """Where an operand begins in a buffer of the nest, and the strides it leaves open.

    Of an instruction of a whole warp: the index of its first element, or of the one whose address a
    thread gives, and the coordinates that determine the owner of an element."""

    name: str
    buffer: str
    base: Dim
    strides: tuple[Dim, ...]
    index: tuple[Dim, ...] = ()
    owners: tuple[tuple[int, str], ...] = ()  # (axis of the buffer, axis of the threads)
    box: tuple[int, ...] = ()  # of an argument: what the copy engine brings at a time
    view: View | None = None  # the array behind a pointer that it is a box of


@dataclass(frozen=True)
class Match:
    intrinsic: Intrinsic
    sizes: dict[str, Dim]
    operands: tuple[Operand, ...]  # as the declaration lists its buffers

    @property
    def constants(self) -> Sizes:
        return {a: s if isinstance(s, int) else None for a, s in self.sizes.items()}


@dataclass(frozen=True)
class Mismatch:
    reason: str
    depth: int = 0  # how far a comparison came: the deepest one gives the best reason


def match(i: Intrinsic, n: Nest, loop: Loop) -> Match | Mismatch:
    """The nest at a loop as one use of an instruction, or why it is none."""
    chain = [loop]
    while len(chain[-1].body) == 1 and isinstance(inner := chain[-1].body[0], Loop):
        chain.append(inner)
    body = chain[-1].body
    if len(body) != 1 or not isinstance(body[0], Store):
        return Mismatch(f"{chain[-1].name} holds more than one statement")
    store, stage = body[0], i.group.stages[0]
    if store.combine != stage.combine:
        does = lambda c: f"accumulates by {c}" if c else "overwrites"  # noqa: E731
        return Mismatch(f"{i.name} {does(stage.combine)}, {store.stage} {does(store.combine)}")
    if store.atomic != i.atomic:
        which, other = (i.name, store.stage) if i.atomic else (store.stage, i.name)
        return Mismatch(f"{which} adds atomically, {other} does not")
    best = Mismatch(
        f"{i.name} has {len(stage.axes) + len(stage.raxes)} loops "
        f"({_declared(i)}), there are {len(chain)} ({_extents(chain)})"
    )
    for pairs in _pairings([*stage.axes, *stage.raxes], chain):
        found = _compared(i, n, store, chain, pairs)
        if isinstance(found, Match):
            return found
        if found.depth > best.depth:
            best = found
    return best


def _declared(i: Intrinsic) -> str:
    s = i.group.stages[0]
    return ", ".join(f"{short(a)} in {extent(a)}" for a in (*s.axes, *s.raxes))


def _extents(chain: list[Loop]) -> str:
    return ", ".join(f"{x.name} in {x.extent}" for x in chain)


def short(a: Sym) -> str:
    """The axis without the name of its stage."""
    return axis_named(a.name).name


Pairs = list[tuple[Sym, "Loop | None"]]  # an axis without a loop has one point


def _pairings(axes: list[Sym], loops: list[Loop]) -> Iterator[Pairs]:
    if not axes:
        if not loops:
            yield []
        return
    first, rest = axes[0], axes[1:]
    for k, x in enumerate(loops):
        for more in _pairings(rest, [*loops[:k], *loops[k + 1 :]]):
            yield [(first, x), *more]
    if len(loops) < len(axes) and not isinstance(extent(first), int):
        for more in _pairings(rest, loops):
            yield [(first, None), *more]


def _compared(
    i: Intrinsic, n: Nest, store: Store, chain: list[Loop], pairs: Pairs
) -> Match | Mismatch:
    sizes: dict[str, Dim] = {}
    for axis, x in pairs:
        wrong = _misfit(i, axis, 1 if x is None else x.extent, chain)
        if wrong is not None:
            return Mismatch(wrong if x is None else f"{wrong} ({x.name})", 1)
        sizes[short(axis)] = 1 if x is None else x.extent
    stage, out = i.group.stages[0], i.group.outputs[0]
    if n.buffer(store.buffer).dtype is not out.dtype:
        what = f"{store.buffer} holds {n.buffer(store.buffer).dtype}"
        return Mismatch(f"{i.name} accumulates in {out.dtype}, {what}", 2)
    best, wrong = Mismatch(""), list[str]()
    value = store.value
    if i.engine and (read := copied(value)) is not None:
        b = n.buffer(str(read.source))
        outside = None if b.pointer else unlike_bounds(read, b.shape, conditions(value))
        if outside is not None:
            return Mismatch(f"{i.name} gives zeros where an argument ends; {outside}", 2)
        value = read
    for bound in _unified(stage.value, value, {}, wrong):
        found = _located(i, n, store, bound, sizes, pairs)
        if isinstance(found, Match):
            return found
        best = max(best, found, key=lambda x: x.depth)
    return best if best.depth else Mismatch(f"{i.name} computes {stage.value!r}; {wrong[0]}", 2)


def _located(
    i: Intrinsic,
    n: Nest,
    store: Store,
    bound: dict[str, Load],
    sizes: dict[str, Dim],
    pairs: Pairs,
) -> Match | Mismatch:
    """The match with these loads as operands, if each lies in memory as it must."""
    stage, out = i.group.stages[0], i.group.outputs[0]
    if store.buffer in (str(x.source) for x in bound.values()):
        return Mismatch(f"{store.stage} reads {store.buffer}, which it writes", 3)
    declared = {str(x.source): x.index for x in loads(stage.value)} | {out.name: stage.where}
    operands: list[Operand] = []
    for b in i.group.buffers:
        x = bound.get(b.name)
        name, index = (store.buffer, store.index) if x is None else (str(x.source), x.index)
        if b.name in i.fragments:
            found = _fragment(i, n, b.name, name, index, pairs)
        elif i.engine and x is not None:
            found = _boxed(i, n, b.name, declared[b.name], x, store, pairs)
        else:
            found = _placed(i, n, b.name, declared[b.name], name, index, pairs)
        if isinstance(found, Mismatch):
            return found
        operands.append(found)
    return Match(i, sizes, tuple(operands))


def _misfit(i: Intrinsic, axis: Sym, size: Dim, chain: list[Loop]) -> str | None:
    want, name = extent(axis), short(axis)
    if not isinstance(size, int):
        inner = D.symbols(size) & {x.var for x in chain}
        fits = name in i.dynamic and not inner
        return None if fits else f"{name} of {i.name} has a constant extent, not {size}"
    if isinstance(want, int):
        return None if size == want else f"{name} of {i.name} is {want}, not {size}"
    least, most = D.bounds(want)
    if not least <= size <= most:
        return f"{name} of {i.name} is from {least} to {most}, not {size}"
    by = i.multiples.get(name, 1)
    return None if size % by == 0 else f"{name} of {i.name} is a multiple of {by}, not {size}"


def _unified(
    d: Value, v: Value, bound: dict[str, Load], wrong: list[str]
) -> Iterator[dict[str, Load]]:
    """Every way in which v is the declared value with loads of the nest for the operands; what
    stood against it goes to `wrong`."""
    if isinstance(d, Load):
        name = str(d.source)
        if not isinstance(v, Load):
            wrong.append(f"{v!r} is computed where {name} is read")
        elif v.dtype is not d.dtype:
            wrong.append(f"{v!r} is {v.dtype} where {name} is {d.dtype}")
        elif bound.get(name, v) is not v:
            wrong.append(f"{name} is {bound[name]!r} and {v!r}")
        else:
            yield {**bound, name: v}
        return
    if isinstance(d, Const):
        if isinstance(v, Const) and v.dtype is d.dtype and v.value == d.value:
            yield bound
        else:
            wrong.append(f"{v!r} stands where {d!r} is declared")
        return
    assert isinstance(d, Fn), f"{d!r} in a declaration"
    if not isinstance(v, Fn) or (v.name, v.dtype, len(v.args)) != (d.name, d.dtype, len(d.args)):
        wrong.append(f"{v!r} stands where {d!r} is declared")
        return
    orders = [tuple(v.args)]
    if d.name in SCALARS and SCALARS[d.name].commutative and v.args[0] is not v.args[1]:
        orders.append((v.args[1], v.args[0]))
    for args in orders:
        ways = [bound]
        for x, y in zip(d.args, args, strict=True):
            ways = [w for found in ways for w in _unified(x, y, found, wrong)]
        yield from ways


def _placed(
    i: Intrinsic,
    n: Nest,
    operand: str,
    declared: tuple[Dim, ...],
    buffer: str,
    index: tuple[Dim, ...],
    pairs: Pairs,
) -> Operand | Mismatch:
    """The operand's place in memory, if it has the declared strides along every loop."""
    swizzle = n.buffer(buffer).swizzle
    if operand in i.tiles and (swizzle != i.tiles[operand] or n.buffer(buffer).scope != "shared"):
        return Mismatch(f"{operand} of {i.name} is shared memory swizzled {i.tiles[operand]}", 3)
    if swizzle is not None and operand not in i.addresses and operand not in i.tiles:
        return Mismatch(f"{buffer} is swizzled, {operand} of {i.name} lies as it is indexed", 3)
    linear = linear_index(n.buffer(buffer), index)
    inside = {x.var for _, x in pairs if x is not None}
    along: dict[Sym, Dim] = {}
    for axis, x in pairs:
        c = 0 if x is None else D.coefficient(linear, x.var)
        if c is None or D.symbols(c) & inside:
            where = x.name if x is not None else ""
            return Mismatch(f"{buffer} is not walked through evenly along {where}", 3)
        along[axis] = c
    strides: list[Dim] = []
    for k, fixed in enumerate(i.maps[operand]):
        own_stride: Dim | None = fixed
        for axis, x in pairs:
            if own_stride is None and x is not None and D.coefficient(declared[k], axis) == 1:
                others = sum(
                    (D.coefficient(declared[j], axis) or 0) * (i.maps[operand][j] or 0)
                    for j in range(len(declared))
                    if j != k
                )
                own_stride = along[axis] - others
        strides.append(0 if own_stride is None else own_stride)
    for axis, x in pairs:
        if x is None:
            continue
        want: Dim = 0
        for position, stride in zip(declared, strides, strict=True):
            want = want + (D.coefficient(position, axis) or 0) * stride
        if not D.known_eq(want, along[axis]):
            what = f"{operand} of {i.name} has stride {want} along {short(axis)}"
            return Mismatch(f"{what}, {buffer} has {along[axis]} along {x.name}", 3)
    base = D.substitute(linear, dict.fromkeys(inside, 0))
    if operand in i.tiles and not multiple(base, i.tiles[operand].period):
        whole = f"multiples of {i.tiles[operand].period} elements"
        what = f"{operand} of {i.name} begins at {whole}"
        return Mismatch(f"{what}, {buffer} is read from {base} on", 3)
    free = [s for s, fixed in zip(strides, i.maps[operand], strict=True) if fixed is None]
    at: tuple[Dim, ...] = ()
    if operand in i.addresses:
        at = _given_address(i, operand, index, pairs)
        row = ROW_BYTES // n.buffer(buffer).dtype.bytes
        together = swizzle is None or swizzle.block % row == 0
        if not together or not multiple(linear_index(n.buffer(buffer), at), row):
            return Mismatch(f"{i.name} takes rows of {ROW_BYTES} bytes at multiples of them", 3)
    return Operand(operand, buffer, base, tuple(free), at)


def _boxed(
    i: Intrinsic,
    n: Nest,
    operand: str,
    declared: tuple[Dim, ...],
    x: Load,
    store: Store,
    pairs: Pairs,
) -> Operand | Mismatch:
    """An operand that is a box of an argument, or of an array behind a pointer."""
    b = n.buffer(str(x.source))
    loops = {a: y.var for a, y in pairs if y is not None}
    if b.pointer:
        found = box_behind(b, x, conditions(store.value), list(loops.values()), n.dims, i.engine)
    else:
        table: dict[Sym, Dim] = {a: D.as_int(loops[a]) if a in loops else 0 for a, _ in pairs}
        along = [D.substitute(d, table) for d in declared]
        found = box_in(b, x.index, along, set(loops.values()), i.engine)
    if isinstance(found, str):
        return Mismatch(f"{operand} of {i.name} is a box of an argument; {found}", 3)
    return Operand(operand, b.name, 0, (), found.first, box=found.box, view=found.view)


def _fragment(
    i: Intrinsic, n: Nest, operand: str, buffer: str, index: tuple[Dim, ...], pairs: Pairs
) -> Operand | Mismatch:
    """The operand in the registers of a warp, if every element is where it is declared to be."""
    b = n.buffer(buffer)
    if b.scope not in ("local", "register"):
        return Mismatch(f"{operand} of {i.name} lies in registers, {buffer} is {b.scope}", 3)
    fragment = parse_fragment(i.fragments[operand], tuple(short(a) for a, _ in pairs))
    axes: dict[str, Dim] = {short(a): 0 if x is None else D.as_int(x.var) for a, x in pairs}
    fragment = without_zeros(fragment, axes)
    wrong = placed(fragment, index, axes)
    first = len(index) - len(fragment)
    if wrong is None:
        for k, (d, size) in enumerate(zip(index[first:], b.shape[first:], strict=True)):
            if k != outermost(fragment) and size != D.bounds(d)[1] + 1:
                wrong = f"axis {first + k} is of {size}, in the fragment of {D.bounds(d)[1] + 1}"
                break
    if wrong is not None:
        where = i.fragments[operand]
        return Mismatch(f"{operand} of {i.name} lies as {where}; of {buffer} {wrong}", 3)
    owners = tuple((first + k, c.thread) for k, c in enumerate(fragment) if c.thread is not None)
    inside = {x.var: 0 for _, x in pairs if x is not None}
    begins = [D.substitute(d, inside) for d in index[first:]]
    own = [d if k == outermost(fragment) else 0 for k, d in enumerate(begins)]
    # What is before the fragment does not move with its axes, or is 0 for all of them.
    at: tuple[Dim, ...] = (*(D.substitute(d, inside) for d in index[:first]), *own)
    return Operand(operand, buffer, 0, (), at, owners)


def _given_address(
    i: Intrinsic, operand: str, index: tuple[Dim, ...], pairs: Pairs
) -> tuple[Dim, ...]:
    """The element of an operand whose address a thread gives."""
    of = {a: lane_function(text) for a, text in i.addresses[operand].items()}
    table = {x.var: of.get(short(a), 0) for a, x in pairs if x is not None}
    return tuple(D.substitute(d, table) for d in index)


def warp_match(n: Nest, loop: Loop) -> Match | None:
    """What a loop is, if it is an instruction of a whole warp."""
    i = INTRINSICS.get(loop.instruction) if loop.kind == "tensor" else None
    found = match(i, n, loop) if i is not None and i.fragments else None
    return found if isinstance(found, Match) else None


def tensor_faults(n: Nest, before: Nest | None = None) -> Iterator[tuple[str, Stmt]]:
    """What is not the instruction it is marked as. Statements that stood in `before` are known to
    be, unless a buffer of theirs changed since."""
    parts: Iterable[Stmt] = n.body
    if before is not None:
        old = {id(s) for x in before.body for s in instructions(x)}
        changed = _changed_buffers(n, before)
        found = [s for x in n.body for s in instructions(x)]
        parts = [s for s in found if id(s) not in old or (changed and changed & mentions(s))]
    inside: set[int] = set()
    for s, _ in seek(tuple(parts), TENSOR):
        assert isinstance(s, Loop)
        if s.kind != "tensor":
            yield f"{s.name} names {s.instruction} and is no tensor loop", s
            continue
        if s.instruction:
            i = INTRINSICS.get(s.instruction)
            found = Mismatch("it is not declared") if i is None else match(i, n, s)
            if isinstance(found, Mismatch):
                yield f"{s.name} is not {s.instruction}: {found.reason}", s
        elif id(s) not in inside:
            yield f"tensor {s.name} belongs to no instruction", s
        for x, path in walk(s.body):
            if isinstance(x, Loop) and x.kind != "tensor" and not path:
                yield f"{x.name} is {x.kind} inside the instruction {s.name}", x
        inside.update(id(x) for x in s.body)


def _changed_buffers(n: Nest, before: Nest) -> frozenset[str]:
    if n.buffers == before.buffers:
        return frozenset()
    old = {b.name: b for b in before.buffers}
    return frozenset(b.name for b in n.buffers if old.get(b.name) != b)


def marked(loop: Loop, name: str) -> Loop:
    """The loop and those inside it as the loops of an instruction."""
    body = tuple(marked(x, "") if isinstance(x, Loop) else x for x in loop.body)
    return replace(loop, kind="tensor", instruction=name, body=body)
