from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby

from tilewright.ir import dim as D
from tilewright.kernel.dependence import across_lanes, carried, lanes_hint
from tilewright.kernel.nest import Alloc, Loop, Nest, Stmt, bodies, on_loops, walk, with_bodies
from tilewright.kernel.step import Step

# Wider vectors than this compile slowly and run no faster (measured at 64 lanes and beyond).
MAX_LANES = 64


@dataclass(frozen=True)
class Vectorize(Step):
    """The iterations become the lanes of one vector. Copies of the loop with a run-time extent
    (tails) stay serial, or, with `masked`, are a vector whose last lanes may not exist.

        for l in 4: y[4*i+l] = exp(x[4*i+l])   →   y[4*i : 4*i+4] = exp(x[4*i : 4*i+4])

    Lanes are innermost: each statement gets lanes of its own, inside the serial loops around it.

        for l in 4:                                lane l in 4: y[l] = 0
          y[l] = 0                                 for r: lane l in 4: y[l] += x[r,l]
          for r: y[l] += x[r,l]
    """

    loop: str
    masked: bool = False

    def apply(self, n: Nest) -> Nest:
        found = self._wide(n)
        self.need(
            found,
            f"the extent of {self.loop} is not a constant",
            "Split it by the number of lanes and Peel first",
        )
        for x in found:
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}")
            bound = self._bound(x)
            self.need(
                bound is not None and bound <= MAX_LANES,
                f"{bound} lanes are too many",
                f"Split by at most {MAX_LANES} first",
            )
            for s, _ in walk(x.body):
                moves = not isinstance(s, Loop) or s.kind in ("serial", "unroll")
                self.need(
                    moves,
                    f"{getattr(s, 'kind', '')} {getattr(s, 'name', '')} is inside {self.loop}",
                    "reorder it outwards first",
                )
                varies = isinstance(s, Loop) and x.var in D.symbols(s.extent)
                self.need(not varies, f"the extent of {getattr(s, 'name', '')} differs per lane")
                self.need(
                    not isinstance(s, Alloc),
                    f"{getattr(s, 'buffer', '')} is allocated per lane",
                    f"place it outside of {self.loop}",
                )
            bad = across_lanes(n, x)
            hint = lanes_hint(n, x, bad) if bad else None
            self.keep(n, bad, "{loop} carries a dependence: ", hint)
            if not isinstance(x.extent, int):
                sums = carried(n, x)
                ragged = f"{sums[0].reason}, and some lanes do not exist" if sums else ""
                self.need(not sums, ragged, "Split and Peel first")

        def one(s: Loop) -> tuple[Stmt, ...]:
            return (s,) if self._bound(s) is None else tuple(_inward(s, s.body))

        return on_loops(n, self.loop, one)

    def check_branches(self, n: Nest) -> None:
        """Only lanes that go into a loop inside change the order of statements."""
        for x in self._wide(n):
            inside = [s.name for s, _ in walk(x.body) if isinstance(s, Loop) and _repeats(s)]
            self.need(
                not inside,
                f"{', '.join(inside[:1])} is inside {self.loop}, and with branches or pointers it "
                "is not known whether lanes may go into it",
                "reorder it outwards or unroll it",
            )

    def _wide(self, n: Nest) -> list[Loop]:
        """The copies of the loop that become lanes."""
        return [x for x, _ in self.loops(n, self.loop) if self._bound(x) is not None]

    def _bound(self, x: Loop) -> int | None:
        if isinstance(x.extent, int):
            return x.extent or None  # no lanes at all: nothing to do
        hi = D.bounds(x.extent)[1]
        return hi if self.masked and hi < D.INF else None


def _repeats(s: Stmt) -> bool:
    """Does a statement have, or is it, a loop that is not written out?"""
    return any(isinstance(x, Loop) and x.kind != "unroll" for x, _ in walk((s,)))


def _inward(lanes: Loop, body: tuple[Stmt, ...]) -> list[Stmt]:
    """The statements, each with lanes around it; statements side by side without loops that run
    share them."""
    out: list[Stmt] = []
    for repeats, some in groupby(body, _repeats):
        if not repeats:
            out.append(replace(lanes, kind="lane", body=tuple(some)))
            continue
        for s in some:
            out.append(with_bodies(s, [tuple(_inward(lanes, x)) for x in bodies(s)]))
    return out
