"""What differs between machines in the code of a nest's statements.

The body of a kernel (llvm/body.py) is the same for all machines: loops, values, memory. How it is
launched, who runs bound and parallel loops, where buffers lie and what threads wait for differs:
llvm/emit.py says that for processors, llvm/grid.py for GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tilewright.kernel.intrinsic import Operand
from tilewright.kernel.nest import Fence, Loop, Report, Stmt, Store, While


@dataclass(frozen=True)
class Traits:
    """Facts about a machine's instructions."""

    keeping: str = ""  # how functions are called that leave most vector registers alone
    steps_apart: bool = False  # addresses may be opaque to LLVM: see llvm/opaque.py
    counts: bool = False  # quotients of loops' variables are counted: llvm/counters.py
    short: bool = False  # integers of 32 bits take less time than of 64, division much less
    early: bool = False  # addresses behind pointers are computed before conditions
    scope: str = ""  # the scope of atomics: all threads by default
    barriers: bool = False  # there are threads that wait for one another
    prefetches: bool = True  # lines of memory are prefetched
    masked_bytes: int = 0  # of the smallest elements that instructions leave out by a mask; 0: none
    aligned_vector: int = 0  # bytes of a vector that is read as a whole at multiples of them alone


class Machine(Protocol):
    """How one function is run. Statements that a machine cannot run are refused with a reason."""

    def before(self, s: Stmt) -> None:
        """Whatever has to be done before a statement."""

    def allocate(self, name: str) -> None:
        """Memory for a buffer, from here to the end of the enclosing body."""

    def release(self, names: list[str]) -> None:
        """The end of such buffers."""

    def parallel(self, s: Loop) -> None:
        """A parallel loop inside the function."""

    def bound(self, s: Loop) -> None:
        """A loop over the blocks of a grid or the threads of a block."""

    def synchronise(self, s: Fence) -> None:
        """Threads wait for one another, or for copies."""

    def copy(self, s: Store) -> bool:
        """Writes an asynchronous store as a copy in the background; False: it is a plain one."""
        ...

    def tile(self, s: Loop) -> bool:
        """Writes an instruction as a copy of the copy engine's; False: it is a call."""
        ...

    def fragment(self, x: Operand) -> str:
        """The address of a thread's part of an operand of an instruction of many threads."""
        ...

    def staged(self) -> str:
        """The shared memory of a warp that its instructions pass operands through."""
        ...

    def refuse(self, s: While | Report) -> None:
        """Raises if no other program can be waited for, or nothing can be reported."""
