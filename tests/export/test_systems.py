"""Packages for macOS and Windows: what their files say of themselves, and what is refused."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.export.harness import HERE, STRICT, header_folder, judge, written
from tests.export.macho_code import MachO
from tests.export.test_packages import BATCH, Net, inputs_of
from tilewright import targets
from tilewright.base.errors import Invalid, MissingExtra, Unsupported
from tilewright.driver.export.info import info
from tilewright.driver.export.levels import Level
from tilewright.link import macho, zig
from tilewright.llvm.objects import compile_object
from tilewright.runtime.objects import read_symbols
from tilewright.targets.systems import MACOS, WINDOWS

TARGETS = ("arm64-macos", "x86-64-v3-macos", "x86-64-windows", "arm64-windows")
MACHINES = ("aarch64-macos", "x86_64-macos", "x86_64-windows", "aarch64-windows")
INTERFACE = {"tw_run", "tw_shapes", "tw_workspace"}
POOL = {"tw_parallel"} | {f"tw_pool_{x}" for x in "reset resize set_spin threads workers".split()}
TEXT = """
declare void @theirs()
define void @inner() {
  call void @theirs()
  ret void
}
define void @ours() {
  call void @inner()
  ret void
}
"""
needs_zig = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None,
    reason="linking for macOS and Windows needs the extra zig, 90 MB",
)


@pytest.mark.parametrize("name", TARGETS)
def test_symbols_of_objects(name: str) -> None:
    target = targets.get(name)
    image = compile_object(TEXT, target)
    found = read_symbols(image)
    assert (found.arch, found.needed) == (target.arch, ("theirs",))
    assert set(found.defined) == {"inner", "ours"}
    if image[:4] == macho.MAGIC:
        hidden = macho.with_exports(image, ["ours"])
        assert sum(a != b for a, b in zip(image, hidden, strict=True)) == 1
    for cut in (1, 30, len(image) // 2):
        with pytest.raises(Invalid):
            read_symbols(image[:cut])


def test_refusals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="macos has no code for armv7"):
        targets.get("armv7-macos")
    with pytest.raises(Invalid, match="there is no target 'z80-windows'"):
        targets.get("z80-windows")
    here = {"aarch64": "arm64-windows", "x86_64": "x86-64-windows"}[platform.machine()]
    with pytest.raises(Invalid, match=f"code for {here} runs on windows only"):
        targets.require_runnable(targets.get(here))
    odd = Level(MACOS.target(targets.get("arm64")), b"", False, 0)
    assert odd.features == {}
    for feature, system in (("sve", MACOS), ("dotprod", WINDOWS)):
        with pytest.raises(Unsupported, match=f"on {system.name} cannot find out whether its"):
            system.testable(odd.target, feature, "hwcap:22")
    monkeypatch.setattr(zig.importlib.util, "find_spec", lambda name: None)
    for name in TARGETS:
        with pytest.raises(MissingExtra, match="'zig' is not installed, and linking code for"):
            tw.export(torch.nn.Linear(2, 2), torch.ones(1, 2), path=tmp_path / "p", target=name)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Path]:
    torch.manual_seed(0)
    net, path = Net().eval(), tmp_path_factory.mktemp("systems") / "net.twp"
    dynamic = {"x": {0: BATCH}, "ids": None}
    tw.export(net, *inputs_of(5), path=path, target=TARGETS, dynamic=dynamic, weights="f16")
    return net, path


@needs_zig
@pytest.mark.slow
def test_what_files_say(package: tuple[Net, Path]) -> None:
    found = info(package[1], verify=True)
    assert not found.problems
    assert {x["architecture"] for x in found.manifest["levels"]} == set(MACHINES)
    for level in found.manifest["levels"]:
        code = found.libraries[level["file"]]
        pool = found.libraries[found.manifest["pool"][level["architecture"]]["file"]]
        arch, system = level["architecture"].split("-")
        assert (code.machine, pool.machine) == (arch, arch)
        # The linker of macOS adds names of its own to exports and imports.
        assert {x for x in code.exports if x.startswith("tw_")} == INTERFACE | {"tw_unpack"}
        assert {x for x in pool.exports if x.startswith("tw_")} == POOL
        assert "tw_parallel" in code.imports and level["pool"] is True
        assert set(code.imports) <= {"tw_parallel", "memcpy", "memset", "dyld_stub_binder"}
        assert not any("wx" in r for x in (code, pool) for r in x.rights)
        if system == "windows":
            assert "libtilewright_pool.dll" in code.needed
            assert set(code.needed) <= {"libtilewright_pool.dll", "ucrtbase.dll"}
            assert pool.needed == ("kernel32.dll",) and pool.name == "libtilewright_pool.dll"
            assert {*code.exports, *pool.exports} == INTERFACE | {"tw_unpack"} | POOL
        else:
            assert code.needed == pool.needed == ("/usr/lib/libSystem.B.dylib",)
            assert "pthread_create" in pool.imports
    for read, suffix in ((MACOS.read, ".dylib"), (WINDOWS.read, ".dll")):
        name = next(x for x in found.libraries if x.endswith(suffix))
        whole = zip_content(package[1], name)
        for cut in (1, 40, 300, len(whole) // 2):
            with pytest.raises(Invalid):
                read(whole[:cut], name)


def zip_content(path: Path, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)


def zig_cc(system: str, *words: str) -> None:
    """Compiles the portable program."""
    options = ["-target", system, f"-I{header_folder()}", str(HERE / "portable.c")]
    command = [sys.executable, "-m", "ziglang", *words, *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=header_folder())
    assert done.returncode == 0, done.stderr


@needs_zig
@pytest.mark.slow
@pytest.mark.parametrize("system", ["x86_64-windows-gnu", "aarch64-macos", "x86_64-macos"])
def test_the_header_compiles(system: str) -> None:
    zig_cc(system, "cc", "-std=c99", *STRICT, "-c", "-o", "portable.o")
    zig_cc(system, "c++", "-xc++", "-std=c++11", *STRICT, "-c", "-o", "portable.o")


@needs_zig
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("wine64") is None, reason="running Windows code here needs wine64")
def test_code_runs_in_wine(package: tuple[Net, Path], tmp_path: Path) -> None:
    """Wine runs programs of its own architecture. Some of its builds for Arm print wrong numbers,
    so the program has functions of its own for that."""
    net, path = package
    program, own = header_folder() / "portable.exe", "-D__USE_MINGW_ANSI_STDIO=1"
    zig_cc(f"{platform.machine()}-windows-gnu", "cc", "-O1", own, "-o", str(program))
    given = inputs_of(64)
    files = written([x.numpy() for x in given], tmp_path)
    command = ["wine64", str(program), str(path), str(tmp_path / "out"), "2", *files]
    quiet = {**os.environ, "WINEDEBUG": "-all"}
    done = subprocess.run(command, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1] == "2" and "no such package cannot be read" in done.stdout
    raw = np.fromfile(tmp_path / "out", np.float32)
    with torch.no_grad():
        right = net(*given)
    for x, y in zip((raw[: 8 * 64], raw[8 * 64 :]), (right["y"], right["z"]), strict=True):
        np.testing.assert_allclose(x, y.flatten(), atol=2e-3)  # weights are rounded


@needs_zig
@pytest.mark.slow
def test_code_of_macos_computes(tmp_path: Path) -> None:
    """Its pool and its functions, with this system's in the place of macOS' own."""
    torch.manual_seed(0)
    net, given = Net().eval(), inputs_of(64)
    name = {"aarch64": "arm64-macos", "x86_64": "x86-64-macos"}[platform.machine()]
    made = tw.export(net, *given, path=tmp_path / "p", target=name, layout="safetensors")
    (entry,) = made.manifest["pool"].values()
    pool = MachO((tmp_path / "p" / entry["file"]).read_bytes(), {})
    code = MachO(made.levels[0].code, {"tw_parallel": pool.address("tw_parallel")})
    pool.function("tw_pool_reset", None)()
    pool.function("tw_pool_resize", None, ctypes.c_int64)(2)
    stored = np.fromfile(tmp_path / "p" / made.manifest["weights"]["file"], np.uint8)
    weights = aligned(stored.nbytes)
    weights[:] = stored
    dims = (ctypes.c_int64 * 1)()
    bytes_ = code.function("tw_workspace", ctypes.c_int64, ctypes.c_void_p)(dims)
    inputs = [x.numpy() for x in given]
    outputs = [np.zeros((64, 8), np.float32), np.zeros((2, 8), np.float32)]
    tables = [(ctypes.c_void_p * 2)(*(x.ctypes.data for x in xs)) for xs in (inputs, outputs)]
    work = aligned(bytes_)
    run = code.function("tw_run", ctypes.c_int32, *[ctypes.c_void_p] * 5)
    for _ in range(20):
        assert run(weights.ctypes.data, *tables, dims, work.ctypes.data) == 0
    assert pool.function("tw_pool_workers", ctypes.c_int64)() == 1
    pool.function("tw_pool_resize", None, ctypes.c_int64)(1)  # its threads end before its code
    judge(net, given, outputs)


def aligned(size: int) -> np.ndarray:
    whole = np.zeros(size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]
