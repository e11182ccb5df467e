"""What a rule of fusion that looks at several regions at a time is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass

from tilewright.graph.classify import Facts
from tilewright.graph.cluster import Why
from tilewright.graph.regions import Read, Region, Regions
from tilewright.ir.node import Node
from tilewright.ir.target import Target


@dataclass
class Joining:
    """`readers` is by the value that is read, `results` are those of the graph, and `cheap` is how
    many operations an element may cost to be computed again."""

    regions: Regions
    facts: Mapping[Node, Facts]
    readers: Mapping[Node, list[tuple[Node, Read]]]
    results: Set[Node]
    too_large: Callable[[Region, Region], Why | None]
    target: Target
    cheap: int
