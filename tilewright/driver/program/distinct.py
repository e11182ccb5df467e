"""The distinct kernels of a program while it is compiled."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from tilewright.driver.program.kernel_process import Scheduled
from tilewright.graph.cluster import Cluster
from tilewright.ir.node import Node
from tilewright.kernel.group import Group
from tilewright.runtime.program_data import KernelInfo


@dataclass
class Distinct:
    """A kernel of a program: calls that compute the same share it."""

    symbol: str
    group: Group
    text: str
    names: list[str] = field(default_factory=list)
    schedule: Scheduled = Scheduled("", parallel=False)
    image: bytes = b""
    dims: tuple[str, ...] = ()
    cached: bool = False
    seconds: float = 0.0
    work: float = 0.0  # seconds it may take on one thread, by a rough count
    places: set[str] = field(default_factory=set)

    def info(self) -> KernelInfo:
        return KernelInfo(
            self.names[0],
            self.symbol,
            self.text,
            self.schedule.trace,
            len(self.names),
            self.cached,
            self.seconds,
            tuple(sorted(self.places)),
            self.schedule.chosen,
        )


def structure(c: Cluster, in_place: Mapping[Node, Node]) -> Hashable:
    """Equal for clusters whose groups are equal; cheaper than the groups themselves."""
    number = {n: k for k, n in enumerate((*c.inputs, *c.nodes))}
    return (
        tuple(n.ttype for n in c.inputs),
        tuple((n.op, n.type, *(number[x] for x in n.inputs)) for n in c.nodes),
        tuple((number[o], o in in_place) for o in c.outputs),
        tuple((role, number[n]) for role, n in c.roles),
    )
