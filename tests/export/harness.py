"""Packages in tests: the C header as a library that ctypes calls, and as part of a C program."""

from __future__ import annotations

import copy
import ctypes
import math
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_leaves

from tilewright.bench.oracle import disagreements, in_double
from tilewright.driver.export.api import c_header

HERE = Path(__file__).parent
DTYPES: list[str] = list("f64 f32 f16 bf16 i64 i32 i16 i8 u64 u32 u16 u8 bool".split())
WARNED = ("-Wall", "-Wextra", "-pedantic", "-Werror")
STRICT = (*WARNED, "-O1")
# Of an implementation that was looked at with STRICT, which sees more of what values may be.
QUICK = (*WARNED, "-O0")


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
    source.write_text(
        """#define TILEWRIGHT_IMPLEMENTATION
#include "tilewright.h"
int test_blake2b(const void *data, size_t size, const char *digits);
int test_blake2b(const void *data, size_t size, const char *digits) {
  return tw__sum_is((const unsigned char *)data, size, digits);
}
int test_blake2bp(const void *data, size_t size, const char *digits, int vectors); /* -1: none */
int test_blake2bp(const void *data, size_t size, const char *digits, int vectors) {
#if defined(__x86_64__)
  tw__answers answers;
  answers.count = 0;
  if (vectors && !tw__has(&answers, TW__VECTOR_TEST)) return -1;
#else
  if (vectors) return -1;
#endif
  return tw__lanes_are((const unsigned char *)data, size, digits, vectors);
}
"""
    )
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
        extents = (ctypes.c_int64 * max(1, sum(x.ndim for x in results)))()
        run = self.c.tw_run_shapes
        if code := run(self.handle, ins, counts[0], outs, counts[1], None, extents):
            raise Failed(code)
        left = iter(extents)
        shapes = [tuple(islice(left, x.ndim)) for x in results]
        return [x.flat[: math.prod(s)].reshape(s) for x, s in zip(results, shapes)]

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


def results(path: Path) -> list[np.ndarray]:
    """What the C program wrote."""
    raw, at, found = path.read_bytes(), 0, []
    while at < len(raw):
        dtype, rank = np.frombuffer(raw, np.int64, 2, at)
        shape = np.frombuffer(raw, np.int64, rank, at + 16)
        name = DTYPES[dtype - 1]
        kind = np.dtype("bool" if name == "bool" else f"{name[0]}{int(name[1:]) // 8}")
        a = np.frombuffer(raw, kind, math.prod(shape), at + 16 + 8 * rank).reshape(shape)
        found.append(a.copy())
        at += 16 + 8 * int(rank) + a.nbytes
    return found


def require_only_libc(maps: str, package: Path) -> None:
    """Of a process that shows its mapped files: the program, the package and the C library."""
    mapped = {line.split(maxsplit=5)[5] for line in maps.splitlines() if len(line.split()) > 5}
    names = {Path(x.removesuffix(" (deleted)")).name for x in mapped if not x.startswith("[")}
    system = ("ld-", "libc.", "libdl.", "libpthread.", "caller")
    other = {n for n in names if not n.startswith(system)}
    assert "memfd:tilewright" in other and other <= {"memfd:tilewright", package.name}, names


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
    judge_together(model, [inputs], [got])


def judge_together(
    model: torch.nn.Module,
    draws: Sequence[Sequence[torch.Tensor]],
    got: Sequence[Sequence[np.ndarray]],
) -> None:
    """Errors against float64 are at most twice eager's plus four units in the last place of the
    largest value. A small model may give few numbers, whose errors are luck: several draws of its
    inputs are judged together."""
    with torch.no_grad():
        eager = [_tensors(model(*x)) for x in draws]
        wide = copy.deepcopy(model).double()
        right = [_tensors(in_double(lambda m, *x: m(*x), wide, *x)) for x in draws]
    for a, b in zip(got, eager, strict=True):
        assert [x.shape for x in a] == [tuple(x.shape) for x in b]
    ours = [[torch.from_numpy(x) for x in some] for some in got]
    wrong = disagreements(*(map(_joined, (ours, eager, right))))
    assert not wrong, "\n".join(wrong)


def _joined(draws: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return [torch.cat([x.flatten() for x in some]) for some in zip(*draws, strict=True)]


def _tensors(results: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(results) if isinstance(x, torch.Tensor)]
