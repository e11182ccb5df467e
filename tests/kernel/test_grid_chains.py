"""Attention as one kernel of a GPU: right on the executor of threads and emulated, no conflicts of
banks, nothing spilled; what is left out of it is noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tests.gpu.attention_groups import Attention
from tests.seeds import every_run
from tilewright import targets
from tilewright.base.errors import Refused
from tilewright.graph import grid_key_blocks
from tilewright.ir import dim as D
from tilewright.ir.expr import Index
from tilewright.ir.parts import walk as walk_values
from tilewright.kernel import simt
from tilewright.kernel.banks import Turns
from tilewright.kernel.check import verify
from tilewright.kernel.defaults import grid_chain_ways
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.grid_chain_ways import Way
from tilewright.kernel.defaults.grid_chains import schedule_chain
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import (
    Acquire,
    Barrier,
    Loop,
    Release,
    Stmt,
    Store,
    Wait,
    transform,
    walk,
)
from tilewright.kernel.roles import has_roles
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly

GPU = targets.get("cuda:90")
# Weights are rounded to 16 bits before they are multiplied, and so are the results.
NEAR = {"atol": 0.02, "rtol": 0.02}


@pytest.mark.parametrize(
    ("a", "emulated"),
    [
        pytest.param(Attention(rows=64, keys=192), True, marks=pytest.mark.slow),
        (Attention(40, 100, causal=True, heads=2, shared=1, dtype="f16", turned=True), True),
        (Attention(rows=40, keys=70, width=72, mask=True), False),
        pytest.param(Attention(rows=128, keys=128, width=128), True, marks=pytest.mark.slow),
        pytest.param(
            Attention(rows=100, keys=100, width=96, causal=True), True, marks=pytest.mark.slow
        ),
        pytest.param(
            Attention(rows=128, keys=192, causal=True, batch=2), True, marks=pytest.mark.slow
        ),
    ],
    ids=str,
)
def test_one_kernel(a: Attention, emulated: bool) -> None:
    nest = a.nest()
    verify(nest)
    given, want = a.arguments(), a.expected()
    banks: dict[str, Turns] = {}
    (got,) = simt.run(nest, given, banks=banks).values()
    np.testing.assert_allclose(got, want, **NEAR)
    assert not any(t.conflicts for t in banks.values()), banks
    if emulated:
        (got,) = emulate.run(nest, given, target=GPU).values()
        np.testing.assert_allclose(got, want, **NEAR)


def _key_loops(a: Attention) -> tuple[Loop, list[Loop]]:
    """The loop over tiles, and those over blocks of keys."""
    loops = [x for x, _ in walk(a.nest().body) if isinstance(x, Loop)]
    tiles = next(x for x in loops if x.kind == "block.x")
    return tiles, [x for x in loops if any(isinstance(s, Wait) and not s.products for s in x.body)]


def test_hidden_blocks_are_left_out() -> None:
    """Of causal attention, blocks of keys after the last row of a tile; the longest tiles begin."""
    tiles, parts = _key_loops(Attention(2048, 2048, batch=8, heads=16, causal=True))
    for t in range(32):
        assert sum(D.evaluate(x.extent, {tiles.name: t}) for x in parts) == (33 - t) // 2


@pytest.mark.parametrize(
    "a",
    [
        Attention(2000, 2000, batch=8, heads=16),
        Attention(1999, 1999, batch=8, heads=16, causal=True),
    ],
    ids=str,
)
def test_masks_are_in_the_last_blocks(a: Attention) -> None:
    _, (first, rest) = _key_loops(a)

    def masks(x: Loop) -> list[Store]:
        return [
            s
            for s, path in walk(x.body)
            if isinstance(s, Store) and not any(q.kind == "tensor" for q in path)
            if any(isinstance(v, Index) for v in walk_values(s.value))
        ]

    assert not masks(first) and masks(rest)
    assert rest.extent == 1


def test_the_second_product_adds_to_the_running_sums() -> None:
    """There is one set of sums, and a multiply-add and a power of two for each weight."""
    a = Attention(2048, 2048, batch=8, heads=16)
    made = emit_kernels(legalise(a.nest(), GPU), GPU)
    lines = assembly(made.text, GPU).splitlines()
    powers = [x for x in lines if "ex2.approx.ftz" in x]
    sums = [x for x in lines if x.strip().startswith(("fma.rn", "mul"))]
    assert len(powers) == 64 + 2 and "fence.proxy.async" not in made.text
    assert len(sums) < 64 + 32 * 3  # weights, the sums so far and, at the end, results


def test_waits_are_needed() -> None:
    a = Attention(rows=64, keys=192)
    nest = a.nest()
    needed: dict[Stmt, str] = {
        Wait(0, products=True): "has not waited for products",
        Wait(0): "is in flight",
        Barrier(): "with no barrier between",
    }
    for left_out, says in needed.items():
        body = transform(nest.body, lambda s, x=left_out: () if s == x else (s,))
        with pytest.raises(RunError, match=says):
            simt.run(replace(nest, body=body), a.arguments())


@pytest.mark.slow
def test_the_second_product_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """During the next softmax: right, and each of both waits is needed."""
    monkeypatch.setattr(grid_chain_ways, "WAY", Way(slack=2))
    a = Attention(rows=64, keys=180)
    nest = a.nest()
    verify(nest)
    for run in (simt.run, lambda n, x: emulate.run(n, x, target=GPU)):
        (got,) = run(nest, a.arguments()).values()
        np.testing.assert_allclose(got, a.expected(), **NEAR)
    for wait in (Wait(1, products=True), Wait(0, products=True)):
        bad = replace(nest, body=transform(nest.body, lambda s, w=wait: () if s == w else (s,)))
        with pytest.raises(RunError, match="waited for products"):
            simt.run(bad, a.arguments())


@every_run(0, 2)
@pytest.mark.parametrize(
    ("a", "registers"),
    [
        # Shared memory has room for three blocks.
        (Attention(2048, 2048, 64, batch=8, heads=16), 160),
        # One block, whose producer gives its registers to the others.
        (Attention(4096, 4096, 128, batch=4, heads=16), 168),
        # Two blocks of twice the threads: fewer keys.
        (Attention(512, 512, 128, batch=1, heads=64), 128),
    ],
    ids=str,
)
def test_the_code(a: Attention, registers: int) -> None:
    made = emit_kernels(legalise(a.nest(), GPU), GPU)
    (launch,) = made.launches
    ptx = assembly(made.text, GPU)
    # Of 16 steps of a sum each; with a producer, the first and the last product are apart.
    alone = a.width > 64 and a.batch > 1
    keys = 64 if a.width > 64 and not alone else 128
    assert ptx.count("wgmma.mma_async") == (a.width + keys) // 16 * (1 + alone)
    assert "cp.async.bulk.tensor" in ptx and ".local" not in ptx
    for x in assemble(ptx, GPU.cpu):
        assert x.spilled == 0 and x.registers <= registers
    assert launch.threads == (4, 8, 12 if alone else 4 if a.width <= 64 else 8)


def test_the_copy_engine_is_not_told_of_axes_of_one_element() -> None:
    """It takes five axes; heads that share keys have six, one of which is of one element."""
    a = Attention(2048, 2048, 128, batch=4, heads=32, shared=8, causal=True)
    nest = a.nest()
    (launch,) = emit_kernels(legalise(nest, GPU), GPU).launches
    assert {len(x.shape) for x in launch.boxes} <= {4, 5}
    assert sum(x.buffer != launch.arguments[-1] for x in launch.boxes) >= 2
    assert {len(b.shape) for b in nest.buffers if b.scope == "in"} >= {6}


def _by_one_way(monkeypatch: pytest.MonkeyPatch, way: Way, keys: int = 64) -> None:
    monkeypatch.setattr(grid_chain_ways, "WAY", way)
    monkeypatch.setattr(grid_key_blocks, "FIXED", keys)


@pytest.mark.slow
def test_with_a_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several loops one after the other share its ring: right, and all of it is needed."""
    _by_one_way(monkeypatch, Way(3, 2, groups=2))
    a = Attention(128, 300, dtype="f16")
    nest = a.nest()
    verify(nest)
    assert parse_nest(nest_text(nest)) == nest
    for run in (simt.run, lambda n, x: emulate.run(n, x, target=GPU)):
        (got,) = run(nest, a.arguments()).values()
        np.testing.assert_allclose(got, a.expected(), **NEAR)
    faults = {Release(1): (Release(0),), Acquire(3): (Acquire(4),), Wait(1, products=True): ()}
    for old, new in faults.items():
        change = lambda s, old=old, new=new: new if s == old else (s,)  # noqa: E731
        bad = replace(nest, body=transform(nest.body, change))
        with pytest.raises(RunError, match=r"in flight|still reads|waited for products|written"):
            simt.run(bad, a.arguments())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "keys", "multiprocessors"),
    [
        (Attention(256, 256, causal=True, heads=2, dtype="f16"), 128, 1),  # one block, then two
        (Attention(400, 200, heads=3, width=128), 64, 2),
        (Attention(500, 500, causal=True, heads=4, shared=2), 64, 3),
    ],
    ids=str,
)
def test_blocks_walk_over_tiles(
    a: Attention, keys: int, multiprocessors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few blocks, each of several tiles, whose queries come while the last ones are stored: right,
    and memory is used again neither too early nor while it is read."""
    _by_one_way(monkeypatch, Way(3, 2, walks=True, groups=2), keys)
    nest = a.nest(multiprocessors)
    verify(nest)
    assert parse_nest(nest_text(nest)) == nest
    (grid,) = (x for x, _ in walk(nest.body) if isinstance(x, Loop) and x.kind == "block.x")
    assert D.bounds(grid.extent)[1] <= multiprocessors
    given = a.arguments()
    (got,) = emulate.run(nest, given, target=GPU).values()
    np.testing.assert_allclose(got, a.expected(), **NEAR)
    for old, new in ((Acquire(2), Acquire(3)), (Release(1), Release(0))):
        change = lambda s, old=old, new=new: (new,) if s == old else (s,)  # noqa: E731
        bad = replace(nest, body=transform(nest.body, change))
        with pytest.raises(RunError, match=r"in flight|still reads"):
            simt.run(bad, given)


def test_queries_of_a_tile_with_one_block_of_keys_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next ones would come too early if their own iteration released itself: with slack, the
    one that reads them releases nothing else."""
    _by_one_way(monkeypatch, Way(3, 2, walks=True, groups=1))
    a = Attention(128, 128, causal=True, heads=2)
    nest = a.nest(1)

    def early(s: Stmt) -> tuple[Stmt, ...]:
        once = isinstance(s, Loop) and s.name.endswith(".once")
        return (s.around((*s.body[:-1], Release(0))),) if once else (s,)

    with pytest.raises(RunError, match="in flight"):
        simt.run(replace(nest, body=transform(nest.body, early)), a.arguments())


def test_pairs_of_tiles_take_as_long() -> None:
    """A block that walks has, of each pair, a tile with few keys and one with many."""
    a = Attention(4096, 4096, 128, batch=4, heads=16, causal=True)
    s = Scheduler(a.group(), GPU)
    assert schedule_chain(s)
    loops = [x for x, _ in walk(s.nest.body) if isinstance(x, Loop)]
    (grid,) = (x for x in loops if x.kind == "block.x")
    rounds, pair = (x for x in loops if x.kind == "serial" and not has_roles(x))
    assert (grid.extent, rounds.extent, pair.extent) == (128, 8, 2)
    keys = [x.extent for x in loops if has_roles(x) and ".once" not in x.name]
    for block in range(0, 128, 31):
        env = {grid.name: block, rounds.name: 3}
        counts = [sum(int(D.evaluate(d, {**env, pair.name: k})) for d in keys) for k in range(2)]
        assert sum(counts) == 33 and min(counts) > 0


def test_other_ways_are_for_wide_heads_only() -> None:
    wide, narrow = (Attention(4096, 4096, w, batch=4, heads=16).group() for w in (128, 64))
    assert len(grid_chain_ways.ways(wide)) > 1 == len(grid_chain_ways.ways(narrow))
    few = Attention(1024, 1024, 128, heads=16).group()
    with pytest.raises(Refused, match="no other tile"):
        default_schedule(few, GPU, Choices(tile=1))
