"""Runs programs for other machines than this one: modules of WebAssembly by wasmtime, others, which
ziglang links with a C library, by qemu-user.

Where one of these is not installed, `runner` skips the test.
"""

import ctypes
import importlib
import importlib.util
import math
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.link.wasm import module
from tilewright.llvm.objects import compile_object
from tilewright.runtime.pool_ir import SERIAL_POOL, pool_ir
from tilewright.runtime.program_data import ProgramData
from tilewright.targets import family_of

# The system that ziglang links for, and the emulator with the processor it emulates.
SYSTEMS = {
    "aarch64": ("aarch64-linux-musl", ("qemu-aarch64",)),
    "armv7": ("arm-linux-musleabihf", ("qemu-arm", "-cpu", "cortex-a15")),
    "riscv64": ("riscv64-linux-musl", ("qemu-riscv64", "-cpu", "rv64,v=true,vlen=128")),
    "x86_64": ("x86_64-linux-musl", ("qemu-x86_64", "-cpu", "max")),
}

MAIN = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
void ENTRY(void **, void **, int64_t *, void *);
void tw_pool_reset(void);
void tw_pool_resize(int64_t);
static void *block(int64_t size) { return aligned_alloc(64, (size + 127) / 64 * 64); }
int main(int argc, char **argv) {
  int64_t head[5], k;
  FILE *f = fopen(argv[1], "rb");
  if (argc != 3 || !f || fread(head, 8, 5, f) != 5) return 2;
  int64_t n_in = head[0], n_out = head[1], n_dims = head[2];
  int64_t *sizes = block(8 * (n_in + n_out)), *dims = block(8 * n_dims);
  void **in = block(8 * n_in), **out = block(8 * n_out), *arena = block(head[3]);
  fread(sizes, 8, n_in + n_out, f);
  fread(dims, 8, n_dims, f);
  for (k = 0; k < n_in; k++) {
    in[k] = block(sizes[k]);
    if (fread(in[k], 1, sizes[k], f) != sizes[k]) return 3;
  }
  for (k = 0; k < n_out; k++) out[k] = block(sizes[n_in + k]);
  tw_pool_reset();
  tw_pool_resize(head[4]);
  ENTRY(in, out, dims, arena);
  ENTRY(in, out, dims, arena);
  tw_pool_resize(1);
  FILE *g = fopen(argv[2], "wb");
  for (k = 0; k < n_out; k++) fwrite(out[k], 1, sizes[n_in + k], g);
  return fclose(g);
}
"""

Run = Callable[[ProgramData, Sequence[np.ndarray], Sequence[int]], list[np.ndarray]]


def runner(target: Target, folder: Path, threads: int = 1) -> Run:
    """What runs programs for a target, in files of this folder."""
    if target.arch == "wasm32":
        if importlib.util.find_spec("wasmtime") is None:
            pytest.skip("wasmtime is not installed")
        return lambda data, inputs, dims: _in_wasmtime(data, inputs, dims, threads)
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is not installed, which links programs for other machines")
    if shutil.which(SYSTEMS[target.arch][1][0]) is None:
        pytest.skip(f"{SYSTEMS[target.arch][1][0]} is not installed")
    return lambda data, inputs, dims: _in_qemu(data, inputs, dims, folder, threads)


def _zig(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ziglang", *arguments], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def _written(images: Sequence[bytes], folder: Path) -> list[str]:
    paths = [folder / f"{k}.o" for k in range(len(images))]
    for path, image in zip(paths, images, strict=True):
        path.write_bytes(image)
    return list(map(str, paths))


def _shapes(data: ProgramData, dims: Sequence[int]) -> list[list[int]]:
    known = dict(zip(data.dims, dims, strict=True))
    return [[int(D.evaluate(n, known)) for n in t.shape] for t in data.outputs]


def _sizes(data: ProgramData, dims: Sequence[int]) -> tuple[list[int], int]:
    """Bytes of the outputs, and of the arena."""
    pairs = zip(_shapes(data, dims), data.outputs, strict=True)
    sizes = [math.prod(shape) * t.dtype.bytes for shape, t in pairs]
    return sizes, data.arena_size(dict(zip(data.dims, dims, strict=True)))


def _memory(data: ProgramData, inputs: Sequence[np.ndarray]) -> list[bytes]:
    """What the entry's first table points to: inputs, then constants."""
    return [
        np.ascontiguousarray(x).tobytes() for x in (*inputs, *(c.array for c in data.constants))
    ]


def _outputs(data: ProgramData, dims: Sequence[int], raw: Sequence[bytes]) -> list[np.ndarray]:
    shapes = _shapes(data, dims)
    return [
        np.frombuffer(x, t.dtype.memory).reshape(shape)
        for x, t, shape in zip(raw, data.outputs, shapes, strict=True)
    ]


@cache
def _main_object(system: str, entry: str, folder: Path) -> str:
    source, path = folder / "main.c", folder / f"main.{system}.o"
    source.write_text(MAIN.replace("ENTRY", entry))
    _zig("cc", "-target", system, "-O1", "-w", "-c", str(source), "-o", str(path))
    return str(path)


