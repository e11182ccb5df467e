from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir import dim as D
from tilewright.ir.combine import identity
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import load
from tilewright.kernel.axis import first_name
from tilewright.kernel.dependence import Carried, rounds
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Stmt,
    Store,
    bodies,
    marks,
    stages_in,
    with_bodies,
    wrap,
)
from tilewright.kernel.overlap import Use
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class RFactor(Step):
    """Some loops of a reduction become axes of partial results `into`; the stage then reduces over
    those only.

        for r.0: for r.1 in 4: s += x[…]       for r.1 in 4: p[r.1] = 0
                                               for r.0: for r.1: p[r.1] += x[…]
                                               for r.1 in 4: s += p[r.1]

    Where only the call says how many rounds a kept loop has, there are as many partial results as
    there may be rounds. `exact`: as many as there are, so that each can be placed where it is read.
    """

    stays: ClassVar[bool] = True
    stage: str
    loops_kept: tuple[str, ...]
    into: str
    exact: bool = False

    def apply(self, n: Nest) -> Nest:
        self.fresh(n, self.into)
        self.need(self.loops_kept, "name the loops that become axes")
        for name in self.loops_kept:
            self.loops(n, name)
        made: list[Buffer] = []
        body = self._rebuilt(n, n.body, made)
        lost = f"{', '.join(self.loops_kept)} are not loops of the reduction {self.stage}"
        self.need(len(made) == 1, lost)
        return replace(n, body=body).with_buffer(made[0]).with_role(self.stage, self.into)

    def _rebuilt(self, n: Nest, body: tuple[Stmt, ...], made: list[Buffer]) -> tuple[Stmt, ...]:
        """The body with the outermost chain of loops around the reduction taken apart, or the
        chains that follow each other."""
        out: list[Stmt] = []
        chains: list[tuple[list[Loop], Store]] = []
        for s in body:
            found = self._chain(s) if ("stage", self.stage) in marks(s) else None
            if found is not None:
                chains.append(found)
                continue
            if chains:
                out.extend(self._factored(n, chains, made))
                chains = []
            inside = [self._rebuilt(n, x, made) for x in bodies(s)]
            out.append(with_bodies(s, inside) if ("stage", self.stage) in marks(s) else s)
        return (*out, *(self._factored(n, chains, made) if chains else ()))

    def _chain(self, s: Stmt) -> tuple[list[Loop], Store] | None:
        """The loops from s down to the reduction's store, if they hold it and the loops to keep."""
        if not isinstance(s, Loop) or stages_in(s) != {self.stage}:
            return None
        chain = [s]
        while len(chain[-1].body) == 1 and isinstance(inner := chain[-1].body[0], Loop):
            chain.append(inner)
        st = chain[-1].body[0]
        alone = len(chain[-1].body) == 1 and isinstance(st, Store) and st.combine is not None
        if not alone or not set(self.loops_kept) <= {x.name for x in chain}:
            return None
        assert isinstance(st, Store)
        return chain, st

    def _factored(
        self, n: Nest, chains: list[tuple[list[Loop], Store]], made: list[Buffer]
    ) -> list[Stmt]:
        found = [(chain, st, *self._axes(n, chain, st)) for chain, st in chains]
        # All of them reduce into partial results as wide as the widest needs.
        widest = max(found, key=lambda x: [w if isinstance(w, int) else 0 for w in x[3]])
        chain, st, axes, widths = widest
        for _, other, _, least in found:
            same = len(least) == len(widths) and other.combine == st.combine
            fits = same and all(map(D.known_le, least, widths)) and other.index == st.index
            self.need(fits or other is st, f"the loops of {self.stage} reduce into other places")
        assert st.combine is not None
        dtype = st.value.dtype
        over = tuple(D.the_sym(D.var(first_name(self.into, k), d)) for k, d in enumerate(widths))
        zero = identity(st.combine, dtype)
        init = wrap(over, Store(self.into, self.into, tuple(map(D.as_int, over)), zero))
        parts = [self._partial(n, chain, st, axes) for chain, st, axes, _ in found]
        last: dict[Sym, Dim] = {}
        own = {x.var for x in chain}
        for x, w in zip(axes, widths, strict=True):
            # Wide where the loop itself is ragged along a loop that is summed up already.
            ragged = x.name in self.loops_kept or bool(D.symbols(x.extent) & own)
            last[x.var] = D.var(x.name, w) if ragged else D.as_int(x.var)
        where = tuple(D.substitute(i, last) for i in st.index)
        final = replace(st, index=where, value=load(self.into, list(last.values()), dtype))
        made.append(Buffer(self.into, dtype, tuple(widths), "local"))
        tests = [D.var(x.name, D.substitute(x.extent, last)) for x in self._tests(found, last)]
        over_all = wrap(tuple(map(D.the_sym, (*last.values(), *tests))), final)
        return [Alloc(self.into), init, *parts, over_all]

    def _tests(
        self, found: list[tuple[list[Loop], Store, list[Loop], list[Dim]]], known: Mapping[Sym, Dim]
    ) -> list[Loop]:
        """Loops of one iteration or none, which say whether an element of the result is there: what
        is added up at the end needs them too."""
        out: list[Loop] = []
        for chain, st, axes, _ in found:
            data = {x.var for x in axes if x.name not in self.loops_kept}
            tests = [x for x in chain if x not in axes and D.symbols(x.extent) & data]
            tests = [x for x in tests if D.bounds(x.extent)[1] <= 1]
            summed = {x.var for x in chain} - set(known)
            alone = len(found) == 1 and not any(D.symbols(x.extent) & summed for x in tests)
            self.need(
                not tests or alone, f"parts of {st.stage} are there under different conditions"
            )
            out += tests
        return out

    def _partial(self, n: Nest, chain: list[Loop], st: Store, axes: list[Loop]) -> Stmt:
        """The loops of one chain, reducing into the partial results."""
        names = {x.var: str(x.axis.of(self.into)) for x in chain}
        self.need(len(set(names.values())) == len(chain), "two of its loops would have one name")
        table: dict[Sym, Dim] = {}
        for x in chain:
            table[x.var] = D.var(names[x.var], D.substitute(x.extent, table))
        at = tuple(table[x.var] for x in axes)
        value = st.value.substitute(table)
        part = Store(self.into, self.into, at, value, st.combine)
        return wrap(tuple(map(D.the_sym, table.values())), part)

    def _axes(self, n: Nest, chain: list[Loop], st: Store) -> tuple[list[Loop], list[Dim]]:
        """The loops that index the partial results, data axes first, and how wide each axis is."""
        if n.precision == "strict" and rounds(st):
            use = Use(st, None, tuple(chain), 0)
            loop = next(x for x in chain if x.name in self.loops_kept)
            self.keep(n, [Carried("reduction", loop, use, use)])
        plain = all(x.kind == "serial" and not x.pragmas for x in chain)
        self.need(plain, "the loops already have a kind or a pragma", "rfactor first")
        where = {x.var: x for x in chain}
        for i in st.index:
            # What loops around all of these fix is the same for every partial result.
            fixed = not D.symbols(i) & set(where) and not any(D.data_values(i))
            plain = fixed or (D.is_sym(i) and D.the_sym(i) in where)
            broken = f"{self.stage} is split or placed by its data axes"
            self.need(plain, broken, "rfactor first")
        own = (D.the_sym(i) for i in st.index if D.is_sym(i))
        along = dict.fromkeys(v for v in own if v in where)
        partial = [x for x in chain if x.name in self.loops_kept]
        wrong = [x.name for x in partial if x.var in along]
        self.need(not wrong, f"{', '.join(wrong)} is not a reduction loop")
        axes = [*(where[v] for v in along), *partial]
        widths: list[Dim] = []
        for x in axes:
            # A ragged axis has its full width: partials that are never touched stay neutral.
            most = D.bounds(x.extent)[1]
            fixed = D.symbols(x.extent) <= set(n.dims)
            fixed = fixed and (x not in partial or self.exact or most == D.INF)
            width = x.extent if fixed else most
            bounded = isinstance(width, D.Int) or width < D.INF
            self.need(bounded, f"the extent of {x.name} has no constant bound")
            widths.append(width)
        return axes, widths
