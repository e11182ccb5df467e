"""Levels of packages for WebAssembly: small modules that run in wasmtime, and share weights."""

from __future__ import annotations

import json
import platform
import struct
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.targets.foreign import WasmModule
from tests.web.nets import drawn, export_mixed, mixed
from tilewright.driver.export.api import export
from tilewright.driver.export.info import info
from tilewright.driver.export.manifest import checksum
from tilewright.driver.export.web import TARGETS as TARGETS_OF_PAGES
from tilewright.targets.wasm import FAMILY

TARGETS = ("wasm32", "wasm32-relaxed-threads")
DTYPES = {"f32": np.dtype("float32"), "i64": np.dtype("int64")}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("web") / "mixed"
    export_mixed(str(path), TARGETS)
    return path


def manifest_of(package: Path) -> dict[str, Any]:
    return json.loads((package / "manifest.json").read_text())


def run(
    package: Path, target: str, inputs: list[np.ndarray], dims: list[int], threads: int
) -> list[np.ndarray]:
    """The outputs of a package in wasmtime, by its interface."""
    manifest = manifest_of(package)
    level = next(x for x in manifest["levels"] if x["target"] == target)
    m = WasmModule((package / level["file"]).read_bytes(), threads)
    weights = m.written((package / "weights.bin").read_bytes())
    at = m.written(struct.pack(f"<{len(dims)}q", *dims))
    tensors = [*manifest["inputs"], *manifest["outputs"]]
    count = sum(len(x["shape"]) for x in tensors)
    extents = m.block(8 * count)
    m("tw_shapes", at, extents)
    numbers = list(struct.unpack(f"<{count}q", m.read(extents, 8 * count)))
    shapes = [[numbers.pop(0) for _ in x["shape"]] for x in tensors]
    kinds = [DTYPES[x["dtype"]] for x in tensors]
    sizes = [prod(shape) * kind.itemsize for shape, kind in zip(shapes, kinds)]
    places = [m.written(x.tobytes()) for x in inputs]
    places += [m.block(size) for size in sizes[len(inputs) :]]
    tables = [places[: len(inputs)], places[len(inputs) :]]
    given, made = (m.written(struct.pack(f"<{len(t)}I", *t)) for t in tables)
    for _ in range(2):
        assert m("tw_run", weights, given, made, at, m.block(m("tw_workspace", at))) == 0
    m.close()
    found = []
    for k in range(len(inputs), len(tensors)):
        found.append(np.frombuffer(m.read(places[k], sizes[k]), kinds[k]).reshape(shapes[k]))
    return found


@pytest.mark.parametrize(("target", "threads"), [(TARGETS[0], 1), (TARGETS[1], 2)])
def test_a_package_runs_in_wasmtime(package: Path, target: str, threads: int) -> None:
    pytest.importorskip("wasmtime")
    for rows in (1, 5, 64):
        x, kind = drawn(rows)
        found = run(package, target, [x.numpy(), kind.numpy()], [rows], threads)
        with torch.no_grad():
            right = mixed().double()(x.double(), kind)
        for got, name in zip(found, ("y", "hidden")):
            np.testing.assert_allclose(got, right[name], rtol=1e-5, atol=1e-5)


def test_levels_are_small_and_share_weights(package: Path) -> None:
    manifest = manifest_of(package)
    assert [x["target"] for x in manifest["levels"]] == list(reversed(TARGETS))  # the best is first
    for x in manifest["levels"]:
        code = (package / x["file"]).read_bytes()
        assert x["bytes"] == len(code) <= 100_000
        assert x["blake2b"] == checksum(code)
        assert x["file"] == f"code/{x['target']}.wasm" and not x["pool"]
        assert set(x["features"]) <= {"simd128", "relaxed-simd", "atomics", "engine.vectors32"}
    assert not any(info(package, verify=True).problems)
    modules = info(package).modules
    assert modules["code/wasm32.wasm"].imports == ()
    threads = modules["code/wasm32-relaxed-threads.wasm"]
    assert threads.imports == ("env.memory",) and "tw_worker" in threads.exports
    assert not manifest["pool"] and not (package / "include").exists()
    once = sum(p.numel() * 4 for p in mixed().parameters())
    assert manifest["weights"]["bytes"] < 1.5 * once


def test_levels_for_arm_come_first_and_read_the_same_weights(tmp_path: Path) -> None:
    """They differ in rows of tiles, and weights are packed in columns."""
    sizes = []
    for n, targets in enumerate((("wasm32", "wasm32-relaxed"), TARGETS_OF_PAGES)):
        path = tmp_path / str(n)
        export_mixed(str(path), targets)
        sizes.append(manifest_of(path)["weights"]["bytes"])
    assert sizes[0] == sizes[1]
    names = [x["target"] for x in manifest_of(path)["levels"]]
    assert len(names) == 8
    for name in names:
        if not name.endswith("-arm"):
            assert names.index(f"{name}-arm") < names.index(name)


def test_a_module_tells_processors_apart() -> None:
    """As engines of this machine run it."""
    wasmtime = pytest.importorskip("wasmtime")
    kind, _, code = FAMILY.tests["engine.vectors32"].partition(":")
    assert kind == "run"
    store = wasmtime.Store()
    module = wasmtime.Module(store.engine, bytes.fromhex(code))
    (function,) = wasmtime.Instance(store, module, []).exports(store).values()
    arm = platform.machine() in ("aarch64", "arm64")
    assert bool(function(store)) == arm


def test_one_tensor_as_two_examples(tmp_path: Path) -> None:
    """Torch's own capture would read one input for both."""

    class Difference(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x - 2 * y

    x = torch.arange(6.0)
    export(Difference(), x, x, path=tmp_path / "p", target="wasm32")
    found = run(tmp_path / "p", "wasm32", [x.numpy(), np.ones(6, np.float32)], [], 1)
    np.testing.assert_allclose(found[0], x.numpy() - 2)
