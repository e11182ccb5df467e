"""Names of what an entry function calls, for people."""

from __future__ import annotations

from tilewright.driver.program.distinct import Distinct
from tilewright.graph.cluster import Cluster
from tilewright.ir.node import Constant, Item
from tilewright.llvm.entry import Action, Batch, Call, Together


def action_name(a: Action, kernels: dict[str, Distinct]) -> str:
    if isinstance(a, Together):
        return f"together {'+'.join(c.symbol for c in a.calls)}"
    if isinstance(a, Batch):
        return f"batch of {len(a.parts)}: {'+'.join(dict.fromkeys(p.call.symbol for p in a.parts))}"
    if not isinstance(a, Call):
        return type(a).__name__.lower()
    k = next(k for k in kernels.values() if k.symbol == a.symbol)
    return f"{k.names[0]} {k.symbol}"


def label(c: Cluster) -> str:
    """A kernel in a few words, for people."""
    names = [n.op.name for n in c.nodes if not isinstance(n.op, (Item, Constant))]
    return f"{c.kind}({'+'.join(names[:6])}{'+…' if len(names) > 6 else ''})"
