"""Compiled programs run from shared objects: kernels in one, the thread pool in another."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.graph.build import arg, build, graph
from tests.link.machines import native
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.interpret import evaluate
from tilewright.link.elf import shared_object
from tilewright.link.object import LOCAL, read_object
from tilewright.runtime import native as native_code
from tilewright.runtime import pool

Loaded = list[tuple[str, tuple[str, ...]]]


class _SharedObjects:
    """Stands in for LLVM's loader: what it is given, linked into files and loaded by the system.
    The first is the pool, which those that follow need."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.loaded: Loaded = []

    def __call__(self, objects: Sequence[bytes], symbols: Mapping[str, int] | None = None) -> Any:
        read = [read_object(image, "an object") for image in objects]
        names = [s for o in read for s in o.symbols if s.name and s.binding != LOCAL]
        own = sorted({s.name for s in names if s.section is not None})
        outside = sorted({s.name for s in names if s.section is None} - set(own))
        given = [name for name in outside if name in (symbols or {})]
        libc = [name for name in outside if name not in given]
        name = f"linked-{os.getpid()}-{len(self.loaded)}.so"
        needs = {"libc.so.6": libc}
        if given:
            needs[self.loaded[0][0]] = given
        path = self.folder / name
        path.write_bytes(shared_object(objects, own, name=name, needs=needs))
        self.loaded.append((name, tuple(outside)))
        return _Opened(ctypes.CDLL(os.fspath(path)))


class _Opened:
    def __init__(self, library: ctypes.CDLL):
        self._library = library

    def address(self, name: str) -> int:
        found = ctypes.cast(self._library[name], ctypes.c_void_p).value
        assert found is not None
        return found

    def function(self, name: str, *arguments: Any, result: Any = None) -> Any:
        return ctypes.CFUNCTYPE(result, *arguments)(self.address(name))

    def close(self) -> None:
        pass


def test_a_program_runs_from_shared_objects(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    native()
    linked = _SharedObjects(tmp_path)
    monkeypatch.setattr(pool, "Library", linked)
    monkeypatch.setattr(native_code, "Library", linked)
    own_pool = pool._Pool()
    monkeypatch.setattr(pool, "_pools", {"pool": own_pool})
    try:
        own_pool.resize(4)
        g = graph(build.tanh(build.softmax(build.matmul(arg("x", 96, 200), arg("w", 200, 96)), 1)))
        rng = np.random.default_rng(0)
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((96, 200), (200, 96)))
        (expected,) = evaluate(g, (x, w))
        program = compile_graph(g)
        for _ in range(5):
            got = np.empty_like(expected)
            program.run([x.ctypes.data, w.ctypes.data], [got.ctypes.data])
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
        assert len(linked.loaded) > 1 and "pthread_create" in linked.loaded[0][1]
    finally:
        own_pool.resize(1)
