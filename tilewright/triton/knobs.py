"""`triton.knobs`: the switches of Triton that scripts set, each bound to its environment variable.

What nothing here listens to cannot be set: a script is told so instead of being ignored.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tilewright.base import knobs as ours
from tilewright.driver import tile_autotune, tile_jit

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
                f"triton.knobs: {type(self).__name__} has no {name} that kernels for a CPU heed; "
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
        """Changes inside last until its end."""
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
    """Steps through kernels with ours: TILEWRIGHT_INTERPRET follows it."""

    def __set__(self, instance: Any, value: Any) -> None:
        super().__set__(instance, value)
        if propagate_env:
            os.environ[ours.interpret.name] = "1" if value else "0"


class runtime_knobs(base_knobs):
    interpret = _Interpret("TRITON_INTERPRET", False, _flag)
    override_arch = env_base("TRITON_OVERRIDE_ARCH")

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
    listener = None  # kept for those who save and restore it; never called


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


class nvidia_knobs(base_knobs):
    """Tools of a GPU's vendor: there are none."""


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
