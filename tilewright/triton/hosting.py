"""Triton's host-side API, answered for a CPU or for the GPU that torch uses: the active driver, the
target, device properties, sources to compile, allocators."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, TilewrightError, Unsupported
from tilewright.driver.tile.arguments import ALIGNMENT, TYPE_NAMES
from tilewright.driver.tile.jit import JITFunction
from tilewright.driver.tile.launch import INTERPRET, CompiledKernel
from tilewright.driver.tile.testing import do_bench
from tilewright.ir.types import DTYPES
from tilewright.lang.tile.front.functions import Argument
from tilewright.lang.tile.language import core
from tilewright.lang.tile.language.types import tuple_type
from tilewright.language.target_info import GPUTarget, current_target
from tilewright.runtime.cuda.device import device
from tilewright.runtime.cuda.driver import available
from tilewright.runtime.pool import get_threads
from tilewright.targets import host
from tilewright.triton.cuda import Event, Stream, capability
from tilewright.triton.redirect import complete, redirected


def device_properties(device: Any = None) -> dict[str, int]:
    """A core is a multiprocessor of one thread, its second cache the memory that it shares; as
    many programs at once as registers allow are a few per core."""
    target = host()
    return {
        "max_shared_mem": target.l2,
        "max_num_regs": 256,
        "multiprocessor_count": get_threads(),
        "warpSize": 1,
        "sm_clock_rate": target.mhz * 1000,
        "mem_clock_rate": target.mhz * 1000,
        "mem_bus_width": target.memory_bandwidth * 4,
        "max_threads_per_sm": 1024,
    }


class CPUDriver:
    """Triton's driver, of this CPU."""

    binary_ext = "so"

    def __init__(self) -> None:
        self.utils = SimpleNamespace(get_device_properties=device_properties)

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_current_target(self) -> GPUTarget:
        return current_target()

    def get_active_torch_device(self) -> Any:
        import torch

        complete()  # scripts go on with getattr(torch, device.type)
        return torch.device("cuda", 0) if redirected() else torch.device("cpu")

    def get_device_interface(self) -> Any:
        return SimpleNamespace(
            synchronize=lambda *_: None,
            current_device=lambda: 0,
            Event=Event,
            Stream=Stream,
            get_device_properties=device_properties,
        )

    def get_benchmarker(self) -> Callable[..., Any]:
        return do_bench

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        if device != 0:
            raise Invalid(f"device {device}", hint="a CPU is device 0, and the only one")

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_device_capability(self, device: int | None = None) -> tuple[int, int]:
        return capability() if self.get_current_target().backend == "cuda" else (0, 0)

    def get_empty_cache_for_benchmark(self) -> np.ndarray:
        return np.empty(2 * host().l3 // 4, np.int32)

    def clear_cache(self, cache: np.ndarray) -> None:
        cache.fill(0)

    def map_python_to_cpp_type(self, kind: str) -> str:
        raise Unsupported("kernels here are launched without C++", hint="call f[grid](…)")


class GPUDriver(CPUDriver):
    """Triton's driver, of the GPU that torch uses."""

    binary_ext = "cubin"

    def __init__(self) -> None:
        self.utils = SimpleNamespace(get_device_properties=gpu_properties)

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cuda", torch.cuda.current_device())

    def get_device_interface(self) -> Any:
        import torch

        return torch.cuda

    def get_current_device(self) -> int:
        import torch

        return torch.cuda.current_device()

    def set_current_device(self, device: int) -> None:
        import torch

        torch.cuda.set_device(device)

    def get_current_stream(self, device: int | None = None) -> int:
        import torch

        return torch.cuda.current_stream(device).cuda_stream

    def get_empty_cache_for_benchmark(self) -> Any:
        import torch

        return torch.empty(256 << 18, dtype=torch.int32, device="cuda")

    def clear_cache(self, cache: Any) -> None:
        cache.zero_()


def gpu_properties(number: int | None = None) -> dict[str, int]:
    """What Triton says of a GPU, by its names."""
    facts = dict(device(number or 0).facts)
    return {
        "max_shared_mem": facts["block_shared"],
        "max_num_regs": facts["registers"],
        "multiprocessor_count": facts["multiprocessors"],
        "warpSize": facts["warp"],
        "sm_clock_rate": facts["clock_khz"],
        "mem_clock_rate": facts["memory_khz"],
        "mem_bus_width": facts["bus_bits"],
        "max_threads_per_sm": facts["threads"],
    }


def on_gpu() -> bool:
    """Are kernels launched on a real GPU: is there one, and was the CPU not asked for?"""
    torch: Any = sys.modules.get("torch")
    return not redirected() and available() and (torch is None or torch.cuda.is_available())


class DriverConfig:
    """`triton.runtime.driver`."""

    def __init__(self) -> None:
        self.chosen: Any = None

    @property
    def default(self) -> CPUDriver:
        return GPUDriver() if on_gpu() else CPUDriver()

    @property
    def active(self) -> Any:
        return self.default if self.chosen is None else self.chosen

    def set_active(self, driver: Any) -> None:
        self.chosen = driver

    def reset_active(self) -> None:
        self.chosen = None


driver = DriverConfig()


class BaseBackend:
    """Triton's compiler of one kind of device; ours is not taken apart."""

    def __init__(self, target: GPUTarget):
        self.target = target

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        return target == driver.active.get_current_target() or target.backend == "cpu"

    def hash(self) -> str:
        return host().key()


@dataclass(frozen=True)
class Backend:
    compiler: type[BaseBackend] = BaseBackend
    driver: type[CPUDriver] = CPUDriver


backends = {"cpu": Backend()}


def make_backend(target: GPUTarget) -> BaseBackend:
    if not BaseBackend.supports_target(target):
        raise Unsupported(
            f"kernels for {target.backend} cannot be compiled here",
            hint="use the target of triton.runtime.driver.active.get_current_target()",
        )
    return BaseBackend(target)


# ---- compiling without a launch


@dataclass
class ASTSource:
    """A kernel and what its arguments are: types by name such as `*fp32` and `i32`, constants by
    name or position."""

    fn: JITFunction[Any]
    signature: Mapping[str, Any]
    constexprs: Mapping[Any, Any] | None = None
    attrs: Mapping[Any, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.fn.name

    def arguments(self) -> dict[str, Argument]:
        constants: dict[str, Any] = {}
        for k, value in (self.constexprs or {}).items():
            k = k[0] if isinstance(k, tuple) else k
            constants[self.fn.arg_names[k] if isinstance(k, int) else k] = value
        divided = {
            k[0] for k, v in (self.attrs or {}).items() if ["tt.divisibility", 16] in list(v)
        }
        found: dict[str, Argument] = {}
        for p in self.fn.parameters:
            if p.name in constants or p.is_constexpr:
                if p.name not in constants and not p.has_default:
                    raise Invalid(
                        f"{self.name}: the constant {p.name} has no value",
                        hint="name it in constexprs",
                    )
                found[p.name] = Argument.constant(constants.get(p.name, p.default))
                continue
            if p.name not in self.signature:
                raise Invalid(
                    f"{self.name}: the signature does not name {p.name}",
                    hint='give its type, such as "*fp32" or "i32"',
                )
            divisor = ALIGNMENT if p.number in divided else 1
            found[p.name] = described(self.signature[p.name], divisor, p.name)
        return found


def described(text: Any, divisor: int, name: str) -> Argument:
    """A type of a signature as an argument."""
    if isinstance(text, (tuple, list)):
        return Argument.group(described(t, divisor, name) for t in text)
    bare = text.removeprefix("*").removeprefix("k") if text.startswith("*") else text
    element = DTYPES.get(TYPE_NAMES.get(bare, ""))
    if element is None:
        raise Invalid(f"{name}: the type {text!r} is unknown", hint='such as "*fp32", "i32", "u8"')
    if text.startswith("*"):
        return Argument.pointer(element, divisor)
    return Argument.scalar(element, divisor)


def compile(
    src: ASTSource, target: Any = None, options: Mapping[str, Any] | None = None, **_: Any
) -> CompiledKernel:
    """The kernel of a source, for this CPU."""
    if not isinstance(src, ASTSource):
        raise Unsupported(
            f"a {type(src).__name__} cannot be compiled for a CPU",
            hint="give triton.compiler.ASTSource(fn, signature, constexprs)",
        )
    make_backend(target or driver.active.get_current_target())
    options = dict(options or {})
    return src.fn.compiled(src.arguments(), options, bool(options.get("debug", False)))


class IRSource:
    """A kernel as a file of Triton's own forms."""

    def __init__(self, path: Any, *_: Any, **__: Any) -> None:
        raise Unsupported(
            f"{path}: forms of Triton's compiler are not read here",
            hint="give triton.compiler.ASTSource(fn, signature, constexprs)",
        )


def max_shared_mem(device: Any = None) -> int:
    return driver.active.utils.get_device_properties(device)["max_shared_mem"]


# ---- small things


class OutOfResources(TilewrightError):
    """A kernel that requires more than there is."""

    def __init__(self, required: Any, limit: Any, name: str):
        self.required, self.limit, self.name = required, limit, name
        super().__init__(
            f"out of resource: {name}: {required} required, {limit} available",
            hint="make blocks smaller",
        )

    def __reduce__(self):
        return type(self), (self.required, self.limit, self.name)


class InterpreterError(TilewrightError):
    """What goes wrong while a kernel runs step by step."""


class InterpretedFunction(JITFunction[Any]):
    """A kernel that runs step by step whatever the environment says."""

    by = INTERPRET


class NullAllocator:
    """What stands for no allocator of the caller."""

    def __call__(self, size: int, alignment: int, stream: int | None) -> Any:
        raise Invalid("a kernel asks for memory of its own", hint="call triton.set_allocator first")


def set_allocator(allocator: Any) -> None:
    """Accepted and ignored: kernels on a CPU allocate their own memory."""


def set_profile_allocator(allocator: Any) -> None:
    """Accepted and ignored: kernels on a CPU write no profile."""


def has_profile_allocator() -> bool:
    return False


def is_namedtuple(x: Any) -> bool:
    kind = x if isinstance(x, type) else type(x)
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def is_power_of_two(n: int) -> bool:
    return n > 0 and not n & (n - 1)


def validate_block_shape(shape: Sequence[int]) -> int:
    """How many elements a block has, if it can be one."""
    total = 1
    for axis, n in enumerate(shape):
        if not isinstance(n, int):
            raise TypeError(f"size {axis} of a block is {n!r}, which is no int")
        if not is_power_of_two(n):
            raise ValueError(f"size {axis} of a block is {n}, which is no power of two")
        total *= n
    return total


def is_iterable(x: Any) -> bool:
    return isinstance(x, (list, tuple, core.tuple, tuple_type))


def get_iterable_path(x: Any, path: Sequence[int]) -> Any:
    """The item of nested tuples to which a path of positions leads."""
    for k in path:
        x = x[k]
    return x


def find_paths_if(x: Any, holds: Callable[[tuple[int, ...], Any], bool]) -> list[tuple[int, ...]]:
    """The paths to all items of nested tuples of which something holds, in order."""

    def found(path: tuple[int, ...], item: Any) -> Iterator[tuple[int, ...]]:
        if is_iterable(item):
            for k, inner in enumerate(item):
                yield from found((*path, k), inner)
        elif holds(path, item):
            yield path

    return list(found((), x))


# Names of types, by the other names that they have.
_CANONICAL = {"bool": "u1", "f16": "fp16", "f32": "fp32", "f64": "fp64", "f8e4m3": "fp8e4nv"}
_CANONICAL |= {"f8e5m2": "fp8e5", "f8e4b15": "fp8e4b15", "f8e4b8": "fp8e4b8", "f8e5b16": "fp8e5b16"}
type_canonicalisation_dict = {
    name: _CANONICAL.get(element, element) for name, element in TYPE_NAMES.items()
} | {"void": "void"}


def canonicalize_dtype(dtype: Any) -> str:
    return type_canonicalisation_dict[str(dtype).rsplit(".", 1)[-1]]


def canonicalize_ptr_dtype(dtype: Any, is_const: bool) -> str:
    return f"{'*k' if is_const else '*'}{canonicalize_dtype(dtype)}"


def get_primitive_bitwidth(dtype: str) -> int:
    """Of a type by its name in signatures."""
    return DTYPES[TYPE_NAMES[dtype]].bits
