"""The driver's functions, and messages for its errors."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from tilewright.base.errors import TilewrightError, Unsupported

LIBRARY = "libcuda.so.1"
# The oldest that has all functions used here: CUDA 12.0.
OLDEST = 12000
OUT_OF_MEMORY, NO_CONTEXT = 2, 201  # codes of errors


class CudaError(TilewrightError):
    """An error of the driver. `lost`: the context is unusable from here on, and with it the
    process, as far as this GPU goes."""

    def __init__(self, what: str, *, code: int = 0, hint: str | None = None, where: object = None):
        super().__init__(what, where=where, hint=hint)
        self.code = code

    @property
    def lost(self) -> bool:
        return self.code in _LOSING


_AGAIN = "start a new process: nothing more can be done with this GPU in the present one"
# What an error means to the caller, and what to do about it.
_SAID: dict[int, tuple[str, str | None]] = {
    1: ("the driver was given a value it does not take", None),
    2: ("the GPU is out of memory", "free tensors, or use smaller ones"),
    3: ("the driver is not initialised", None),
    100: ("there is no GPU that CUDA can use", "check nvidia-smi and CUDA_VISIBLE_DEVICES"),
    101: ("there is no GPU of that number", None),
    200: ("the code is not in a form that the driver knows", None),
    201: ("no context of the GPU is in use by this thread", None),
    209: ("the code is for another kind of GPU", "compile for this GPU's capability"),
    218: ("the driver could not compile the PTX", None),
    222: ("the driver is too old for this PTX", "update the driver, or compile with a lower ptx"),
    500: ("what was looked up does not exist", None),
    700: ("a kernel touched memory that is not its own", _AGAIN),
    701: (
        "a launch needs more registers or shared memory than a multiprocessor has",
        "fewer threads of a block, or smaller tiles",
    ),
    702: ("a kernel ran for longer than the system allows", _AGAIN),
    709: ("the context of the GPU was destroyed", _AGAIN),
    710: ("an assertion failed in a kernel", _AGAIN),
    714: ("a kernel overflowed its stack", _AGAIN),
    715: ("a kernel has an instruction that this GPU does not know", _AGAIN),
    716: ("a kernel touched memory at an address that is not aligned for the access", _AGAIN),
    717: ("a kernel used an address in another kind of memory", _AGAIN),
    718: ("a kernel jumped to where there is no code", _AGAIN),
    719: ("a kernel failed", _AGAIN),
    802: (
        "the system of this GPU is not ready",
        "wait, or contact the administrator of the machine",
    ),
    900: ("the operation cannot be part of a graph that is being captured", None),
    901: ("the capture of a graph was broken by an earlier error", None),
}
_LOSING = frozenset((700, 702, 709, 710, 714, 715, 716, 717, 718, 719))

_P, _I, _U, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_size_t
# Of functions that are called often, so that their arguments are converted once and for all.
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuLaunchKernel": (_P, *[_U] * 7, _P, _P, _P),
    "cuLaunchCooperativeKernel": (_P, *[_U] * 7, _P, _P),
    "cuGraphLaunch": (_P, _P),
    "cuEventRecord": (_P, _P),
    "cuEventSynchronize": (_P,),
    "cuStreamSynchronize": (_P,),
    "cuStreamBeginCapture_v2": (_P, _I),
    "cuStreamEndCapture": (_P, _P),
    "cuCtxSetCurrent": (_P,),
    "cuMemAlloc_v2": (_P, _S),
    "cuMemFree_v2": (_P,),
    "cuMemcpyHtoD_v2": (_P, _P, _S),
    "cuMemcpyDtoH_v2": (_P, _P, _S),
    "cuMemcpyHtoDAsync_v2": (_P, _P, _S, _P),
    "cuMemcpyDtoDAsync_v2": (_P, _P, _S, _P),
    "cuMemsetD8_v2": (_P, ctypes.c_ubyte, _S),
    "cuMemsetD8Async": (_P, ctypes.c_ubyte, _S, _P),
    "cuMemHostAlloc": (_P, _S, _U),
    "cuMemFreeHost": (_P,),
    "cuFuncGetAttribute": (_P, _I, _P),
    "cuFuncSetAttribute": (_P, _I, _I),
    "cuModuleGetFunction": (_P, _P, ctypes.c_char_p),
    "cuModuleUnload": (_P,),
    "cuEventElapsedTime": (_P, _P, _P),
    "cuEventDestroy_v2": (_P,),
    "cuStreamDestroy_v2": (_P,),
    "cuGraphInstantiateWithFlags": (_P, _P, ctypes.c_ulonglong),
    "cuGraphCreate": (_P, _U),
    "cuGraphAddKernelNode_v2": (_P, _P, _P, _S, _P),
    "cuGraphExecKernelNodeSetParams_v2": (_P, _P, _P),
    "cuGraphAddChildGraphNode": (_P, _P, _P, _S, _P),
    "cuGraphExecChildGraphNodeSetParams": (_P, _P, _P),
    "cuGraphDestroy": (_P,),
    "cuGraphExecDestroy": (_P,),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_P, _P, _I, _S),
}


class Driver:
    """The functions of libcuda by name; a result other than success is an error."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self._functions: dict[str, Any] = {}
        self._check("cuInit", self.function("cuInit")(0))
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value
        if self.version < OLDEST:
            raise Unsupported(
                f"the driver is for CUDA {_dotted(self.version)}, {_dotted(OLDEST)} is needed",
                hint="update the driver of the GPU",
            )

    def function(self, name: str) -> Any:
        found = self._functions.get(name)
        if found is None:
            try:
                found = getattr(self.library, name)
            except AttributeError:
                raise Unsupported(
                    f"the driver has no function {name}", hint="update the driver of the GPU"
                ) from None
            if name in _SIGNATURES and hasattr(found, "argtypes"):
                found.argtypes = _SIGNATURES[name]
            self._functions[name] = found
        return found

    def call(self, name: str, *args: Any, where: object = None) -> None:
        code = self.function(name)(*args)
        if code:
            self._check(name, code, where)

    def _check(self, name: str, code: int, where: object = None) -> None:
        if code:
            raise self.error(name, code, where)

    def error(self, name: str, code: int, where: object = None) -> CudaError:
        """The error of a function, with a message."""
        said, hint = _SAID.get(code, (self._text(code), None))
        what = f"{said} ({name}: error {code})"
        if code in _LOSING:
            what += "; the error may be that of an earlier launch, and the context is lost"
        return CudaError(what, code=code, hint=hint, where=where)

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        failed = self.function("cuGetErrorString")(code, ctypes.byref(text))
        return (text.value or b"").decode() if not failed and text.value else "the driver failed"


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


@cache
def driver() -> Driver:
    """The driver of this machine."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as e:
        raise Unsupported(
            f"there is no driver for NVIDIA GPUs: {LIBRARY} cannot be loaded",
            hint=f"install the driver, or compile for the CPU ({e})",
        ) from None
    return Driver(library)


def available() -> bool:
    """Is there a driver and a GPU?"""
    try:
        count = ctypes.c_int()
        driver().call("cuDeviceGetCount", ctypes.byref(count))
    except TilewrightError:
        return False
    return count.value > 0
