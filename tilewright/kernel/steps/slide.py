from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Load, Value, load, loads
from tilewright.kernel.nest import Loop, Nest, Path, Stmt, Store, substitute_all, transform, walk
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Slide(Step):
    """Two axes of a stage's own buffer become one where windows slide: what is computed depends on
    where a window is and on the place inside it only as the place that both are. Windows that
    overlap share it then.

    for j in 9: for s in 3: t[j,s] = f(x[2*j+s])     for j in 19: t[j] = f(x[j])
    … t[j,s]                                         … t[2*j+s]
    """

    stage: str
    windows: int  # the axis along which windows follow each other
    inside: int  # the axis inside a window, which is gone afterwards

    def apply(self, n: Nest) -> Nest:
        b = self.internal(n, self.stage)
        k, m = self.windows, self.inside
        both = 0 <= k < len(b.shape) and 0 <= m < len(b.shape) and k != m
        self.need(both, f"{self.stage} has no two axes {k} and {m}")
        count, width = b.shape[k], b.shape[m]
        fixed = isinstance(count, int) and isinstance(width, int)
        self.need(fixed, f"the sizes of {self.stage} are no constants")
        assert isinstance(count, int) and isinstance(width, int)
        own = [(s, p) for s, p in walk(n.body) if isinstance(s, Store) and s.buffer == self.stage]
        found = [(s, *self._loops(s, p, count, width)) for s, p in own]
        steps = {c for s, j, i in found for c in _steps(s.value, j.var, i.var)}
        one = f"windows of {self.stage} do not move by one number of places"
        hint = "both axes have to be added up in what is read"
        self.need(len(steps) == 1 and 0 not in steps, one, hint)
        (step,) = steps
        apart = f"windows of {self.stage} move by {step}, which is more than their {width} places"
        self.need(0 < step <= width, apart)
        size = step * (count - 1) + width

        def together(index: tuple[Dim, ...]) -> tuple[Dim, ...]:
            place = step * index[k] + index[m]
            return tuple(place if a == k else x for a, x in enumerate(index) if a != m)

        gone = {i.var for _, _, i in found}
        places = {j.var: D.var(j.name, size) for _, j, _ in found}
        stores = {id(s): self._moved(s, j.var, i.var, places[j.var], step) for s, j, i in found}

        def change(s: Stmt) -> tuple[Stmt, ...]:
            if isinstance(s, Store):
                return (stores.get(id(s), s),)
            if isinstance(s, Loop) and s.var in gone:
                return s.body
            if isinstance(s, Loop) and s.var in places:
                return (replace(s, var=D.the_sym(places[s.var])),)
            return (s,)

        def on_load(x: Load) -> Value:
            return load(x.source, together(x.index), x.dtype) if x.source == self.stage else x

        body = substitute_all(transform(n.body, change), {}, on_load, only=self.stage)
        shape = tuple(size if a == k else x for a, x in enumerate(b.shape) if a != m)
        return replace(n, body=body).with_buffer(replace(b, shape=shape))

    def _loops(self, s: Store, path: Path, count: int, width: int) -> tuple[Loop, Loop]:
        """A store's loops along both axes, which nothing else may depend on."""
        where = {x.var: x for x in path}
        out: list[Loop] = []
        for axis, extent in ((self.windows, count), (self.inside, width)):
            i = s.index[axis]
            loop = where.get(D.the_sym(i)) if D.is_sym(i) else None
            plain = f"axis {axis} of {self.stage} is not all of one loop"
            whole = loop is not None and loop.extent == extent
            self.need(whole, plain, "slide first, then split and place")
            assert loop is not None
            self.need(loop.kind == "serial", f"{loop.name} is already {loop.kind}", "slide first")
            out.append(loop)
        mine = {x.var for x in out}
        elsewhere = [x for k, x in enumerate(s.index) if k not in (self.windows, self.inside)]
        depends = any(mine & D.symbols(x) for x in (*(q.extent for q in path), *elsewhere))
        self.need(not depends, f"another loop or axis of {self.stage} depends on these")
        for x in out:
            others = [y for y, _ in walk(x.body) if not isinstance(y, Loop) and y is not s]
            self.need(not others, f"{x.name} computes something else too")
        self.need(self.stage not in s.value.sources, f"{self.stage} reads itself")
        return out[0], out[1]

    def _moved(self, s: Store, j: Sym, i: Sym, place: Dim, step: int) -> Store:
        """A store at a place, which is all that its value may depend on."""
        value = s.value.substitute({i: place - step * D.as_int(j)})
        alone = f"{self.stage} depends on the window, and not only on the place"
        self.need(not {i, j} & value.symbols(), alone)
        index = tuple(
            place if a == self.windows else x for a, x in enumerate(s.index) if a != self.inside
        )
        return replace(s, index=index, value=value)


def _steps(v: Value, j: Sym, i: Sym) -> set[int]:
    """By how many places a window moves, from what is read."""
    found: set[int] = set()
    for x in loads(v):
        for d in x.index:
            along, inside = D.coefficient(d, j), D.coefficient(d, i)
            if isinstance(along, int) and isinstance(inside, int) and inside:
                found.add(along // inside if along % inside == 0 else 0)
    return found
