from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import identity, load
from tilewright.kernel.group import Buffer
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, Store, stages_in, wrap
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class RFactor(Step):
    """Some loops of a reduction become axes of partial results `into`; the stage then reduces over those only.

    for r.0: for r.1 in 4: s += x[…]       for r.1 in 4: p[r.1] = 0
                                           for r.0: for r.1: p[r.1] += x[…]
                                           for r.1 in 4: s += p[r.1]
    """

    stage: str
    loops_kept: tuple[str, ...]
    into: str

    def apply(self, n: Nest) -> Nest:
        self.fresh(n, self.into)
        self.need(self.loops_kept, "name the loops that become axes")
        for name in self.loops_kept:
            self.loops(n, name)
        shape: list[Dim] = []
        made: list[Buffer] = []

        def one(s: Stmt) -> tuple[Stmt, ...]:
            if not isinstance(s, Loop) or stages_in(s) != {self.stage}:
                return (s,)
            chain = [s]
            while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], Loop):
                chain.append(chain[-1].body[0])
            st = chain[-1].body[0]
            if len(chain[-1].body) != 1 or not isinstance(st, Store) or st.combine is None:
                return (s,)
            names = [x.name for x in chain]
            if not set(self.loops_kept) <= set(names):
                return (s,)
            used: set[Sym] = set().union(*(D.symbols(i) for i in st.index)) if st.index else set()
            data = [x for x in chain if x.var in used]
            kept = [x for x in chain if x.name in self.loops_kept]
            self.need(not any(x in data for x in kept), f"{', '.join(x.name for x in kept if x in data)} is not a reduction loop")  # fmt: skip
            self.need(
                all(x.kind == "serial" for x in chain),
                "the loops already have a kind",
                "rfactor first",
            )
            for i in st.index:
                self.need((D.is_sym(i) and any(D.the_sym(i) is x.var for x in chain)) or i == 0, f"{self.stage} is split or placed by its data axes", "rfactor first")  # fmt: skip
            # A ragged axis keeps its full width: partials that are never touched stay neutral.
            sizes = {x: _width(x.extent) for x in kept}
            for x, w in sizes.items():
                self.need(w is not None, f"the extent of {x.name} has no constant bound")
            rename = {x.var: f"{self.into}.{x.name.split('.', 1)[-1]}" for x in chain}
            self.need(
                len(set(rename.values())) == len(chain), "two of its loops would have one name"
            )
            along = [D.the_sym(i) for i in st.index if D.is_sym(i)]
            axes = [next(x for x in data if v is x.var) for v in dict.fromkeys(along)] + kept
            for x in axes:
                width = sizes[x] if x in sizes else x.extent
                if width is not None and not D.symbols(width) <= set(n.dims):
                    width = _width(x.extent)
                self.need(width is not None, f"the extent of {x.name} has no constant bound")
                assert width is not None
                shape.append(width)
            table: dict[Sym, Dim] = {}
            order: list[Sym] = []
            for x in chain:
                v = D.var(rename[x.var], D.substitute(x.extent, table))
                table[x.var] = v
                order.append(D.the_sym(v))
            zero = identity(st.combine, st.value.dtype)
            init_axes = tuple(
                D.the_sym(D.var(f"{self.into}.init.i{k}", d)) for k, d in enumerate(shape)
            )
            init = wrap(
                init_axes, Store(self.into, self.into, tuple(map(D.as_int, init_axes)), zero)
            )
            at = tuple(table[x.var] for x in axes)
            part = wrap(
                tuple(order),
                Store(self.into, self.into, at, st.value.substitute(table), st.combine),
            )
            fin_vars = {
                x.var: D.var(x.name, sizes[x]) if x in sizes else D.as_int(x.var) for x in axes
            }  # type: ignore[arg-type]
            fin_axes = tuple(D.the_sym(v) for v in fin_vars.values())
            value = load(self.into, list(fin_vars.values()), st.value.dtype)
            final = wrap(fin_axes, replace(st, value=value))
            made.append(Buffer(self.into, st.value.dtype, tuple(shape), "local"))
            return (Alloc(self.into), init, part, final)

        body = _outermost(n.body, one)
        self.need(
            len(made) == 1,
            f"{', '.join(self.loops_kept)} are not loops of the reduction {self.stage}",
        )
        return replace(n, body=body).with_buffer(made[0])


def _outermost(body: tuple[Stmt, ...], f) -> tuple[Stmt, ...]:
    """Apply f to the outermost statements for which it answers something new."""
    out: list[Stmt] = []
    for s in body:
        new = f(s)
        if new == (s,) and isinstance(s, Loop):
            new = (replace(s, body=_outermost(s.body, f)),)
        out.extend(new)
    return tuple(out)


def _width(e: Dim) -> int | None:
    hi = D.bounds(e)[1]
    return hi if hi < D.INF else None
