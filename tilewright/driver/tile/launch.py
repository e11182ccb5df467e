"""Launching kernels of the tile language: by which executor, over which grid.

An executor makes something launchable of a function whose arguments are described. `native`
translates and compiles; `interpret` runs the Python of the kernel step by step on numpy
(TILEWRIGHT_INTERPRET=1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from operator import index
from typing import Any, Protocol

from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.driver.tile.overlap import Key, Relation, aliasing
from tilewright.driver.tile.queries import KernelQueries
from tilewright.driver.tile.request import Request
from tilewright.lang.tile.lowering.state import Aliasing
from tilewright.lang.tile.stepping.eager import run_eager
from tilewright.lang.tile.text import kernel_text
from tilewright.targets import host

Grid = tuple[int, int, int]
MAX_PROGRAMS = 2**31 - 1
_COMPILER = "tilewright.driver.tile.tile_cache"


class Launchable(Protocol):
    """A kernel made for one specialisation."""

    # Run it over a grid. `values` are those of the kernel's arguments, in order; `given` are the
    # caller's own objects by parameter, for executors that need them.
    @property
    def launch(self) -> Callable[[Sequence[Any], Mapping[str, Any] | None, Grid], None]: ...

    # Arguments (stored to, read) that are taken for different memory.
    @property
    def pairs(self) -> Sequence[tuple[int, int]]: ...

    @property
    def stored(self) -> Sequence[int]: ...  # those that are stored to

    def forms(self) -> Mapping[str, Callable[[], str]]:
        """Texts of the kernel on its way, by name."""
        ...


class Executor(Protocol):
    name: str
    wants_given: bool  # does a launch need the caller's objects?

    def prepare(self, wanted: Request, log: Log) -> Launchable: ...


@dataclass
class _Native:
    wanted: Request
    compiled: Any

    def __post_init__(self) -> None:
        self.launch = self.compiled.launch
        self.pairs = self.compiled.binding.pairs
        self.stored = self.compiled.binding.stored

    def forms(self) -> Mapping[str, Callable[[], str]]:
        def form(name: str) -> str:
            return getattr(self.compiled.forms(), name)

        return {n: partial(form, n) for n in ("ttir", "nest", "trace", "llir", "asm")}


class NativeExecutor:
    name = "native"
    wants_given = False

    def prepare(self, wanted: Request, log: Log) -> Launchable:
        compiler = import_module(_COMPILER)
        return _Native(wanted, compiler.cached_tile(wanted, host(), log))


@dataclass
class _Interpreted:
    wanted: Request
    pairs: Sequence[tuple[int, int]] = ()
    stored: Sequence[int] = ()

    def launch(self, values: Sequence[Any], given: Mapping[str, Any] | None, grid: Grid) -> None:
        assert given is not None
        run_eager(self.wanted.function, grid, given, self.wanted.arguments)

    def forms(self) -> Mapping[str, Callable[[], str]]:
        return {"ttir": lambda: kernel_text(self.wanted.kernel())}


class InterpretExecutor:
    name = "interpret"
    wants_given = True

    def prepare(self, wanted: Request, log: Log) -> Launchable:
        return _Interpreted(wanted)


NATIVE, INTERPRET = NativeExecutor(), InterpretExecutor()


def executor() -> Executor:
    """The current executor; it is read at each launch."""
    return INTERPRET if knobs.interpret.get() or knobs.tile_check.get() else NATIVE


# ---- grids


def checked_grid(grid: Any, name: str) -> Grid:
    """One to three sizes as three; `Invalid` says what is wrong with them."""
    if isinstance(grid, int):
        grid = (grid,)
    try:
        sizes = [index(n) for n in grid]
    except TypeError:
        raise Invalid(
            f"{name} launched over the grid {grid!r}",
            hint="a grid is a tuple of one to three integers, or a function of the arguments that "
            "gives one; a quotient of sizes: tw.cdiv(n, BLOCK)",
        ) from None
    while len(sizes) > 3 and sizes[-1] == 1:
        sizes.pop()  # as Triton does, which reads three
    if not 1 <= len(sizes) <= 3:
        raise Invalid(
            f"{name} launched over a grid of {len(sizes)} axes",
            hint="a grid has one to three: fold the others into the last",
        )
    x, y, z = (*sizes, 1, 1)[:3]
    if x < 0 or y < 0 or z < 0:
        raise Invalid(
            f"{name} launched over a grid of {tuple(sizes)}", hint="sizes are not negative"
        )
    if x * y * z > MAX_PROGRAMS:
        raise Invalid(
            f"{name} launched over {x * y * z:,} programs",
            hint=f"a grid has at most {MAX_PROGRAMS:,}: let a program do more, with larger blocks "
            "or a loop",
        )
    return x, y, z


# Grids that were checked, as launches spell them.
GRIDS: dict[Any, Grid] = {}


def remember_grid(grid: Any, sizes: Grid) -> None:
    if len(GRIDS) > 4096:
        GRIDS.clear()
    GRIDS[grid] = sizes


# ---- what a launch gives back


class Texts(Mapping[str, str]):
    """Forms of a kernel by name, written on first use. Those of a GPU do not exist here: reading
    one is an error."""

    def __init__(self, makers: Mapping[str, Callable[[], str]]):
        self.makers = dict(makers)
        self.written: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        make = self.makers.get(name)
        if make is None:
            raise KeyError(f"{name}: kernels here have the forms {', '.join(self.makers)}")
        if name not in self.written:
            self.written[name] = make()
        return self.written[name]

    def __contains__(self, name: object) -> bool:  # without writing it
        return name in self.makers

    def __iter__(self) -> Iterator[str]:
        return iter(self.makers)

    def __len__(self) -> int:
        return len(self.makers)


@dataclass(eq=False)
class CompiledKernel(KernelQueries):
    """A kernel made for one kind of arguments: what a launch and `warmup` give back."""

    function: Any  # the JITFunction: knows how to launch
    name: str
    signature: Mapping[str, str]
    launchable: Launchable
    wants_given: bool  # does a launch need the caller's objects?
    pick: Callable[[Sequence[Any]], Sequence[Any]]  # the kernel's arguments of those of a launch
    options: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    # How arguments that matter to it lie in memory (None: each has its own), and what runs then.
    relation: Relation | None = None
    variants: dict[Key, CompiledKernel] = field(default_factory=dict)
    again: Callable[[Aliasing], CompiledKernel] | None = None  # the same kernel for such arguments
    gpu: int | None = None  # on which it runs
    remembers: bool = False  # may launches of it be remembered (calls.py)?

    def __post_init__(self) -> None:
        self.launch = self.launchable.launch

    def fitting(self, given: Sequence[Any], values: Sequence[Any]) -> CompiledKernel:
        """The kernel for arguments that lie in memory as these do."""
        key = self.relation(given, values) if self.relation is not None else None
        return self if key is None else self.variant(key)

    def variant(self, key: Key) -> CompiledKernel:
        found = self.variants.get(key)
        if found is None:
            assert self.again is not None
            made = self.again(aliasing(self.launchable.pairs, key))
            found = self.variants.setdefault(key, made)
        return found

    @cached_property
    def asm(self) -> Texts:
        return Texts(self.launchable.forms())

    def result(self) -> CompiledKernel:
        return self

    def __getitem__(self, grid: Any) -> Callable[..., CompiledKernel]:
        """Launch with all arguments in the order of the parameters. Constants may be left out, all
        together, as launchers that were written for older Tritons do."""
        launch = self.function[grid]

        def launched(*args: Any, **options: Any) -> CompiledKernel:
            return launch(*self._completed(args), **options)

        return launched

    def _completed(self, args: Sequence[Any]) -> Sequence[Any]:
        parameters = self.function.parameters
        varying = sum(not p.is_constexpr for p in parameters)
        if len(args) != varying or varying == len(parameters):
            return args
        rest = iter(args)
        return [self.constants[p.name] if p.is_constexpr else next(rest) for p in parameters]

    def __repr__(self) -> str:
        shown = ", ".join(f"{n}: {t}" for n, t in self.signature.items())
        return f"CompiledKernel({self.name}({shown}))"
