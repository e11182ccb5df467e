"""The tutorial pages run, are right, and what they say in words holds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tilewright as tw
from tilewright.kernel.legal import legalise
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.targets import get

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "tutorials"


def page(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"tutorial_{name}", FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def matmul() -> ModuleType:
    return page("matmul")


@pytest.fixture(scope="module")
def conv_softmax() -> ModuleType:
    return page("conv_softmax")


def test_matmul(matmul: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "times.svg"
    results = matmul.main(["--size", "192", "--rounds", "1", "--plot", str(picture)])
    assert picture.read_text().count("<!-- threads -->")  # every step has a bar with its name
    shown = capsys.readouterr().out
    assert [r.name for r in results] == [s.__name__ for s in matmul.STEPS]
    for r in results:
        assert r.error < 1e-5, r
        assert r.name in shown and r.what and r.what.split()[0] in shown


def test_matmul_of_sizes_that_no_tile_divides(matmul: ModuleType) -> None:
    for n, machine in ((37, matmul.Machine.here()), (100, matmul.Machine(8, 2, 6))):
        for r in matmul.measure(n, rounds=1, m=machine):
            assert r.error < 1e-5, r


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4", "arm64"])
def test_matmul_compiles_for_other_machines(matmul: ModuleType, name: str) -> None:
    target = get(name)
    machine = matmul.Machine.of(target)
    assert machine.rows * machine.vectors < target.vector_registers
    v = matmul.blocks_of_k(machine.rows * machine.columns + 1, machine)
    text = emit(legalise(tw.lower(v.schedule, v.args).nest, target), target)
    assert compile_object(text, target)


def test_the_matmul_page_tells_the_truth_about_its_loops(matmul: ModuleType) -> None:
    m = matmul.Machine.here()
    text = {s.__name__: matmul.loops(s(480, m)) for s in matmul.STEPS}
    assert text["naive"].count("for ") == 3
    assert "lane" not in text["blocked"] and "lane" in text["vectorized"]
    assert "alloc panels" in text["packed"] and "panels" not in text["vectorized"]
    version = matmul.register_tile(480, m)
    (tile,) = [b for b in tw.lower(version.schedule, version.args).nest.buffers if "C_" in b.name]
    assert tile.scope == "register" and tile.shape == (m.rows, m.columns)
    assert "parallel" in text["threads"] and "parallel" not in text["blocks_of_k"]


def test_convolution_and_softmax(
    conv_softmax: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "times.svg"
    sizes = ["--image", "32", "--rows", "256", "--rounds", "1"]
    found = conv_softmax.main([*sizes, "--plot", str(picture)])
    assert picture.read_text().count("<!-- softmax_threads -->")
    shown = capsys.readouterr().out
    for results in found.values():
        for r in results:
            assert r.error < 1e-5, r
            assert r.name in shown and r.what and r.what.split()[0] in shown


@pytest.mark.parametrize("n", [19, 33])
def test_odd_sizes(conv_softmax: ModuleType, n: int) -> None:
    for steps in (conv_softmax.CONVOLUTION, conv_softmax.SOFTMAX):
        for r in conv_softmax.measure(steps, n, rounds=1):
            assert r.error < 1e-5, r


def test_the_second_page_tells_the_truth_about_its_loops(conv_softmax: ModuleType) -> None:
    def shape(step, name: str) -> tuple:
        v = step(64)
        return tw.lower(v.schedule, v.args).nest.buffer(name).shape

    assert shape(conv_softmax.conv_naive, "conv") == (32, 64, 64)
    assert shape(conv_softmax.conv_placed, "conv") == (1, 1, 64)
    assert shape(conv_softmax.softmax_naive, "e") == (64, 64)
    assert shape(conv_softmax.softmax_rows, "e") == (1, 64)
    v = conv_softmax.softmax_rows(64)
    assert len(tw.lower(v.schedule, v.args).nest.body) == 1  # rows around everything
    s = conv_softmax.softmax(8, 64)
    strict = tw.te.create_schedule(s.y.op, precision="strict")
    _, lane = strict[s.total].split(s.total.op.reduce_axis[0], factor=8)
    with pytest.raises(tw.Refused, match="strict"):  # as the page says
        strict.rfactor(s.total, lane)


# ---- tile kernels


@pytest.fixture(scope="module")
def tile_kernels() -> ModuleType:
    return page("tile_kernels")


def line_with(module: ModuleType, text: str) -> int:
    lines = Path(module.__file__ or "").read_text().splitlines()
    (found,) = [k for k, line in enumerate(lines, 1) if line.strip().startswith(text)]
    return found


def test_tile_kernels(tile_kernels: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = tile_kernels.main([])  # sections check what they compute
    shown = capsys.readouterr().out
    for number, section in enumerate(tile_kernels.SECTIONS, 1):
        assert f"{number}. {section.__doc__}" in shown
    assert found["triton_files"] == "right"
    out_of_bounds, race = found["checking"]
    at = line_with(tile_kernels, "values = tl.load(x + at)")
    assert "out of bounds" in out_of_bounds and f"tile_kernels.py:{at}" in out_of_bounds
    at = line_with(tile_kernels, "tl.store(total,")
    assert "race" in race and f"tile_kernels.py:{at}" in race
    assert "forgot_kernel: 1 finding" in out_of_bounds and "racing_kernel: " in race
    refused = found["messages"]
    at = line_with(tile_kernels, "at = tl.arange(0, 100)")
    assert "power of" in refused and "^" in refused and f"tile_kernels.py:{at}" in refused
    assert "values = tensor(fp32[4], [4. 5. 0. 0.])" in shown


def test_the_tile_page_tells_the_truth_about_what_is_inside(tile_kernels: ModuleType) -> None:
    x = tile_kernels.normal(1024)
    kernel = tile_kernels.add_kernel.warmup(x, x, x.copy(), 1024, BLOCK=64, grid=(16,))
    text = {name: kernel.asm[name] for name in ("ttir", "nest", "trace", "llir", "asm")}
    assert "program_id" in text["ttir"] and "for " not in text["ttir"]
    assert "parallel" in text["nest"] and "lane" in text["nest"]
    assert "Vectorize" in text["trace"] and "define" in text["llir"]
    one = tile_kernels.add_kernel.warmup(x, x, x.copy(), 1, BLOCK=64, grid=(1,))
    assert one.constants["n"] == 1 and one is not kernel


def test_a_section_of_the_tile_page_alone(
    tile_kernels: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(tile_kernels.main(["masks"])) == ["masks"]
    with pytest.raises(SystemExit):
        tile_kernels.main(["nothing"])
    assert "no section nothing" in capsys.readouterr().err
