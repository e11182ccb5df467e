"""What a program for a GPU is made of, as data: the kernels of its groups, and the order in which
they are launched. Both are stored as the images of a `ProgramData`, in place of objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tilewright.ir.dim import Dim
from tilewright.kernel.library import LibraryCall
from tilewright.llvm.entry import Branch, Loop, Slot
from tilewright.llvm.launch import Launch
from tilewright.llvm.tasks import Kind
from tilewright.runtime.container import packed, unpacked
from tilewright.runtime.records import read_record, write_record

T = TypeVar("T")


@dataclass(frozen=True)
class Scratch:
    """Memory that the launches of one kernel pass on to each other; bytes. Counters are zero before
    and after every launch."""

    name: str
    size: Dim
    counter: bool = False


@dataclass(frozen=True)
class TaskParts:
    """A kernel as functions that a block of another one calls: LLVM text, and a function for each
    launch; or why it cannot be that."""

    text: bytes = b""
    launches: tuple[Launch, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class KernelImage:
    """The code of a group: calls of libraries, its launches in order, the names of its arguments
    (inputs, then outputs), the sizes that it takes, and those that every launch takes after its
    buffers."""

    launches: tuple[Launch, ...]
    arguments: tuple[str, ...]
    scratch: tuple[Scratch, ...]
    sizes: tuple[str, ...]
    dims: tuple[str, ...]
    ptx: bytes
    calls: tuple[LibraryCall, ...] = ()  # that come before the launches
    tasks: TaskParts | None = None
    cubin: bytes = b""  # the PTX assembled; nothing where that is left to the driver


@dataclass(frozen=True)
class Size:
    """A size that a kernel takes: the program's symbol of that name, or a number."""

    name: str = ""
    value: int = 0


@dataclass(frozen=True)
class Work:
    """A kernel over slots, the last `written` of which it fills; `sizes` in the order of the
    kernel's own names (`KernelImage.sizes`), `room` in bytes of the slots, where it is known."""

    symbol: str
    args: tuple[Slot, ...]
    sizes: tuple[Size, ...]
    room: tuple[Dim, ...] = ()
    written: int = 0


@dataclass(frozen=True)
class Steps:
    """A program, or a branch or a body of one: what it does in order."""

    symbol: str
    actions: tuple[Work | Branch | Loop, ...]
    dims: tuple[str, ...]


@dataclass(frozen=True)
class TasksImage:
    """All kernels of a program as one (llvm/tasks.py); kinds are numbered in their order."""

    threads: int
    shared: int
    words: int
    kinds: tuple[Kind, ...]
    ptx: bytes


@dataclass(frozen=True)
class EntryImage:
    """All entries; the last one is the program's own. `tasks` is the same as one kernel, `refused`
    why there is none."""

    entries: tuple[Steps, ...]
    tasks: TasksImage | None = None
    refused: str = ""


def to_bytes(kind: type[T], value: T) -> bytes:
    made = write_record(kind, value)
    return b"".join(packed(made.head, made.blobs))


def from_bytes(kind: type[T], data: bytes) -> T:
    return read_record(kind, *unpacked(data))
