from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir import dim as D
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.nest import (
    Alloc,
    Commit,
    Loop,
    Nest,
    Release,
    Stmt,
    Store,
    Wait,
    mentions,
    on_loops,
    reads,
    sources,
    stages_in,
    substitute_all,
    walk,
    writes,
)
from tilewright.kernel.roles import has_roles
from tilewright.kernel.step import Step


@dataclass(frozen=True)
class Delay(Step):
    """An asynchronous product of an iteration is begun in the next one, right after the first
    product there: so it goes on while the results of that are worked on.

    for k in n:                             s = a[0] * b; wait; p = f(s)
      s = a[k] * b                          for k in n-1:
      wait products 0                         s = a[k+1] * b
      p = f(s)                                y += p * c[k]
      y += p * c[k]                           wait products 1       # s is there
      wait products 0                         q = f(s)
                                              wait products 0       # y is there, p is free
                                              p = q
                                            y += p * c[n-1]; wait products 0

    In a loop with roles an iteration releases what the one before has used (kernel/roles.py).
    """

    loop: str
    stage: str

    def apply(self, n: Nest) -> Nest:
        found = self.loops(n, self.loop)
        self.need(len(found) == 1, f"there are several loops {self.loop}")
        loop, path = found[0]
        some = D.known_lt(0, loop.extent) and loop.kind == "serial"
        self.need(some, f"{self.loop} may have no iteration")
        self.fresh(n, f"{self.loop}.first")
        body = loop.body
        at = next((k for k, s in enumerate(body) if stages_in(s) == {self.stage}), None)
        late = at is not None and uses_of(body[at]) > 0 and _waits(body[at + 1 : at + 2])
        self.need(late, f"{self.stage} is no asynchronous product that {self.loop} waits for")
        assert at is not None
        before = [k for k in range(at) if uses_of(body[k])]
        first = before[-1] + 1 if before else 0
        self.need(before and _waits(body[first : first + 1]), f"no product before {self.stage}")
        self._free(loop, first, at)
        product = body[at]
        parts = one_by_one(product)
        touched = sources(product) | writes((product,))
        used = (
            k for k in range(first + 1, at) if touched & (writes((body[k],)) | sources(body[k]))
        )
        free = next(used, at)
        mine = [s for s in body if isinstance(s, Alloc) and s.buffer in sources(product)]
        # The product reads the versions of its own iteration, so these are released one later.
        again = has_roles(loop) and any(q.kind in ("serial", "unroll") for q in path)
        last: list[Stmt] = [Release(0)] if again else []
        body = tuple(Release(s.pending + 1) if isinstance(s, Release) else s for s in body)

        def one(x: Loop) -> tuple[Stmt, ...]:
            v = D.as_int(x.var)
            u = D.var(self.loop, x.extent - 1)
            rest = [s for s in body if s not in mine]
            once = [s for k, s in enumerate(body) if k not in (at, at + 1) and s not in mine]
            start = D.var(f"{self.loop}.first", 1)
            main: list[Stmt] = []
            for k, s in enumerate(body):
                if k == first:
                    main += substitute_all(parts, {x.var: v - 1})
                    main.append(Wait(uses_of(product), products=True))
                    continue
                if k == free:
                    main.append(Wait(0, products=True))
                if k not in (at, at + 1) and s in rest:
                    main.append(s)
            return (
                *mine,
                replace(x, var=D.the_sym(start), body=substitute_all(once, {x.var: 0})),
                replace(x, var=D.the_sym(u), body=substitute_all(main, {x.var: u + 1})),
                *substitute_all(parts, {x.var: x.extent - 1}),
                Wait(0, products=True),
                *last,
            )

        return self.bounded(on_loops(n, self.loop, one))

    def _free(self, loop: Loop, first: int, at: int) -> None:
        """What the product of the iteration before passes does not touch what it uses; copies that
        are brought ahead go to other versions, or wait for a release."""
        body = loop.body[loop.body.index(Commit()) + 1 :] if has_roles(loop) else loop.body
        first, at = (k - len(loop.body) + len(body) for k in (first, at))
        product = body[at]
        results = writes((product,))
        for s in (*body[: first + 1], *body[at + 2 :]):
            if isinstance(s, Alloc):
                continue
            self.need(not results & mentions(s), f"{self.stage} is used before its iteration ends")
            for x, _ in walk((s,)):
                if isinstance(x, Store) and x.buffer in sources(product):
                    self.need(
                        x.asynchronous and self._apart(x, product, loop),
                        f"{x.buffer} is written while {self.stage} reads it",
                        "more versions of it: Pipeline with slack",
                    )

    def _apart(self, x: Store, product: Stmt, loop: Loop) -> bool:
        """Does a copy go to another version than the one that the product before reads? There are
        few versions, which come in turn."""
        read = {y.index[0] for y in reads(product) if y.source == x.buffer}
        # The last iteration copies nothing for a next one.
        for k in range(1, min(int(D.bounds(loop.extent)[1]) - 1, 64)):
            there = D.substitute(x.index[0], {loop.var: k})
            if any(D.known_eq(D.substitute(i, {loop.var: k - 1}), there) for i in read):
                return False
        return True


def one_by_one(s: Stmt) -> list[Stmt]:
    """The uses of an instruction as statements of their own: waits count these."""
    if not isinstance(s, Loop) or s.instruction or not isinstance(s.extent, int):
        return [s]
    rounds = (substitute_all(s.body, {s.var: k}) for k in range(s.extent))
    return [x for body in rounds for y in body for x in one_by_one(y)]


def uses_of(s: Stmt) -> int:
    """How many asynchronous instructions of groups of warps a statement is."""
    count = 0
    for x, path in walk((s,)):
        i = INTRINSICS.get(x.instruction) if isinstance(x, Loop) and x.instruction else None
        if i is not None and i.asynchronous and not i.engine:
            times = 1
            for q in path:
                times *= int(D.bounds(q.extent)[1])
            count += times
    return count


def _waits(body: Sequence[Stmt]) -> bool:
    return bool(body) and isinstance(body[0], Wait) and body[0].products
