"""A nest as a native function on numpy arrays, with canaries around what it writes, and a way to
see that it touches nothing else: memory that ends (or begins) at a page which may not be touched
(beside.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tests.kernel.beside import Argument, Call, fatal_side
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.ir.types import DType, from_memory, to_memory
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.runtime.nests import NestKernel
from tilewright.targets import default

# Bytes before and after each output that no kernel may touch.
MARGIN = 1024
CANARY = 0xA5


def _as_declared(a: np.ndarray, b: Buffer) -> np.ndarray:
    return a if b.packed_as is None else b.packed_as.map.pack(a)


class Native:
    """A compiled nest; call it like the interpreter's `run`."""

    def __init__(self, nest: Nest, target: Target | None = None) -> None:
        target = target or default()
        self.nest = nest
        self.text = emit(legalise(nest, target), target)
        self.code = compile_object(self.text, target)
        self.kernel = NestKernel(nest, target, code=self.code)

    def __call__(
        self, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None
    ) -> dict[str, np.ndarray]:
        sizes = dict(dims or {})
        references: list[np.ndarray] = []
        addresses: list[int] = []
        outs: dict[str, tuple[np.ndarray, np.ndarray, DType]] = {}
        for b in self.nest.buffers:
            if b.scope == "in":
                references.append(to_memory(_as_declared(arrays[b.name], b), b.dtype))
                addresses.append(references[-1].ctypes.data)
            elif b.scope == "out":
                shape = tuple(int(D.evaluate(d, sizes)) for d in b.shape)
                item = b.dtype.memory
                size = int(np.prod(shape)) * item.itemsize
                raw = np.full(size + 2 * MARGIN, CANARY, np.uint8)
                view = raw[MARGIN : MARGIN + size].view(item).reshape(shape)
                if b.name in arrays:
                    view[...] = to_memory(arrays[b.name], b.dtype)
                outs[b.name] = raw, view, b.dtype
                addresses.append(view.ctypes.data)
        self.call(addresses, sizes)
        for name, (raw, _, _) in outs.items():
            edges = np.concatenate([raw[:MARGIN], raw[len(raw) - MARGIN :]])
            assert (edges == CANARY).all(), f"native code writes outside {name}"
        return {name: from_memory(view, d) for name, (_, view, d) in outs.items()}

    def call(self, addresses: Sequence[int], sizes: Mapping[str, int]) -> None:
        self.kernel(addresses, self.kernel.sizes(sizes))

    def strays(
        self, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None
    ) -> str | None:
        """What becomes of a process in which touching memory outside the arguments is fatal."""
        sizes = dict(dims or {})
        memory = [self._argument(b, arrays, sizes) for b in self.arguments]
        call = Call(self.code, self.kernel.name, memory, self.kernel.sizes(sizes))
        side = fatal_side(call)
        return None if side is None else f"native code touches memory {side} of an argument"

    @property
    def arguments(self) -> list[Buffer]:
        return self.kernel.arguments

    def _argument(
        self, b: Buffer, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]
    ) -> Argument:
        shape = tuple(int(D.evaluate(d, sizes)) for d in b.shape)
        given = arrays.get(b.name)
        data = b"" if given is None else to_memory(_as_declared(given, b), b.dtype).tobytes()
        return Argument(int(np.prod(shape)) * b.dtype.bytes, data)
