"""Work in order: streams, events on them, and graphs that are captured once and launched often."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable

from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import CudaError


class Stream:
    """A stream of our own. Others, such as torch's, are plain integers."""

    def __init__(self, device: Device) -> None:
        self.device = device
        device.use()
        handle = ctypes.c_void_p()
        device.driver.call("cuStreamCreate", ctypes.byref(handle), 1)
        self.handle = handle.value or 0
        weakref.finalize(self, _destroy, device, "cuStreamDestroy_v2", self.handle)

    def synchronise(self) -> None:
        """Waits until all work on the stream is done."""
        self.device.use()
        self.device.driver.call("cuStreamSynchronize", self.handle)


class Event:
    """A point of a stream."""

    def __init__(self, device: Device) -> None:
        self.device = device
        device.use()
        handle = ctypes.c_void_p()
        device.driver.call("cuEventCreate", ctypes.byref(handle), 0)
        self.handle = handle.value or 0
        weakref.finalize(self, _destroy, device, "cuEventDestroy_v2", self.handle)

    def record(self, stream: int = 0) -> None:
        self.device.use()
        self.device.driver.call("cuEventRecord", self.handle, stream)

    def synchronise(self) -> None:
        self.device.driver.call("cuEventSynchronize", self.handle)

    def since(self, earlier: Event) -> float:
        """Seconds from an earlier event to this one."""
        self.synchronise()
        took = ctypes.c_float()
        self.device.driver.call(
            "cuEventElapsedTime", ctypes.byref(took), earlier.handle, self.handle
        )
        return took.value * 1e-3


class Graph:
    """The work that a function enqueued on a stream, to be enqueued again at once."""

    def __init__(self, device: Device, work: Callable[[int], None]) -> None:
        """`work` is called once, with a stream on which nothing runs: what it launches there is
        noted, with its arguments, and not done."""
        self.device = device
        stream = Stream(device)
        call = device.driver.call
        thread_local = 1
        call("cuStreamBeginCapture_v2", stream.handle, thread_local)
        graph = ctypes.c_void_p()
        try:
            work(stream.handle)
        except BaseException:
            # The capture has to end whatever happened, and is thrown away.
            device.driver.function("cuStreamEndCapture")(stream.handle, ctypes.byref(graph))
            if graph.value:
                call("cuGraphDestroy", graph)
            raise
        call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
        made = ctypes.c_void_p()
        try:
            call("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, 0)
        finally:
            call("cuGraphDestroy", graph)
        self.handle = made.value or 0
        weakref.finalize(self, _destroy, device, "cuGraphExecDestroy", self.handle)

    def launch(self, stream: int = 0) -> None:
        self.device.use()
        self.device.driver.call("cuGraphLaunch", self.handle, stream)


def _destroy(device: Device, name: str, handle: int) -> None:
    try:
        device.use()
        device.driver.call(name, handle)
    except CudaError:
        return  # the context is gone, and all in it
