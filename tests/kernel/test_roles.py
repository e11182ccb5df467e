"""Loops whose copies a warp of its own issues: right on the executor and emulated, and every fault
that is planted in them is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from tests.gpu import emulate, emulate_warps
from tests.gpu.assembler import assemble
from tests.gpu.random_products import Product, check
from tests.kernel.step_examples import MAP
from tests.seeds import every_run
from tilewright import targets
from tilewright.base.errors import Refused
from tilewright.kernel import simt
from tilewright.kernel.check import verify
from tilewright.kernel.defaults import grid_group_products
from tilewright.kernel.defaults.grid_warp_products import Tile, Way
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import (
    Acquire,
    Barrier,
    Commit,
    Nest,
    Release,
    Stmt,
    Wait,
    start,
    transform,
    walk,
)
from tilewright.kernel.roles import role_loop
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.text import nest_text, parse_group, parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.launch import Kernels
from tilewright.llvm.objects import assembly

GPU = targets.get("cuda:90")
ONE = Product(64, 64, 256, across=(False, False), epilogue="relu")
TWO = Product(128, 64, 256)  # two blocks with the same columns


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four iterations in the memory of three, one product goes on."""
    numbers = {"WAYS": (Way(True),), "STAGES": (3,), "TILES": {1: ((64, 64, 1, 1),), 2: ()}}
    for name, x in numbers.items():
        monkeypatch.setattr(grid_group_products, name, x)


@cache
def one() -> Nest:
    """With these numbers."""
    return ONE.nest()


def changed(n: Nest, change: Callable[[Stmt], tuple[Stmt, ...]]) -> Nest:
    return replace(n, body=transform(n.body, change))


def without(kind: type[Stmt]) -> Callable[[Stmt], tuple[Stmt, ...]]:
    return lambda s: () if isinstance(s, kind) else (s,)


def instead(a: Stmt, b: Stmt) -> Callable[[Stmt], tuple[Stmt, ...]]:
    return lambda s: (b,) if s == a else (s,)


def test_a_loop_with_roles_has_no_barrier_and_is_right() -> None:
    nest = one()
    loop = role_loop(nest.body)
    assert loop is not None and isinstance(loop.body[0], Acquire)
    assert not any(isinstance(s, Barrier) for s, _ in walk(loop.body))
    assert parse_nest(nest_text(nest)) == nest
    check(ONE, nest)


def test_unaligned_arguments_are_copied_by_the_producer() -> None:
    given, nest = ONE.arguments(), one()
    want = simt.run(nest, given)["y"]
    assert (emulate.run(nest, given, target=GPU, alignment=2)["y"] == want).all()


@pytest.mark.parametrize(
    "fault",
    [
        instead(Acquire(3), Acquire(4)),
        instead(Release(1), Release(0)),
        instead(Release(1), Release(3)),
        without(Acquire),
        without(Release),
        lambda s: () if s == Wait(0) else (s,),
        lambda s: () if s == Wait(1, products=True) else (s,),
    ],
)
def test_planted_faults_are_found(fault: Callable[[Stmt], tuple[Stmt, ...]]) -> None:
    nest = changed(one(), fault)
    with pytest.raises(RunError, match=r"in flight|still reads|nothing goes on|barrier|waits"):
        simt.run(nest, ONE.arguments())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (without(Release), "never release"),
        (without(Commit), "not one group of copies"),
        (lambda s: (s, Barrier()) if isinstance(s, Acquire) else (s,), "more than copies"),
        (instead(Wait(0), Wait(1)), "do not wait for the copies of their iteration"),
        (lambda s: (s, Commit()) if s == Wait(0, products=True) else (s,), "copies outside of"),
    ],
)
def test_what_is_no_loop_with_roles(
    fault: Callable[[Stmt], tuple[Stmt, ...]], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        verify(changed(one(), fault))


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("Roles('c.r0.0', 17)", "17 versions"),
        ("Roles('c.r0.0', 2, 2)", "a slack of 2"),
        ("Roles('y.i', 4)", "nothing shared is allocated in y.i"),
    ],
)
def test_refusals(step: str, message: str) -> None:
    before = start(ONE.group())
    steps = "Split('c.r0', 64)\n" if "c.r0" in step else ""
    with pytest.raises(Refused, match=message):
        apply(before, parse_trace(steps + step))


# ---- blocks that walk over tiles


