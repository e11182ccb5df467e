from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Fn, Load, Value, cast, const, extent, fn, load
from tilewright.ir.register_tile import BYTES, other_sign
from tilewright.ir.types import DType
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Path,
    Stmt,
    Store,
    bodies,
    marks,
    own_loops,
    reads,
    seek,
    stages_in,
    walk,
    with_bodies,
    wrap,
)
from tilewright.kernel.step import Step
from tilewright.kernel.steps.retype import retyped


@dataclass(frozen=True)
class OtherSign(Step):
    """A product of bytes whose first operand is stored with the other sign, for instructions that
    take it so: 128 is added to it, and what this adds to the sums of a column is taken off before.

    for i,j,k: c[i,j] add= a[i,k] * b[k,j]      for j,k: sums[j] add= ones[k] * b[k,j]
                                                for i,j: c[i,j] = c[i,j] + sums[j] * -128
                                                for i,j,k: c[i,j] add= a[i,k] * b[k,j]
    """

    stays: ClassVar[bool] = True

    stage: str

    def apply(self, n: Nest) -> Nest:
        store, path = self._product(n)
        a, b = (x.args[0] for x in store.value.args)
        assert isinstance(a, Load) and isinstance(b, Load)
        name, e = str(a.source), n.buffer(store.buffer).dtype
        self.internal(n, name)
        self.need(a.dtype in BYTES, f"{name} is {a.dtype}, not i8 or u8")
        self.need(e.is_int and e.bits >= 32, f"sums of {e} do not wrap around as integers do")
        users = {x.stage for x, _ in walk(n.body) if isinstance(x, Store) and _reads(x, name)}
        self.need(users == {self.stage}, f"{name} is read by {', '.join(sorted(users))}")
        left, by = other_sign(a.dtype)
        moved = retyped(self, n, name, left, lambda v: fn("add", cast(v, left), const(by, left)))
        own = own_loops(path, self.stage)
        made = _Columns(self.stage, n.buffer(store.buffer), store.index, own, b, left, by)
        for buffer in made.buffers:
            self.fresh(n, buffer.name)
        body = self._before(moved.body, made.statements())
        moved = moved.with_role(self.stage, made.added)
        return replace(moved, body=body, buffers=(*moved.buffers, *made.buffers))

    def _product(self, n: Nest) -> tuple[Store, Path]:
        found = [(x, p) for x, p in seek(n.body, ("stage", self.stage)) if isinstance(x, Store)]
        self.need(len(found) == 1, f"{self.stage} is not one statement")
        store, path = found[0]
        v = store.value
        casts = isinstance(v, Fn) and v.name == "mul" and all(map(_is_cast_load, v.args))
        self.need(casts and store.combine == "add", f"{self.stage} adds up no products")
        own = own_loops(path, self.stage)
        self.need(len(own) > 2, f"{self.stage} multiplies no rows by columns")
        return store, path

    def _before(self, body: tuple[Stmt, ...], new: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Statements put in front of the loops of the stage."""
        out: list[Stmt] = []
        for s in body:
            if ("stage", self.stage) not in marks(s):
                out.append(s)
            elif stages_in(s) == {self.stage}:
                out += (*new, s)
            else:
                out.append(with_bodies(s, [self._before(x, new) for x in bodies(s)]))
        return tuple(out)


@dataclass(frozen=True)
class _Columns:
    """Takes off what a first operand that is moved by a number adds to every sum of a column. The
    columns are added up as a product with ones, for which there is an instruction."""

    stage: str
    sums: Buffer
    index: tuple[Dim, ...]
    own: list[Loop]
    b: Load
    left: DType
    by: int

    @property
    def names(self) -> tuple[str, str]:
        return f"{self.stage}_columns", f"{self.stage}_ones"

    @property
    def added(self) -> str:
        """The stage that adds up the columns."""
        return f"{self.stage}c"

    @property
    def deep(self) -> Dim:
        return extent(self.own[-1].var)

    @property
    def buffers(self) -> tuple[Buffer, Buffer]:
        columns, ones = self.names
        across = (*self.sums.shape[:-2], self.sums.shape[-1])
        return (
            Buffer(columns, self.sums.dtype, across, "local"),
            Buffer(ones, self.left, (self.deep,), "local"),
        )

    def statements(self) -> tuple[Stmt, ...]:
        columns, ones = self.buffers
        return (
            Alloc(columns.name),
            self._over(f"{columns.name}0", columns.shape, lambda at: (columns, at, _zero(columns))),
            Alloc(ones.name),
            self._over(f"{ones.name}1", ones.shape, lambda at: (ones, at, const(1, self.left))),
            self._added(columns, ones),
            self._over(f"{self.stage}_less", self.sums.shape, self._less),
        )

    def _over(self, stage: str, shape: tuple[Dim, ...], filled) -> Stmt:
        """Loops over all indices of a buffer, of which those of one element are 0."""
        axes = [D.the_sym(D.var(f"{stage}.i{k}", d)) for k, d in enumerate(shape)]
        at = tuple(0 if d == 1 else D.as_int(x) for x, d in zip(axes, shape, strict=True))
        buffer, where, value = filled(at)
        inside = tuple(x for x, d in zip(axes, shape, strict=True) if d != 1)
        return wrap(inside, Store(stage, buffer.name, where, value))

    def _added(self, columns: Buffer, ones: Buffer) -> Stmt:
        stage, e = self.added, self.sums.dtype
        data = [p.var for p in self.own[:-1] if p is not self.own[-3]]
        axes = [D.var(f"{stage}.i{k}", extent(v)) for k, v in enumerate(data)]
        over = D.var(f"{stage}.r0", self.deep)
        table = dict(zip((*data, self.own[-1].var), (*axes, over), strict=True))
        b = cast(self.b.substitute(table), e)
        value = fn("mul", cast(load(ones.name, (over,), self.left), e), b)
        update = Store(stage, columns.name, tuple(axes), value, "add")
        return wrap(tuple(map(D.the_sym, (*axes, over))), update)

    def _less(self, at: tuple[Dim, ...]) -> tuple[Buffer, tuple[Dim, ...], Value]:
        e = self.sums.dtype
        added = load(self.names[0], (*at[:-2], at[-1]), e)
        moved = fn("mul", added, const(-self.by, e))
        return self.sums, at, fn("add", load(self.sums.name, at, e), moved)


def _zero(b: Buffer) -> Value:
    return const(0, b.dtype)


def _reads(s: Stmt, buffer: str) -> bool:
    return any(x.source == buffer for x in reads(s))


def _is_cast_load(v: Value) -> bool:
    return isinstance(v, Fn) and v.name == "cast" and isinstance(v.args[0], Load)
