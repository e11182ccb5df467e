"""Convolutions on warps and windows by vectors: right on the executor of threads and emulated,
nothing spilled; what is left out of them is noticed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.gpu.assembler import assemble
from tests.gpu.random_convolutions import Convolution, arguments, check, check_seed, scheduled
from tests.graph.build import arg, build, graph, weight
from tests.seeds import drawn, every_run
from tilewright import targets
from tilewright.base.events import Log
from tilewright.driver.program.default_passes import passes
from tilewright.graph.fuse import fuse
from tilewright.ir.node import item
from tilewright.ir.types import bf16
from tilewright.kernel import simt
from tilewright.kernel.defaults import grid_windows
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Barrier, Loop, Nest, Stmt, Wait, transform, walk
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly

GPU = targets.get("cuda:90")
SMALL = Convolution(1, (5, 5), 24, 16)
SLOW = pytest.mark.slow


def instructions(n: Nest) -> set[str]:
    return {s.instruction for s, _ in walk(n.body) if isinstance(s, Loop) and s.instruction}


@pytest.mark.parametrize("seed", drawn(range(60), 1))
def test_random_convolutions(seed: int) -> None:
    check_seed(seed)


@every_run(0, 2)
@pytest.mark.parametrize(
    ("c", "copies"),
    [
        (SMALL, "cp.async.cg.shared.global"),  # 8 channels at a time
        (Convolution(1, (9, 9), 3, 16, (7, 7), 2, 3), "cp.async.ca.shared.global"),  # 4
        pytest.param(
            Convolution(2, (5, 7), 24, 40, stride=2, residual=True),
            "cp.async.cg.shared.global",
            marks=SLOW,
        ),
        (Convolution(1, (9, 9), 64, 64, (1, 1), 2, 0), "cp.async.cg.shared.global"),
    ],
    ids=str,
)
def test_windows_are_gathered_to_shared_memory(c: Convolution, copies: str) -> None:
    g = c.group()
    nest = scheduled(g)
    assert any("wgmma" in x for x in instructions(nest)), instructions(nest)
    check(g, nest, emulated=c is SMALL)
    text = assembly(emit_kernels(legalise(nest, GPU), GPU).text, GPU)
    # Windows by threads, filters by the copy engine; both are seen by what multiplies them.
    assert copies in text and "cp.async.bulk.tensor" in text and "fence.proxy.async" not in text


@pytest.mark.parametrize(
    "c",
    [
        pytest.param(Convolution(2, (5, 5), 64, 24, gradient=True), marks=SLOW),
        Convolution(1, (9, 9), 3, 16, (7, 7), 2, 3, gradient=True),  # columns of zeros behind
        pytest.param(Convolution(2, (9, 9), 64, 64, (1, 1), 2, 0, gradient=True), marks=SLOW),
        pytest.param(Convolution(3, (6, 6), 16, 40, gradient=True), marks=SLOW),
    ],
    ids=str,
)
@pytest.mark.parametrize("multiprocessors", [16, pytest.param(1, marks=SLOW)])
def test_gradients_of_weights_sum_up_windows(c: Convolution, multiprocessors: int) -> None:
    """The sum runs over all windows, so parts of it are other blocks'."""
    g = c.group()
    nest = scheduled(g, multiprocessors)
    assert any("wgmma" in x and ".tt." in x for x in instructions(nest)), instructions(nest)
    check(g, nest, emulated=c.channels == 3, conflicts=True)


LARGE = (
    Convolution(16, (56, 56), 64, 64, gradient=True),
    Convolution(16, (56, 56), 256, 512, (1, 1), 2, 0, gradient=True),
    Convolution(64, (56, 56), 64, 64),
    Convolution(64, (14, 14), 256, 256, residual=True),
    Convolution(64, (224, 224), 3, 64, (7, 7), 2, 3),
)


@pytest.mark.parametrize("c", LARGE, ids=str)
def test_the_code(c: Convolution) -> None:
    nest = scheduled(c.group(), 132)
    assert any("wgmma" in x for x in instructions(nest))
    ptx = assembly(emit_kernels(legalise(nest, GPU), GPU).text, GPU)
    assert "wgmma.mma_async" in ptx
    for made in assemble(ptx, GPU.cpu):
        assert made.spilled == 0, made


@pytest.mark.parametrize(
    ("left_out", "says"),
    [(Wait, "is in flight"), (Barrier, "with no barrier between")],
    ids=str,
)
def test_waits_for_windows_are_needed(left_out: type[Stmt], says: str) -> None:
    g = SMALL.group()
    nest = scheduled(g)

    def without(s: Stmt) -> tuple[Stmt, ...]:
        return () if isinstance(s, left_out) and not getattr(s, "products", False) else (s,)

    with pytest.raises(RunError, match=says):
        simt.run(replace(nest, body=transform(nest.body, without)), arguments(g))


def windows_of(kind: str) -> Group:
    """Of an image with channels last, as it stands between convolutions."""
    image = arg("x", 2, 6, 8, 24, dtype=bf16)
    x = build.permute(image, (0, 3, 1, 2))
    if kind == "depthwise":
        w = weight("w", 24, 1, 3, 3, dtype=bf16)
        y = build.relu(build.conv(x, w, 1, 1, 1, 24))
    elif kind == "strided":
        y = build.conv(x, weight("w", 24, 1, 3, 3, dtype=bf16), 2, 1, 1, 24)
    elif kind == "max_pool":
        y = item(build.max_pool(x, (3, 3), (2, 2), (1, 1)), 0)
    else:
        y = build.avg_pool(x, (2, 2), (2, 2), (0, 0))
    if "pool" in kind:  # which a convolution behind it has turned
        y = build.conv(y, weight("v", 24, 1, 1, 1, dtype=bf16), 1, 0, 1, 24)
    target = targets.get("cuda:90")
    found = fuse(passes(target).run(graph(y), target, Log()), target, Log()).clusters
    made = [build_group(f"k{k}", c.nodes, c.inputs, c.outputs) for k, c in enumerate(found)]
    return next(g for g in made if any(x.is_reduce for x in g.stages))


@every_run(0, 2)
@pytest.mark.parametrize("kind", ["depthwise", "strided", "max_pool", "avg_pool"])
def test_windows_by_vectors_of_channels(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(grid_windows, "FEWEST", 1)
    g = windows_of(kind)
    nest = scheduled(g)
    check(g, nest, conflicts=True)
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert len(made.launches) == 1
    ptx = assembly(made.text, GPU)
    # Neighbouring windows of a thread share what both read: 4 of 3x3 read 18 vectors, not 36.
    most = {"depthwise": 18 + 9, "strided": 27 + 9, "max_pool": 27, "avg_pool": 16}[kind]
    assert 0 < ptx.count("ld.global") == ptx.count(".v4.b32") - ptx.count("st.global") <= most
