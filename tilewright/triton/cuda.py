"""Queries about a GPU, answered for a process that runs on a CPU: `torch.cuda`,
`torch.accelerator` and their modules.

A program sees one GPU, `cuda:0`, which is this machine. One table per module has the answers; what
no table answers and torch cannot do without a GPU either is refused by name. Whether there is a
GPU at all is the one question with two answers: torch itself gets the true one, because what it
does with a GPU (Dynamo's guards, Inductor's code, generators of random numbers) needs a real one.
"""

from __future__ import annotations

import functools
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tilewright.base.errors import Invalid, Unsupported
from tilewright.language.target_info import current_target
from tilewright.targets import host
from tilewright.triton import graphs
from tilewright.triton.philox import gpu_generator

_ELSEWHERE = ("cuda", "hip", "xpu", "mps")
# Parts of torch that query on behalf of the program which they trace.
_ON_BEHALF = ("torch._dynamo.variables", "torch._dynamo.symbolic_convert")


def called_by_torch(depth: int = 2, through: tuple[str, ...] = ()) -> bool:
    """Is the caller torch, or this package, and not a program? Callers are `depth` frames up;
    modules whose names begin with `through` only forward the call."""
    frame: Any = sys._getframe(depth)
    name = frame.f_globals.get("__name__", "")
    while through and name.startswith(through) and frame.f_back is not None:
        frame = frame.f_back
        name = frame.f_globals.get("__name__", "")
    if name.partition(".")[0] not in ("torch", "tilewright"):
        return False
    return not name.startswith(_ON_BEHALF)


def capability() -> tuple[int, int]:
    """The compute capability of a GPU that scripts support. Nothing is decided by it here."""
    target = current_target()
    return divmod(int(target.arch) if target.backend == "cuda" else 80, 10)


def here(device: Any) -> Any:
    """The device to use for the one that was requested: the CPU for GPUs."""
    import torch

    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type in _ELSEWHERE else device
    if isinstance(device, str) and device.split(":")[0] in _ELSEWHERE:
        return "cpu"
    return device


def index_of(device: Any) -> int:
    """The number of a device: 0, or an error that there is no other."""
    import torch

    if isinstance(device, str):
        device = torch.device(device)
    index = device.index if isinstance(device, torch.device) else device
    # As torch has it: -1 is the one in use, and so is what is neither a number nor a device.
    if not isinstance(index, int) or index in (-1, 0):
        return 0
    raise Invalid(f"device {device}", hint="there is one device, cuda:0: the CPU in its place")


# ---- time: a launch is over when it returns


class Event:
    """A point in time, as `torch.cuda.Event` is."""

    device = property(lambda self: _device())

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at: float | None = None
        self.cuda_event = self.event_id = 0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end_event: Event) -> float:
        if self.at is None or end_event.at is None:
            raise Invalid(
                "the time between events of which one was not recorded", hint="call event.record()"
            )
        return (end_event.at - self.at) * 1e3

    def ipc_handle(self) -> bytes:
        raise Unsupported("Event.ipc_handle: events here are of one process")


class Stream:
    """A queue in which everything is done at once, as `torch.cuda.Stream` is to its users."""

    cuda_stream = stream_id = device_index = priority = 0
    device_type = 1  # what torch calls a GPU
    device = property(lambda self: _device())

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, 0

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0


class StreamContext:
    """`torch.cuda.stream(s)`."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def __enter__(self) -> Any:
        return self.stream

    def __exit__(self, *_: Any) -> None:
        pass


class Device:
    """`torch.cuda.device(d)`: the device in use inside a `with`."""

    def __init__(self, device: Any) -> None:
        self.idx = index_of(device)
        self.prev_idx = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


class DeviceOf(Device):
    """`torch.cuda.device_of(x)`."""

    def __init__(self, obj: Any) -> None:
        super().__init__(0)


def _device() -> Any:
    import torch

    return torch.device("cuda", 0)


@contextmanager
def _nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


# ---- memory: that of this process


def total_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except ValueError:  # a system that does not report it
        return total_memory()


class Used:
    """Bytes in use by this process, and the most there were since the last reset."""

    def __init__(self) -> None:
        self.before = self.seen = 0

    def now(self, device: Any = None) -> int:
        try:
            with open("/proc/self/statm") as file:
                found = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:
            found = self._most()
        self.seen = max(self.seen, found)
        return found

    def peak(self, device: Any = None) -> int:
        most, now = self._most(), self.now()
        return most if most > self.before else max(self.seen, now)

    def reset(self, device: Any = None) -> None:
        self.before, self.seen = self._most(), 0
        self.now()

    def _most(self) -> int:
        """Since the process began: the system records no other."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


