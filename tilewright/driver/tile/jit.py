"""`@tw.jit`: a function over tiles that can be launched over a grid, `f[grid](…)`.

What happens on a launch is what a user pays on each: one function, written for the signature and
compiled once, binds the arguments and makes the key of their specialisation; a dictionary has the
kernel. Everything else happens once per key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property, partial
from importlib import import_module
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, Generic, TypeVar, overload

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.base.events import Log
from tilewright.base.untraced import untraced
from tilewright.driver.tile.arguments import (
    BadArguments,
    TooWide,
    argument_of,
    constant_key,
    handlers_of,
    leaves,
)
from tilewright.driver.tile.calls import DEFAULTS as DEFAULTS
from tilewright.driver.tile.calls import IGNORED, Calls, Given, Missing, Tensors, calls
from tilewright.driver.tile.devices import GPU, gpu_of, of_options
from tilewright.driver.tile.launch import (
    NATIVE,
    CompiledKernel,
    Executor,
    checked_grid,
    executor,
    remember_grid,
)
from tilewright.driver.tile.overlap import relation
from tilewright.driver.tile.queries import FunctionQueries
from tilewright.driver.tile.request import Request
from tilewright.driver.tile.sizes import cdiv as cdiv
from tilewright.driver.tile.sizes import next_power_of_2 as next_power_of_2
from tilewright.driver.tile.wrappers import MockTensor as MockTensor
from tilewright.driver.tile.wrappers import TensorWrapper as TensorWrapper
from tilewright.driver.tile.wrappers import reinterpret as reinterpret
from tilewright.ir.types import DType
from tilewright.lang.tile.front.diagnostics import CompileError, beyond
from tilewright.lang.tile.front.functions import (
    Argument,
    ConstexprFunction,
    Parameter,
)
from tilewright.lang.tile.ir import Pointer
from tilewright.lang.tile.language.types import constexpr, dtype_of
from tilewright.lang.tile.lowering.state import APART, Aliasing

T = TypeVar("T")


class KernelInterface(Generic[T]):
    """What can be launched: it has `run`."""

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        raise NotImplementedError

    def warmup(self, *args: Any, grid: Any, **kwargs: Any) -> Any:
        """Make the kernel for such arguments without running it; a dtype stands for a tensor."""
        return self.run(*map(MockTensor.wrap_dtype, args), grid=grid, warmup=True, **kwargs)

    @untraced
    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self.run, grid=grid, warmup=False)


class JITFunction(FunctionQueries, KernelInterface[T]):
    """A kernel. `f[grid](*args, **kwargs)` runs it, once per program of the grid."""

    by: Executor | None = None  # the executor; None: the environment decides at each launch

    def __init__(
        self,
        fn: Callable[..., Any],
        version: Any = None,
        do_not_specialize: Iterable[int | str] | None = None,
        do_not_specialize_on_alignment: Iterable[int | str] | None = None,
        debug: bool | None = None,
        noinline: bool | None = None,
        repr: Callable[[Any], str] | None = None,
        launch_metadata: Callable[..., Any] | None = None,
    ):
        not_special = list(do_not_specialize or ())
        not_aligned = list(do_not_specialize_on_alignment or ())
        super().__init__(
            fn,
            noinline=bool(noinline),
            do_not_specialize=not_special,
            do_not_specialize_on_alignment=not_aligned,
        )
        self.do_not_specialize = not_special
        self.do_not_specialize_on_alignment = not_aligned
        self.version = version
        self.debug = debug
        self.launch_metadata = launch_metadata
        self.pre_run_hooks: list[Callable[..., Any]] = []
        self.log = Log()
        self.kernels: dict[Any, CompiledKernel] = {}
        self.again: dict[Any, Any] = {}  # launches on a GPU that are remembered (calls.py)
        self.quick_for: Tensors | None = None  # parameters that are tensors in these
        self._repr = repr
        self._lock = threading.RLock()
        self._making: dict[Any, threading.Lock] = {}

    # ---- attributes of Triton's functions that scripts read

    @property
    def params(self) -> tuple[Parameter, ...]:
        return self.parameters

    @property
    def arg_names(self) -> list[str]:
        return [p.name for p in self.parameters]

    @property
    def constexprs(self) -> list[int]:
        return [p.number for p in self.parameters if p.is_constexpr]

    @property
    def src(self) -> str:
        return self.source

    @property
    def cache_key(self) -> str:
        return self.hash()

    def repr(self, specialization: Any = None) -> str:
        return self.name if self._repr is None else self._repr(specialization)

    def add_pre_run_hook(self, hook: Callable[..., Any]) -> None:
        """Called before each launch with its arguments."""
        self.pre_run_hooks.append(hook)

    def replace_source(self, source: str) -> None:
        super().replace_source(source)
        self.kernels.clear()
        self.again.clear()
        self.quick_for = None
        self.__dict__.pop("_calls", None)

    _unsafe_update_src = replace_source

    # ---- launching

    @untraced
    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return partial(self._calls.launch, grid)

    @untraced
    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        if warmup:
            return self._prepared(*self._calls.gather(*args, **kwargs))[0]
        return self._calls.launch(grid, *args, **kwargs)

    @cached_property
    def _calls(self) -> Calls:
        return calls(self)

    def use_calls(self, made: Calls) -> None:
        """Launches from now on run these."""
        self._calls = made

    def _slowly(self, grid: Any, given: Given, rest: Given, options: dict[str, Any]) -> Any:
        """A launch with everything that is checked: of a kernel that is to be made, of arguments
        that are wrong, or where there are listeners."""
        for hook in self.pre_run_hooks:
            hook(**dict(zip(self.arg_names, given, strict=True)), **options)
        kernel, values = self._prepared(given, rest, options)
        return self._go(kernel, values, given, options, grid)

    def _go(
        self, kernel: CompiledKernel, values: Given, given: Given, options: Any, grid: Any
    ) -> CompiledKernel:
        if callable(grid):
            grid = grid({**dict(zip(self.arg_names, given, strict=True)), **options})
        sizes = checked_grid(grid, self.name)
        after_launch = [heard(kernel, given, options, sizes) for heard in DEFAULTS.listeners]
        if 0 not in sizes:
            if grid.__class__ is tuple:
                remember_grid(grid, sizes)
            objects = None
            if kernel.wants_given:
                objects = dict(zip(self.arg_names, given, strict=True))
            kernel.fitting(given, values).launch(kernel.pick(values), objects, sizes)
        for after in filter(None, after_launch):
            after()
        return kernel

    def _prepared(
        self, given: Given, rest: Given, options: Mapping[str, Any]
    ) -> tuple[CompiledKernel, Given]:
        """The kernel for these arguments, made if need be, and the values that a launch gives."""
        self._check_complete(given, rest, options)
        try:
            key, values = self._calls.bind(given)
            hash(key)
        except (TypeError, RuntimeError, TilewrightError) as problem:
            raise self._explained(given, problem) from None
        # As Triton has it: a launch overrules its kernel, and the process both.
        debug = bool(options.get("debug", self.debug) or DEFAULTS.debug)
        by = self.by or executor()
        try:
            gpu = gpu_of(self, given)
        except TilewrightError as problem:
            raise self._explained(given, problem) from None
        if gpu is not None and by is NATIVE:
            by, key = import_module(GPU).gpu_executor(gpu), of_options(key, options)
        # Launches look for the bare key: it is that of the usual case.
        full = (key, "debug", _sanitizes(options)) if debug else key
        if by is not NATIVE and gpu is None:
            full = (full, by.name)
        with self._lock:
            if self.changed_global():
                self._forget_changed()
            kernel = self.kernels.get(full)
            making = self._making.setdefault(full, threading.Lock())
        if kernel is None:  # others are made meanwhile
            with making:
                kernel = self.kernels.get(full)
                if kernel is None:
                    arguments, made_of = self._described(given), self.hash()
                    try:
                        kernel = self.compiled(arguments, options, debug, by=by)
                    except CompileError as error:
                        # The error shows the author's lines: a traceback through this package would
                        # be noise.
                        cause = beyond(error.__cause__, DEFAULTS.causes)
                        raise error.with_traceback(None) from cause
                    kernel.relation = relation(self, given, arguments, kernel.launchable)
                    kernel.gpu = gpu
                    kernel.remembers = gpu is not None
                    with self._lock:
                        # A global changed meanwhile: later launches must not find this kernel.
                        if self.hash() == made_of:
                            self.kernels[full] = kernel
        return kernel, values

    def _described(self, given: Given) -> dict[str, Argument]:
        arguments: dict[str, Argument] = {}
        for p, value in zip(self.parameters, given, strict=True):
            if p.is_constexpr:
                plain = value.value if isinstance(value, constexpr) else value
                arguments[p.name] = Argument.constant(plain)
                continue
            try:
                arguments[p.name] = argument_of(handlers_of(p)[value.__class__](value)[0])
            except TilewrightError as problem:
                raise self._explained(given, problem) from None
        return arguments

    def compiled(
        self,
        arguments: Mapping[str, Argument],
        options: Mapping[str, Any],
        debug: bool,
        aliasing: Aliasing = APART,
        by: Executor | None = None,
    ) -> CompiledKernel:
        """The kernel for arguments that are described, without a launch."""
        self.hash()  # notes which globals the kernel depends on
        chosen = by or self.by or executor()
        runtime = [arguments[p.name] for p in self.parameters if not p.is_constexpr]
        constants = {n: a.value for n, a in arguments.items() if _is_constant(a)}
        signature = {n: _signature(a) for n, a in arguments.items()}
        wanted = Request(self, arguments, debug, _sanitizes(options), aliasing)
        if chosen.name.startswith("cuda:"):
            warps, stages = import_module(GPU).warps_of(options)
            wanted = replace(wanted, warps=warps, stages=stages)
        about = SimpleNamespace(fn=self, signature=signature, constants=constants)
        return CompiledKernel(
            function=self,
            name=self.repr(about),
            signature=signature,
            launchable=chosen.prepare(wanted, self.log),
            wants_given=chosen.wants_given,
            pick=_picker(runtime),
            options=dict(options),
            constants=constants,
            again=partial(self.compiled, arguments, options, debug, by=chosen),
        )

    def _forget_changed(self) -> None:
        changed = self.changed_global()
        assert changed is not None
        name, before, now = changed
        self.log.add(
            "recompile",
            f"{self.name} is made again: the global {name} was {before!r} and is {now!r}",
            where=f"{self.file}:{self.line}",
        )
        self._hash = None
        self.kernels.clear()
        self.again.clear()
        self._making.clear()

    # ---- what can be wrong with a launch

    def _check_complete(self, given: Given, rest: Given, options: Mapping[str, Any]) -> None:
        where = f"{self.file}:{self.line}"
        known = ", ".join(self.arg_names)
        unknown = [n for n in options if n not in IGNORED and n != "debug"]
        missing = [p for p, v in zip(self.parameters, given, strict=True) if v.__class__ is Missing]
        if unknown:
            names = [p.name for p in missing] or [*self.arg_names, *IGNORED]
            close = get_close_matches(unknown[0], names, 1)
            raise UnknownOption(
                f"{self.name} has no parameter {unknown[0]}, and launches have no such option",
                where=where,
                hint=f"did you mean {close[0]}?" if close else f"its parameters are {known}",
            )
        if missing:
            p = missing[0]
            as_what = "constant " if p.is_constexpr else ""
            raise BadArguments(
                f"{self.name} is launched without the {as_what}{p.name}",
                where=where,
                hint=f"give it by name: {self.name}[grid](…, {p.name}=…)",
            )
        if rest:
            raise BadArguments(
                f"{self.name} is launched with {len(given) + len(rest)} arguments and takes "
                f"{len(given)}",
                where=where,
                hint=f"its parameters are {known}",
            )
        warps = options.get("num_warps", 1)
        if warps.__class__ is int and (warps < 1 or warps & (warps - 1)):
            what = f"{self.name} is launched with num_warps={warps}, which must be a power of 2"
            raise BadOption(what, where=where, hint="a CPU ignores it: leave it out")

    def _explained(self, given: Given, problem: Exception) -> Exception:
        """The problem with the name of the argument that has it."""
        for p, value in zip(self.parameters, given, strict=True):
            try:
                if p.is_constexpr:
                    constant_key(value)
                else:
                    handlers_of(p)[value.__class__](value)
            except TilewrightError as wrong:
                what = f"argument {p.name} of {self.name}: {wrong.what}"
                kind = TooWide if isinstance(wrong, TooWide) else BadArguments
                return kind(what, where=f"{self.file}:{self.line}", hint=wrong.hint)
        return problem


class BadOption(Invalid, AssertionError):
    """An option of a launch that no GPU would take."""


class UnknownOption(Invalid, KeyError):
    """A keyword that is neither a parameter of the kernel nor an option of launches."""


def _sanitizes(options: Mapping[str, Any]) -> bool:
    return bool(options.get("sanitize_overflow", True))


def _is_constant(a: Argument) -> bool:
    return a.parts is None and a.element is None


def _signature(a: Argument) -> str:
    """The type of an argument in Triton's notation: *fp32, i32, constexpr."""
    if a.parts is not None:
        return f"({', '.join(map(_signature, a.parts))})"
    if a.element is None:
        return "constexpr"
    if isinstance(a.element, Pointer):
        return f"*{_type_name(a.element.to)}"
    return _type_name(a.element)


