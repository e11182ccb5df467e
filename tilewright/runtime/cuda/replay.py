"""A sequence of launches as one CUDA graph, whose arguments can be replaced between replays."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence

from tilewright.base.errors import Invalid
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import CudaError
from tilewright.runtime.cuda.machine import GivenCall, Recorded
from tilewright.runtime.cuda.module import Launcher
from tilewright.runtime.cuda.quick import quick_replay

# Of an edge of a graph: after the kernel before lets others begin, and not when it ends.
_LETS_BEGIN = (ctypes.c_ubyte * 8)(1, 0, 1)


class Params(ctypes.Structure):
    """The driver's description of a kernel node."""

    _fields_ = [
        ("function", ctypes.c_void_p),
        ("blocks", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("values", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    ]


class _Node:
    """One kernel of a graph, with the memory that its arguments are passed in."""

    __slots__ = ("handle", "params", "values", "places", "address", "launcher", "count", "maps")

    def __init__(
        self, launcher: Launcher, blocks: tuple[int, int, int], values: Sequence[int]
    ) -> None:
        count = len(values)
        self.values = (ctypes.c_int64 * max(1, count))(*values)
        start = ctypes.addressof(self.values)
        self.launcher, self.count = launcher, count
        self.maps = launcher.tensor_maps(values)
        places = [*(start + 8 * k for k in range(count)), *(m.address for m in self.maps)]
        self.places = (ctypes.c_void_p * max(1, len(places)))(*places)
        self.params = Params(
            launcher.function.handle,
            blocks,
            launcher.threads,
            launcher.function.dynamic,
            ctypes.addressof(self.places),
        )
        self.address = ctypes.addressof(self.params)
        self.handle = 0

    def renew_maps(self) -> None:
        """Tensor maps of other addresses."""
        self.maps = self.launcher.tensor_maps(list(self.values[: self.count]))
        for k, m in enumerate(self.maps):
            self.places[self.count + k] = m.address


class _Called:
    """A library call of a graph, which is a graph itself."""

    __slots__ = ("handle", "call", "values", "recorded")

    def __init__(self, call: GivenCall, values: Sequence[int], recorded: Recorded) -> None:
        self.call, self.values, self.recorded = call, list(values), recorded
        self.handle = 0


Launched = tuple[Launcher, tuple[int, int, int], Sequence[int]]
Called = tuple[GivenCall, Sequence[int]]
Record = Callable[[GivenCall, Sequence[int]], Recorded]


def no_libraries(call: GivenCall, values: Sequence[int]) -> Recorded:
    raise Invalid(f"a {call.function} is computed by a library, and none is at hand")


class Replay:
    """Launches, one after the other, that are enqueued at once.

    The arguments of a launch may be replaced: that holds for later replays. Not safe from
    several threads at a time.
    """

    def __init__(
        self,
        device: Device,
        launches: Sequence[Launched | Called],
        record: Record = no_libraries,
        early: Sequence[bool] = (),
    ) -> None:
        """`early`, of each launch: may it begin before the one before it ends, since it waits
        itself?"""
        self.device, self._record = device, record
        # Libraries first: what they record may fail, and may enqueue work of its own.
        self._nodes = [_node(x, record) for x in launches]
        call = device.driver.call
        graph = ctypes.c_void_p()
        call("cuGraphCreate", ctypes.byref(graph), 0)
        try:
            before: _Node | _Called | None = None
            for k, node in enumerate(self._nodes):
                if node is None:
                    continue
                made = ctypes.c_void_p()
                place = ctypes.byref(made)
                begins = isinstance(before, _Node) and any(early[k : k + 1])
                first = (ctypes.c_void_p * 1)(before.handle) if before is not None else None
                needs = None if begins else first
                count = int(needs is not None)
                if isinstance(node, _Called):
                    below, where = node.recorded.graph, node.call.function
                    call("cuGraphAddChildGraphNode", place, graph, needs, count, below, where=where)
                else:
                    what, where = node.address, node.launcher.function.name
                    call("cuGraphAddKernelNode_v2", place, graph, needs, count, what, where=where)
                if begins:
                    pair = first, place, ctypes.byref(_LETS_BEGIN)
                    call("cuGraphAddDependencies_v2", graph, *pair, 1, where=where)
                node.handle = made.value or 0
                before = node
            ready = ctypes.c_void_p()
            call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, 0)
        except BaseException:
            call("cuGraphDestroy", graph)
            raise
        # Nodes are known by the graph that they were made in, so it stays.
        self.handle = ready.value or 0
        self._set = device.driver.function("cuGraphExecKernelNodeSetParams_v2")
        self._set_call = device.driver.function("cuGraphExecChildGraphNodeSetParams")
        self._launch = device.driver.function("cuGraphLaunch")
        self._quick = quick_replay(device, self.handle)
        weakref.finalize(self, _destroy, device, self.handle, graph.value or 0)

    def replace(self, launch: int, values: Sequence[tuple[int, int]]) -> bool:
        """Other values at some positions of a launch's arguments. False: a library does something
        else for these, so that another graph has to be made."""
        node = self._nodes[launch]
        if node is None:
            return True
        for position, value in values:
            node.values[position] = value
        if isinstance(node, _Called):
            node.recorded = self._record(node.call, node.values)
            return self._set_call(self.handle, node.handle, node.recorded.graph) == 0
        if node.maps:
            node.renew_maps()
        code = self._set(self.handle, node.handle, node.address)
        if code:
            raise self.device.driver.error("cuGraphExecKernelNodeSetParams_v2", code)
        return True

    def __call__(self, stream: int) -> None:
        """Enqueues all of it. The device is the calling thread's."""
        self._checked(self._launch(self.handle, stream))

    def alone(self, stream: int) -> None:
        """The same, whatever the thread's device is."""
        if self._quick is None:
            self.device.within(self, stream)
        else:
            self._checked(self._quick(stream))

    def _checked(self, code: int) -> None:
        if code:
            raise self.device.driver.error("cuGraphLaunch", code)


def _node(x: Launched | Called, record: Record) -> _Node | _Called | None:
    if len(x) == 2:
        return _Called(*x, record(*x))
    launcher, blocks, values = x
    return _Node(launcher, blocks, values) if 0 not in blocks else None  # no blocks: no launch


def _destroy(device: Device, ready: int, graph: int) -> None:
    try:
        device.use()
        device.driver.call("cuGraphExecDestroy", ready)
        device.driver.call("cuGraphDestroy", graph)
    except CudaError:
        return  # the context is gone, and all in it
