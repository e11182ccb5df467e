"""Modules that a library imports and that are not installed, so that the rest of it can be used.

A stand-in satisfies imports: its attributes are stand-ins too, they can be subclassed, used as
decorators and called while a module is being imported. Any later call is refused by name. An
import inside `try: … except ImportError` is left alone, because the library has its own answer.

Operators of extensions in C (`torch.ops.NAME.…`) are stood in for in the same way.

A *bare* package is one whose `__init__.py` is not run: its modules are found in its folder. It
serves large packages whose kernels need nothing of what the package starts up with.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from abc import ABCMeta
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, ClassVar

_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class NotHere(RuntimeError):
    """A stand-in was used, not only imported."""


class StandInType(ABCMeta):
    """Classes that stand in for anything: attributes and items of them do so too."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        made = stand_in(f"{cls.__module__}.{cls.__qualname__}.{name}")
        setattr(cls, name, made)
        return made

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if not cls.__dict__.get("_stands_in"):
            return super().__call__(*args, **kwargs)  # a subclass that the library wrote
        name = f"{cls.__module__}.{cls.__qualname__}"
        if not _importing():
            raise NotHere(f"{name} is not installed: only its import is satisfied")
        # A decorator gives back what it is put on.
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return stand_in(name)

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return Any

    __ror__ = __or__

    def __bool__(cls) -> bool:
        return False

    def _compared(cls, other: Any) -> bool:
        """Versions and counts that libraries compare while they are imported: no."""
        return False

    __lt__ = __le__ = __gt__ = __ge__ = _compared

    def __iter__(cls) -> Any:
        return iter(())


class StandIn(metaclass=StandInType):
    """What libraries derive their classes from, with whatever they say on the way.

    A class that a library derives and gives fields, but no `__init__`, is a record: it takes them
    by position or by name, as classes of msgspec, attrs and pydantic do."""

    __struct_fields__: ClassVar[tuple[str, ...]] = ()  # what msgspec calls them

    def __init_subclass__(cls, **_: Any) -> None:
        fields = [name for base in reversed(cls.__mro__[:-1]) for name in _fields(base)]
        cls.__struct_fields__ = tuple(name for name in fields if not name.startswith("__"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = {**dict(zip(self.__struct_fields__, args, strict=False)), **kwargs}
        for name, value in given.items():
            setattr(self, name, value)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()


def _fields(cls: type) -> list[str]:
    return list(inspect.get_annotations(cls))


def stand_in(name: str) -> Any:
    """A class that stands in for whatever has this name."""
    module, _, last = name.rpartition(".")
    return StandInType(last, (StandIn,), {"__module__": module, "_stands_in": True})


def _special(name: str) -> bool:
    """Names that Python and pytest look for in every module."""
    return name.startswith(("__", "pytest", "setup_module", "setUpModule"))


class StandInModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name == "__version__":
            return "0.0.0"
        if _special(name):
            raise AttributeError(name)
        made = stand_in(f"{self.__name__}.{name}")
        setattr(self, name, made)
        return made


class _StandInLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandInModule(spec.name, "A stand-in: this module is not installed.")

    def exec_module(self, module: ModuleType) -> None:
        pass


class BareModule(ModuleType):
    """What `__init__.py` would have defined is stood in for; modules in the folder are not."""

    def __getattr__(self, name: str) -> Any:
        if _special(name):
            raise AttributeError(name)
        for folder in self.__path__:
            if (Path(folder) / name).is_dir() or (Path(folder) / f"{name}.py").is_file():
                raise AttributeError(name)
        return stand_in(f"{self.__name__}.{name}")


class _BareLoader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return BareModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class BareFinder(MetaPathFinder):
    """PackedAs first: packages of a checkout whose `__init__.py` is not run, and modules that are
    there and cannot be imported without a GPU."""

    def __init__(self, bare: Sequence[str], absent: Sequence[str], roots: Sequence[Path]) -> None:
        self.bare = frozenset(bare)
        self.absent = frozenset(absent)
        self.roots = roots

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname in self.absent:
            return _stand_in_spec(fullname)
        if fullname not in self.bare:
            return None
        for root in self.roots:
            folder = root.joinpath(*fullname.split("."))
            if folder.is_dir():
                spec = ModuleSpec(fullname, _BareLoader(), is_package=True)
                spec.submodule_search_locations = [str(folder)]
                return spec
        return None


class MissingFinder(MetaPathFinder):
    """PackedAs last: stand-ins for what files of a checkout, or of ours, import and is nowhere."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = [str(root) for root in roots]
        self.made: set[str] = set()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        parent = fullname.rpartition(".")[0]
        if not isinstance(sys.modules.get(parent), StandInModule):
            importer = _importer()
            if importer is None or not importer.f_code.co_filename.startswith(tuple(self.roots)):
                return None
            if _guarded(importer.f_code.co_filename, importer.f_lineno):
                return None
        self.made.add(fullname)
        return _stand_in_spec(fullname)


def _stand_in_spec(fullname: str) -> ModuleSpec:
    spec = ModuleSpec(fullname, _StandInLoader(), is_package=True)
    spec.submodule_search_locations = []
    return spec


def install(bare: Sequence[str], absent: Sequence[str], roots: Sequence[Path]) -> MissingFinder:
    """From now on both kinds are found; `roots` are the folders whose imports are satisfied."""
    missing = MissingFinder(roots)
    sys.meta_path.insert(0, BareFinder(bare, absent, roots))
    sys.meta_path.append(missing)
    return missing


def install_operators(roots: Sequence[Path]) -> None:
    """Operators that no extension registered: libraries ask some while they are imported."""
    from torch._ops import _OpNamespace

    found = _OpNamespace.__getattr__

    def get(namespace: Any, name: str) -> Any:
        try:
            return found(namespace, name)
        except AttributeError:
            frame = sys._getframe(1)
            file, line = frame.f_code.co_filename, frame.f_lineno
            theirs = file.startswith(tuple(str(root) for root in roots))
            # Whoever asks whether there is such an operator gets the true answer.
            if not theirs or "attr(" in linecache.getline(file, line):
                raise
            return stand_in(f"torch.ops.{namespace.name}.{name}")

    setattr(_OpNamespace, "__getattr__", get)  # noqa: B010  # its parameters have other names


def _importer() -> FrameType | None:
    """The frame with the import statement; None if someone asks without importing."""
    frame = sys._getframe(2)
    inside = False
    while frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        inside = inside or frame.f_code.co_name == "_find_and_load"
        frame = frame.f_back
    return frame if inside else None


def _importing() -> bool:
    """Is a module being imported, by whoever called?"""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "pytest_runtest_call":
            return False
        if code.co_filename.startswith("<frozen importlib") and code.co_name == "exec_module":
            return True
        if code.co_name == "exec_module" and "_pytest" in code.co_filename:
            return True
        frame = frame.f_back
    return False


@cache
def _guarded_lines(file: str) -> list[tuple[int, int]]:
    """The bodies of `try` that catch a failing import."""
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError):
        return []
    return [
        (node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and any(_catches(handler) for handler in node.handlers)
    ]


def _catches(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    named = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(ast.unparse(n).rpartition(".")[2] in _IMPORT_ERRORS for n in named)


def _guarded(file: str, line: int) -> bool:
    return any(first <= line <= last for first, last in _guarded_lines(file))
