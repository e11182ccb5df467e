"""Batches of clusters (graph/batches.py) as actions of an entry function: elementwise ones become
calls of kernels of any length, which the threads share piece by piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from typing import Protocol

from tilewright.driver.program.distinct import Distinct, structure
from tilewright.driver.program.schedules import Numbers, group_of
from tilewright.driver.program.storage import Where
from tilewright.graph.batches import SMALL, is_elementwise
from tilewright.graph.classify import nbytes
from tilewright.graph.cluster import Cluster, Fused
from tilewright.graph.memory import Plan
from tilewright.kernel.flat import Flat, flattened
from tilewright.kernel.group import Group
from tilewright.llvm.entry import Action, Batch, Call, Part


class Kernels(Protocol):
    """Where kernels are collected."""

    @property
    def numbers(self) -> Numbers: ...

    def distinct(self, group: Group) -> Distinct: ...

    def named(self, k: Distinct, c: Cluster, fused: Fused) -> None:
        """A cluster is a call of a kernel."""
        ...


class Batches:
    """The batches of one entry function."""

    def __init__(
        self,
        kernels: Kernels,
        fused: Fused,
        p: Plan,
        where: Where,
        apart: Collection[Cluster] = (),
    ) -> None:
        """Clusters that are `apart` are calls of their own: their kernels take sizes."""
        self.kernels, self.fused, self.plan, self.where = kernels, fused, p, where
        alone = {c.outputs: -k - 1 for k, c in enumerate(apart)}
        self.batch = {c.outputs: fused.batch(k) for k, c in enumerate(fused.clusters)} | alone
        self.sizes = Counter(self.batch.values())
        self.known: dict[Hashable, Flat | None] = {}

    def of(self, clusters: Sequence[Cluster]) -> Iterator[list[Cluster]]:
        """The clusters, batch by batch."""
        some: list[Cluster] = []
        for c in clusters:
            if some and self.batch[some[0].outputs] != self.batch[c.outputs]:
                yield some
                some = []
            some.append(c)
        if some:
            yield some

    def part(self, c: Cluster) -> Part | None:
        """A call over pieces; None where it runs as a whole."""
        if self.sizes[self.batch[c.outputs]] == 1 or not is_elementwise(c):
            return None
        alike = structure(c, {})
        if alike not in self.known:
            self.known[alike] = flattened(group_of(c, self.plan, self.kernels.numbers))
        flat = self.known[alike]
        if flat is None:
            return None
        k = self.kernels.distinct(flat.group)
        self.kernels.named(k, c, self.fused)
        values = (*c.inputs, *c.outputs)
        steps = [x.dtype.bytes if long else 0 for x, long in zip(values, flat.long, strict=True)]
        sizes = tuple(nbytes(x.ttype) for x in values)
        call = Call(k.symbol, tuple(map(self.where, values)), (), sizes, len(c.outputs))
        count = c.outputs[0].ttype.size
        assert isinstance(count, int), "batches are of known sizes"
        return Part(call, count, tuple(steps))

    def joined(self, calls: Sequence[Part | Call]) -> Iterator[Action]:
        """One action for the calls of a batch; those that take sizes are actions of their own."""
        alone = [x for x in calls if isinstance(x, Call) and (x.dims or len(calls) == 1)]
        yield from alone
        parts = [x if isinstance(x, Part) else Part(x) for x in calls if x not in alone]
        if parts:
            known = [n for p in parts for n in p.call.sizes if isinstance(n, int)]
            yield Batch(tuple(parts), parallel=sum(known) > SMALL)

    def symbols(
        self, clusters: Sequence[Cluster], calls: Sequence[Part | Call]
    ) -> dict[Cluster, str]:
        """The kernels of clusters, by name."""
        names = (x.symbol if isinstance(x, Call) else x.call.symbol for x in calls)
        return dict(zip(clusters, names, strict=True))
