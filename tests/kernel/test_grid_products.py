"""Matrix products on warps: right on the executor of threads and emulated, no conflicts of banks,
nothing spilled; what is left out of them is noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tests.gpu.random_products import Product, check, check_seed
from tests.seeds import drawn
from tilewright import targets
from tilewright.base.errors import Refused, Unsupported
from tilewright.kernel import simt
from tilewright.kernel.banks import conflicts
from tilewright.kernel.defaults import grid_group_products
from tilewright.kernel.interpret import RunError, run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Barrier, Loop, Nest, Stmt, Wait, transform, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly


@pytest.mark.parametrize("seed", drawn(range(60), 2))
def test_random_products(seed: int) -> None:
    check_seed(seed)


def test_warps_share_a_block() -> None:
    p = Product(64, 64, 16, epilogue="bias")
    nest = p.nest()
    assert {
        x.extent for x, _ in walk(nest.body) if isinstance(x, Loop) and x.kind == "thread.z"
    } == {4}
    check(p, nest)


def test_a_group_of_warps() -> None:
    """Operands that a group of four warps reads in shared memory by itself."""
    p = Product(64, 64, 128, across=(False, False), epilogue="bias")
    trace, nest = default_schedule(p.group(), targets.get("cuda:90"))
    assert any("nvptx.wgmma.1.nn.bf16" in str(s) for s in trace)
    check(p, nest)


GPU = targets.get("cuda:90")
ORDERS = [(False, False), (False, True), (True, False), (True, True)]


def with_tile(monkeypatch: pytest.MonkeyPatch, p: Product, groups: int = 1, parts: int = 1) -> Nest:
    """Scheduled by tiles of 64 rows of each group of warps and 64 columns."""
    monkeypatch.setattr(
        grid_group_products, "TILES", {1: (), 2: ()} | {groups: ((64 * groups, 64, 1),)}
    )
    monkeypatch.setattr(grid_group_products, "PARTS", (parts,))
    nest = p.nest()
    order = "".join("t" if x else "n" for x in p.across)
    name = f"nvptx.wgmma.{groups}.{order}.{p.dtype}"
    assert any(isinstance(s, Loop) and s.instruction == name for s, _ in walk(nest.body))
    return nest


@pytest.mark.parametrize("across", ORDERS)
def test_rows_along_the_sum_or_across(
    monkeypatch: pytest.MonkeyPatch, across: tuple[bool, bool]
) -> None:
    p = Product(64, 64, 192, across=across, dtype="f16")
    check(p, with_tile(monkeypatch, p))


def test_two_groups_of_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    """More steps than there are memory barriers."""
    monkeypatch.setattr(grid_group_products, "versions", lambda *_: (2, 1))
    p = Product(128, 64, 320, across=(False, False), epilogue="bias")
    check(p, with_tile(monkeypatch, p, 2))


@pytest.mark.parametrize(
    ("p", "parts"),
    [
        (Product(40, 72, 136, across=(False, True), epilogue="bias"), 1),
        (Product(72, 35, 40, batch=2, across=(True, False), epilogue="relu"), 1),
        (Product(40, 24, 520, across=(False, True), epilogue="relu"), 2),
        (Product(33, 41, 67, across=(False, False)), 1),  # rows that only threads can copy
    ],
)
def test_sizes_that_no_tile_divides(
    monkeypatch: pytest.MonkeyPatch, p: Product, parts: int
) -> None:
    nest = with_tile(monkeypatch, p, parts=parts)
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert len(made.launches) == (2 if parts > 1 else 1)
    check(p, nest, emulated=p.epilogue != "relu")


def test_copies_by_threads_where_the_copy_engine_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Product(64, 64, 128, across=(False, True))
    nest = with_tile(monkeypatch, p)
    made = emit_kernels(legalise(nest, GPU), GPU, 2)
    assert not made.launches[0].boxes and "cp.async.bulk" not in made.text
    given = p.arguments()
    got = emulate.run(nest, given, target=targets.get("cuda:90"), alignment=2)["y"]
    np.testing.assert_array_equal(got, run_group(p.group(), given)["y"])


@pytest.mark.parametrize(
    ("left_out", "says"),
    [
        (Wait(1, products=True), "still reads it"),
        (Wait(0, products=True), "has not waited for products"),
        (Wait(1), "is in flight"),
        (Barrier(), "with no barrier between"),
    ],
    ids=str,
)
def test_waits_of_products_are_needed(
    monkeypatch: pytest.MonkeyPatch, left_out: Stmt, says: str
) -> None:
    p = Product(64, 64, 384, across=(False, False))
    monkeypatch.setattr(grid_group_products, "versions", lambda *_: (2, 1))
    nest = with_tile(monkeypatch, p)
    bad = replace(nest, body=transform(nest.body, lambda s: () if s == left_out else (s,)))
    with pytest.raises(RunError, match=says):
        simt.run(bad, p.arguments())


def test_too_little_room_for_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version too few: the copy would overwrite what the product before still reads."""
    p = Product(64, 64, 384, across=(False, False))
    monkeypatch.setattr(grid_group_products, "versions", lambda *_: (2, 1))
    nest = with_tile(monkeypatch, p)
    later = transform(
        nest.body, lambda s: (Wait(2, products=True),) if s == Wait(1, products=True) else (s,)
    )
    with pytest.raises(Refused, match="still reads"):
        Synchronise().apply(replace(nest, body=later))


