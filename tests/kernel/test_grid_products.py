"""Matrix products on warps: right on the executor of threads and emulated, no conflicts of banks,
nothing spilled; what is left out of them is noticed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tests.gpu.random_products import Product, check, check_seed
from tests.seeds import drawn, every_run
from tilewright import targets
from tilewright.base.errors import Refused, Unsupported
from tilewright.ir import dim as D
from tilewright.kernel import simt
from tilewright.kernel.banks import conflicts
from tilewright.kernel.defaults import (
    grid_group_products,
    grid_thread_products,
    grid_warp_products,
)
from tilewright.kernel.defaults.grid_warp_products import Way
from tilewright.kernel.interpret import RunError, run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import (
    Alloc,
    Barrier,
    Loop,
    Nest,
    Stmt,
    Store,
    Wait,
    transform,
    walk,
)
from tilewright.kernel.roles import role_loop
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.steps.barrier import Synchronise
from tilewright.kernel.steps.pragma import Pragma
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.text import nest_text, parse_group
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly
from tilewright.targets import nvptx


@pytest.mark.parametrize("seed", drawn(range(60), 1))
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
WAYS = grid_group_products.WAYS


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are asked for by all threads; the other ways are in test_roles.py."""
    monkeypatch.setattr(grid_group_products, "WAYS", grid_group_products.PLAIN)


ORDERS = [(False, False), (False, True), (True, False), (True, True)]


def with_tile(monkeypatch: pytest.MonkeyPatch, p: Product, groups: int = 1, parts: int = 1) -> Nest:
    """Scheduled by tiles of 64 rows of each group of warps and 64 columns."""
    monkeypatch.setattr(
        grid_group_products, "TILES", {1: (), 2: ()} | {groups: ((64 * groups, 64, 1, 1),)}
    )
    monkeypatch.setattr(grid_group_products, "PARTS", (parts,))
    nest = p.nest()
    order = "".join("t" if x else "n" for x in p.across)
    name = f"nvptx.wgmma.{groups}.{order}.{p.dtype}"
    assert any(isinstance(s, Loop) and s.instruction == name for s, _ in walk(nest.body))
    return nest


@every_run(0, 3)
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


