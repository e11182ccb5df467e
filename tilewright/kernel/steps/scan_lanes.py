from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.kernel.nest import Loop, Nest, Stmt, Store, on_loops
from tilewright.kernel.scans import SCAN, scan_of
from tilewright.kernel.step import Step
from tilewright.kernel.steps.vectorize import MAX_LANES


@dataclass(frozen=True)
class ScanLanes(Step):
    """The iterations of a scan become one vector: what its lanes carry is combined in steps of one
    lane, two, four and so on, and with the last element before. Copies of the loop with a run-time
    extent (tails) stay as they are.

        for l in 4: y[4*i+l] = y[4*i+l-1] + x[4*i+l]
        →  v = x[4*i : 4*i+4]; v += v moved by 1; v += v moved by 2; y[4*i : 4*i+4] = y[4*i-1] + v
    """

    loop: str

    def apply(self, n: Nest) -> Nest:
        found = [x for x, _ in self.loops(n, self.loop) if isinstance(x.extent, int) and x.extent]
        self.need(
            found,
            f"the extent of {self.loop} is not a constant",
            "Split it by the number of lanes and Peel first",
        )
        for x in found:
            self.need(x.kind == "serial", f"{self.loop} is already {x.kind}")
            few = isinstance(x.extent, int) and x.extent <= MAX_LANES
            self.need(few, f"{x.extent} lanes are too many", f"Split by at most {MAX_LANES} first")
            store = x.body[0] if len(x.body) == 1 else None
            scan = scan_of(store, x.var) if isinstance(store, Store) else None
            self.need(
                scan is not None,
                f"{self.loop} is not around one store that carries sums, products or extremes from "
                "each element to the next",
                "Vectorize is for iterations that are independent",
            )
            kept = n.precision != "strict" or scan is None or not scan.rounds
            self.need(kept, "the order of sums may not change: the precision is strict")

        def one(s: Loop) -> tuple[Stmt, ...]:
            known = isinstance(s.extent, int) and s.extent
            return (replace(s, pragmas=(*s.pragmas, (SCAN, 1))),) if known else (s,)

        return on_loops(n, self.loop, one)