def test_blocks_walk_over_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tiles of four iterations each: which memory is whose goes on counting."""
    monkeypatch.setattr(grid_group_products, "WAYS", (Way(True, 1, True),))
    p = Product(64, 128, 256, across=(False, False))
    nest = p.nest()
    assert "release 0" in nest_text(nest)
    check(p, nest)
    # As if every tile began with the first version.
    counted = r"\(c\.r0\.0\+[0-9*]*y\.tiles\.0\)%3"
    index = re.sub(counted, "c.r0.0%3", nest_text(nest))
    assert index != nest_text(nest)
    with pytest.raises(RunError, match=r"in flight|reads"):
        simt.run(parse_nest(index), p.arguments())


@pytest.mark.parametrize(
    ("p", "multiprocessors"),
    [(Product(64, 192, 64), 2), (Product(64, 64, 64, batch=3), 1)],
    ids=["not as many tiles for each block", "a batch"],
)
def test_walks_over_other_tiles(
    monkeypatch: pytest.MonkeyPatch, p: Product, multiprocessors: int
) -> None:
    monkeypatch.setattr(grid_group_products, "WAYS", (Way(True, 1, True),))
    nest = p.nest(multiprocessors)
    assert "release 0" in nest_text(nest)
    check(p, nest, emulated=False)


@every_run(1)
@pytest.mark.parametrize(
    "p",
    [Product(128, 128, 64), Product(72, 104, 64, across=(False, False), epilogue="bias")],
    ids=["whole tiles", "ragged"],
)
def test_results_are_stored_in_pieces(monkeypatch: pytest.MonkeyPatch, p: Product) -> None:
    """Which leaves room for as many steps as blocks have that do not walk."""
    monkeypatch.setattr(grid_group_products, "WAYS", (Way(True, 1, True),))
    monkeypatch.setattr(grid_group_products, "PIECES", (2,))
    monkeypatch.setattr(grid_group_products, "TILES", {1: ((64, 128, 1, 1),), 2: ()})
    nest = p.nest()
    (made,) = (b for b in nest.buffers if b.name == "y_s")
    assert made.shape == (64, 64 + 8)
    check(p, nest, emulated=False)
    loose = changed(nest, without(Barrier))
    with pytest.raises(RunError, match=r"race|barrier"):
        simt.run(loose, p.arguments())


def test_as_many_pieces_as_leave_room_for_steps() -> None:
    grid = GPU.grid
    assert grid is not None
    large, small = Tile(128, 256, 128, 256, 64, 1, 64), Tile(64, 64, 64, 64, 64, 1, 64)
    stages = {"STAGES": (12, 8, 7, 6, 5, 4, 3, 2)}
    with pytest.MonkeyPatch.context() as m:
        for name, x in stages.items():
            m.setattr(grid_group_products, name, x)
        assert grid_group_products.pieces(large, grid, 2) == 2
        assert grid_group_products.pieces(large, grid, 4) == 4
        assert grid_group_products.pieces(small, grid, 2) == 1


# ---- clusters


def test_blocks_of_a_cluster_walk_equally_far() -> None:
    """Each waits for what the others bring to it."""
    before = start(parse_group(MAP))
    bound = "Split('y.i0', 5)\nBind('y.i0.0', 'block.x')\n"
    pair, walks = "Pragma('y.i0.0', 'cluster', 2)\n", "Walk('y.i0.0', {})\n"
    assert apply(before, parse_trace(bound + pair + walks.format(8)))
    for wrong in (pair + walks.format(7), walks.format(8) + "Pragma('y.i0.0.1', 'cluster', 2)"):
        with pytest.raises(Refused, match="different numbers of iterations"):
            apply(before, parse_trace(bound + wrong))


def shared(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    monkeypatch.setattr(grid_group_products, "WAYS", (Way(True, 2),))
    return emit_kernels(legalise(TWO.nest(), GPU), GPU)


def test_blocks_of_a_cluster_wait_for_each_other_at_memory_barriers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = shared(monkeypatch)
    assert made.launches[0].cluster == 2 and made.launches[0].threads == (4, 8, 5)
    # When the kernel begins, not in the loop; when it ends the producers wait.
    assert made.text.count("call void @llvm.nvvm.barrier.cluster.wait") == 1
    assert made.text.count("mapa.shared::cluster") == 2  # in the loop, and behind it
    given, want = TWO.arguments(), simt.run(TWO.nest(), TWO.arguments())["y"]
    assert (emulate.run_kernels(made, given, {}, 16)["y"] == want).all()
    assert all(x.spilled == 0 for x in assemble(assembly(made.text, GPU), GPU.cpu))


def test_blocks_of_a_cluster_walk_and_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks have two tiles of one step, and two have one."""
    monkeypatch.setattr(grid_group_products, "WAYS", (Way(True, 2, True),))
    p = Product(6 * 64, 64, 64, epilogue="bias")
    nest = p.nest(4)
    (launch,) = emit_kernels(legalise(nest, GPU), GPU).launches
    assert launch.cluster == 2 and launch.blocks[0] == 4
    check(p, nest)


@every_run(0, 2)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("end", ["", "arrive.relaxed", "arrive"])
def test_nothing_arrives_at_a_block_that_has_ended(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Where the producer does not wait for the last ones. That all threads have come to the end is
    not enough: what they have sent may be on its way, unless they release it."""
    made = shared(monkeypatch)
    text, count = re.subn(r"(= add i32 %\S+), 3(\n  br label %W)", r"\1, 0\2", made.text)
    assert count == 1
    calls = [f"@llvm.nvvm.barrier.cluster.{x}.aligned()" for x in (end, "wait")] if end else []
    before, last, after = text.rpartition("  ret void\n}\n")
    text = "".join((before, *(f"  call void {x}\n" for x in calls), last, after))
    text = "\n".join((*(f"declare void {x}" for x in calls if x not in made.text), text))
    wrong = replace(made, text=text)
    if end == "arrive":
        emulate.run_kernels(wrong, TWO.arguments(), {}, 16)
        return
    with pytest.raises(AssertionError, match="has ended"):
        emulate.run_kernels(wrong, TWO.arguments(), {}, 16)


def test_the_last_iterations_in_a_cluster_are_released(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid_group_products, "WAYS", (Way(True, 2),))
    nest = TWO.nest()
    verify(nest)
    with pytest.raises(Exception, match="the last iterations are not"):
        verify(changed(nest, lambda s: () if s == Release(0) else (s,)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_block_that_releases_the_first_ones_memory_only_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The producer of the second one waits for ever."""
    monkeypatch.setattr(emulate_warps, "PATIENCE", 3.0)
    made = shared(monkeypatch)
    wrong = re.sub(r"(icmp ult i32 %\S+), 2\b", r"\1, 1", made.text)
    assert wrong != made.text
    with pytest.raises(AssertionError, match="threads failed"):
        emulate.run_kernels(replace(made, text=wrong), TWO.arguments(), {}, 16)