@every_run(0)
@pytest.mark.parametrize(
    ("p", "parts"),
    [
        (Product(40, 72, 136, across=(False, True), epilogue="bias"), 1),
        (Product(72, 35, 40, batch=2, across=(True, False), epilogue="relu"), 1),
        (Product(40, 24, 520, across=(False, True), epilogue="relu"), 2),
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


def test_waits_of_products_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Product(64, 64, 384, across=(False, False))
    monkeypatch.setattr(grid_group_products, "versions", lambda *_: (2, 1))
    nest = with_tile(monkeypatch, p)
    needed: dict[Stmt, str] = {
        Wait(1, products=True): "still reads it",
        Wait(0, products=True): "has not waited for products",
        Wait(1): "is in flight",
        Barrier(): "with no barrier between",
    }
    for left_out, says in needed.items():
        body = transform(nest.body, lambda s, x=left_out: () if s == x else (s,))
        with pytest.raises(RunError, match=says):
            simt.run(replace(nest, body=body), p.arguments())


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


@pytest.mark.parametrize(
    ("p", "way"),
    [
        (Product(4096, 4096, 4096), Way(True, 1, True)),  # several tiles for each block
        (Product(256, 4096, 4096), Way(True)),  # one
        (Product(512, 512, 64, batch=64), Way(True, 1, True)),
        (Product(4000, 4088, 4104), Way(True, 2, True)),  # rows lie in two pieces of memory each
    ],
)
def test_the_way_of_operands(monkeypatch: pytest.MonkeyPatch, p: Product, way: Way) -> None:
    monkeypatch.setattr(grid_group_products, "WAYS", WAYS)
    nest = p.nest(132)
    (grid,) = (s for s, _ in walk(nest.body) if isinstance(s, Loop) and s.kind == "block.x")
    made = role_loop(nest.body) is not None, dict(grid.pragmas).get("cluster", 1)
    assert (*made, len(grid.body) == 1) == (way.roles, way.cluster, way.walks)


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


def test_a_block_of_warps_that_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has more versions of operands, copied at the end of a step without a branch. Where copies
    are not in the background tiles are smaller, and copied at the beginning."""
    monkeypatch.setattr(grid_warp_products, "TILES", ((32, 64, 16, 16), (32, 32, 16, 16)))
    monkeypatch.setattr(grid_warp_products, "DEPTHS", (16,))
    p = Product(32, 64, 96)
    nest = p.nest(1, "cuda:80")
    assert nest.buffer("a_s").shape == (4, 32, 16) and ".some" not in nest_text(nest)
    check(p, nest, name="cuda:80")
    loose = replace(nest, body=transform(nest.body, lambda s: () if s == Wait(2) else (s,)))
    with pytest.raises(RunError, match="in flight"):
        simt.run(loose, p.arguments())
    odd = Product(32, 61, 91).nest(1, "cuda:80")
    assert odd.buffer("a_s").shape == (3, 32, 16) and ".some" in nest_text(odd)


@every_run(0, 4)
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


def test_a_row_is_scheduled_otherwise() -> None:
    trace, _ = default_schedule(Product(1, 64, 64).group(), targets.get("cuda:80"))
    assert not any("mma" in str(s) for s in trace)


# ---- single warps


@pytest.mark.parametrize(
    ("p", "target"),
    [
        pytest.param(
            *(Product(40, 44, 40, across=(False, True), epilogue="bias"), "cuda:80"),
            marks=pytest.mark.slow,
        ),
        (Product(37, 41, 29, across=(True, False), dtype="f16"), "cuda:80"),
        (Product(33, 41, 35, across=(False, False)), "cuda:90"),  # rows for no copy engine
        (Product(22, 21, 22, across=(True, False)), "cuda:80"),  # nothing past the last row is read
    ],
)
def test_sizes_that_no_tile_of_a_warp_divides(p: Product, target: str) -> None:
    nest = p.nest(1, target)
    used = {s.instruction for s, _ in walk(nest.body) if isinstance(s, Loop)}
    assert f"nvptx.mma.{p.dtype}" in used
    check(p, nest, name=target)


# ---- threads


@every_run(0)
@pytest.mark.parametrize(
    ("p", "target"),
    [
        (Product(64, 64, 32, dtype="f32", across=(False, True), epilogue="bias"), "cuda:90"),
        (Product(37, 41, 29, dtype="f32", across=(False, False), epilogue="relu"), "cuda:80"),
        (Product(24, 40, 24, dtype="f32", across=(True, True), batch=2), "cuda:75"),
    ],
)
def test_products_of_threads(p: Product, target: str) -> None:
    """Of numbers that no instruction multiplies."""
    check(p, p.nest(1, target), name=target)


@pytest.mark.parametrize("columns", [pytest.param(20, marks=pytest.mark.slow), 21])
def test_parts_of_products_of_threads(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setattr(grid_thread_products, "PARTS", (2,))
    monkeypatch.setattr(grid_thread_products, "TILES", ((32, 32, 4, 2, 1.0, 0.0),))
    p = Product(24, columns, 200, dtype="f32", across=(False, False), epilogue="relu")
    nest = p.nest()
    assert len(emit_kernels(legalise(nest, GPU), GPU).launches) == 2
    check(p, nest)


@pytest.mark.parametrize("across", drawn(ORDERS, 1))
def test_the_code_of_threads(across: tuple[bool, bool]) -> None:
    """In a step a thread adds 64 products 16 times and reads 64 vectors for them; little else."""
    p = Product(4096, 4096, 4096, across=across, dtype="f32")
    nest = p.nest(132)
    assert not conflicts(nest)
    ptx = assembly(emit_kernels(legalise(nest, GPU), GPU).text, GPU)
    inner = max(ptx.split("\n$L"), key=lambda x: x.count("fma.rn.f32"))
    assert inner.count("fma.rn.f32") == 1024 and inner.count("ld.shared.v4") == 64
    assert len(inner.splitlines()) < 1024 + 64 + 40
    assert "cp.async.c" in ptx and ptx.count("bar.sync") == 1
    (made,) = assemble(ptx, GPU.cpu) or [None]
    assert made is None or (made.spilled == 0 and made.registers <= 128)  # two blocks fit


# ---- what is read and stored


SLICES = """
group attention
  in a: bf16[1,{rows},{wide}]
  out y: f32[1,2,{rows},{rows}]
  local c: f32[1,2,{rows},{rows}]
  c[c.z,c.h,c.i,c.j] add= cast<f32>(a[0,c.i,64*c.h+c.k]) * cast<f32>(a[0,c.j,64*c.h+c.k+128]) \
for c.z in 1, c.h in 2, c.i in {rows}, c.j in {rows}, c.k in 64 from 0.0
  y[y.z,y.h,y.i,y.j] = c[0,y.h,y.i,y.j] * 0.125 for y.z in 1, y.h in 2, y.i in {rows}, y.j in {rows}
"""
VALUES = """
group attention
  in a: bf16[{rows},{wide}]
  in p: bf16[2,{rows},{rows}]
  out y: bf16[2,{rows},64]
  local c: f32[2,{rows},64]
  c[c.h,c.i,c.j] add= cast<f32>(p[c.h,c.i,c.k]) * cast<f32>(a[c.k,64*c.h+c.j+256]) \
for c.h in 2, c.i in {rows}, c.j in 64, c.k in {rows} from 0.0
  y[y.h,y.i,y.j] = cast<bf16>(c[y.h,y.i,y.j]) for y.h in 2, y.i in {rows}, y.j in 64
"""
SEVERAL = """
group residual
  in a: bf16[{rows},64]
  in w: bf16[64,{columns}]
  in r: bf16[{rows},{columns}]
  out y: bf16[{rows},{columns}]
  out z: f32[{rows},{columns}]
  local c: f32[{rows},{columns}]
  c[c.i,c.j] add= cast<f32>(a[c.i,c.k]) * cast<f32>(w[c.k,c.j]) \
for c.i in {rows}, c.j in {columns}, c.k in 64 from 0.0
  y[y.i,y.j] = cast<bf16>(c[y.i,y.j]) + r[y.i,y.j] for y.i in {rows}, y.j in {columns}
  z[z.i,z.j] = cast<f32>(y[z.i,z.j]) for z.i in {rows}, z.j in {columns}
"""


@pytest.mark.parametrize(
    ("text", "numbers", "target"),
    [
        (SLICES, {"rows": 64, "wide": 384}, "cuda:90"),
        pytest.param(SLICES, {"rows": 24, "wide": 257}, "cuda:80", marks=pytest.mark.slow),
        (VALUES, {"rows": 64, "wide": 384}, "cuda:90"),
        (SEVERAL, {"rows": 64, "columns": 64}, "cuda:90"),
        (SEVERAL, {"rows": 40, "columns": 41}, "cuda:90"),
        pytest.param(SEVERAL, {"rows": 40, "columns": 41}, "cuda:80", marks=pytest.mark.slow),
    ],
)
def test_other_operands_and_results(text: str, numbers: dict[str, int], target: str) -> None:
    """Operands that are parts of one wider matrix; several results of one sum."""
    group = parse_group(text.format(**numbers))
    trace, nest = default_schedule(group, targets.get(target))
    assert any(isinstance(s, Tensorize) and "mma" in s.instruction for s in trace)
    rng = np.random.default_rng(0)
    given = {
        b.name: (rng.integers(-4, 5, [int(str(d)) for d in b.shape]) / 2).astype(b.dtype.numpy)
        for b in group.inputs
    }
    want = run_group(group, given)
    found = [simt.run(nest, given)]
    if numbers["rows"] <= 40 or "columns" not in numbers:
        found.append(emulate.run(nest, given, target=targets.get(target)))
    for got in found:
        for name, expected in want.items():
            np.testing.assert_array_equal(got[name].astype("d"), expected.astype("d"))


ROWS = """
group product where M: 1..
  in a: {t}[M,72]
  in w: {t}[24,72]
  out y: {t}[M,24]
  local c: f32[M,24]
  c[c.i,c.j] add= cast<f32>(a[c.i,c.k]) * cast<f32>(w[c.j,c.k]) \
for c.i in M, c.j in 24, c.k in 72 from 0.0
  y[y.i,y.j] = cast<{t}>(c[y.i,y.j] * 0.5) for y.i in M, y.j in 24
"""


@every_run(0, 1)
@pytest.mark.parametrize(
    ("kind", "target", "by"),
    [
        ("bf16", "cuda:90", "wgmma"),
        ("bf16", "cuda:80", "nvptx.mma"),
        ("f32", "cuda:90", "Pipeline"),
    ],
)
def test_rows_that_are_not_known_before(kind: str, target: str, by: str) -> None:
    group, gpu = parse_group(ROWS.format(t=kind)), targets.get(target)
    trace, nest = default_schedule(group, gpu)
    assert any(by in str(s) for s in trace)
    rng = np.random.default_rng(0)
    for rows in (70, 20):
        given = {
            "a": (rng.integers(-4, 5, (rows, 72)) / 2).astype(group.buffer("a").dtype.numpy),
            "w": (rng.integers(-4, 5, (24, 72)) / 2).astype(group.buffer("w").dtype.numpy),
        }
        want = run_group(group, given, {"M": rows})["y"]
        np.testing.assert_array_equal(simt.run(nest, given, {"M": rows})["y"], want)
    got = emulate.run(nest, given, {"M": rows}, target=gpu)["y"]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("p", [Product(4, 96, 200, epilogue="bias"), Product(3, 5, 700, 2)])
def test_sums_of_few_rows_are_in_registers(p: Product) -> None:
    """No thread adds to memory of the GPU step by step."""
    _, nest = default_schedule(p.group(), GPU)
    common = {s.buffer for s in nest.body if isinstance(s, Alloc)} | {"y"}
    for s, path in walk(nest.body):
        if isinstance(s, Store) and s.combine and s.buffer in common:
            inner = [q for q in path if q.kind in ("serial", "unroll")]
            assert all(q.var in D.symbols(sum(s.index)) or q.extent == 4 for q in inner), s
    given = p.arguments()
    np.testing.assert_array_equal(simt.run(nest, given)["y"], run_group(p.group(), given)["y"])


# ---- floats of 8 bits, and bytes


@pytest.mark.parametrize("dtype", drawn(["f8e4m3", "i8", "f8e5m2"], 2))
def test_numbers_of_one_byte(dtype: str) -> None:
    sums = "i32" if dtype == "i8" else "f32"
    group = parse_group(f"""
group product
  in a: {dtype}[24,144]
  in w: {dtype}[40,144]
  out y: {sums}[24,40]
  local c: {sums}[24,40]
  c[c.i,c.j] add= cast<{sums}>(a[c.i,c.k]) * cast<{sums}>(w[c.j,c.k]) \
for c.i in 24, c.j in 40, c.k in 144 from {"0.0" if sums == "f32" else "0:i32"}
  y[y.i,y.j] = c[y.i,y.j] for y.i in 24, y.j in 40
""")
    trace, nest = default_schedule(group, nvptx.with_numbers(GPU, multiprocessors=1))
    assert any(isinstance(s, Tensorize) and f"wgmma.1.nn.{dtype}" in s.instruction for s in trace)
    rng = np.random.default_rng(0)
    given = {
        b.name: (rng.integers(-4, 5, [int(str(d)) for d in b.shape])).astype(b.dtype.numpy)
        for b in group.inputs
    }
    want = run_group(group, given)["y"]
    np.testing.assert_array_equal(simt.run(nest, given)["y"], want)
    np.testing.assert_array_equal(emulate.run(nest, given, target=GPU)["y"], want)
    ptx = assembly(emit_kernels(legalise(nest, GPU), GPU).text, GPU)
    assert all(x.spilled == 0 for x in assemble(ptx, GPU.cpu))


def test_few_rows_and_short_sums() -> None:
    """No tile has more rows than there are, and no memory is there for steps that are not."""
    _, nest = default_schedule(Product(64, 8192, 8192, across=(False, False)).group(), GPU)
    assert nest.buffer("a_s").shape == nest.buffer("w_s").shape == (12, 64, 64)
    _, nest = default_schedule(Product(512, 512, 64, across=(False, False)).group(), GPU)
    assert nest.buffer("a_s").shape[0] == nest.buffer("w_s").shape[0] == 1


# ---- clusters


@pytest.mark.parametrize("across", drawn(ORDERS, 1))
def test_blocks_of_a_cluster_share_copies(
    monkeypatch: pytest.MonkeyPatch, across: tuple[bool, bool]
) -> None:
    monkeypatch.setattr(grid_group_products, "WAYS", (Way(False, 2),))
    monkeypatch.setattr(grid_group_products, "versions", lambda *_: (1, 0))
    p = Product(128, 64, 128, across=across)
    nest = with_tile(monkeypatch, p)
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert made.launches[0].cluster == 2
    assert made.text.count("multicast::cluster") == 1 and "barrier.cta" not in made.text
    # Blocks share the columns: each brings half of the rows of their box.
    assert sorted(b.box for b in made.launches[0].boxes) == [(32, 64), (64, 64)]
    check(p, nest)
    ptx = assembly(made.text, GPU)
    assert ".reqnctapercluster 2, 1, 1" in ptx
    assert all(x.spilled == 0 for x in assemble(ptx, GPU.cpu))


@pytest.mark.slow
def test_a_cluster_needs_its_own_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """With barriers of single blocks one overwrites what the other one still reads."""
    monkeypatch.setattr(grid_group_products, "WAYS", (Way(False, 2),))
    monkeypatch.setattr(grid_group_products, "versions", lambda *_: (1, 0))
    p = Product(128, 64, 1024, across=(False, False))
    made = emit_kernels(legalise(with_tile(monkeypatch, p), GPU), GPU)
    first, loop = made.text.split("W:", 1)
    alone = "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"
    loop = loop.replace("call void @llvm.nvvm.barrier.cluster.arrive.aligned()", alone)
    loop = loop.replace("call void @llvm.nvvm.barrier.cluster.wait.aligned()", "")
    declared = "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)\n"
    bad = replace(made, text=f"{declared}{first}W:{loop}")
    given = p.arguments()
    want = run_group(p.group(), given)["y"]
    try:
        got = emulate.run_kernels(bad, given, {}, 16)["y"]
    except AssertionError:
        return  # a phase that never ends
    assert not np.array_equal(got, want)


def test_clusters_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nest = with_tile(monkeypatch, Product(192, 64, 64))
    with pytest.raises(Refused, match="no whole clusters of 2"):
        Pragma("y.tiles", "cluster", 2).apply(nest)
    with pytest.raises(Refused, match="a cluster of 3 blocks"):
        Pragma("y.tiles", "cluster", 3).apply(nest)
    with pytest.raises(Refused, match=r"not block\.x"):
        Pragma("c.r0.0", "cluster", 2).apply(nest)
