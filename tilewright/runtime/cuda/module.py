"""Code on a GPU: modules of PTX, their functions, and launches of them."""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.base.errors import Invalid
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import CudaError
from tilewright.runtime.cuda.memory import TensorMap
from tilewright.runtime.cuda.quick import HEAD, quick_launch

_LOG_BYTES = 16384
# Options of the driver's compiler: logs of information and of errors with their sizes, many words.
_INFO, _INFO_BYTES, _ERRORS, _ERROR_BYTES, _VERBOSE = 3, 4, 5, 6, 12
_SHARED, _LOCAL, _REGISTERS, _MOST_THREADS, _MOST_DYNAMIC, _CARVEOUT = 1, 3, 4, 0, 8, 9
_MOST_MAPS = 256  # that a launcher remembers
MOST_BLOCKS = (2**31 - 1, 65535, 65535)


class Module:
    """Code that the driver has loaded: PTX, which it compiles, or what was assembled of that
    (`cubin`), unless it refuses it. It goes when nothing refers to it any more."""

    def __init__(self, ptx: str, device: Device, cubin: bytes = b"") -> None:
        self.device = device
        device.use()
        logs = [ctypes.create_string_buffer(_LOG_BYTES) for _ in range(2)]
        options = (ctypes.c_int * 5)(_INFO, _INFO_BYTES, _ERRORS, _ERROR_BYTES, _VERBOSE)
        values = (ctypes.c_void_p * 5)(
            ctypes.addressof(logs[0]), _LOG_BYTES, ctypes.addressof(logs[1]), _LOG_BYTES, 1
        )
        handle = ctypes.c_void_p()
        load = device.driver.function("cuModuleLoadDataEx")
        code = load(ctypes.byref(handle), cubin, 0, None, None) if cubin else 1
        if code:
            text = ctypes.create_string_buffer(ptx.encode())
            code = load(ctypes.byref(handle), text, 5, options, values)
        self.log = logs[0].value.decode(errors="replace").strip()
        if code:
            said = logs[1].value.decode(errors="replace").strip()
            raise device.driver.error("cuModuleLoadDataEx", code, where=said or None)
        self.handle = handle.value or 0
        weakref.finalize(self, _unload, device, self.handle)

    def function(self, name: str, dynamic: int = 0, beside: bool = False) -> Function:
        """A kernel by name, with so many bytes of dynamic shared memory. Where blocks of others are
        to run `beside` its own, multiprocessors have as much shared memory as they can."""
        handle = ctypes.c_void_p()
        call = self.device.driver.call
        self.device.use()
        call("cuModuleGetFunction", ctypes.byref(handle), self.handle, name.encode(), where=name)
        if dynamic:
            call("cuFuncSetAttribute", handle, _MOST_DYNAMIC, dynamic, where=name)
        if beside:
            call("cuFuncSetAttribute", handle, _CARVEOUT, 100, where=name)
        return Function(self, name, handle.value or 0, dynamic)


def _unload(device: Device, handle: int) -> None:
    try:
        device.use()
        device.driver.call("cuModuleUnload", handle)
    except CudaError:
        return  # the context is gone, and the module with it


@dataclass(frozen=True)
class Facts:
    """What a kernel takes: registers of a thread, bytes of a thread's own memory (spilled
    registers among them), bytes of shared memory of a block."""

    registers: int
    local: int
    shared: int
    most_threads: int
    blocks: int  # that a multiprocessor runs at a time

    def __str__(self) -> str:
        own = f", {self.local} bytes of a thread's own memory" if self.local else ""
        return (
            f"{self.registers} registers{own}, {self.shared} bytes of shared memory, "
            f"{self.blocks} blocks a multiprocessor"
        )


class Function:
    """A kernel."""

    def __init__(self, module: Module, name: str, handle: int, dynamic: int) -> None:
        self.module, self.name, self.handle, self.dynamic = module, name, handle, dynamic
        self.device = module.device

    def _attribute(self, which: int) -> int:
        value = ctypes.c_int()
        self.device.driver.call(
            "cuFuncGetAttribute", ctypes.byref(value), which, self.handle, where=self.name
        )
        return value.value

    def facts(self, threads: int) -> Facts:
        """What it takes, launched with so many threads of a block."""
        self.device.use()
        blocks = ctypes.c_int()
        self.device.driver.call(
            "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            ctypes.byref(blocks),
            self.handle,
            threads,
            self.dynamic,
        )
        shared = self._attribute(_SHARED) + self.dynamic
        taken = self._attribute(_REGISTERS), self._attribute(_LOCAL), shared
        return Facts(*taken, self._attribute(_MOST_THREADS), blocks.value)


