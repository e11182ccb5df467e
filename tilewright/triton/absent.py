"""Modules of Triton that control a GPU's hardware: their names can be imported, so that files that
also have other kernels can be imported; using one is an error that says why."""

from __future__ import annotations

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from tilewright.base.errors import Unsupported

_GLUON = "Gluon places tiles in a GPU's registers and memories by hand, and a CPU has none of them"
_TOOL = "it is a tool for a GPU's descriptors and binaries, and a CPU has none of them"
ABSENT = {
    "triton.experimental.gluon": _GLUON,
    "triton.experimental.gsan": "it instruments a GPU's memory",
    "triton.tools.experimental_descriptor": _TOOL,
    "triton.tools.disasm": _TOOL,
    "triton.tools.link": _TOOL,
    "triton.tools.mxfp": "it is a helper of Triton's own tests",
    "triton.ops.blocksparse": "Triton no longer has it either",
    "triton.ops.flash_attention": "Triton no longer has it either",
    "triton.runtime.build": "kernels here are made without a C compiler",
}


class Name:
    """Something in such a module. It may decorate, be called while modules are imported, stand in
    annotations and be a base class; launching it, or computing with it, is refused."""

    path: str
    why: str

    def __init__(self, path: str, why: str) -> None:
        self.path, self.why = path, why

    def __call__(self, *args: Any, **kwargs: Any) -> Name:
        decorated = getattr(args[0], "__name__", None) if len(args) == 1 else None
        return Name(self.path if decorated is None else f"{decorated} ({self.path})", self.why)

    def __getattr__(self, name: str) -> Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(f"{self.path}.{name}", self.why)

    def __mro_entries__(self, bases: Any) -> tuple[Any, ...]:
        return ()

    def __repr__(self) -> str:
        return self.path

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise Unsupported(
            f"{self.path} cannot be used: {self.why}",
            hint="the same kernel in Triton's own language runs here",
        )

    __getitem__ = __setitem__ = __bool__ = __len__ = __iter__ = __int__ = __index__ = _refuse
    __add__ = __radd__ = __sub__ = __mul__ = __rmul__ = __enter__ = __float__ = _refuse


class Module(ModuleType):
    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.why = why

    def __getattr__(self, name: str) -> Name:
        if name.startswith("__"):
            raise AttributeError(name)
        return Name(f"{self.__name__}.{name}", self.why)


class _Loader(Loader):
    def __init__(self, why: str) -> None:
        self.why = why

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Module(spec.name, self.why)

    def exec_module(self, module: ModuleType) -> None:
        pass


class Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        for name, why in ABSENT.items():
            if fullname == name or fullname.startswith(name + "."):
                return ModuleSpec(fullname, _Loader(why), origin="tilewright", is_package=True)
        return None


_finder = Finder()


def attach() -> None:
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def detach() -> None:
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
