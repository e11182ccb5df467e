"""Products of one row whose matrices stream through shared memory: right on the executor and as
emitted code, and what is on its way when a block begins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tests.gpu.programs import groups, inputs
from tests.graph.build import arg, build, graph
from tests.graph.test_row_blocks import attention
from tests.kernel.test_grids import GPU, judge
from tests.kernel.test_one_row import gated, times
from tests.seeds import every_run
from tilewright.ir import dim as D
from tilewright.ir.check import CheckFailed
from tilewright.ir.node import Graph
from tilewright.ir.target import Target
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel import simt
from tilewright.kernel.check import verify
from tilewright.kernel.defaults import grid_streams
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group
from tilewright.kernel.interpret import RunError, run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Await, Barrier, Nest, Stmt, Store, Wait, start, transform, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly


def plain(d: DType, rows: int, depth: int) -> Graph:
    """A product of a given row, and a sum of its result."""
    product = times(arg("x", 1, depth, dtype=d), "w", d, rows, depth)
    return graph(build.add(product, arg("z", 1, rows, dtype=d)))


def small(shared: int) -> Target:
    """A GPU of one multiprocessor, so that a warp has several results."""
    assert GPU.grid is not None
    return replace(GPU, grid=replace(GPU.grid, multiprocessors=1, block_shared=shared))


def early(g: Group, gpu: Target = GPU) -> Nest:
    trace, nest = default_schedule(g, gpu, Choices(early=True))
    assert apply(start(g), parse_trace(print_trace(trace))) == nest
    assert parse_nest(nest_text(nest)) == nest
    verify(nest)
    return nest


def check(made: Graph, d: DType, gpu: Target = GPU) -> Nest:
    (g,) = groups(made)
    nest = early(g, gpu)
    assert any(isinstance(s, Await) for s, _ in walk(nest.body))
    judge(g, nest, {}, d)
    args = inputs(g, {})
    want, got = run_group(g, args, {}), emulate.run(nest, args, target=GPU)
    close = 2e-2 if d is bf16 else 1e-5
    for name, x in got.items():
        assert abs(x.astype("f8") - want[name].astype("f8")).max() <= close * abs(x).max()
    return nest


def barriers(nest: Nest) -> int:
    return sum(isinstance(s, Barrier) for s, _ in walk(nest.body))


def test_a_row_in_registers_needs_no_barrier() -> None:
    """Each thread copies what it multiplies itself; a row that is made is handed on once."""
    assert barriers(check(gated(bf16, 32, 256), bf16)) == 1
    assert barriers(check(plain(f32, 16, 512), f32)) == 0


def test_a_long_row_is_in_shared_memory() -> None:
    assert barriers(check(plain(bf16, 16, 4096), bf16)) == 1


@every_run(0)
@pytest.mark.parametrize(("depth", "shared"), [(256, 20480), (2304, 65536)])
def test_a_warp_has_several_results(depth: int, shared: int) -> None:
    """Of which not all fit at a time."""
    nest = check(plain(bf16, 32, depth), bf16, small(shared))
    assert {s.pending for s, _ in walk(nest.body) if isinstance(s, Wait)} == {1}


def test_keys_and_values_are_copied_early() -> None:
    (g,) = groups(graph(attention(f32, 1, 1, 128, 16)))
    nest = early(g)
    found = [s for s, _ in walk(nest.body) if isinstance(s, Store) and s.asynchronous]
    assert len({s.buffer for s in found}) == 2
    judge(g, nest, {}, f32)


def test_what_all_blocks_read_comes_to_the_cache_before_the_wait() -> None:
    """Weights of a norm, say; not what blocks read parts of."""
    (g,) = groups(gated(bf16, 32, 2048))
    nest = early(g)
    (waits,) = (s for s, _ in walk(nest.body) if isinstance(s, Await))
    names = {b.name: b.size for b in nest.buffers if b.scope == "in"}
    assert waits.fetched and all(names[x] == 2048 for x in waits.fetched)
    text = emit_kernels(legalise(nest, GPU), GPU).text
    assert text.count("prefetch.global.L2") >= len(waits.fetched)
    large = max(names, key=lambda x: int(D.bounds(names[x])[1]))
    bad = transform(nest.body, lambda s: (Await((f"{large}9",)),) if s is waits else (s,))
    with pytest.raises(CheckFailed, match="fetched meanwhile"):
        verify(replace(nest, body=bad))


def test_a_kernel_reads_nothing_before_it_has_waited() -> None:
    """But for what is copied early, and whatever its nest says of waiting."""
    (g,) = groups(plain(bf16, 16, 512))
    for choices in (Choices(early=True), Choices()):
        legal = legalise(default_schedule(g, GPU, choices)[1], GPU)
        made = emit_kernels(legal, GPU, waits=True)
        ptx = assembly(made.text, GPU)
        head, _, rest = ptx.partition("griddepcontrol.wait")
        assert "ld.global" not in head and "griddepcontrol.launch_dependents" in head
        assert "ld.global." in rest and "ld.global.nc" not in rest
        assert all(x.waits for x in made.launches)
    assert not any(x.waits for x in emit_kernels(legal, GPU).launches)


def test_copies_that_are_not_waited_for_are_found() -> None:
    (g,) = groups(plain(bf16, 64, 256))
    _, nest = default_schedule(g, small(32768), Choices(early=True))

    def one(s: Stmt) -> tuple[Stmt, ...]:
        return (Wait(s.pending + 1),) if isinstance(s, Wait) else (s,)

    simt.run(nest, inputs(g, {}), {})
    with pytest.raises(RunError):
        simt.run(replace(nest, body=transform(nest.body, one)), inputs(g, {}), {})


@every_run(1)
@pytest.mark.parametrize(
    ("made", "bytes_"),
    [(gated(bf16, 8192, 2048), 200704), (plain(bf16, 2048, 8192), 212992)],
    ids=["gate and up", "down"],
)
def test_as_much_is_on_its_way_as_there_is_room(made: Graph, bytes_: int) -> None:
    """Layers of a model of a billion weights: a task for each multiprocessor, which has all of its
    shared memory; nothing spilled."""
    (g,) = groups(made)
    code = emit_kernels(legalise(early(g), GPU), GPU)
    (launch,) = code.launches
    assert launch.blocks == (128, 1, 1) and launch.shared == bytes_ and launch.early
    text = emit_kernels(legalise(early(g), GPU), GPU, tasks=True).text
    assert text.count("call void @tw_await(") == 1
    assert all(x.spilled == 0 for x in assemble(assembly(code.text, GPU), GPU.cpu))


def test_multiprocessors_have_equal_shares() -> None:
    """Results of a warp, by how many there are for each warp of a block: of the layers, a head."""
    assert GPU.grid is not None
    found = [grid_streams._results_of_a_warp(GPU.grid, k // 8) for k in (3072, 2048, 8192, 32000)]
    assert found == [3, 2, 8, 32]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_drawn_sizes(seed: int) -> None:
    print("seed", seed)
    random = np.random.default_rng(seed)
    d = (f32, bf16)[int(random.integers(2))]
    rows, depth = 8 * int(random.integers(1, 9)), 256 * int(random.integers(1, 12))
    row_made = depth <= 2048 and random.integers(2)
    check(gated(d, rows, depth) if row_made else plain(d, rows, depth), d)
