"""The systems that code is linked for. Targets are for Linux, which needs no tool; `NAME-macos` and
`NAME-windows` are the same processors with another system, for packages only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.target import Target
from tilewright.link import zig
from tilewright.link.elf import PROCESS, shared_object
from tilewright.link.macho import read_dylib
from tilewright.link.pe import read_dll
from tilewright.link.shared import Shared, read_shared

Link = Callable[[Target, Sequence[bytes], Sequence[str], str, Sequence[str]], bytes]


@dataclass(frozen=True)
class System:
    """`link` makes a library: of a target, objects, what it exports, its name, and what it may take
    from outside; `read` says what one holds. `open` are functions that code may leave open beside
    those of the C library. `words` are kinds of tests for features that programs can make there;
    `always` are features that every such machine has."""

    name: str
    mark: str  # in triples
    suffix: str  # of libraries
    pool: str  # what the thread pool's library is called in the files that take functions of it
    link: Link
    read: Callable[[bytes, str], Shared]
    architectures: tuple[str, ...] = ()
    open: frozenset[str] = frozenset()
    words: tuple[str, ...] = ("cpuid", "xcr0")
    always: frozenset[str] = frozenset()

    def machine(self, target: Target) -> str:
        """The architecture as packages call it: by the system too, where that is not Linux."""
        return target.arch if self is LINUX else f"{target.arch}-{self.name}"

    def testable(self, target: Target, feature: str, test: str | None) -> str | None:
        """How a program finds out about a feature; None where it need not."""
        if test is None or feature in self.always:
            return None
        if any(word.split(":")[0] not in self.words for word in test.split()):
            raise Unsupported(
                f"{target.name} needs {feature}, and a program on {self.name} cannot find out "
                "whether its processor has it",
                hint="export for a target with fewer features",
            )
        return test

    def require_linker(self) -> None:
        """An error that says what to install, where code cannot be linked for this system."""
        if self is not LINUX:
            zig.require_zig(f"linking code for {self.name}")

    def target(self, preset: Target) -> Target:
        """A processor with this system."""
        if preset.arch not in self.architectures:
            known = ", ".join(self.architectures)
            raise Invalid(f"{self.name} has no code for {preset.arch}", hint=f"it runs on {known}")
        triple = f"{preset.arch}-{self.mark}"
        return replace(preset, name=f"{preset.name}-{self.name}", triple=triple)


def _elf(
    target: Target, images: Sequence[bytes], exports: Sequence[str], name: str, taken: Sequence[str]
) -> bytes:
    return shared_object(images, exports, name=name, needs={PROCESS: list(taken)})


def _macho(
    target: Target, images: Sequence[bytes], exports: Sequence[str], name: str, taken: Sequence[str]
) -> bytes:
    return zig.dylib(images, exports, name, f"{target.arch}-macos.11.0")


def _pe(
    target: Target, images: Sequence[bytes], exports: Sequence[str], name: str, taken: Sequence[str]
) -> bytes:
    takes: dict[str, list[str]] = {}
    for x in taken:
        if x not in WINDOWS.open:  # which ziglang's linker gets with the objects
            takes.setdefault(_HOLDERS.get(x, "kernel32.dll"), []).append(x)
    return zig.dll(images, exports, name, target.arch, takes)


# Libraries of Windows by function; others are of kernel32.dll.
_POOL = "libtilewright_pool.dll"
_HOLDERS = dict.fromkeys(("malloc", "free", "memcpy", "memmove", "memset"), "ucrtbase.dll")
_HOLDERS["tw_parallel"] = _POOL

LINUX = System(
    "linux",
    "linux",
    "so",
    "libtilewright_pool.so.1",
    _elf,
    read_shared,
    words=("cpuid", "xcr0", "hwcap", "hwcap2"),
)
MACOS = System(
    "macos",
    "apple-macosx11.0.0",
    "dylib",
    "libtilewright_pool.dylib",
    _macho,
    read_dylib,
    ("aarch64", "x86_64"),
    open=frozenset({"bzero"}),
    always=frozenset({"fp-armv8", "neon"}),
)
WINDOWS = System(
    "windows",
    "pc-windows-gnu",
    "dll",
    _POOL,
    _pe,
    read_dll,
    ("aarch64", "x86_64"),
    open=frozenset({"___chkstk_ms", "__chkstk"}),
    always=frozenset({"fp-armv8", "neon"}),
)
OTHERS = (MACOS, WINDOWS)


def system_of(target: Target) -> System:
    """Linux, where a triple says nothing else."""
    return next((s for s in OTHERS if target.triple.endswith(s.mark)), LINUX)