def _type_name(element: DType) -> str:
    short = {"int": "i", "uint": "u"}
    name = str(dtype_of(element))
    word, bits = name.rstrip("0123456789"), name.lstrip("uint")
    return "u1" if element.is_bool else f"{short[word]}{bits}" if word in short else name


def _picker(runtime: Sequence[Argument]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """From the values of a launch to those that the kernel takes, flat."""
    if all(a.element is not None for a in runtime):
        return _all
    if any(a.parts is not None for a in runtime):
        return lambda values: [
            x for a, v in zip(runtime, values, strict=True) for x in leaves(a, v)
        ]
    kept = [k for k, a in enumerate(runtime) if a.element is not None]
    if len(kept) < 2:
        return lambda values: tuple(values[k] for k in kept)
    return itemgetter(*kept)


def _all(values: Sequence[Any]) -> Sequence[Any]:
    return values


# ---- decorators


@overload
def jit(fn: Callable[..., T], **options: Any) -> JITFunction[T]: ...
@overload
def jit(**options: Any) -> Callable[[Callable[..., T]], JITFunction[T]]: ...
def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Makes a Python function a kernel: `f[grid](*args)` runs it once per program of the grid.

    Options: `do_not_specialize` and `do_not_specialize_on_alignment` (names or positions of
    parameters), `debug` (asserts are checked), `noinline`, `repr`, `launch_metadata`, `version`.
    """
    if fn is not None:
        return JITFunction(fn, **options)
    return partial(JITFunction, **options)


def constexpr_function(fn: Callable[..., Any]) -> ConstexprFunction:
    """Makes a Python function callable inside kernels, on constants."""
    return ConstexprFunction(fn)
