"""What fusion gives: clusters, refusals, and the graph they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.ir.node import Graph, Item, Node

CRITERIA = (
    "more than one consumer",
    "incompatible iteration",
    "changed semantics",
    "misaligned access",
    "too large",
    "not fusible",
)
Why = tuple[str, str]  # a criterion and its detail


@dataclass(frozen=True, eq=False)
class Cluster:
    """Nodes that one kernel computes, in order. Inputs are stored values: sources, outputs of
    earlier clusters, or aliases of either; literals of one element are among the nodes."""

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    kind: str
    anchor: Node | None = None
    # What a schedule needs to know of a chain: `scores` and `sums` are its two contractions,
    # `weights` is what the second one multiplies, row by row, `end` the reduction of parts of the
    # rows behind them, where there is one.
    roles: tuple[tuple[str, Node], ...] = ()

    def __str__(self) -> str:
        names = " ".join(n.op.name for n in self.nodes if not isinstance(n.op, Item))
        return f"{self.kind}: {names} -> {', '.join(repr(o.type) for o in self.outputs)}"


@dataclass(frozen=True)
class Refusal:
    """Why a value is stored instead of being computed inside its consumer's kernel."""

    producer: Node
    consumer: Node
    criterion: str
    detail: str
    where: str | None = None

    def __str__(self) -> str:
        text = f"{self.producer.op.name} not fused into {self.consumer.op.name}"
        return f"{text}: {self.criterion}: {self.detail}"


@dataclass(frozen=True, eq=False)
class Fused:
    """A graph cut into clusters in execution order. `aliases` maps reshapes to what they rename.
    Clusters of one number in `batches` run at the same time (graph/batches.py); empty: none do."""

    graph: Graph
    clusters: tuple[Cluster, ...]
    refusals: tuple[Refusal, ...]
    aliases: Mapping[Node, Node] = field(default_factory=dict)
    batches: tuple[int, ...] = ()

    def batch(self, k: int) -> int:
        """The number of the batch of the k-th cluster."""
        return self.batches[k] if self.batches else k

    def __str__(self) -> str:
        return "\n".join(map(str, self.clusters))
