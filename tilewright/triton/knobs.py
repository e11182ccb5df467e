"""`triton.knobs`: the switches of Triton that scripts set, each bound to its environment variable.

A switch that has no effect here cannot be set: setting it is an error, not ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.base import knobs as ours
from tilewright.driver.tile import autotune as tile_autotune
from tilewright.driver.tile import jit as tile_jit

propagate_env = True


class env_base:
    """A switch that has a value of its own, or that of its environment variable."""

    def __init__(self, key: str, default: Any = None, parse: Callable[[str], Any] = str):
        self.key = key
        self.default = default
        self.parse = parse

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        if self.name in instance.__dict__:
            return instance.__dict__[self.name]
        return self.get()

    def get(self) -> Any:
        text = os.environ.get(self.key)
        return self.default if text is None else self.parse(text)

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value
        if not propagate_env:
            return
        if value is None:
            os.environ.pop(self.key, None)
        elif isinstance(value, (bool, int, str)):
            os.environ[self.key] = str(int(value) if isinstance(value, bool) else value)

    def __delete__(self, instance: Any) -> None:
        instance.__dict__.pop(self.name, None)


class base_knobs:
    """A family of switches."""

    @property
    def knob_descriptors(self) -> dict[str, env_base]:
        return {n: v for n, v in vars(type(self)).items() if isinstance(v, env_base)}

    @property
    def knobs(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in self.knob_descriptors}

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(type(self), name):
            raise AttributeError(
                f"triton.knobs: {type(self).__name__} has no switch {name} for kernels on a CPU; "
                f"it has {', '.join(n for n in dir(type(self)) if not n.startswith('_'))}"
            )
        super().__setattr__(name, value)

    def copy(self) -> Any:
        made = type(self)()
        made.__dict__.update(self.__dict__)
        return made

    def reset(self) -> Any:
        for name in self.knob_descriptors:
            self.__dict__.pop(name, None)
        return self

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Changes made inside a `with` are undone at its end."""
        before = dict(self.__dict__)
        variables = {k.key: os.environ.get(k.key) for k in self.knob_descriptors.values()}
        try:
            yield
        finally:
            self.__dict__.clear()
            self.__dict__.update(before)
            for name, value in variables.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def _flag(text: str) -> bool:
    return text.lower() in ("1", "true", "on", "yes", "y")


def _env_bool(key: str, default: bool = False) -> env_base:
    return env_base(key, default, _flag)


class _Interpret(env_base):
    """Runs kernels step by step: sets TILEWRIGHT_INTERPRET."""

    def __set__(self, instance: Any, value: Any) -> None:
        super().__set__(instance, value)
        if propagate_env:
            os.environ[ours.interpret.name] = "1" if value else "0"


