"""Attention's gradients, few rows against many keys, and logarithms of denominators, as kernels of
a GPU that store no scores: right on the executor of threads and emulated, nothing spilled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tests.graph.build import arg
from tests.seeds import drawn, every_run
from tilewright import ops, targets
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes as default_passes
from tilewright.driver.program.default_passes import with_atomics
from tilewright.graph.cluster import Cluster
from tilewright.graph.fuse import Fused, fuse
from tilewright.ir import dim as D
from tilewright.ir import passes
from tilewright.ir.expr import Fn
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, input, node
from tilewright.ir.operator import outputs_of
from tilewright.ir.parts import walk as walk_values
from tilewright.ir.target import Target
from tilewright.ir.types import bf16, f32, from_memory, to_memory
from tilewright.kernel import simt
from tilewright.kernel.check import verify
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import (
    Barrier,
    Loop,
    Nest,
    Stmt,
    Store,
    Wait,
    transform,
    walk,
)
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly
from tilewright.ops.attention import AttentionBackward
from tilewright.targets import nvptx

GPU = targets.get("cuda:90")
# What products multiply is rounded to 16 bits, and so are the results.
NEAR = {"atol": 0.02, "rtol": 0.02}


@dataclass(frozen=True)
class Heads:
    """Attention of some heads; its results, its gradients, or both of its results."""

    rows: int
    keys: int
    width: int = 64
    batch: int = 1
    heads: int = 1
    shared: int = 1  # heads of keys
    causal: bool = False
    turned: bool = False  # heads lie next to each other, as products with weights need them
    mask: str = ""  # the shape of a mask: "keys", or "all"

    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (
            (self.batch, self.heads, self.rows, self.width),
            (self.batch, self.shared, self.keys, self.width),
        )

    def forward(self, log: bool) -> Graph:
        q, k = self._shapes()
        given = tuple(arg(x, *s, dtype=bf16) for x, s in zip("qkv", (q, k, k), strict=True))
        scale = self.width**-0.5
        if log:
            out = outputs_of(ops.attention_forward(*given, causal=self.causal, scale=scale))
        else:
            out = (ops.attention(*given, causal=self.causal, scale=scale),)
        return Graph("attention", given, out)

    def backward(self) -> Graph:
        q, k = self._shapes()
        shapes = (("grad", q), ("q", q), ("k", k), ("v", k), ("out", q))
        order = (0, 2, 1, 3) if self.turned else (0, 1, 2, 3)
        given = [arg(x, *(s[n] for n in order), dtype=bf16) for x, s in shapes]
        heads = [ops.permute(x, order) for x in given]
        more = [arg("total", *q[:-1], dtype=f32)]
        rows = self.rows if self.mask == "all" else 1
        more += [arg("mask", self.batch, 1, rows, self.keys, dtype=bf16)] if self.mask else []
        scale = self.width**-0.5
        back = ops.attention_backward(*heads, *more, causal=self.causal, scale=scale)
        outs = tuple(ops.permute(x, order) for x in outputs_of(back))
        return Graph("backward", (*given, *more), outs)


def fused(g: Graph, target: Target = GPU, atomic: bool = False) -> Fused:
    listed = [p.on(target) for p in with_atomics(default_passes(target), atomic)]
    return fuse(passes.run(listed, g, Log()), target, Log())


@dataclass(frozen=True)
class Chain:
    cluster: Cluster
    group: Group
    nest: Nest

    def numbers(self, seed: int = 3) -> dict[str, np.ndarray]:
        """Of 16 bits around 0; logarithms of denominators and the like are near 4."""
        rng = np.random.default_rng(seed)
        given: dict[str, np.ndarray] = {}
        for b in self.group.inputs:
            x = 0.5 * rng.standard_normal([int(str(d)) for d in b.shape]).astype(np.float32)
            x = x + np.float32(4 * (b.dtype is f32))
            given[b.name] = from_memory(to_memory(x, b.dtype), b.dtype)
        return given

    def wanted(self, given: dict[str, np.ndarray]) -> list[np.ndarray]:
        """By the definitions of the operators."""
        c = self.cluster
        new = {n: input(f"x{k}", n.ttype) for k, n in enumerate(c.inputs)}
        graph = Graph("chain", tuple(new.values()), ())
        for n in c.nodes:
            new[n] = new.get(n) or node(n.op, *(new[x] for x in n.inputs))
        made = replace(graph, outputs=tuple(new[n] for n in c.outputs))
        return evaluate(made, list(given.values()))


def chains(g: Graph, target: Target = GPU, atomic: bool = False) -> Iterator[Chain]:
    for c in fused(g, target, atomic).clusters:
        if c.kind == "chain":
            group = build_group("chain", c.nodes, c.inputs, c.outputs, roles=c.roles)
            yield Chain(c, group, default_schedule(group, target)[1])


def judged(c: Chain, emulated: bool) -> None:
    verify(c.nest)
    given = c.numbers()
    want = dict(zip((b.name for b in c.group.outputs), c.wanted(given), strict=True))
    results = [simt.run(c.nest, given)]
    results += [emulate.run(c.nest, given, target=GPU)] if emulated else []
    for got in results:
        for name, x in want.items():
            np.testing.assert_allclose(got[name], x, **NEAR)


@pytest.mark.parametrize(
    ("a", "emulated"),
    [
        (Heads(40, 70, causal=True), False),
        pytest.param(Heads(64, 128), True, marks=pytest.mark.slow),
        pytest.param(Heads(40, 70, 72, heads=2), True, marks=pytest.mark.slow),
        pytest.param(Heads(64, 64, 128, causal=True), True, marks=pytest.mark.slow),
        pytest.param(Heads(64, 64, 128, 1, 2, 2, turned=True), True, marks=pytest.mark.slow),
        pytest.param(Heads(100, 130, 64, 2, 4, 2, True), True, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_gradients(a: Heads, emulated: bool) -> None:
    """A kernel for those of the queries, one for those of keys and values."""
    found = list(chains(a.backward()))
    assert [len(x.group.outputs) for x in found] == [1, 2]
    for x in found:
        judged(x, emulated)


@every_run(0, 2)
@pytest.mark.parametrize(
    "a",
    [
        Heads(128, 128, heads=2, shared=2, turned=True),
        Heads(128, 128, 128, heads=2, shared=2, turned=True),
        Heads(100, 70, batch=2, heads=2, shared=2, mask="keys"),
        Heads(100, 70, mask="all"),
    ],
    ids=str,
)
def test_gradients_are_two_chains(a: Heads) -> None:
    """However heads lie in memory, and with masks: besides, there are the sums of rows."""
    f = fused(a.backward())
    assert sorted(c.kind for c in f.clusters) == ["chain", "chain", "map", "row"]
    for c in chains(a.backward()):
        made = emit_kernels(legalise(c.nest, GPU), GPU)
        assert len(made.launches) == 1 and "wgmma" in made.text and "cp.async.bulk" in made.text


@pytest.mark.parametrize("shared", [2, 4])
@pytest.mark.parametrize(
    "mask", [(), (7,), (5, 7), (1, 1, 7), (4, 5, 7), (2, 1, 1, 7), (2, 4, 5, 7)]
)
def test_gradients_are_what_they_were(shared: int, mask: tuple[int, ...]) -> None:
    """The graph of the kernels against that of the operator, which stores weights."""
    a = Heads(5, 7, 8, 2, 4, shared, True)
    given = a.backward().inputs
    op = AttentionBackward(True, 0.3)
    rng = np.random.default_rng(0)
    shapes = [tuple(int(str(d)) for d in n.shape) for n in given] + ([mask] if mask else [])
    args = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    args[5] += 3
    wide = [arg(f"x{k}", *s) for k, s in enumerate(shapes)]
    made = Graph("made", tuple(wide), op.recomputed(*wide))
    want = Graph("want", tuple(wide), op.compose(*wide))
    for got, x in zip(evaluate(made, args), evaluate(want, args), strict=True):
        np.testing.assert_allclose(got, x, atol=1e-5, rtol=1e-5)


def test_waits_are_needed() -> None:
    _, c = chains(Heads(128, 64).backward())
    given = c.numbers()
    for left_out in (Wait(0, products=True), Wait(0), Barrier()):
        body = transform(c.nest.body, lambda s, x=left_out: () if s == x else (s,))
        with pytest.raises(RunError):
            simt.run(replace(c.nest, body=body), given)


# Few enough for small groups to have tiles for all of them.
ONE = nvptx.with_numbers(GPU, multiprocessors=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "a",
    [
        Heads(128, 256, 128, causal=True),
        Heads(64, 128, 128, heads=2, causal=True),
        Heads(64, 128, 128, 1, 2, 2, turned=True),
        Heads(64, 256, 128, causal=True),  # of the last keys nothing is seen
    ],
    ids=str,
)
def test_all_gradients_by_one_kernel(a: Heads) -> None:
    """Those of queries are added up by atomics: right, and nothing of it can be left out."""
    (c,) = chains(a.backward(), ONE, True)
    judged(c, True)
    for left_out in (Wait(0, products=True), Wait(0), Barrier()):
        body = transform(c.nest.body, lambda s, x=left_out: () if s == x else (s,))
        with pytest.raises(RunError):
            simt.run(replace(c.nest, body=body), c.numbers())


@pytest.mark.slow
def test_plain_additions_of_several_tiles_are_a_race() -> None:
    (c,) = chains(Heads(64, 256, 128).backward(), ONE, True)

    def one(s: Stmt) -> tuple[Stmt, ...]:
        return (replace(s, atomic=False),) if isinstance(s, Store) else (s,)

    with pytest.raises(RunError):
        simt.run(replace(c.nest, body=transform(c.nest.body, one)), c.numbers())


@pytest.mark.parametrize("causal", drawn([True, False], 1))
def test_the_code_of_all_gradients(causal: bool) -> None:
    """Five products, of which two or more go on at a time; zeros, the kernel, and rounding. Blocks
    with a mask are apart."""
    (c,) = chains(Heads(4096, 4096, 128, 4, 16, 16, causal).backward(), GPU, True)
    verify(c.nest)
    assert parse_nest(nest_text(c.nest)) == c.nest
    made = emit_kernels(legalise(c.nest, GPU), GPU)
    assert [x.threads for x in made.launches] == [(256, 1, 1), (4, 8, 8), (256, 1, 1)]
    ptx, loops = assembly(made.text, GPU), 1 + causal
    assert ptx.count("cp.reduce.async.bulk.") == loops  # of 4096 bytes of a warp
    assert ptx.count("wgmma.mma_async") == 32 * loops
    # Where what is multiplied is stored, and before an addition: the copy engine brings all else.
    assert ptx.count("fence.proxy.async") == 2 * loops
    assert all(x.spilled == 0 for x in assemble(ptx, GPU.cpu))


@pytest.mark.parametrize(
    "a",
    [
        Heads(2000, 2048, 128, 4, 16, 16),
        Heads(2048, 2000, 128, 4, 16, 16),
        Heads(2048, 2048, 64, 4, 16, 16),
        Heads(512, 512, 128),
        Heads(2048, 2048, 128, 4, 32, 8),
    ],
    ids=["rows", "keys", "narrow", "few", "shared"],
)
def test_two_kernels_where_one_does_not_fit(a: Heads) -> None:
    found = [c for c in fused(a.backward(), GPU, True).clusters if c.kind == "chain"]
    assert [len(c.outputs) for c in found] == [1, 2]


def _blocks(a: Heads, which: int) -> tuple[Loop, list[Loop]]:
    """The loop over tiles of a kernel, and those that products are multiplied in."""
    c = list(chains(a.backward()))[which]
    loops = [x for x, _ in walk(c.nest.body) if isinstance(x, Loop)]
    tiles = next(x for x in loops if x.kind == "block.x")
    return tiles, [x for x in loops if Wait(0) in x.body]


def test_hidden_blocks_of_heads_that_share_keys_are_left_out() -> None:
    """The rows of several heads are one axis, along which a causal mask begins again."""
    a = Heads(512, 512, heads=4, causal=True)
    for which in (0, 1):  # those with the most blocks begin
        tiles, found = _blocks(a, which)
        counts = [sum(D.evaluate(x.extent, {tiles.name: t}) for x in found) for t in range(8)]
        assert counts == [*range(8, 0, -1)]


def test_masks_are_in_the_last_blocks() -> None:
    _, (first, rest) = _blocks(Heads(500, 500), 1)
    for x in (first, rest):
        conditions = [
            v.args[0]
            for s, path in walk(x.body)
            if isinstance(s, Store) and not any(q.kind == "tensor" for q in path)
            for v in walk_values(s.value)
            if isinstance(v, Fn) and v.name == "select"
        ]
        assert bool(conditions) == (x is rest)
    assert rest.extent == 1


AT_DIAGONAL = [
    (Heads(192, 128, causal=True), False),
    (Heads(256, 256, 128, causal=True), True),
    (Heads(128, 128, heads=2, causal=True), False),
]


def ends_at_the_diagonal(a: Heads, atomic: bool) -> Chain:
    """Rows of keys see the queries from the diagonal on: backwards, masks are in the last block,
    which is taken apart."""
    *_, c = chains(a.backward(), ONE, atomic)
    loops = [x for x, _ in walk(c.nest.body) if isinstance(x, Loop) and Wait(0) in x.body]
    assert len(loops) == 2
    return c


@every_run(0)
@pytest.mark.parametrize(("a", "atomic"), AT_DIAGONAL, ids=str)
def test_blocks_end_at_the_diagonal(a: Heads, atomic: bool) -> None:
    ends_at_the_diagonal(a, atomic)


@pytest.mark.slow
@pytest.mark.parametrize(("a", "atomic"), AT_DIAGONAL, ids=str)
def test_blocks_that_end_at_the_diagonal_are_right(a: Heads, atomic: bool) -> None:
    judged(ends_at_the_diagonal(a, atomic), True)


def test_the_code_of_gradients() -> None:
    for c in chains(Heads(2048, 2048, 128, 4, 16, 16, True).backward()):
        made = emit_kernels(legalise(c.nest, GPU), GPU)
        assert len(made.launches) == 1
        ptx = assembly(made.text, GPU)
        assert "cp.async.bulk.tensor" in ptx and ".local" not in ptx
        for x in assemble(ptx, GPU.cpu):
            assert x.spilled == 0, f"that of {len(c.group.outputs)} results spills"


@pytest.mark.parametrize("a", [Heads(70, 100, causal=True)], ids=str)
def test_logarithms_of_denominators(a: Heads) -> None:
    """The forward pass of training is the kernel of attention, which stores them too."""
    (c,) = chains(a.forward(True))
    assert len(fused(a.forward(True)).clusters) == 1
    judged(c, False)
    # Weights are rounded before they are multiplied: their powers are the GPU's own.
    ptx = assembly(emit_kernels(legalise(c.nest, GPU), GPU).text, GPU)
    assert "ex2.approx" in ptx and "tw.exp" not in ptx


def test_few_rows_and_many_keys() -> None:
    """Parts of the keys, each with rows of all heads that share them, and one more kernel."""
    a = Heads(1, 1024, heads=2)
    f = fused(a.forward(False))
    assert [c.kind for c in f.clusters] == ["chain", "column"]
    parts = f.clusters[0].outputs[-1].shape
    assert parts[:2] == (1, 1) and parts[2] != 1 and parts[3:] == (2, 64)
    # Few keys are none: one row of them is read by threads.
    few = fused(replace(a, keys=256).forward(False))
    assert "chain" not in {c.kind for c in few.clusters}


@pytest.mark.slow
def test_parts_of_many_keys_are_right() -> None:
    (c,) = chains(Heads(1, 1024, heads=2).forward(False))
    judged(c, False)


@pytest.mark.parametrize(("length", "causal"), [(1, False), (3, True)])
@pytest.mark.parametrize("mask", [(), (1111,), (2, 1, 1, 1111), (2, 4, 1, 1111)])
def test_parts_are_what_all_keys_are(length: int, causal: bool, mask: tuple[int, ...]) -> None:
    """Heads next to each other as rows, in parts that have something after their last key."""
    q, k = (2, 4, length, 8), (2, 2, 1111, 8)
    shapes = [q, k, k, *([mask] if mask else [])]
    given = tuple(arg(f"x{k}", *s, dtype=bf16) for k, s in enumerate(shapes))
    pair = ops.attention_forward(*given, causal=causal, scale=0.3)
    g = Graph("attention", given, outputs_of(pair))
    made = passes.run([p.on(GPU) for p in default_passes(GPU)], g, Log())
    assert "softmax_parts_log" in {n.op.name for n in made.nodes()}
    rng = np.random.default_rng(1)
    args = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    args = [from_memory(to_memory(x, bf16), bf16) for x in args]
    for got, want in zip(evaluate(made, args), evaluate(g, args), strict=True):
        np.testing.assert_allclose(got, want, **NEAR)
