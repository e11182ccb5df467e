"""Graphs on a GPU: every cluster a kernel, results and what lies between them in torch's memory."""

from __future__ import annotations

from tilewright.base.events import Log
from tilewright.graph.decompose import Decompose
from tilewright.graph.empty import EmptyValues
from tilewright.graph.fold import FoldConstants
from tilewright.graph.reciprocals import Reciprocals
from tilewright.graph.simplify import Simplify
from tilewright.ir import passes
from tilewright.ir.node import Graph


def prepared(graph: Graph, log: Log) -> Graph:
    """The passes before fusion that do not depend on a processor."""
    table = [Simplify(), Decompose(), EmptyValues(), Simplify(), FoldConstants(), Reciprocals()]
    return passes.run(table, graph, log)