def test_shared_memory_is_used_again() -> None:
    """Results take the place of operands, with a barrier between."""
    p = Product(4096, 4096, 4096, across=(False, False))
    nest = p.nest(132)
    sizes = {b.name: b.size for b in nest.buffers if b.scope == "shared"}
    (launch,) = emit_kernels(legalise(nest, GPU), GPU).launches
    assert sum(2 * int(str(n)) for n in sizes.values()) > 227 * 1024 >= launch.shared
    lifted = replace(nest, body=transform(nest.body, lambda s: () if s == Barrier() else (s,)))
    with pytest.raises(Unsupported, match="more than"):
        emit_kernels(legalise(lifted, GPU), GPU)


@pytest.mark.parametrize(
    ("target", "across"),
    [("cuda:80", (True, True)), *(("cuda:90", x) for x in ORDERS)],
)
def test_the_code(target: str, across: tuple[bool, bool]) -> None:
    p = Product(4096, 4096, 4096, across=across, epilogue="relu")
    nest = p.nest(132, target)
    assert not conflicts(nest)
    gpu = targets.get(target)
    ptx = assembly(emit_kernels(legalise(nest, gpu), gpu).text, gpu)
    if target == "cuda:80":
        assert ptx.count("mma.sync") == 4 * 4 * 8 and ptx.count("ldmatrix") == 4 * 8
        assert "cp.async.cg" in ptx and ptx.count("bar.sync") == 1
    else:  # by two groups of warps: four steps of 64 rows each
        assert ptx.count("wgmma.mma_async") == 4 and ptx.count("wgmma.wait_group") == 2
        assert "cp.async.bulk.tensor" in ptx and "fence.proxy.async" not in ptx
        # After memory barriers are made, in every step, before and after results are gathered.
        assert ptx.count("bar.sync") == 4
    (made,) = assemble(ptx, gpu.cpu) or [None]
    assert made is None or made.spilled == 0


def without(n: Nest, kind: type) -> Nest:
    return replace(n, body=transform(n.body, lambda s: () if isinstance(s, kind) else (s,)))


@pytest.mark.parametrize(
    ("kind", "says"), [(Barrier, "no barrier between"), (Wait, "is in flight")], ids=str
)
def test_what_is_missing_is_noticed(kind: type, says: str) -> None:
    p = Product(64, 64, 48)
    nest = p.nest()
    with pytest.raises(RunError, match=says):
        simt.run(without(nest, kind), p.arguments())


@pytest.mark.parametrize(
    "p",
    [
        Product(64, 60, 64),  # columns that no tile divides
        Product(64, 64, 40),
        Product(1, 64, 64),
    ],
)
def test_other_products_are_scheduled_otherwise(p: Product) -> None:
    trace, _ = default_schedule(p.group(), targets.get("cuda:80"))
    assert not any("mma" in str(s) for s in trace)


def test_a_gpu_without_such_instructions() -> None:
    trace, _ = default_schedule(Product(64, 64, 64).group(), targets.get("cuda:75"))
    assert not any("mma" in str(s) for s in trace)