@dataclass(frozen=True)
class MapOf:
    """A tensor map that a kernel takes: which of its parameters is the tensor's address, and how
    the map is made of the parameters."""

    argument: int
    make: Callable[[Sequence[int]], TensorMap]


class Launcher:
    """Launches of one kernel with parameters of eight bytes each: addresses and sizes. Where they
    are stored is decided once; a launch writes them there and calls the driver. Tensor maps come
    last; those of tensors seen before are known."""

    def __init__(
        self,
        function: Function,
        threads: tuple[int, int, int],
        parameters: int,
        maps: Sequence[MapOf] = (),
        sizes: int = 0,
    ) -> None:
        """`sizes` of the parameters, the last ones, are sizes."""
        self.function, self.threads = function, threads
        self._values = (ctypes.c_int64 * parameters)()
        start = ctypes.addressof(self._values)
        places = [start + 8 * k for k in range(parameters)]
        self._maps, self._sizes = tuple(maps), sizes
        self._known: dict[tuple[int, ...], TensorMap] = {}
        self._places = (ctypes.c_void_p * (parameters + len(self._maps)))(*places)
        self._count = parameters
        self._launch = function.device.driver.function("cuLaunchKernel")
        self._lock = threading.Lock()

    def __call__(
        self, parameters: Sequence[int], blocks: tuple[int, int, int], stream: int = 0
    ) -> None:
        """Asks for a launch on a stream; it runs later. A grid without blocks is none."""
        if len(parameters) != self._count:
            raise Invalid(f"{self.function.name} takes {self._count} values, not {len(parameters)}")
        self.function.device.use()
        self.again(parameters, blocks, stream)

    def again(
        self, parameters: Sequence[int], blocks: tuple[int, int, int], stream: int = 0
    ) -> None:
        """The same, where the device is the thread's and the number of values is known to fit."""
        if 0 in blocks:
            return
        f = self.function
        with self._lock:
            self._values[:] = parameters
            if self._maps:
                for k, m in enumerate(self.tensor_maps(parameters)):
                    self._places[self._count + k] = m.address
            code = self._launch(
                f.handle, *blocks, *self.threads, f.dynamic, stream, self._places, None
            )
        if code:
            self.failed(code, blocks)

    def packed(self, maps: int = 0) -> Callable[[bytes], int]:
        """A function of packed words (quick.py) that launches and gives the driver's code. The last
        words are addresses of so many tensor maps."""
        return quick_launch(self.function, self.threads, self._count, maps) or self._unpacked

    def _unpacked(self, given: bytes) -> int:
        words = memoryview(given).cast("q")
        stream, *blocks = words[:HEAD]
        values = (ctypes.c_int64 * self._count)(*words[HEAD:][: self._count])
        start = ctypes.addressof(values)
        places = [start + 8 * k for k in range(self._count)] + list(words[HEAD + self._count :])
        f, given_places = self.function, (ctypes.c_void_p * len(places))(*places)
        f.device.use()
        return self._launch(f.handle, *blocks, *self.threads, f.dynamic, stream, given_places, None)

    def tensor_maps(self, parameters: Sequence[int]) -> list[TensorMap]:
        """Those that a launch with these parameters takes after them."""
        return [self._map(k, m, parameters) for k, m in enumerate(self._maps)]

    def _map(self, k: int, m: MapOf, parameters: Sequence[int]) -> TensorMap:
        key = (k, parameters[m.argument], *parameters[self._count - self._sizes :])
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_MAPS:
                self._known.clear()
            found = self._known[key] = m.make(parameters)
        return found

    def failed(self, code: int, blocks: tuple[int, int, int]) -> None:
        """Raises the error of a launch; a grid without blocks is none."""
        f = self.function
        if 0 in blocks:
            return
        for axis, n, most in zip("xyz", blocks, MOST_BLOCKS, strict=True):
            if n > most:
                raise Invalid(
                    f"{f.name} has {n:,} blocks along {axis}, at most {most:,} are possible",
                    hint="bind the long loop to block.x, or Split it",
                )
        x, y, z = self.threads
        where = f"{f.name}, {' x '.join(map(str, blocks))} blocks of {x} x {y} x {z} threads"
        raise f.device.driver.error("cuLaunchKernel", code, where)
