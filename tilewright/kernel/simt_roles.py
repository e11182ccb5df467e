"""The producer of a loop with roles (kernel/roles.py), for the executor in kernel/simt.py.

It runs as far ahead as the threads of the block let it, at once; what it has asked for arrives
when they wait for it, not before. So whatever an order of both could do wrong is done here: a
missing or late release is a producer that waits for ever, a missing or early one, or too many
versions, a copy to memory that is still read or to which another copy is on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from tilewright.ir import dim as D
from tilewright.kernel.copies import Copies, Copy
from tilewright.kernel.interpret import Env, RunError
from tilewright.kernel.nest import Acquire, Commit, Loop, Release, Stmt, Store, walk
from tilewright.kernel.races import Watch
from tilewright.kernel.text import line_text


class Block(Protocol):
    """What the producer needs to know of its block."""

    count: int  # of threads; the producer has the number after the last
    copies: Copies
    by_thread: dict[str, Watch]

    @property
    def sizes(self) -> dict[str, int]: ...

    def allocate(self, name: str) -> None: ...

    def bring(self, s: Loop, env: Env, by: int) -> None:
        """A copy of the copy engine, issued by one thread."""
        ...


class Producer:
    def __init__(self, block: Block, body: tuple[Stmt, ...], env: Env) -> None:
        self.block = block
        stores = (s for s, _ in walk(body) if isinstance(s, Store))
        self.buffers = list(dict.fromkeys(s.buffer for s in stores))
        for name in self.buffers:
            block.allocate(name)
        # Iterations whose copies are issued, waited for, and released.
        self.issued = self.waited = self.released = 0
        self._steps = self._run(body, env)
        self._needs: int | None = 0  # how many are released before it goes on
        self._advance()

    def _advance(self) -> None:
        while self._needs is not None and self.released >= self._needs:
            self._needs = next(self._steps, None)

    def _run(self, body: tuple[Stmt, ...], env: Env) -> Iterator[int]:
        for s in body:
            if isinstance(s, Acquire):
                yield self.issued - s.versions + 1
            elif isinstance(s, Commit):
                self.block.copies.commit(np.array([self.block.count]))
                self.issued += 1
            elif isinstance(s, Loop) and s.instruction:
                self.block.bring(s, env, self.block.count)
            elif isinstance(s, Loop):
                for k in range(int(D.evaluate(s.extent, {**self.block.sizes, **env}))):
                    yield from self._run(s.body, {**env, s.name: k})
            else:
                raise RunError(f"a producer cannot run {line_text(s)}")

    def wait(self) -> list[Copy]:
        """All threads wait for the copies of their next iteration, which arrive."""
        if self.issued <= self.waited:
            raise RunError(
                f"threads wait for copies {self.waited}, but those wait for iteration "
                f"{self.released} to be released: nothing goes on"
            )
        self.waited += 1
        out = self.block.copies.wait(np.array([self.block.count]), self.issued - self.waited)
        for x in out:
            self.block.by_thread[x.buffer].hand_over(x.cells)
        return out

    def release(self, s: Release) -> None:
        """What the threads have read until now may be written."""
        self.released = max(self.released, self.waited - s.pending)
        for name in self.buffers:
            self.block.by_thread[name].clear()
        self._advance()

    def end(self) -> None:
        if self._needs is not None:
            raise RunError(f"the producer still waits for iteration {self.released}: no release")
