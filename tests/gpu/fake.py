"""A GPU that is not there: a stand-in for libcuda that runs the emitted LLVM text on this processor
(tests/gpu/emulate.py), in memory of this process. Torch's CPU tensors take the part of CUDA ones,
so that whole programs take the way that they take on a GPU: images, arenas, graphs, checks."""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from tests.gpu.emulate import PLAIN, Threads, for_processor
from tests.gpu.emulate_warps import described
from tilewright import targets
from tilewright.driver.program import stages
from tilewright.driver.tile import gpu_compile
from tilewright.driver.torch.api import Compiled
from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.libraries import invoke
from tilewright.driver.torch.options import TorchOptions
from tilewright.ir.target import Target
from tilewright.llvm import objects
from tilewright.llvm.launch import Launch
from tilewright.llvm.objects import compile_object
from tilewright.runtime.cuda import program
from tilewright.runtime.cuda.device import describe
from tilewright.runtime.cuda.driver import Driver
from tilewright.runtime.cuda.machine import GivenCall, Machine
from tilewright.runtime.cuda.replay import Params
from tilewright.runtime.library import Library

# By its PTX: the LLVM text of a module.
TEXTS: dict[str, str] = {}
_KERNEL = re.compile(r"^define ptx_kernel void @(\w+)\((.*?)\) ?(?:\"|nounwind|\{)", re.M)
_TOGETHER = ("barrier", "shfl", "mma", "ldmatrix", "cp_async", "cp.async")


