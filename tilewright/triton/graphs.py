"""`torch.cuda.CUDAGraph` on a CPU: what runs during a capture is recorded and runs again on replay,
on the same memory.

Operators of torch are seen by a dispatch mode, launches of kernels by a listener. Both run while
they are captured, so that shapes are known; on a GPU a capture runs nothing, so tensors from
outside that they change get their old values back at its end. A replay writes results into the
tensors that the capture made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.tile.jit import DEFAULTS

_active: list[Recorder] = []


def capturing() -> bool:
    """Is a graph being captured?"""
    return bool(_active)


class Graph:
    """A capture that can be replayed."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.steps: list[Callable[[], None]] | None = None
        self.recorder: Recorder | None = None

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        if _active:
            raise Invalid("a graph is captured while another one is", hint="capture_end() it first")
        self.recorder = recorder()
        self.recorder.begin()

    def capture_end(self) -> None:
        if self.recorder is None:
            raise Invalid("capture_end() of a graph whose capture did not begin")
        found, self.recorder = self.recorder, None
        self.steps = found.end()

    def replay(self) -> None:
        if self.steps is None:
            raise Invalid("replay() of a graph that was not captured", hint="capture it first")
        for step in self.steps:
            step()

    def instantiate(self) -> None:
        """Does nothing: a graph here can be replayed when its capture has ended."""

    def reset(self) -> None:
        self.steps = None

    def pool(self) -> tuple[int, int]:
        return 0, 0

    def enable_debug_mode(self) -> None:
        """Accepted and ignored: graphs are not drawn."""

    def debug_dump(self, debug_path: str) -> None:
        raise Unsupported(
            "CUDAGraph.debug_dump: a graph here is a list of calls, without a drawing"
        )


class Capture:
    """`with torch.cuda.graph(g):`."""

    default_capture_stream: Any = None

    def __init__(self, cuda_graph: Graph, pool: Any = None, stream: Any = None, **_: Any) -> None:
        self.cuda_graph = cuda_graph

    def __enter__(self) -> None:
        self.cuda_graph.capture_begin()

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        self.cuda_graph.capture_end()


def graphed(callables: Any, sample_args: Any, *_: Any, **__: Any) -> Any:
    """`torch.cuda.make_graphed_callables`: on a CPU a call is as quick as a replay, so callables
    stay what they are."""
    return callables


def recorder() -> Recorder:
    return Recorder()


class Recorder:
    """Records operators and launches of this thread, and the outside tensors that they change."""

    def __init__(self) -> None:
        self.steps: list[Callable[[], None]] = []
        self.made: dict[int, Any] = {}  # storages of the capture's own tensors, by address
        self.saved: dict[int, tuple[Any, Any]] = {}  # those from outside, with their old values
        self.mode = _mode(self)

    def begin(self) -> None:
        _active.append(self)
        DEFAULTS.listeners.append(self.launched)
        self.mode.__enter__()

    def end(self) -> list[Callable[[], None]]:
        self.mode.__exit__(None, None, None)
        DEFAULTS.listeners.remove(self.launched)
        _active.remove(self)
        for storage, old in self.saved.values():
            storage.copy_(old)
        return self.steps

    def launched(self, kernel: Any, given: Sequence[Any], options: Any, grid: Any) -> None:
        """Before a kernel runs."""
        function = kernel.function
        for x in _tensors(given):
            self.save(x)
        self.steps.append(lambda: function._slowly(grid, given, (), options) and None)

    def save(self, x: Any) -> None:
        """A tensor is about to change."""
        storage = x.untyped_storage()
        at = storage.data_ptr()
        if at and at not in self.made and at not in self.saved:
            self.saved[at] = storage, storage.clone()

    def operator(self, operator: Any, args: Any, kwargs: Any) -> Any:
        schema = operator._schema
        if operator._opname in ("_local_scalar_dense", "nonzero"):
            raise Unsupported(
                f"{operator._opname} while a graph is captured: it needs a value, and a graph is "
                "replayed with others",
                hint="move it out of the capture",
            )
        if schema.is_mutable:
            for declared, value in zip(schema.arguments, args, strict=False):
                if declared.alias_info is not None and declared.alias_info.is_write:
                    for x in _tensors((value,)):
                        self.save(x)
            for declared in schema.arguments:
                if declared.alias_info is not None and declared.alias_info.is_write:
                    for x in _tensors((kwargs.get(declared.name),)):
                        self.save(x)
        before = {x.untyped_storage().data_ptr() for x in _tensors((*args, *kwargs.values()))}
        out = operator(*args, **kwargs)
        fresh = [x for x in _tensors((out,)) if x.untyped_storage().data_ptr() not in before]
        for x in fresh:
            self.made[x.untyped_storage().data_ptr()] = x.untyped_storage()
        if not operator._opname.startswith("empty"):
            self.steps.append(lambda: _again(operator, args, kwargs, out))
        return out


def _again(operator: Any, args: Any, kwargs: Any, out: Any) -> None:
    for old, new in zip(_tensors((out,)), _tensors((operator(*args, **kwargs),)), strict=True):
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)


def _tensors(values: Any) -> Iterator[Any]:
    import torch

    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (tuple, list)):
            yield from _tensors(x)
        elif isinstance(getattr(x, "base", None), torch.Tensor):  # a descriptor
            yield x.base


def _mode(recorder: Recorder) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            return recorder.operator(func, args, kwargs or {})

    return Mode()