def _in_qemu(
    data: ProgramData, inputs: Sequence[np.ndarray], dims: Sequence[int], folder: Path, threads: int
) -> list[np.ndarray]:
    target = data.target
    system, emulator = SYSTEMS[target.arch]
    pool = SERIAL_POOL if threads == 1 else pool_ir(target.arch, target.pointer_bits)
    files = _written([*data.images, compile_object(pool, target)], folder)
    binary, given, made = (folder / name for name in ("program", "given", "made"))
    main = _main_object(system, data.entry, folder)
    _zig("cc", "-target", system, "-static", main, *files, "-o", str(binary))
    sizes, arena = _sizes(data, dims)
    memory = _memory(data, inputs)
    head = [len(memory), len(sizes), len(dims), arena, threads]
    numbers = [*head, *map(len, memory), *sizes, *dims]
    given.write_bytes(struct.pack(f"<{len(numbers)}q", *numbers) + b"".join(memory))
    done = subprocess.run([*emulator, str(binary), str(given), str(made)], capture_output=True)
    assert done.returncode == 0, f"{done.returncode} {done.stderr.decode()[-2000:]}"
    raw, found = made.read_bytes(), []
    for size in sizes:
        found.append(raw[:size])
        raw = raw[size:]
    return _outputs(data, dims, found)


def _shared_memory(w: Any, engine: Any, kind: Any) -> Any:
    """wasmtime's own class passes a pointer to the pointer that is wanted."""
    ffi: Any = importlib.import_module("wasmtime._ffi")

    class Shared(w.SharedMemory):
        def _as_extern(self) -> Any:
            union = ffi.wasmtime_extern_union(sharedmemory=self.ptr())
            return ffi.wasmtime_extern_t(ffi.WASMTIME_EXTERN_SHAREDMEMORY, union)

    return Shared(engine, kind)


class WasmModule:
    """A module in wasmtime: what it exports, and its memory. With threads, each has an instance of
    its own, and workers run in the pool until `close`."""

    def __init__(self, code: bytes, threads: int = 1) -> None:
        w: Any = importlib.import_module("wasmtime")
        config = w.Config()
        config.wasm_relaxed_simd = True
        config.wasm_threads = config.shared_memory = True
        self.engine = w.Engine(config)
        self.module = w.Module(self.engine, code)
        wanted = list(self.module.imports)
        assert len(wanted) <= 1, "a module needs nothing but memory"
        self.store = w.Store(self.engine)
        given = []
        if wanted:
            limits = w.Limits(wanted[0].type.limits.min, 4096)
            self.memory = _shared_memory(w, self.engine, w.MemoryType(limits, shared=True))
            given = [self.memory]
        self.exports = w.Instance(self.store, self.module, given).exports(self.store)
        self.workers: list[threading.Thread] = []
        if not wanted:
            self.memory = self.exports["memory"]
            return
        self("__wasm_init_memory")
        self("tw_pool_resize", threads)
        for k in range(1, threads):
            stack = self.block(1 << 20) + (1 << 20)
            self.workers.append(threading.Thread(target=self._work, args=(w, k, stack)))
            self.workers[-1].start()

    def _work(self, w: Any, number: int, stack: int) -> None:
        store = w.Store(self.engine)
        exports = w.Instance(store, self.module, [self.memory]).exports(store)
        exports["__stack_pointer"].set_value(store, stack)
        exports["tw_worker"](store, number)

    def __call__(self, name: str, *arguments: int) -> Any:
        return self.exports[name](self.store, *arguments)

    def block(self, size: int) -> int:
        """New memory, behind what there is."""
        pages = size // 65536 + 1
        shared = bool(self.workers) or "memory" not in self.exports
        return 65536 * (self.memory.grow(pages) if shared else self.memory.grow(self.store, pages))

    def whole(self) -> Any:
        """All memory, as it is now."""
        if "memory" in self.exports:
            return self.memory.get_buffer_ptr(self.store)
        kind = ctypes.c_ubyte * self.memory.data_len()
        return kind.from_address(ctypes.addressof(self.memory.data_ptr().contents))

    def written(self, raw: bytes) -> int:
        at = self.block(len(raw))
        self.whole()[at : at + len(raw)] = raw
        return at

    def read(self, at: int, size: int) -> bytes:
        return bytes(self.whole()[at : at + size])

    def close(self) -> None:
        if self.workers:
            self("tw_pool_resize", 1)
        for worker in self.workers:
            worker.join()


def _in_wasmtime(
    data: ProgramData, inputs: Sequence[np.ndarray], dims: Sequence[int], threads: int
) -> list[np.ndarray]:
    target = data.target
    objects = [*data.images, compile_object(family_of(target).pool(target), target)]
    shared = target.has("atomics")
    exports = [data.entry, *(["tw_worker", "tw_pool_resize"] if shared else [])]
    m = WasmModule(module(objects, exports, memory_pages=65536, shared=shared), threads)
    sizes, arena = _sizes(data, dims)

    def table(places: Sequence[int]) -> int:
        return m.written(struct.pack(f"<{len(places)}I", *places))

    outs = [m.block(size) for size in sizes]
    arguments = (table([m.written(x) for x in _memory(data, inputs)]), table(outs))
    size_table = m.written(struct.pack(f"<{len(dims)}q", *dims))
    for _ in range(2):
        m(data.entry, *arguments, size_table, m.block(arena))
    m.close()
    return _outputs(data, dims, [m.read(p, n) for p, n in zip(outs, sizes, strict=True)])