class FakeLibrary:
    """libcuda with one GPU of capability 9.0, whose memory is that of this process."""

    multiprocessors = 4

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.memory: dict[int, Any] = {}
        self.modules: dict[int, Emulated] = {}
        self.functions: dict[int, tuple[Emulated, str]] = {}
        self.graphs: dict[int, list[int]] = {}
        self.nodes: dict[int, tuple[Any, ...]] = {}
        self.recorded: dict[int, Callable[[], None]] = {}  # graphs of libraries
        self.times: dict[int, float] = {}  # of events
        self.replays = self.loose = 0
        self._next = 1000

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args: Any) -> int:
            self.calls.append(name)
            getattr(self, f"do_{name}", self.nothing)(*args)
            return 0

        return call

    def nothing(self, *args: Any) -> None:
        """Streams, contexts and whatever else has no meaning here."""

    def new(self, thing: Any, table: dict[int, Any]) -> int:
        self._next += 1
        table[self._next] = thing
        return self._next

    # ---- the device

    def do_cuDriverGetVersion(self, out: Any) -> None:
        out._obj.value = 12040

    def do_cuDeviceGetCount(self, out: Any) -> None:
        out._obj.value = 1

    def do_cuDeviceGetAttribute(self, out: Any, which: int, _: Any) -> None:
        out._obj.value = {75: 9, 76: 0, 16: self.multiprocessors, 10: 32, 1: 1024}.get(which, 0)

    def do_cuDeviceGetName(self, name: Any, *_: Any) -> None:
        name.value = b"a stand-in"

    def do_cuDevicePrimaryCtxRetain(self, out: Any, _: Any) -> None:
        out._obj.value = 1

    def do_cuCtxGetCurrent(self, out: Any) -> None:
        out._obj.value = 1

    # ---- memory

    def do_cuMemAlloc_v2(self, out: Any, size: int) -> None:
        raw = np.full(size + 256, 0xA5, np.uint8)
        out._obj.value = raw.ctypes.data + -raw.ctypes.data % 256
        self.memory[out._obj.value] = raw

    def do_cuMemHostAlloc(self, out: Any, size: int, _: int) -> None:
        self.do_cuMemAlloc_v2(out, size)

    def do_cuMemFree_v2(self, address: int) -> None:
        del self.memory[address]

    def do_cuMemFreeHost(self, address: int) -> None:
        del self.memory[address]

    def do_cuMemcpyHtoD_v2(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    def do_cuMemcpyDtoH_v2(self, to: int, source: int, size: int) -> None:
        ctypes.memmove(to, source, size)

    def do_cuMemcpyDtoDAsync_v2(self, to: int, source: int, size: int, _: int) -> None:
        ctypes.memmove(to, source, size)

    def do_cuMemsetD8Async(self, to: int, byte: int, size: int, _: int) -> None:
        ctypes.memset(to, byte, size)

    # ---- code

    def do_cuModuleLoadDataEx(self, out: Any, text: Any, *_: Any) -> None:
        out._obj.value = self.new(Emulated(TEXTS[text.value.decode()]), self.modules)

    def do_cuModuleGetFunction(self, out: Any, module: int, name: bytes) -> None:
        out._obj.value = self.new((self.modules[module], name.decode()), self.functions)

    def do_cuTensorMapEncodeTiled(self, to: Any, *rest: Any) -> None:
        """In words of the emulator's own, as many as there is room for."""
        kind, rank, address, sizes, steps, box, _, _, swizzle, _, _ = rest
        item = {0: 1, 6: 2, 7: 4, 9: 2}[kind]
        shape, strides = list(sizes)[::-1], list(steps)[: rank - 1][::-1]
        words = described(item, address.value, shape, strides, list(box)[::-1], 16 << swizzle)
        assert words.nbytes <= 128, "a map of five axes"
        ctypes.memmove(to.value, words.ctypes.data, words.nbytes)

    def do_cuLaunchKernel(self, function: int, *rest: Any) -> None:
        gx, gy, gz, tx, ty, tz, _, _, places, _ = rest
        module, name = self.functions[function]
        values = module.values(name, places)
        module.run(name, (gx, gy, gz), (tx, ty, tz), values)

    def do_cuLaunchCooperativeKernel(self, function: int, *rest: Any) -> None:
        blocks, _, _, threads, _, _, _, _, places = rest
        module, name = self.functions[function]
        module.run_together(name, blocks, threads, module.values(name, places))

    def do_cuOccupancyMaxActiveBlocksPerMultiprocessor(self, out: Any, *_: Any) -> None:
        out._obj.value = 1

    def do_cuMemcpyHtoDAsync_v2(self, to: int, source: int, size: int, _: int) -> None:
        ctypes.memmove(to, source, size)

    # ---- events

    def do_cuEventCreate(self, out: Any, _: int) -> None:
        out._obj.value = self.new(0.0, self.times)

    def do_cuEventRecord(self, event: int, _: int) -> None:
        self.times[event] = time.perf_counter()

    def do_cuEventElapsedTime(self, out: Any, first: int, last: int) -> None:
        out._obj.value = (self.times[last] - self.times[first]) * 1e3

    # ---- graphs

    def do_cuGraphCreate(self, out: Any, _: int) -> None:
        out._obj.value = self.new([], self.graphs)

    def do_cuGraphAddKernelNode_v2(
        self, out: Any, graph: Any, needs: Any, count: int, params: int
    ) -> None:
        self._add(out, graph, needs, count, self._node(params))

    def _add(self, out: Any, graph: Any, needs: Any, count: int, node: tuple[Any, ...]) -> None:
        nodes, after = self.graphs[graph.value], list(needs or ())
        assert len(after) == count and set(after) <= set(nodes)
        out._obj.value = made = self.new(node, self.nodes)
        assert not count or after == nodes[-1:], "launches run one after the other"
        if nodes and not count:
            self.loose = made  # until it gets a place by an edge
        nodes.append(made)

    def do_cuGraphAddDependencies_v2(
        self, graph: Any, first: Any, then: Any, kinds: Any, count: int
    ) -> None:
        """A kernel that begins when the one before lets it."""
        nodes = self.graphs[graph.value]
        assert [*first, then._obj.value] == nodes[-2:] and count == 1
        assert bytes(kinds._obj) == bytes([1, 0, 1, 0, 0, 0, 0, 0]) and self.loose == nodes[-1]
        self.loose = 0

    def do_cuGraphAddChildGraphNode(
        self, out: Any, graph: Any, needs: Any, count: int, below: int
    ) -> None:
        assert not self.graphs[graph.value] or count
        self._add(out, graph, needs, count, (self.recorded[below],))

    def do_cuGraphExecChildGraphNodeSetParams(self, graph: int, node: int, below: int) -> None:
        assert node in self.graphs[graph]
        self.nodes[node] = (self.recorded[below],)

    def _node(self, address: int) -> tuple[Any, ...]:
        p = Params.from_address(address)
        module, name = self.functions[p.function]
        places = (ctypes.c_void_p * len(module.kinds[name])).from_address(p.values)
        return module, name, tuple(p.blocks), tuple(p.threads), module.values(name, places)

    def do_cuGraphInstantiateWithFlags(self, out: Any, graph: Any, _: int) -> None:
        assert not self.loose, "launches run one after the other"
        out._obj.value = self.new(list(self.graphs[graph.value]), self.graphs)

    def do_cuGraphExecKernelNodeSetParams_v2(self, graph: int, node: int, params: int) -> None:
        assert node in self.graphs[graph]
        self.nodes[node] = self._node(params)

    def do_cuGraphLaunch(self, graph: int, _: int) -> None:
        self.replays += 1
        for n in self.graphs[graph]:
            if len(self.nodes[n]) == 1:
                self.nodes[n][0]()
                continue
            module, name, blocks, threads, values = self.nodes[n]
            module.run(name, blocks, threads, values)


class Emulated:
    """LLVM text for a GPU as code of this processor."""

    def __init__(self, text: str) -> None:
        found = _KERNEL.findall(text)
        assert found, f"there is no kernel in\n{text[:400]}"
        self.kinds = {name: _split(parameters) for name, parameters in found}
        self.together = any(word in text for word in _TOGETHER)
        self.image = compile_object(for_processor(text), targets.host())
        self.threads = Threads()
        self.libraries = [Library([self.image], self.threads.symbols())]

    def run_together(self, name: str, blocks: int, threads: int, values: list[int]) -> None:
        """All blocks at the same time. Each has a copy of the code: its own shared memory."""
        while len(self.libraries) < blocks:
            self.libraries.append(Library([self.image], self.threads.symbols()))
        kinds = [ctypes.c_int64] * len(values)
        functions = [
            ctypes.CFUNCTYPE(None, *kinds)(x.address(name)) for x in self.libraries[:blocks]
        ]
        x = Launch(name, (blocks, 1, 1), (threads, 1, 1), 0, ())
        self.threads.run(functions, x, [(k, 0, 0) for k in range(blocks)], values)

    def values(self, name: str, places: Any) -> list[int]:
        """Of what is given by value, such as a tensor map, the address."""
        kinds = self.kinds[name]
        return [
            places[k] if "byval" in x else ctypes.c_int64.from_address(places[k]).value
            for k, x in enumerate(kinds)
        ]

    def run(
        self,
        name: str,
        blocks: tuple[int, ...],
        threads: tuple[int, ...],
        values: list[int],
    ) -> None:
        kinds = [ctypes.c_int64] * len(values)
        function = ctypes.CFUNCTYPE(None, *kinds)(self.libraries[0].address(name))
        gx, gy, gz = blocks
        tx, ty, tz = threads
        x = Launch(name, (gx, gy, gz), (tx, ty, tz), 0, ())
        for k in range(gx * gy * gz):
            block = (k % gx, k // gx % gy, k // (gx * gy))
            if self.together:
                self.threads.run([function], x, [block], values)
            else:
                self.threads.one_by_one(function, x, block, values)


def _split(parameters: str) -> list[str]:
    """The parameters of a function, which may have brackets in their attributes."""
    plain = re.sub(r"\([^()]*\)", "", parameters)
    return [p for p in plain.split(",") if p.strip()]


@dataclass(frozen=True)
class _Recorded:
    graph: int


class FakeLibraries:
    """Libraries of the GPU that is not there: torch's operators on CPU tensors, on the same memory
    and through the same views."""

    name = "a stand-in"

    def __init__(self, library: FakeLibrary) -> None:
        self.library = library
        self.calls: list[GivenCall] = []
        self.rooms = 0

    def run(self, call: GivenCall, addresses: Sequence[int]) -> None:
        self.calls.append(call)
        with torch.no_grad():
            invoke(call, addresses, torch.device("cpu"))

    def room(self) -> object:
        self.rooms += 1
        return object()

    def recorded(self, call: GivenCall, addresses: Sequence[int], room: object) -> _Recorded:
        assert room is not None
        places = tuple(addresses)
        return _Recorded(self.library.new(lambda: self.run(call, places), self.library.recorded))


def fake_machine(target: Target = PLAIN, libraries: bool = False) -> tuple[FakeLibrary, Machine]:
    library = FakeLibrary()
    device = describe(0, Driver(library))

    def allocate(size: int) -> tuple[int, object]:
        made = torch.full((size + 256,), 0xA5, dtype=torch.uint8)
        return made.data_ptr() + -made.data_ptr() % 256, made

    machine = Machine(device, target, allocate, lambda: 0, lambda: False, lambda: None)
    if libraries:
        machine = replace(machine, libraries=FakeLibraries(library))
    return library, machine


@contextmanager
def texts_are_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """PTX is made as ever; where it is loaded, the text that it was made of is found."""

    def assembly(text: str, target: Target) -> str:
        made = objects.assembly(text, target)
        TEXTS[made] = text
        return made

    with monkeypatch.context() as m:
        m.setenv("TILEWRIGHT_CACHE", "off")
        m.setattr(stages, "assembly", assembly)
        m.setattr(program, "cached_ptx", assembly)
        m.setattr(gpu_compile, "cached_ptx", assembly)
        m.setenv("TILEWRIGHT_COMPILE_PROCESSES", "0")  # what others compile is not known here
        yield


def on_fake_gpu(
    function: Callable[..., Any], machine: Machine, dynamic: bool | None = None, **options: Any
) -> Compiled:
    """`tw.compile` of a function of CPU tensors, for the GPU that is not there."""
    session = Session(TorchOptions.parse(options), machines=lambda device: machine)
    return Compiled(function, session, bool(options.get("strict")), dynamic)