class LazyDict:
    """What a hook is passed about a launch; `get()` gives all of it."""

    def __init__(self, data: dict[str, Any]):
        self.data = data
        self.extras: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def add(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.extras.append((function, args))

    def get(self) -> dict[str, Any]:
        for function, args in self.extras:
            self.data |= function(*args)
        self.extras.clear()
        return self.data


class HookChain:
    """Functions that are called around launches, in order."""

    def __init__(self) -> None:
        self.calls: list[Callable[[LazyDict], Any]] = []

    def add(self, call: Callable[[LazyDict], Any]) -> None:
        if call not in self.calls:
            self.calls.append(call)
            _listen()

    def remove(self, call: Callable[[LazyDict], Any]) -> None:
        if call in self.calls:
            self.calls.remove(call)
            _listen()

    def set(self, value: Any) -> None:
        self.calls[:] = () if value is None or value is self else (value,)
        _listen()

    def __call__(self, metadata: LazyDict) -> None:
        for call in self.calls:
            call(metadata)

    def __bool__(self) -> bool:
        return bool(self.calls)


ENTER, EXIT = HookChain(), HookChain()


def _listen() -> None:
    """A listener for launches is registered as long as there is a hook."""
    listeners = tile_jit.DEFAULTS.listeners
    if _launched in listeners:
        listeners.remove(_launched)
    if ENTER or EXIT:
        listeners.append(_launched)


def _launched(kernel: Any, given: Any, options: Any, grid: Any) -> Callable[[], None]:
    metadata = LazyDict({"name": kernel.name, "function": kernel.function, "stream": 0})
    if kernel.function.launch_metadata is not None:
        named = dict(zip(kernel.function.arg_names, given, strict=True))
        metadata.add(kernel.function.launch_metadata, (grid, kernel.metadata, named))
    ENTER(metadata)
    return lambda: EXIT(metadata)


class runtime_knobs(base_knobs):
    interpret = _Interpret("TRITON_INTERPRET", False, _flag)
    override_arch = env_base("TRITON_OVERRIDE_ARCH")

    # Never called: kernels are made and loaded in one step, by one process.
    jit_cache_hook = jit_post_compile_hook = None
    kernel_load_start_hook = kernel_load_end_hook = kernel_unload_hook = None

    @property
    def launch_enter_hook(self) -> HookChain:
        return ENTER

    @launch_enter_hook.setter
    def launch_enter_hook(self, value: Any) -> None:
        ENTER.set(value)

    @property
    def launch_exit_hook(self) -> HookChain:
        return EXIT

    @launch_exit_hook.setter
    def launch_exit_hook(self, value: Any) -> None:
        EXIT.set(value)

    @property
    def debug(self) -> bool:
        return tile_jit.DEFAULTS.debug

    @debug.setter
    def debug(self, value: bool) -> None:
        tile_jit.DEFAULTS.debug = bool(value)


class compilation_knobs(base_knobs):
    always_compile = _env_bool("TRITON_ALWAYS_COMPILE")
    disable_line_info = _env_bool("TRITON_DISABLE_LINE_INFO")
    enable_asan = _env_bool("TRITON_ENABLE_ASAN")
    dump_ir = _env_bool("TRITON_KERNEL_DUMP")
    front_end_debugging = _env_bool("TRITON_FRONT_END_DEBUGGING")
    instrumentation_mode = env_base("TRITON_INSTRUMENTATION_MODE", "")
    listener = None  # for scripts that save and restore it; never called


class autotuning_knobs(base_knobs):
    cache = _env_bool("TRITON_CACHE_AUTOTUNING", True)
    print = _env_bool("TRITON_PRINT_AUTOTUNING")

    @property
    def listener(self) -> Any:
        return tile_autotune.LISTENERS.get("knob")

    @listener.setter
    def listener(self, value: Any) -> None:
        if value is None:
            tile_autotune.LISTENERS.pop("knob", None)
        else:
            tile_autotune.LISTENERS["knob"] = value


class language_knobs(base_knobs):
    fp32_default = env_base("TRITON_F32_DEFAULT")
    default_fp_fusion = _env_bool("TRITON_DEFAULT_FP_FUSION", True)


class cache_knobs(base_knobs):
    @property
    def dir(self) -> str:
        return str(ours.cache_dir.get())

    @dir.setter
    def dir(self, value: str) -> None:
        os.environ[ours.cache_dir.name] = value


class nvidia_tool:
    """A program of a GPU's vendor, which is not there: it has no file, and no version."""

    path = ""
    version = "0.0"


class nvidia_knobs(base_knobs):
    """Tools of a GPU's vendor: there are none."""

    ptxas = ptxas_blackwell = cuobjdump = nvdisasm = nvidia_tool()


class amd_knobs(base_knobs):
    """Options of another vendor: there are none."""


class proton_knobs(base_knobs):
    disable = _env_bool("TRITON_PROTON_DISABLE", True)


runtime = runtime_knobs()
compilation = compilation_knobs()
autotuning = autotuning_knobs()
language = language_knobs()
cache = cache_knobs()
nvidia = nvidia_knobs()
amd = amd_knobs()
proton = proton_knobs()


def refresh_knobs() -> None:
    """Read again what is not read each time."""
    runtime.debug = _flag(os.environ.get("TRITON_DEBUG", "0"))
