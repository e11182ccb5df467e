"""What a cluster costs: counted flops and bytes, and seconds by a roofline or by measurement.

Counts come from definitions. Where there are measurements (of a tuner, a database of records), a
callable gives them in place of the estimate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.graph.classify import facts, flops, guess, multiply_adds, nbytes
from tilewright.graph.cluster import Cluster, Fused
from tilewright.graph.regions import repeats, trace
from tilewright.ir.node import Graph, Item, Node
from tilewright.ir.target import Target

# The part of the time of products that may go into arithmetic where these wait for memory.
MOST_COMPUTING = 0.1
Measured = Callable[[Cluster], float | None]
"""Seconds that a cluster takes, or None where it was not measured."""


@dataclass(frozen=True)
class Work:
    """Scalar operations, and bytes that cross the cluster's edge."""

    flops: int
    bytes_read: int
    bytes_written: int

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
        )


def work(c: Cluster) -> Work:
    """Counts for one run. Elements are counted once however often a kernel reads them, and only
    those it reads: a gather of ten rows does not count the whole table."""
    own = set(c.nodes)
    inlined = own - {n for n in c.nodes if facts(n).kind not in ("view",)}
    read: dict[Node, int] = {}
    for n in c.nodes:
        f = facts(n)
        if n in inlined or f.kind == "source" or isinstance(n.op, Item):
            continue
        for r in trace(n, inlined):
            if r.source not in own:
                points = repeats(r, f.domain)[0] if r.via else guess(r.source.ttype.size)
                read[r.source] = read.get(r.source, 0) + points
    bytes_read = sum(min(points, guess(x.ttype.size)) * x.dtype.bytes for x, points in read.items())
    written = sum(guess(nbytes(o.ttype)) for o in c.outputs)
    return Work(sum(flops(n) for n in c.nodes), bytes_read, written)


@dataclass(frozen=True)
class Roofline:
    """A machine as two of its rates, and cycles to begin a kernel: coarser than kernel/cost.py,
    which knows the loops. Good for comparing plans, not for promises."""

    target: Target
    measured: Measured | None = None

    def seconds(self, c: Cluster) -> float:
        known = self.measured(c) if self.measured is not None else None
        if known is not None:
            return known
        w, t = work(c), self.target
        cycles = max(w.flops / t.flops_per_cycle, w.bytes / t.memory_bandwidth)
        return (t.region + cycles / t.cores) / (t.mhz * 1e6)

    def total(self, fused: Fused) -> float:
        return sum(map(self.seconds, fused.clusters))


def products_wait_for_memory(graph: Graph, flops_per_byte: float) -> bool:
    """Do nearly all matrix products and convolutions of a graph have fewer operations for a byte
    than a machine can do meanwhile, by the time that they take? False of a graph without any."""
    reading = computing = 0.0
    for n in graph.nodes():
        if work := multiply_adds(n):
            moved = sum(guess(nbytes(x.ttype)) for x in (n, *n.inputs))
            own = 2 * work / flops_per_byte
            reading += moved if moved >= own else 0
            computing += own if moved < own else 0
    return computing < MOST_COMPUTING * (reading + computing)
