"""The cost model of the compiler (kernel/cost.py), which learns nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.target import Target
from tilewright.kernel.cost import cost
from tilewright.kernel.group import Group
from tilewright.tune.search.state import Measured
from tilewright.tune.space.space import Point


@dataclass
class Analytic:
    name: str = "analytic"

    def scores(self, group: Group, points: Sequence[Point], target: Target) -> Sequence[float]:
        return [cost(p.nest, target).cycles for p in points]

    def learn(self, group: Group, measured: Sequence[Measured], target: Target) -> None:
        return None
