"""Attention as the group that one kernel of a GPU computes, with arguments and what they give."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.gpu.replays import replays
from tilewright import ops, targets
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes as default_passes
from tilewright.graph.fuse import fuse
from tilewright.ir import passes
from tilewright.ir.node import Graph, Input, Node, input
from tilewright.ir.types import DTYPES, TensorType, from_memory, to_memory
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.targets import nvptx


@dataclass(frozen=True)
class Attention:
    """softmax(q k^T) v; fewer heads of keys are shared by those of queries."""

    rows: int = 128
    keys: int = 128
    width: int = 64
    batch: int = 1
    heads: int = 1
    shared: int = 0  # heads of keys; 0: as many as of queries
    causal: bool = False
    turned: bool = False  # heads lie next to each other, as a product with weights leaves them
    mask: bool = False  # added to the scores
    dtype: str = "bf16"
    target: str = "cuda:90"

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        sizes = ((self.heads, self.rows), *[(self.shared or self.heads, self.keys)] * 2)
        ordered = (x[::-1] if self.turned else x for x in sizes)
        return {x: (self.batch, *two, self.width) for x, two in zip("qkv", ordered, strict=True)}

    def _chain(self) -> tuple[Group, list[str]]:
        kind = DTYPES[self.dtype]
        given = [input(x, TensorType(kind, shape)) for x, shape in self._shapes().items()]
        q, k, v, *mask = given
        heads = [ops.permute(x, (0, 2, 1, 3)) if self.turned else x for x in (q, k, v)]
        out = ops.attention(*heads, *mask, causal=self.causal, scale=self.width**-0.5)
        out = ops.permute(out, (0, 2, 1, 3)) if self.turned else out
        target = targets.get(self.target)
        listed = [p.on(target) for p in default_passes(target)]
        graph = passes.run(listed, Graph("attention", tuple(given), (out,)), Log())
        found = fuse(graph, target, Log()).clusters
        assert len(found) == 1 and found[0].kind == "chain", f"{self} is {list(map(str, found))}"
        (c,) = found
        group = build_group("chain", c.nodes, c.inputs, c.outputs, roles=c.roles)
        return group, [_label(x) for x in c.inputs]

    def group(self) -> Group:
        return self._chain()[0]

    def nest(self, multiprocessors: int = 132) -> Nest:
        """By the default schedule, which is one launch of products of groups of warps."""
        target = nvptx.with_numbers(targets.get(self.target), multiprocessors=multiprocessors)
        g = self.group()
        trace, nest = default_schedule(g, target)
        assert "Components" in replays(g, trace, nest), f"{self} is not scheduled as a chain"
        return nest

    def arguments(self) -> dict[str, np.ndarray]:
        """Of the group, by name."""
        rng = np.random.default_rng(self.rows + 7 * self.keys)
        kind = DTYPES[self.dtype]
        given = {
            x: from_memory(to_memory(rng.standard_normal(shape).astype(np.float32), kind), kind)
            for x, shape in self._shapes().items()
        }
        group, labels = self._chain()
        sizes = [[int(str(d)) for d in b.shape] for b in group.inputs]
        return {
            b.name: given[label].reshape(size)
            for b, label, size in zip(group.inputs, labels, sizes, strict=True)
        }

    def expected(self) -> np.ndarray:
        """In double precision."""
        group, labels = self._chain()
        given = self.arguments()
        by = {label: given[b.name] for b, label in zip(group.inputs, labels, strict=True)}
        shaped = [by[x].astype(np.float64).reshape(s) for x, s in self._shapes().items()]
        q, k, v, *mask = shaped
        if self.turned:
            q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
        k, v = (np.repeat(x, self.heads // x.shape[1], axis=1) for x in (k, v))
        scores = q @ k.swapaxes(-1, -2) * self.width**-0.5
        scores = scores + mask[0] if mask else scores
        if self.causal:
            scores = np.where(np.tri(self.rows, self.keys, dtype=bool), scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        out = e / e.sum(-1, keepdims=True) @ v
        out = out.swapaxes(1, 2) if self.turned else out
        return out.reshape([int(str(d)) for d in group.outputs[0].shape])


def _label(n: Node) -> str:
    """The input that a node is a view of."""
    while n.inputs:
        (n,) = n.inputs
    assert isinstance(n.op, Input)
    return n.op.label
