"""What the stores of a block of threads read, and their atomic operations, for the executor in
kernel/simt.py: every load is checked and watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Load, loads
from tilewright.ir.interpret import Evaluator
from tilewright.ir.types import DType, as_dtype
from tilewright.kernel.fragments import LANES, PLACES, WARP
from tilewright.kernel.interpret import Env, RunError, _atomically
from tilewright.kernel.nest import Atomic, Loop, Store
from tilewright.kernel.regions import Everything, Region


class Block(Protocol):
    """What owns the memory and records reads."""

    memory: dict[str, np.ndarray]
    private: dict[str, np.ndarray]

    @property
    def sizes(self) -> dict[str, int]: ...

    def region(self, name: str) -> Region | Everything | None:
        """Memory whose places are not those of an array."""
        ...

    def cells(
        self, name: str, index: list[np.ndarray], who: np.ndarray, mask: Any, what: str
    ) -> np.ndarray: ...

    def finished(
        self, stage: str, name: str, what: str, who: np.ndarray, cells: np.ndarray
    ) -> None: ...

    def touch(
        self,
        stage: str,
        name: str,
        what: str,
        cells: np.ndarray,
        who: np.ndarray,
        harmless: np.ndarray | None = None,
    ) -> None: ...

    def thread(self, t: Any, short: bool = False) -> str: ...


def spread(x: Any, shape: tuple[int, ...]) -> np.ndarray:
    """One for each point. Most are so already, which numpy is slow to see."""
    if not isinstance(x, np.ndarray):
        return np.full(shape, x)
    return x if x.shape == shape else np.broadcast_to(x, shape)


class Reader(Evaluator):
    """Evaluates what a store reads at its points; every load is checked and watched."""

    def __init__(self, block: Block, stage: str, env: Env, who: np.ndarray) -> None:
        super().__init__(block.memory, block.sizes, env)
        self.block, self.stage, self.who = block, stage, who

    def _load(self, v: Load) -> np.ndarray:
        name, block = str(v.source), self.block
        if name not in block.memory:
            raise RunError(f"{self.stage}: {v!r} reads memory that is not allocated")
        index = [np.asarray(self.dim(i)) for i in v.index]
        who = self.reader(v)
        # An instruction of a warp has points along several axes, and reads once along the others.
        shape = np.broadcast_shapes(who.shape, np.shape(self.mask), *(x.shape for x in index))
        index = [spread(x, shape).reshape(-1) for x in index]
        who, mask = (spread(x, shape).reshape(-1) for x in (who, self.mask))
        return self._read(v, name, index, who, mask).reshape(shape)

    def reader(self, v: Load) -> np.ndarray:
        """Which thread reads, at each point."""
        return self.who

    def _read(
        self, v: Load, name: str, index: list[np.ndarray], who: np.ndarray, mask: np.ndarray
    ) -> np.ndarray:
        block, a = self.block, self.block.memory[name]
        cells = block.cells(name, index, who, mask, f"{self.stage}: {v!r} reads")
        region = block.region(name)
        if region is not None:
            return region.get(np.where(mask, cells, -1))
        if a.size == 0:
            return np.zeros(who.shape, a.dtype)
        if name in block.private:
            written = block.private[name]
            fresh = np.flatnonzero(~written[who, cells] & mask)
            lost = fresh[written[:, cells[fresh]].any(axis=0)]
            if lost.size:
                k = lost[0]
                other = int(np.flatnonzero(written[:, cells[k]])[0])
                raise RunError(
                    f"{self.stage}: {block.thread(who[k])} reads {v!r} of its own, "
                    f"private {name}, which {block.thread(other, short=True)} wrote"
                )
            block.finished(self.stage, name, repr(v), who, cells)
            return a.reshape(-1)[who * written.shape[1] + cells]
        block.touch(self.stage, name, repr(v), cells[mask], who[mask])
        return a.reshape(-1)[cells]


class Owned(Reader):
    """Reads what an instruction of whole warps reads: of a fragment, each element in the memory of
    the thread that has it. Arrays have an axis for the warps and one for each loop: a value is
    computed once along those that it does not depend on."""

    def __init__(
        self,
        block: Block,
        stage: str,
        env: Env,
        first: np.ndarray,
        owners: Mapping[str, tuple[tuple[int, str], ...]],
        chain: Sequence[Loop],
    ) -> None:
        """For the first thread of each warp: who it is, and its `env`."""
        self.box = len(first), *(int(D.evaluate(x.extent, {})) for x in chain)
        each = (-1, *[1] * len(chain))
        env = {k: v.reshape(each) if np.ndim(v) else v for k, v in env.items()}
        for k, x in enumerate(chain, 1):
            env[x.name] = np.arange(self.box[k]).reshape(-1, *[1] * (len(chain) - k))
        super().__init__(block, stage, env, first.reshape(each))
        self.owners = owners

    def owner(self, name: str, index: tuple[Dim, ...]) -> np.ndarray:
        """The thread that has an element of a fragment."""
        at = dict(self.owners[name])
        out = self.who
        places = {axis: self.dim(index[k]) for k, axis in at.items()}
        for axis, stride in zip(PLACES, (1, WARP["thread.x"], LANES), strict=True):
            out = out + places.get(axis, 0) * stride
        return out

    def reader(self, v: Load) -> np.ndarray:
        name = str(v.source)
        return self.owner(name, v.index) if name in self.owners else self.who

    def written(self, s: Store, once: bool) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
        """Who writes, at which indices, and what: for each place one value after the other, as
        loops of a sum have them, if `once`; or else all values are apart."""
        v = np.broadcast_to(self(s.value), self.box)
        places = [self.owner(s.buffer, s.index), *(np.asarray(self.dim(i)) for i in s.index)]
        shape = np.broadcast_shapes(*(x.shape for x in places)) if once else self.box
        who, *index = (np.broadcast_to(x, shape).reshape(-1) for x in places)
        again = [k for k, n in enumerate(shape) if n < self.box[k]]
        values = np.moveaxis(v, again, range(len(again))).reshape(-1, len(who))
        return who, index, values

    def points(self, s: Store) -> tuple[Env, np.ndarray]:
        """All points one after the other, and the thread whose element each reads."""
        (read,) = loads(s.value)
        wide = lambda x: np.broadcast_to(x, self.box).reshape(-1)  # noqa: E731
        env = {k: wide(x) if np.ndim(x) else x for k, x in self.env.items()}
        return env, wide(self.reader(read))


def nested(s: Loop) -> list[Loop]:
    """The loops of an instruction."""
    chain = [s]
    while isinstance(inner := chain[-1].body[0], Loop):
        chain.append(inner)
    return chain


def atomically(block: Block, s: Atomic, dtype: DType, env: Env, who: np.ndarray) -> np.ndarray:
    """One thread after the other; atomics on one cell do not race. The cells of all of them."""
    n = len(who)
    ev = Reader(block, s.stage, env, who)
    value = np.broadcast_to(as_dtype(ev(s.value), dtype), (n,))
    compare = None
    if s.compare is not None:
        compare = np.broadcast_to(as_dtype(ev(s.compare), dtype), (n,))
    index = [np.broadcast_to(ev.dim(i), (n,)) for i in s.index]
    cells = block.cells(s.buffer, index, who, True, f"{s.stage}: {s.buffer} is changed")
    flat = block.memory[s.buffer].reshape(-1)
    old = np.zeros(n, dtype.numpy)
    for k, cell in enumerate(cells):
        old[k] = flat[cell]
        expected = None if compare is None else compare[k]
        flat[cell] = as_dtype(
            np.asarray(_atomically(s.kind, dtype, old[k], value[k], expected)), dtype
        )
    if s.result is not None:
        name, at = s.result
        places = [np.broadcast_to(ev.dim(i), (n,)) for i in at]
        into = block.cells(name, places, who, True, f"{s.stage}: {name} is written")
        if name in block.private:
            block.private[name][who, into] = True
            into = who * block.private[name].shape[1] + into
        else:
            what = f"{name}[{','.join(map(str, at))}]"
            block.touch(s.stage, name, what, into, who, np.zeros(n, np.bool_))
        block.memory[name].reshape(-1)[into] = old
    return cells