USED = Used()


def memory_stats(device: Any = None) -> dict[str, int]:
    now, peak = USED.now(), USED.peak()
    found = {}
    for what in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes"):
        found |= {f"{what}.all.current": now, f"{what}.all.peak": peak}
    return found


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    return f"memory of the process: {USED.now():,} bytes in use, {USED.peak():,} at most"


# ---- the tables


def properties(device: Any = None) -> SimpleNamespace:
    """What `torch.cuda.get_device_properties` returns, for this machine."""
    index_of(device)
    major, minor = capability()
    return SimpleNamespace(
        name=platform.processor() or platform.machine(),
        multi_processor_count=host().cores,
        total_memory=total_memory(),
        major=major,
        minor=minor,
        warp_size=32,
        L2_cache_size=host().l2,
        shared_memory_per_block=host().l2,
        shared_memory_per_block_optin=host().l2,
        shared_memory_per_multiprocessor=host().l2,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=1024,
        max_threads_per_block=1024,
        clock_rate=host().mhz * 1000,
        memory_clock_rate=host().mhz * 1000,
        memory_bus_width=host().memory_bandwidth * 4,
        gcnArchName="",
        is_integrated=1,
        is_multi_gpu_board=0,
        uuid="00000000-0000-0000-0000-000000000000",
        pci_bus_id=0,
        pci_device_id=0,
        pci_domain_id=0,
    )


def _seed(seed: int) -> None:
    import torch

    # `torch.manual_seed` seeds GPUs too, and would end up here again.
    torch.default_generator.manual_seed(int(seed))
    gpu_generator().manual_seed(int(seed))


def _random_state(device: Any = None) -> Any:
    import torch

    return torch.default_generator.get_state()


def _set_random_state(state: Any, device: Any = None) -> None:
    import torch

    torch.default_generator.set_state(state)


def _generator() -> Any:
    import torch

    return torch.default_generator


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsupported(
            f"{name} has no answer: there is a CPU in the place of the GPU",
            hint="leave it out where tilewright.triton stands in for a GPU",
        )

    refuse.__name__ = name.rpartition(".")[2]
    return refuse


class _Runtime:
    """`torch.cuda.cudart()`: what programs start and stop profilers with."""

    cudaProfilerStart = cudaProfilerStop = staticmethod(lambda *_: 0)
    cudaMemGetInfo = staticmethod(lambda device=0: (free_memory(), total_memory()))

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"torch.cuda.cudart().{name}: there is no CUDA runtime on a CPU")


# Whether there is a GPU: true for programs, not for torch.
EXISTENCE: Mapping[str, Mapping[str, Any]] = {
    "torch.cuda": {
        "is_available": True,
        "is_initialized": True,
        "_is_compiled": True,
        "device_count": 1,
        "_device_count_nvml": 1,
    },
    "torch.accelerator": {"is_available": True, "device_count": 1},
    "torch.backends.cuda": {"is_built": True},
}


