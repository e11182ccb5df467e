from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Fn, Load, Value
from tilewright.kernel.box import own_statements
from tilewright.kernel.earlier import earlier
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Stmt,
    Store,
    mentions,
    on_loops,
    transform,
    walk,
)
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class AddInto(Step):
    """A sum that is added to a running value is added up there.

    for r:                                      for r:
      s[i] = 0                                    y[i] = y[i] * g[i]
      s[i] add= x[r,i,k]                          y[i] add= x[r,i,k]
      y[i] = y[i] * g[i] + s[i]
    """

    stage: str

    def apply(self, n: Nest) -> Nest:
        self.need(n.precision != "strict", "it rounds differently, and the precision is strict")
        self.internal(n, self.stage)
        stores = [(s, p) for s, p in walk(n.body) if isinstance(s, Store)]
        own = [(s, p) for s, p in stores if s.buffer == self.stage]
        updates = [(s, p) for s, p in own if s.combine is not None]
        zero = all(
            isinstance(s.value, Const) and s.value.value == 0 for s, _ in own if s.combine is None
        )
        one = len(updates) == 1 and updates[0][0].combine == "add" and zero and len(own) == 2
        self.need(one, f"{self.stage} is not one sum from 0")
        readers = [(s, p) for s, p in stores if self.stage in s.value.sources]
        self.need(len(readers) == 1, f"{self.stage} is read {len(readers)} times, not once")
        (final, path), (update, _) = readers[0], updates[0]
        found = [p for _, p in own_statements(n, self.stage)]
        home = found[0][-1] if found[0] else None
        inside = home is not None and all(p and p[-1] is home for p in found) and home in path
        self.need(inside, f"{self.stage} and {final.buffer} are not in one loop")
        assert home is not None
        self.need(len(self.loops(n, home.name)) == 1, f"there are several loops {home.name}")
        rest = self._rest(final)
        self._adds_each(n, final, path[path.index(home) + 1 :])

        def one_loop(x: Loop) -> tuple[Stmt, ...]:
            return (replace(x, body=self._body(x, final, rest, update)),)

        return on_loops(n, home.name, one_loop).without_buffer(self.stage)

    def _rest(self, final: Store) -> Value:
        """What the sum is added to."""
        v = final.value
        sums = v.args if isinstance(v, Fn) and v.name == "add" else ()
        mine = [x for x in sums if isinstance(x, Load) and x.source == self.stage]
        plain = final.combine is None and len(mine) == 1
        self.need(plain, f"{final.buffer} is not something and {self.stage} added to it")
        (rest,) = (x for x in sums if x is not mine[0])
        self.need(self.stage not in rest.sources, f"{final.buffer} reads {self.stage} twice")
        return rest

    def _read(self, final: Store) -> Load:
        """Where the running value reads the sum."""
        parts = final.value.args if isinstance(final.value, Fn) else ()
        (read,) = (x for x in parts if isinstance(x, Load) and x.source == self.stage)
        return read

    def _adds_each(self, n: Nest, final: Store, loops: tuple[Loop, ...]) -> None:
        """Every place of the sum is added once, to a place of its own."""
        extents = {x.var: x.extent for x in loops}
        axes: set[Sym] = set()
        for i, size in zip(self._read(final).index, n.buffer(self.stage).shape, strict=True):
            whole = i == 0 and size == 1
            if D.is_sym(i):
                v = D.the_sym(i)
                whole = v in extents and v not in axes and D.known_eq(extents[v], size)
                axes.add(v)
            self.need(whole, f"{final.buffer} does not read all of {self.stage}")
        self.need(axes == set(extents), f"{final.buffer} adds {self.stage} several times")
        places = {D.the_sym(i) for i in final.index if D.is_sym(i)}
        self.need(axes <= places, f"places of {final.buffer} are added to several times")

    def _body(self, home: Loop, final: Store, rest: Value, update: Store) -> tuple[Stmt, ...]:
        body = [s for s in home.body if not self._begins(s)]
        last = next(k for k, s in enumerate(body) if any(x is final for x, _ in walk((s,))))
        scaling = transform(
            (body[last],), lambda s: (replace(s, value=rest),) if s is final else (s,)
        )
        del body[last]
        at = next(k for k, s in enumerate(body) if any(x is update for x, _ in walk((s,))))
        between = body[at:last]
        free = not any(final.buffer in mentions(s) for s in between)
        self.need(at < last and free, f"{final.buffer} is used while {self.stage} is added up")
        moved = earlier(body[:last], at, set(map(str, rest.sources)))
        self.need(moved is not None, f"what {final.buffer} was is made of later results")
        assert moved is not None
        made, at = moved
        adding = transform(
            (made[at],), lambda s: (self._added(update, final),) if s is update else (s,)
        )
        alone = not any(isinstance(x, Store) and x is not update for x, _ in walk((made[at],)))
        self.need(alone, f"{self.stage} is computed together with something else")
        return *made[:at], *scaling, *adding, *made[at + 1 :], *body[last:]

    def _added(self, s: Store, final: Store) -> Store:
        """The update, of the running value."""
        places = zip(self._read(final).index, s.index, strict=True)
        table: dict[Sym, Dim] = {D.the_sym(i): at for i, at in places if D.is_sym(i)}
        index = tuple(D.substitute(i, table) for i in final.index)
        return replace(s, buffer=final.buffer, index=index)

    def _begins(self, s: Stmt) -> bool:
        """Is it memory of the sum, or its zeros?"""
        if isinstance(s, Alloc):
            return s.buffer == self.stage
        stores = [x for x, _ in walk((s,)) if isinstance(x, Store)]
        return bool(stores) and all(x.buffer == self.stage and x.combine is None for x in stores)
