"""Matrix products on warps: right on the executor of threads and emulated, no conflicts of banks,
nothing spilled; what is left out of them is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gpu.assembler import assemble
from tests.gpu.random_products import Product, check, check_seed
from tests.seeds import drawn
from tilewright import targets
from tilewright.kernel import simt
from tilewright.kernel.banks import conflicts
from tilewright.kernel.defaults import grid_products
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Barrier, Loop, Nest, Wait, transform, walk
from tilewright.kernel.schedule import default_schedule
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
    assert any("nvptx.wgmma.bf16" in str(s) for s in trace)
    check(p, nest)


def test_two_groups_of_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(grid_products.GROUP_TILES, 2, ((128, 16, 128, 16),))
    monkeypatch.setattr(grid_products, "_processors", lambda s: 0)
    p = Product(128, 16, 64, across=(False, False), dtype="f16")
    nest = p.nest()
    assert any(
        isinstance(s, Loop) and s.instruction == "nvptx.wgmma.2.f16" for s, _ in walk(nest.body)
    )
    check(p, nest)


@pytest.mark.parametrize(
    ("target", "across"), [("cuda:80", (True, True)), ("cuda:90", (False, False))]
)
def test_the_code(target: str, across: tuple[bool, bool]) -> None:
    p = Product(4096, 4096, 4096, across=across, epilogue="relu")
    nest = p.nest(132, target)
    assert not conflicts(nest)
    gpu = targets.get(target)
    ptx = assembly(emit_kernels(legalise(nest, gpu), gpu).text, gpu)
    if across[0] or target == "cuda:80":
        assert ptx.count("mma.sync") == 4 * 4 * 8 and ptx.count("ldmatrix") == 4 * 8
    else:  # by two groups of warps: four steps of 64 rows each
        assert ptx.count("wgmma.mma_async") == 4 and ptx.count("wgmma.wait_group") == 1
        assert "fence.proxy.async" in ptx
    assert "cp.async.cg" in ptx and ptx.count("bar.sync") == 1
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
    trace, _ = default_schedule(p.group(), targets.get("cuda:90"))
    assert not any("mma" in str(s) for s in trace)


def test_a_gpu_without_such_instructions() -> None:
    trace, _ = default_schedule(Product(64, 64, 64).group(), targets.get("cuda:75"))
    assert not any("mma" in str(s) for s in trace)
