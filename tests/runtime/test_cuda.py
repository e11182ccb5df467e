"""NVIDIA's driver, as far as it goes without one: a stand-in for libcuda answers."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.base.errors import Invalid, TilewrightError, Unsupported
from tilewright.ir import dim as D
from tilewright.llvm.bulk_copies import Box
from tilewright.llvm.launch import Launch
from tilewright.runtime.cuda import driver as driver_module
from tilewright.runtime.cuda.device import Device, describe, gpu_at
from tilewright.runtime.cuda.driver import CudaError, Driver
from tilewright.runtime.cuda.kernels import launcher_of
from tilewright.runtime.cuda.memory import Memory, TensorMap
from tilewright.runtime.cuda.module import Launcher, Module
from tilewright.runtime.cuda.quick import quick_launch, quick_replay
from tilewright.runtime.cuda.replay import Replay
from tilewright.runtime.cuda.stream import Event, Graph, Stream


class Library:
    """libcuda with one GPU. `codes` are errors by function; `calls` is what was called."""

    def __init__(self, version: int = 12040, **codes: int) -> None:
        self.version, self.codes = version, codes
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.launched: list[list[int]] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu") or name == "cuMissing":
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.calls.append((name, args))
            code = self.codes.get(name, 0)
            if not code:
                self.answer(name, args)
            elif name == "cuModuleLoadDataEx":
                log = args[4][2]
                ctypes.memmove(log, b"line 7: no such instruction\0", 28)
            return code

        return call

    def answer(self, name: str, args: tuple[Any, ...]) -> None:
        facts = {75: 9, 76: 0, 16: 132, 10: 32, 1: 1024, 97: 232448}
        out: Any = getattr(args[0], "_obj", None) if args else None
        if name == "cuDriverGetVersion":
            out.value = self.version
        elif name == "cuDeviceGetCount":
            out.value = 1
        elif name == "cuDeviceGetAttribute":
            out.value = facts.get(args[1], 0)
        elif name == "cuDeviceGetName":
            args[0].value = b"a stand-in"
        elif name == "cuStreamEndCapture":
            args[1]._obj.value = 77
        elif name == "cuLaunchKernel":
            places = args[9]
            values = [ctypes.c_int64.from_address(places[k]).value for k in range(len(places))]
            self.launched.append(values)
        elif isinstance(out, ctypes.c_void_p):
            out.value = 4096
        elif isinstance(out, ctypes.c_int):
            out.value = 3

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def gpu(**codes: int) -> tuple[Library, Device]:
    library = Library(**codes)
    return library, describe(0, Driver(library))


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "LIBRARY", "libcuda-is-not-here.so")
    driver_module.driver.cache_clear()
    with pytest.raises(Unsupported, match="no driver for NVIDIA GPUs"):
        driver_module.driver()
    assert not driver_module.available()
    driver_module.driver.cache_clear()


def test_an_old_driver() -> None:
    with pytest.raises(Unsupported, match=r"for CUDA 11.4, 12.0 is needed"):
        Driver(Library(version=11040))


def test_a_driver_without_a_function() -> None:
    with pytest.raises(Unsupported, match="no function cuMissing"):
        Driver(Library()).call("cuMissing")


@pytest.mark.parametrize(
    ("code", "says", "lost"),
    [
        (2, "out of memory", False),
        (100, "no GPU that CUDA can use", False),
        (222, "too old for this PTX", False),
        (700, "memory that is not its own", True),
        (701, "more registers or shared memory", False),
        (716, "not aligned", True),
    ],
)
def test_errors_in_words(code: int, says: str, lost: bool) -> None:
    by = Driver(Library(cuCtxSynchronize=code))
    with pytest.raises(CudaError, match=says) as caught:
        by.call("cuCtxSynchronize")
    assert caught.value.lost == lost
    assert ("context is lost" in str(caught.value)) == lost
    assert ("new process" in str(caught.value)) == lost


def test_a_device() -> None:
    _, d = gpu()
    assert (d.name, d.capability) == ("a stand-in", 90)
    numbers = d.numbers()
    assert numbers["multiprocessors"] == 132 and numbers["block_shared"] == 232448
    with pytest.raises(Invalid, match="no GPU 3"):
        describe(3, d.driver)


class Addresses(Library):
    """Knows addresses from 4096 on, which are of GPU 3, and pinned memory at 64."""

    def answer(self, name: str, args: tuple[Any, ...]) -> None:
        if name != "cuPointerGetAttribute":
            super().answer(name, args)
            return
        out, which, address = args
        out._obj.value = 3 if which == 9 else 2 if address.value >= 4096 else 1


def test_whose_memory_an_address_is() -> None:
    by = Driver(Addresses())
    assert gpu_at(4096 + 8, by) == 3 and gpu_at(64, by) is None
    unknown = Driver(Addresses(cuPointerGetAttribute=1))
    assert gpu_at(8192, unknown) is None, "the driver did not allocate it"


def test_the_log_of_the_compiler_is_in_the_error() -> None:
    _, d = gpu(cuModuleLoadDataEx=218)
    with pytest.raises(CudaError, match="could not compile") as caught:
        Module("garbage", d)
    assert "line 7: no such instruction" in str(caught.value)


@pytest.mark.parametrize("refused", [False, True])
def test_assembled_code_is_loaded_or_the_ptx_where_it_is_refused(refused: bool) -> None:
    library, d = gpu()
    given: list[bytes] = []

    def load(out: Any, code: Any, *_: Any) -> int:
        given.append(code if isinstance(code, bytes) else code.value)
        out._obj.value = 4096
        return 209 if refused and given[-1] == b"machine code" else 0

    vars(library)["cuModuleLoadDataEx"] = load
    assert Module("the PTX", d, b"machine code").handle == 4096
    assert given == [b"machine code", *([b"the PTX"] if refused else [])]


def test_launches() -> None:
    library, d = gpu()
    module = Module("", d)
    function = module.function("k", 65536)
    module.function("k", beside=True)
    set_ = [args[1:] for name, args in library.calls if name == "cuFuncSetAttribute"]
    assert set_ == [(8, 65536), (9, 100)]
    launch = Launcher(function, (128, 2, 1), 3)
    launch([1 << 40, -5, 7], (10, 1, 1), 99)
    assert library.launched == [[1 << 40, -5, 7]]
    given = next(args for name, args in library.calls if name == "cuLaunchKernel")
    assert given[1:9] == (10, 1, 1, 128, 2, 1, 65536, 99)
    launch([0, 0, 0], (0, 1, 1))
    assert len(library.launched) == 1
    with pytest.raises(Invalid, match="takes 3 values"):
        launch([1], (1, 1, 1))


def test_tensor_maps_of_launches() -> None:
    """Made once for an address and sizes; a graph has those of the addresses it was given last."""
    library, d = gpu()
    box = Box("a", "bf16", 2, (D.sym("n"), 64), (64, 64), 128)
    function = Module("", d).function("k")
    launch = launcher_of(
        function, Launch("k", (1, 1, 1), (128, 1, 1), 0, ("y", "a"), (box,)), ["n"]
    )

    def made() -> list[int]:
        calls = (args for name, args in library.calls if name == "cuTensorMapEncodeTiled")
        return [args[3].value for args in calls]

    for address, n in ((4096, 128), (8192, 128), (4096, 128), (4096, 256)):
        launch([0, address, n], (1, 1, 1))
    assert made() == [4096, 8192, 4096]
    assert launch.tensor_maps([0, 8192, 128])[0].address % 64 == 0 and len(made()) == 3
    graph = Replay(d, [(launch, (1, 1, 1), [0, 4096, 128])])
    graph.replace(0, [(1, 16384)])
    assert made() == [4096, 8192, 4096, 16384]


def test_launches_that_fail() -> None:
    _, d = gpu(cuLaunchKernel=1)
    launch = Launcher(Module("", d).function("k"), (128, 1, 1), 1)
    with pytest.raises(Invalid, match="70,000 blocks along y, at most 65,535"):
        launch([0], (1, 70000, 1))
    with pytest.raises(CudaError, match="a value it does not take") as caught:
        launch([0], (2, 1, 1))
    assert "2 x 1 x 1 blocks of 128 x 1 x 1 threads" in str(caught.value)


def test_a_capture_ends_whatever_happens() -> None:
    library, d = gpu()

    def fails(stream: int) -> None:
        raise RuntimeError("on the way")

    with pytest.raises(RuntimeError, match="on the way"):
        Graph(d, fails)
    names = library.names()
    assert names.index("cuStreamEndCapture") + 1 == names.index("cuGraphDestroy")
    graph = Graph(d, lambda stream: None)
    graph.launch(5)
    assert library.names()[-1] == "cuGraphLaunch"


def test_streams_and_events() -> None:
    library, d = gpu()
    stream, event = Stream(d), Event(d)
    event.record(stream.handle)
    stream.synchronise()
    assert {"cuStreamCreate", "cuEventCreate", "cuEventRecord"} <= set(library.names())
    del stream, event
    assert {"cuStreamDestroy_v2", "cuEventDestroy_v2"} <= set(library.names())


def test_memory() -> None:
    library, d = gpu()
    memory = Memory.of(d, np.arange(4.0))
    assert memory.size == 32
    with pytest.raises(Invalid, match="64 bytes are requested"):
        memory.read(np.zeros(8))
    del memory
    assert "cuMemFree_v2" in library.names()
    with pytest.raises(CudaError, match="out of memory") as caught:
        Memory(gpu(cuMemAlloc_v2=2)[1], 1 << 50)
    assert "1,125,899,906,842,624 bytes" in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"strides": (120,)}, "multiples of 16"),
        ({"strides": (128, 2)}, "all but the last"),
        ({"box": (64, 512)}, "1 to 256"),
        ({"swizzle": 48}, "32, 64 or 128"),
        ({"swizzle": 64}, "longer than the 64"),
        ({"address": 8}, "addresses that are multiples"),
        ({"dtype": "bool"}, "does not know bool"),
        ({"box": (64,)}, "1 to 5 axes"),
    ],
)
def test_rules_of_the_copy_engine(wrong: dict[str, Any], says: str) -> None:
    _, d = gpu()
    right: dict[str, Any] = {
        "address": 4096,
        "dtype": "bf16",
        "item": 2,
        "shape": (64, 64),
        "strides": (128,),
        "box": (64, 64),
        "swizzle": 128,
    }
    TensorMap(d, **right)
    with pytest.raises(TilewrightError, match=says):
        TensorMap(d, **{**right, **wrong})


def test_a_launch_by_one_call_of_native_code() -> None:
    """The words of a launch arrive where the driver reads them; the context is changed first where
    another one is the thread's."""
    seen: list[Any] = []
    word, half = ctypes.c_void_p, ctypes.c_uint

    def launch(f: int, *rest: Any) -> int:
        *sizes, stream, places, _ = rest
        at = (ctypes.c_void_p * 3).from_address(places)
        values = [ctypes.c_int64.from_address(at[k]).value for k in range(2)]
        seen.append((f, sizes, stream, values, at[2]))
        return 5

    def current(out: int) -> int:
        ctypes.c_int64.from_address(out).value = next(contexts, d.context)
        return 0

    def change(context: int) -> int:
        seen.append(context)
        return 0

    _, d = gpu()
    kept = {
        "cuLaunchKernel": ctypes.CFUNCTYPE(ctypes.c_int, word, *[half] * 7, *[word] * 3)(launch),
        "cuCtxGetCurrent": ctypes.CFUNCTYPE(ctypes.c_int, word)(current),
        "cuCtxSetCurrent": ctypes.CFUNCTYPE(ctypes.c_int, word)(change),
    }
    function = Module("", d).function("k", 64)
    d.driver._functions.update(kept)
    go = quick_launch(function, (32, 2, 1), 2, 1)
    assert go is not None
    given = struct.pack("<7q", 9, 10, 3, 1, -5, 1 << 40, 4096)
    contexts = iter([d.context, 77])
    assert go(given) == go(given) == 5
    launched = (function.handle, [10, 3, 1, 32, 2, 1, 64], 9, [-5, 1 << 40], 4096)
    assert seen == [launched, d.context, launched]


def test_a_graph_by_one_call_of_native_code() -> None:
    """It is launched on the stream while its context is the thread's; then that is as it was."""
    seen: list[Any] = []
    word = ctypes.c_void_p

    def launch(graph: int, stream: int) -> int:
        seen.append((graph, stream))
        return 5

    def current(out: int) -> int:
        ctypes.c_int64.from_address(out).value = next(contexts)
        return 0

    def change(context: int) -> int:
        seen.append(context)
        return 0

    _, d = gpu()
    kept = {
        "cuGraphLaunch": ctypes.CFUNCTYPE(ctypes.c_int, word, word)(launch),
        "cuCtxGetCurrent": ctypes.CFUNCTYPE(ctypes.c_int, word)(current),
        "cuCtxSetCurrent": ctypes.CFUNCTYPE(ctypes.c_int, word)(change),
    }
    d.driver._functions.update(kept)
    go = quick_replay(d, 42)
    assert go is not None
    contexts = iter([d.context, 77, 0])
    assert [go(9), go(8), go(7)] == [5, 5, 5]
    assert seen == [(42, 9), d.context, (42, 8), 77, d.context, (42, 7)]
