"""What the tests of graph/ share: small models, the cluster contract as a check, runs on numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright import ops
from tilewright.base.events import Log
from tilewright.graph.classify import contraction, facts
from tilewright.graph.cluster import CRITERIA, Cluster, Fused
from tilewright.graph.freed import Freed
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import Plan
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.interpret import evaluate, node_value
from tilewright.ir.node import Constant, Graph, Input, Item, Node, input, topological
from tilewright.ir.types import DType, TensorType, TupleType, as_dtype, f32
from tilewright.ops.arranged import unarranged
from tilewright.ops.views import Pad
from tilewright.targets import get

TARGET = get("arm64")  # for what does not depend on the machine

build: Any = ops  # builders are found at import, which a type checker cannot follow


def arg(label: str, *shape: Dim, dtype: DType = f32) -> Node:
    return input(label, TensorType(dtype, shape))


def weight(label: str, *shape: Dim, dtype: DType = f32) -> Node:
    return input(label, TensorType(dtype, shape), "weight")


def graph(*outputs: Node) -> Graph:
    ins = tuple(n for n in topological(outputs) if isinstance(n.op, Input))
    return Graph("test", ins, outputs)


def softmax(x: Node) -> Node:
    last = (x.rank - 1,)
    e = build.exp(build.sub(x, build.amax(x, last, True)))
    return build.div(e, build.sum(e, last, True))


def average(x: Node, axes: Sequence[int]) -> Node:
    count = 1
    for a in axes:
        size = x.shape[a]
        assert isinstance(size, int)
        count *= size
    return build.mul(build.sum(x, axes, True), 1.0 / count)


def layer_norm(x: Node, w: Node, b: Node) -> Node:
    last = (x.rank - 1,)
    centred = build.sub(x, average(x, last))
    scale = build.rsqrt(build.add(average(build.square(centred), last), 1e-5))
    return build.add(build.mul(build.mul(centred, scale), w), b)


def attention_block(x: Node, heads: int) -> Node:
    """Self-attention with its residual and norm, as a frontend flattens and restores it."""
    batch, length, width = x.shape
    assert isinstance(batch, int) and isinstance(length, int) and isinstance(width, int)
    flat = build.reshape(x, (batch * length, width))

    def project(name: str) -> Node:
        y = build.add(
            build.matmul(flat, weight(f"w{name}", width, width)), weight(f"b{name}", width)
        )
        return build.reshape(y, (batch, length, width))

    def split(y: Node) -> Node:
        return build.permute(build.reshape(y, (batch, length, heads, width // heads)), (0, 2, 1, 3))

    q, k, v = (split(project(name)) for name in "qkv")
    scores = build.mul(build.matmul(q, build.permute(k, (0, 1, 3, 2))), 0.125)
    mixed = build.matmul(softmax(build.add(scores, arg("mask", batch, 1, 1, length))), v)
    joined = build.reshape(build.permute(mixed, (0, 2, 1, 3)), (batch * length, width))
    out = build.add(build.matmul(joined, weight("wo", width, width)), weight("bo", width))
    total = build.add(build.reshape(out, (batch, length, width)), x)
    return layer_norm(total, weight("g", width), weight("h", width))


def fused(*outputs: Node) -> Fused:
    """Fuse, and check the contract."""
    log = Log()
    found = fuse(graph(*outputs), TARGET, log)
    check(found)
    assert len(log.of("fusion")) == len(found.refusals) + len(found.clusters)
    return found


def kinds(f: Fused) -> list[str]:
    return [c.kind for c in f.clusters]


def names(c: Cluster) -> set[str]:
    return {n.op.name for n in c.nodes}


# ---- the contract


def check(f: Fused) -> None:
    """Clusters run in order on stored values, and each has a form that the kernel level accepts."""
    stored: set[Node] = set()
    for c in f.clusters:
        inside = set(c.nodes) | set(c.inputs)
        assert not set(c.nodes) & set(c.inputs)
        for n in c.nodes:
            assert set(n.inputs) <= inside, f"{n} of {c} reads what the cluster does not have"
        for x in c.inputs:
            base = f.aliases.get(x, x)
            assert base in stored or isinstance(base.op, (Input, Constant)), f"{x} of {c}"
        for o in c.outputs:
            assert o in c.nodes and o not in stored
            stored.add(o)
        assert c.outputs
        _FORMS[c.kind](c)
    for o in f.graph.outputs:
        base = f.aliases.get(o, o)
        assert base in stored or isinstance(base.op, (Input, Constant))
    for x, base in f.aliases.items():
        assert facts(x).reshape and base not in f.aliases
    for r in f.refusals:
        assert r.criterion in CRITERIA and r.detail


def _of(c: Cluster, *wanted: str) -> list[Node]:
    return [n for n in c.nodes if facts(n).kind in wanted]


def _readers(c: Cluster, n: Node) -> list[Node]:
    return [q for q in c.nodes if n in q.inputs]


def _map(c: Cluster) -> None:
    assert not _of(c, "reduce", "contract", "program")
    assert len({o.shape for o in c.outputs}) == 1


def _row(c: Cluster) -> None:
    reduces = _of(c, "reduce")
    assert reduces and not _of(c, "contract", "program")
    shapes = {(r.shape[: facts(r).outer], facts(r).inner) for r in reduces}
    assert len(shapes) == 1 and all(facts(r).outer is not None for r in reduces)
    ((outer, inner),) = shapes
    allowed = {outer + inner, outer, outer + (1,) * len(inner)}
    for n in _of(c, "map", "reduce"):
        shared = len(_readers(c, n)) > 1 and facts(n).accesses
        assert n.shape in allowed or not (shared or n in c.outputs), f"{n} in {c}"


def _column(c: Cluster) -> None:
    reduces = _of(c, "reduce")
    assert reduces == [c.anchor] and not _of(c, "contract", "program")
    assert all(o.shape == reduces[0].shape for o in c.outputs)


def _total(c: Cluster) -> None:
    """Reductions of whole values, single values made of them, and maps that wait for neither."""
    totals = _of(c, "reduce")
    assert totals and not _of(c, "contract", "program")
    (inner,) = {facts(n).inner for n in totals}
    assert all(n.rank == 0 and facts(n).outer == 0 for n in totals)
    late: set[Node] = set()
    for n in c.nodes:
        if n in totals or late & set(n.inputs):
            assert n.rank == 0
            late.add(n)
        else:
            assert not late or not n.inputs, f"{n} stands after totals in {c}"
    maps = {o.shape for o in c.outputs if o not in late}
    assert all(shape[: len(inner)] == inner for shape in maps)


def _contract(c: Cluster) -> None:
    assert _of(c, "contract") == [c.anchor] and not _of(c, "reduce", "program")
    assert c.anchor is not None
    assert all(o.shape == c.anchor.shape for o in c.outputs)
    stack = list(c.anchor.inputs)
    while stack:
        n = stack.pop()
        if n in c.nodes:
            padding = isinstance(unarranged(n.op), Pad) and contraction(c.anchor) is None
            assert facts(n).kind == "view" or padding
            stack.extend(n.inputs)


def _program(c: Cluster) -> None:
    """One program, views through which it reads, and maps whose elements it takes one by one."""
    own = [n for n in c.nodes if not isinstance(n.op, Item)]
    kinds = [facts(n).kind for n in own]
    assert kinds.count("program") == 1 and set(kinds) <= {"program", "view", "map"}


def _chain(c: Cluster) -> None:
    first, second = _of(c, "contract")
    assert c.anchor is not None and not _of(c, "program")
    reduces = _of(c, "reduce")
    if c.anchor is not second:  # parts of the rows are put together in the end
        assert reduces.pop() is c.anchor
        assert c.anchor.shape == (*second.shape[:-3], *second.shape[-2:])
    assert all(o.shape == c.anchor.shape for o in c.outputs)
    assert all(n.shape[:-1] == first.shape[:-1] for n in reduces)


_FORMS = {
    "map": _map,
    "row": _row,
    "column": _column,
    "total": _total,
    "contract": _contract,
    "chain": _chain,
    "program": _program,
}


# ---- running


def arguments(g: Graph, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    out = []
    for n in g.inputs:
        shape = tuple(int(d) for d in n.shape if isinstance(d, int))
        if n.dtype.is_float:
            out.append(as_dtype(rng.uniform(-1, 1, shape), n.dtype))
        else:
            out.append(rng.integers(0, 2, shape).astype(n.dtype.numpy))
    return out


def run_cluster(c: Cluster, values: dict[Node, Any]) -> list[np.ndarray]:
    """The outputs of a cluster for the values of its inputs."""
    env = dict(values)
    for n in c.nodes:
        if n not in env:
            env[n] = node_value(n, [env[x] for x in n.inputs], {})
    return [env[o] for o in c.outputs]


def run_planned(
    f: Fused, p: Plan, args: Sequence[np.ndarray], gone: Sequence[Freed] = ()
) -> list[np.ndarray]:
    """Run the clusters on one arena, exactly where the plan puts every value. What the plan says
    may lie where an input does, does; memory that is `gone` has something else in it."""
    assert isinstance(p.size, int)
    arena = np.full(p.size, 0xA5, dtype=np.uint8)
    results = [
        np.empty(tuple(int(D.evaluate(d, {})) for d in o.shape), o.dtype.numpy)
        for o in f.graph.outputs
    ]
    sources = dict(zip(f.graph.inputs, args, strict=True))
    changed = {x for x, _ in p.over.values() if isinstance(x, Node)}
    changed |= {x.owner for x in gone if x.owner is not None}
    sources |= {x: sources[x].copy() for x in changed}
    for at, x in p.updated:
        results[at] = sources[x] = sources[x].copy()

    def memory(x: Node) -> np.ndarray:
        where, at = p.where(x)
        shape = tuple(int(D.evaluate(d, {})) for d in x.shape)
        size = int(np.prod(shape, dtype=np.int64)) * x.dtype.numpy.itemsize
        if where == "source":
            assert isinstance(at, Node)
            array = np.array(at.op.literal.array) if isinstance(at.op, Constant) else sources[at]
            return np.asarray(array, x.dtype.numpy).reshape(shape)
        if where == "output":
            assert isinstance(at, int)
            return results[at].reshape(-1).view(x.dtype.numpy).reshape(shape)
        if where == "over":
            assert isinstance(at, tuple) and at[1] % 64 == 0
            owner = results[at[0]] if isinstance(at[0], int) else sources[at[0]]
            room = owner.reshape(-1).view(np.uint8)
            assert at[1] + size <= room.size
            return room[at[1] : at[1] + size].view(x.dtype.numpy).reshape(shape)
        assert isinstance(at, int) and at % 64 == 0 and at + size <= arena.size
        return arena[at : at + size].view(x.dtype.numpy).reshape(shape)

    rng = np.random.default_rng(0)
    # Those of a batch run in any order: here the last one first.
    order = sorted(range(len(f.clusters)), key=lambda k: (f.batch(k), -k))
    lost = list(gone)
    for k, c in ((f.batch(k), f.clusters[k]) for k in order):
        while lost and lost[0].after < k:
            x = lost.pop(0)
            there = arena if x.owner is None else sources[x.owner].reshape(-1).view(np.uint8)
            there[x.start : x.start + x.size] = 0x5A
        outs = run_cluster(c, {x: memory(x).copy() for x in c.inputs})
        if c.kind == "map" and any(o in p.in_place for o in c.outputs):
            # Any order of elements must do: replace some, compute again, compare the others.
            (o,) = c.outputs
            some = rng.uniform(size=outs[0].shape) < 0.5
            memory(o)[some] = outs[0][some]
            again = run_cluster(c, {x: memory(x).copy() for x in c.inputs})
            np.testing.assert_array_equal(again[0][~some], outs[0][~some])
        for o, v in zip(c.outputs, outs, strict=True):
            memory(o)[...] = v
    for j, x in p.copies:
        results[j][...] = memory(x).reshape(results[j].shape)
    return results


def check_run(
    f: Fused, original: Graph, p: Plan, seed: int = 0, gone: Sequence[Freed] = ()
) -> None:
    args = arguments(original, seed)
    want = evaluate(original, args)
    got = run_planned(f, p, args, gone)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def is_tuple(n: Node) -> bool:
    return isinstance(n.type, TupleType)
