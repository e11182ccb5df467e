"""Objects → callable addresses: loading compiled code into this process."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm

from tilewright.base.errors import Invalid, TilewrightError, require
from tilewright.base.machine import registers_on_request
from tilewright.llvm.objects import host_cpu

from .elf import read_symbols

# Where code may find what it calls, in this order: the process, then two companions of the C
# library that an interpreter linked statically would not have loaded.
_RUNTIME_LIBRARIES = (None, "libm.so.6", "libgcc_s.so.1")

# A function of ctypes' numbers and addresses.
Function = Callable[..., Any]


class Library:
    """Compiled objects, linked with each other and loaded; `close` or the last reference unloads.

    `symbols` are addresses the objects may refer to; what is not among them is looked for in the
    process. Each library has a loader of its own: names never clash between libraries, and all
    memory goes back when it closes.
    """

    def __init__(self, objects: Sequence[bytes], symbols: Mapping[str, int] | None = None):
        registers_on_request()  # a process that only loads code has not looked at its machine
        exported, needed = _link_names(objects)
        imports = {name: _resolve(name, symbols or {}) for name in needed}
        builder = llvm.JITLibraryBuilder()
        for image in objects:
            builder.add_object_img(image)
        for name, address in imports.items():
            builder.import_symbol(name, address)
        for name in exported:
            builder.export_symbol(name)
        # JITLink puts all sections of an object next to each other, as the small code model needs.
        loader = llvm.create_lljit_compiler(use_jit_link=True, suppress_errors=True)
        try:
            loaded = builder.link(loader, "code")
        except RuntimeError as problem:
            loader.close()
            raise TilewrightError(f"compiled code could not be loaded: {problem}") from None
        self._addresses = {name: loaded[name] for name in exported}
        self._lock = threading.Lock()
        self._release = weakref.finalize(self, _unload, loaded, loader)
        # At exit other threads may still be running the code; the process frees it anyway.
        self._release.atexit = False  # type: ignore  (in Python's documentation, not in its types)

    @property
    def names(self) -> tuple[str, ...]:
        """The symbols this library defines."""
        return tuple(self._addresses)

    @property
    def closed(self) -> bool:
        return not self._release.alive

    def address(self, name: str) -> int:
        """The address of a symbol defined by one of the objects."""
        require(not self.closed, f"{name} was looked up in a library that is closed")
        try:
            return self._addresses[name]
        except KeyError:
            raise TilewrightError(
                f"the compiled code defines no symbol {name!r}",
                hint=f"it defines {', '.join(self._addresses) or 'nothing'}",
            ) from None

    def function(
        self, name: str, *arguments: Any, result: Any = None, holds_lock: bool = False
    ) -> Function:
        """A symbol as a function of these ctypes; the code stays loaded as long as it exists.

        `holds_lock`: the code looks into Python objects, so other threads of Python wait."""
        kind = ctypes.PYFUNCTYPE if holds_lock else ctypes.CFUNCTYPE
        made: Any = kind(result, *arguments)(self.address(name))
        made.library = self
        return made

    def close(self) -> None:
        """Unload the code; every address becomes invalid."""
        with self._lock:
            self._release()


def _unload(loaded, loader) -> None:
    loaded.close()
    loader.close()


def _link_names(objects: Sequence[bytes]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(defined, needed from outside), once the objects are seen to fit each other and the host."""
    arch = host_cpu().triple.split("-")[0]
    defined: dict[str, int] = {}
    needed: dict[str, None] = {}
    for position, image in enumerate(objects):
        found = read_symbols(image)
        require(
            found.arch == arch,
            f"an object compiled for {found.arch} cannot be loaded on {arch}",
            hint="compile for this machine, or load it where it belongs",
        )
        for name in found.defined:
            if name in defined:
                raise Invalid(
                    f"symbol {name!r} is defined by object {defined[name]} and by object {position}"
                )
            defined[name] = position
        needed.update(dict.fromkeys(found.needed))
    return tuple(defined), tuple(name for name in needed if name not in defined)


def _resolve(name: str, symbols: Mapping[str, int]) -> int:
    if name in symbols:
        return symbols[name]
    for path in _RUNTIME_LIBRARIES:
        found = _find(path, name)
        if found is not None:
            return found
    raise TilewrightError(
        f"the compiled code needs {name!r}, which neither the program nor this process provides",
        hint="pass its address in symbols=",
    )


@cache
def _find(path: str | None, name: str) -> int | None:
    try:
        function = getattr(ctypes.CDLL(path), name)
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value