def answers() -> dict[str, dict[str, Any]]:
    """The answers by module and name."""
    memory = {
        "memory_allocated": USED.now,
        "max_memory_allocated": USED.peak,
        "memory_reserved": USED.now,
        "max_memory_reserved": USED.peak,
        "reset_peak_memory_stats": USED.reset,
        "reset_accumulated_memory_stats": USED.reset,
        "memory_stats": memory_stats,
        "empty_cache": lambda: None,
    }
    nowhere = dict.fromkeys(("mark", "range_push", "range_pop", "range_start", "range_end"))
    return {
        "torch.cuda": {
            **memory,
            "memory_cached": USED.now,
            "max_memory_cached": USED.peak,
            "reset_max_memory_allocated": USED.reset,
            "reset_max_memory_cached": USED.reset,
            "device_memory_used": USED.now,
            "memory_summary": memory_summary,
            "mem_get_info": lambda device=None: (free_memory(), total_memory()),
            "get_per_process_memory_fraction": lambda device=None: 1.0,
            "set_per_process_memory_fraction": lambda fraction, device=None: None,
            "ipc_collect": lambda: None,
            "init": lambda: None,
            "_lazy_init": lambda: None,
            "current_device": lambda: 0,
            "set_device": lambda device: index_of(device) and None,
            "synchronize": lambda device=None: index_of(device) and None,
            "_sleep": lambda cycles: None,
            "_exchange_device": lambda device: 0,  # the one before
            "_maybe_exchange_device": lambda device: 0,
            "get_device_name": lambda device=None: properties(device).name,
            "get_device_capability": lambda device=None: index_of(device) or capability(),
            "get_device_properties": properties,
            "get_arch_list": lambda: ["sm_" + "".join(map(str, capability()))],
            "get_gencode_flags": lambda: "",
            "is_bf16_supported": lambda *_, **__: True,
            "is_tf32_supported": lambda: True,
            "can_device_access_peer": lambda device, peer: False,
            "get_sync_debug_mode": lambda: 0,
            "set_sync_debug_mode": lambda mode: None,
            "current_blas_handle": lambda: 0,
            "cudart": _Runtime,
            "get_rng_state": _random_state,
            "get_rng_state_all": lambda: [_random_state()],
            "set_rng_state": _set_random_state,
            "set_rng_state_all": lambda states: _set_random_state(next(iter(states))),
            "manual_seed": _seed,
            "manual_seed_all": _seed,
            "initial_seed": lambda: _generator().initial_seed(),
            "seed": lambda: _generator().seed() and None,
            "seed_all": lambda: _generator().seed() and None,
            "default_generators": (gpu_generator(),),
            "current_stream": lambda device=None: Stream(),
            "default_stream": lambda device=None: Stream(),
            "get_stream_from_external": lambda pointer, device=None: Stream(),
            "set_stream": lambda stream: None,
            "stream": StreamContext,
            "StreamContext": StreamContext,
            "Stream": Stream,
            "ExternalStream": Stream,
            "Event": Event,
            "device": Device,
            "device_of": DeviceOf,
            "CUDAGraph": graphs.Graph,
            "graph": graphs.Capture,
            "graph_pool_handle": lambda: (0, 0),
            "is_current_stream_capturing": graphs.capturing,
            "make_graphed_callables": graphs.graphed,
            "MemPool": _nothing,
            "use_mem_pool": _nothing,
            "utilization": _refusing("torch.cuda.utilization"),
        },
        "torch.cuda.nvtx": {**dict.fromkeys(nowhere, lambda *_, **__: 0), "range": _nothing},
        "torch.cuda.profiler": {"start": lambda: None, "stop": lambda: None, "profile": _nothing},
        "torch.accelerator": {
            **memory,
            "current_accelerator": lambda check_available=False: here_not(),
            "current_device_index": lambda: 0,
            "current_device_idx": lambda: 0,
            "set_device_index": lambda device: index_of(device) and None,
            "set_device_idx": lambda device: index_of(device) and None,
            "device_index": _nothing,
            "synchronize": lambda device=None: index_of(device) and None,
            "current_stream": lambda device=None: Stream(),
            "set_stream": lambda stream: None,
            "empty_host_cache": lambda: None,
            "get_memory_info": lambda device=None: (free_memory(), total_memory()),
        },
        "torch": {
            "Event": Event,
            "Stream": Stream,
            "get_device_module": _module_of(sys.modules["torch"].get_device_module),
        },
        "torch._C": {"_cuda_getCurrentRawStream": lambda device=0: 0},
    }


def here_not() -> Any:
    """`torch.accelerator.current_accelerator()`: for torch itself there is none."""
    import torch

    return None if called_by_torch(3) else torch.device("cuda")


def answering(original: Any, answer: Any) -> Callable[..., Any]:
    """An answer for programs; torch gets the original's."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) if called_by_torch() else answer

    # Dynamo calls it where a program does, and takes the answer for a constant.
    ask._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return ask


def _module_of(original: Callable[..., Any]) -> Callable[..., Any]:
    """The module of a device; of the one in use, if none is named."""

    @functools.wraps(original)  # Dynamo takes what it wraps
    def ask(device: Any = None) -> Any:
        return original("cuda" if device is None and not called_by_torch() else device)

    return ask


def named(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A query that no table answers: torch's answer if it has one, or an error with its name."""

    def ask(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        except (AssertionError, AttributeError, ImportError, RuntimeError):
            return _refusing(name)()

    ask.__name__ = getattr(original, "__name__", name)
    return ask


__all__ = [
    "EXISTENCE",
    "Event",
    "Stream",
    "answering",
    "answers",
    "called_by_torch",
    "capability",
    "here",
    "named",
    "properties",
]
