"""Target zero behind the interface of a compiled program: memory in, definitions evaluated, memory
out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph
from tilewright.ir.types import TensorType, from_memory, to_memory
from tilewright.runtime.shared import Weight


class InterpretedProgram:
    """Runs a graph with numpy. Slow, and right by definition: what compiled programs are compared
    with.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._watched = 0
        self.weights: tuple[int, ...] = ()
        self.updated: tuple[tuple[int, int], ...] = ()
        self.spent: tuple[int, ...] = ()
        self.kept = tuple(range(len(graph.inputs)))
        self.inputs: tuple[TensorType, ...] = tuple(n.ttype for n in graph.inputs)
        self.outputs: tuple[TensorType, ...] = tuple(n.ttype for n in graph.outputs)
        self.dims: tuple[str, ...] = tuple(
            sorted({s.name for n in graph.nodes() for s in _symbols(n.type)})
        )

    def run(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        dims: Sequence[int] = (),
        weights: Sequence[Weight] | None = None,
    ) -> list[int] | None:
        sizes = dict(zip(self.dims, dims, strict=True))
        args = [_read(a, t, sizes) for a, t in zip(inputs, self.inputs, strict=True)]
        results = self.evaluated(args, sizes)
        filled = len(results) - self._watched
        for address, t, r in zip(outputs, self.outputs, results[:filled], strict=False):
            _write(address, t, r)
        found = [int(r) for r in results[filled:]]
        return found if found and found[0] else None

    def evaluated(self, args: list[np.ndarray], sizes: dict[str, int]) -> list[np.ndarray]:
        """The results for these inputs."""
        return evaluate(self.graph, args, sizes)

    def entry(self) -> None:
        """There is no code."""

    def check(self) -> list[int] | None:
        """Calls return what they find."""
        return None

    def watch(self, count: int) -> None:
        """The last `count` outputs are returned where the first of them is not 0."""
        self._watched = count

    def change(self, inputs: Sequence[int]) -> bool:
        return False

    def bind(
        self, addresses: Sequence[int], weights: Sequence[Weight] | None = None
    ) -> Sequence[int]:
        return addresses

    def run_bound(
        self,
        bound: Sequence[int],
        others: Sequence[int],
        outputs: Sequence[int],
        dims: Sequence[int] = (),
    ) -> list[int] | None:
        return self.run([*bound, *others], outputs, dims)

    @property
    def tells_later(self) -> bool:
        return False

    @property
    def derived(self) -> None:
        return None

    def refresh(self) -> None:
        """Nothing is derived from weights here: every run reads them."""


def _symbols(t: object) -> set[D.Sym]:
    items = (t,) if isinstance(t, TensorType) else getattr(t, "items", ())
    return {s for x in items for d in x.shape for s in D.symbols(d)}


def _memory(address: int, size: int, dtype: np.dtype) -> np.ndarray:
    raw = (ctypes.c_char * (size * dtype.itemsize)).from_address(address)
    return np.frombuffer(memoryview(raw), dtype=dtype)


def _read(address: int, t: TensorType, sizes: dict[str, int]) -> np.ndarray:
    shape = tuple(int(D.evaluate(d, sizes)) for d in t.shape)
    size = int(np.prod(shape, dtype=np.int64))
    if size == 0:
        return np.zeros(shape, t.dtype.numpy)
    return from_memory(_memory(address, size, t.dtype.memory), t.dtype).reshape(shape)


def _write(address: int, t: TensorType, value: np.ndarray) -> None:
    if value.size == 0:
        return
    _memory(address, value.size, t.dtype.memory)[:] = to_memory(value, t.dtype).reshape(-1)
