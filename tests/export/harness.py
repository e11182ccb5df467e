"""Packages in tests: the C header as a library that ctypes calls, and as part of a C program."""

from __future__ import annotations

import copy
import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from tilewright.bench.oracle import disagreements, in_double
from tilewright.driver.export.api import c_header

HERE = Path(__file__).parent
DTYPES: list[str] = "f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool".split()
STRICT = ("-Wall", "-Wextra", "-pedantic", "-Werror", "-O1")


def compiler(name: str = "cc") -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@cache
def header_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="tilewright-tests-"))
    (folder / "tilewright.h").write_text(c_header())
    return folder


def built(source: Path, name: str, *options: str, by: str = "cc") -> Path:
    """A program or library of C that includes the header."""
    out = header_folder() / name
    if not out.exists():
        command = [compiler(by), *options, f"-I{header_folder()}", str(source), "-o", str(out)]
        done = subprocess.run([*command, "-ldl", "-pthread"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return out


@cache
def caller() -> Path:
    return built(HERE / "caller.c", "caller", "-std=c99", *STRICT)


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
    )


class _Description(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("sizes", ctypes.POINTER(ctypes.c_char_p)),
    )


@cache
def library() -> Any:
    """The header's functions in this process."""
    source = header_folder() / "library.c"
    source.write_text('#define TILEWRIGHT_IMPLEMENTATION\n#include "tilewright.h"\n')
    made = ctypes.CDLL(str(built(source, "library.so", "-std=c99", "-shared", "-fPIC", *STRICT)))
    made.tw_error_text.restype = made.tw_level.restype = ctypes.c_char_p
    for name in ("tw_inputs", "tw_outputs"):
        getattr(made, name).restype = ctypes.POINTER(_Description)
    return made


class Failed(Exception):
    """An error of the C side: its code and its sentence."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(library().tw_error_text().decode())


def _tensor(x: np.ndarray) -> _Tensor:
    name = {"b": "bool", "i": f"i{8 * x.itemsize}", "u": f"u{8 * x.itemsize}"}.get(
        x.dtype.kind, f"f{8 * x.itemsize}"
    )
    shape = (ctypes.c_int64 * max(1, x.ndim))(*x.shape)
    return _Tensor(x.ctypes.data, DTYPES.index(name) + 1, x.ndim, shape)


class Package:
    """A package that the header opened."""

    def __init__(self, path: Path, flags: int = 0) -> None:
        self.c, self.handle = library(), ctypes.c_void_p()
        if code := self.c.tw_open(str(path).encode(), flags, ctypes.byref(self.handle)):
            raise Failed(code)
        self.inputs, self.outputs = self._described("tw_inputs"), self._described("tw_outputs")
        self.level = self.c.tw_level(self.handle).decode()

    def _described(self, function: str) -> list[tuple[str, str, list[str]]]:
        count = ctypes.c_size_t()
        found = getattr(self.c, function)(self.handle, ctypes.byref(count))
        return [
            (
                x.name.decode(),
                DTYPES[x.dtype - 1],
                [x.sizes[k].decode() for k in range(x.rank)],
            )
            for x in found[: count.value]
        ]

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        given = [np.ascontiguousarray(x) for x in arrays]
        ins = (_Tensor * max(1, len(given)))(*map(_tensor, given))
        results = []
        for k, (_, dtype, sizes) in enumerate(self.outputs):
            shape = (ctypes.c_int64 * 16)()
            n = ctypes.c_size_t(len(given))
            if code := self.c.tw_output_shape(self.handle, ins, n, ctypes.c_size_t(k), shape):
                raise Failed(code)
            kind = {"f32": np.float32, "f16": np.float16, "i64": np.int64, "bool": np.bool_}[dtype]
            results.append(np.zeros(shape[: len(sizes)], kind))
        outs = (_Tensor * max(1, len(results)))(*map(_tensor, results))
        counts = ctypes.c_size_t(len(given)), ctypes.c_size_t(len(results))
        if code := self.c.tw_run(self.handle, ins, counts[0], outs, counts[1], None):
            raise Failed(code)
        return results

    def close(self) -> None:
        self.c.tw_close(self.handle)


def written(arrays: Sequence[np.ndarray], folder: Path) -> list[str]:
    """Inputs as files that the C program reads."""
    paths = []
    for k, x in enumerate(arrays):
        head = np.array([x.ndim, *x.shape], np.int64)
        paths.append(folder / f"input{k}")
        paths[-1].write_bytes(head.tobytes() + np.ascontiguousarray(x).tobytes())
    return list(map(str, paths))


def called(
    mode: str, package: Path, out: Path, count: int, *rest: str, by: Sequence[str] = ()
) -> str:
    """What the C program prints. `by`: another program and what runs it."""
    command = [*(by or [str(caller())]), mode, str(package), str(out), str(count), *rest]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout


def judge(
    model: torch.nn.Module, inputs: Sequence[torch.Tensor], got: Sequence[np.ndarray]
) -> None:
    """Errors against float64 are at most twice eager's plus four units in the last place of the
    largest value."""
    with torch.no_grad():
        eager = _tensors(model(*inputs))
        right = _tensors(in_double(lambda m, *x: m(*x), *_widened(model, inputs)))
    wrong = disagreements([torch.from_numpy(x) for x in got], eager, right)
    assert not wrong, "\n".join(wrong)


def _tensors(results: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(results) if isinstance(x, torch.Tensor)]


def _widened(model: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
    return copy.deepcopy(model).double(), *inputs
