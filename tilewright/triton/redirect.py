"""Scripts that ask torch for a GPU get the CPU: `device="cuda"` is understood as `device="cpu"`.

Only what makes or moves tensors is wrapped, and questions to `torch.cuda` that scripts put before
they launch anything are answered. `undo()` puts everything back.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
import time
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tilewright.base import knobs
from tilewright.targets import host

_ELSEWHERE = ("cuda", "hip", "xpu", "mps")
_FACTORIES = """empty zeros ones full rand randn randint arange tensor as_tensor asarray linspace
    logspace eye randperm normal empty_strided empty_permuted scalar_tensor empty_like zeros_like
    ones_like full_like rand_like randn_like randint_like tril_indices triu_indices
    set_default_device from_file frombuffer sparse_coo_tensor""".split()
_METHODS = "to new_empty new_zeros new_ones new_full new_tensor new_empty_strided".split()


def capability() -> tuple[int, int]:
    """Of a GPU that scripts know how to talk to. What it says of itself chooses nothing here."""
    backend, _, arch = (knobs.triton_backend.get() or "").partition(":")
    digits = arch if backend == "cuda" and arch.isdigit() else "80"
    return int(digits[:-1] or 0), int(digits[-1])


def here(device: Any) -> Any:
    """A device for one that was asked for: those of GPUs are the CPU."""
    import torch

    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type in _ELSEWHERE else device
    if isinstance(device, str) and device.split(":")[0] in _ELSEWHERE:
        return "cpu"
    return device


class Event:
    """A point in time, as `torch.cuda.Event` is: a launch here is over when it returns."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def wait(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) * 1e3


class Stream:
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_stream(self, other: Any) -> None:
        pass

    def wait_event(self, event: Any) -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record()
        return event


@contextmanager
def _nothing(*_: Any, **__: Any):
    yield


def properties() -> SimpleNamespace:
    """What `torch.cuda.get_device_properties` tells, of this machine."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return SimpleNamespace(
        name=platform.processor() or platform.machine(),
        multi_processor_count=host().cores,
        total_memory=pages,
        major=capability()[0],
        minor=capability()[1],
        warp_size=1,
        L2_cache_size=host().l2,
        shared_memory_per_block=host().l2,
        shared_memory_per_block_optin=host().l2,
        regs_per_multiprocessor=256,
        max_threads_per_multi_processor=1024,
        gcnArchName="",
        is_integrated=1,
    )


def _answers() -> dict[str, Any]:
    """`torch.cuda` for one device that is this CPU."""
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_name": lambda device=None: properties().name,
        "get_device_capability": lambda device=None: capability(),
        "get_device_properties": lambda device=None: properties(),
        "is_bf16_supported": lambda *_, **__: True,
        "empty_cache": lambda: None,
        "manual_seed": _seed,
        "manual_seed_all": _seed,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "Stream": Stream,
        "Event": Event,
        "stream": _nothing,
        "device": _nothing,
    }


def _seed(seed: int) -> None:
    import torch

    # `torch.manual_seed` seeds GPUs too, and would end up here again.
    torch.default_generator.manual_seed(int(seed))


_undo: list[Callable[[], None]] = []
_redirected = False


def complete() -> None:
    """What scripts ask of the module of their device, `torch.cpu` here, and it lacks."""
    torch = sys.modules.get("torch")
    if torch is not None and not hasattr(torch.cpu, "set_stream"):
        _replace(torch.cpu, "set_stream", lambda stream: None)


def redirect() -> None:
    """From now on tensors for a GPU are made on the CPU. Calling it again changes nothing."""
    global _redirected
    import torch

    if _redirected:
        return
    _redirected = True
    complete()
    for name in _FACTORIES:
        _replace(torch, name, _wrapped(getattr(torch, name)))
    for name in _METHODS:
        _replace(torch.Tensor, name, _wrapped(getattr(torch.Tensor, name)))
    _replace(torch.Tensor, "cuda", lambda x, *_, **__: x)
    _replace(torch.Tensor, "is_cuda", property(lambda x: x.is_cpu))
    _replace(torch, "Generator", _generators(torch.Generator))
    functional = torch.nn.functional
    _replace(functional, "layer_norm", _summed_widely(functional.layer_norm))
    for name, answer in _answers().items():
        _replace(torch.cuda, name, answer)


def undo() -> None:
    """Everything as it was."""
    global _redirected
    _redirected = False
    while _undo:
        _undo.pop()()


def _replace(owner: Any, name: str, new: Any) -> None:
    own = vars(owner).get(name, _nothing)
    setattr(owner, name, new)
    if own is _nothing:  # it came from a base class
        _undo.append(lambda: delattr(owner, name))
    else:
        _undo.append(lambda: setattr(owner, name, own))


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            device = kwargs["device"]
            whole = isinstance(device, int) and not isinstance(device, bool)
            kwargs["device"] = "cpu" if whole else here(device)
        return function(*map(here, args), **kwargs)

    return call


def _summed_widely(layer_norm: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients of a layer norm of 16-bit floats as a GPU has them, summed in 32 bits and rounded
    once. On a CPU torch sums them in 16 bits: scripts that compare with a GPU's find them wrong.
    """
    import torch

    class Wide(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
            ctx.save_for_backward(x, weight, bias)
            ctx.shape, ctx.eps = shape, eps
            return layer_norm(x, shape, weight, bias, eps)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            given = ctx.saved_tensors
            wide: list[Any] = [None if v is None else v.detach().float() for v in given]
            asked = [
                k
                for k, of in enumerate((0, 2, 3))
                if ctx.needs_input_grad[of] and given[k] is not None
            ]
            with torch.enable_grad():
                leaves = [wide[k].requires_grad_() for k in asked]
                y = layer_norm(wide[0], ctx.shape, wide[1], wide[2], ctx.eps)
                found = torch.autograd.grad(y, leaves, grads[0].float())
            made: list[Any] = [None] * 3
            for k, g in zip(asked, found, strict=True):
                made[k] = g.to(given[k].dtype)
            return made[0], None, made[1], made[2], None

    @functools.wraps(layer_norm)
    def call(
        input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Any:
        narrow = input.is_cpu and input.dtype in (torch.float16, torch.bfloat16)
        if narrow and torch.is_grad_enabled():
            return Wide.apply(input, normalized_shape, weight, bias, eps)
        return layer_norm(input, normalized_shape, weight, bias, eps)

    return call


def _generators(base: type) -> type:
    class Generator(base):
        def __new__(cls, device: Any = "cpu") -> Any:
            return base.__new__(cls, here(device))

        def __init__(self, device: Any = "cpu") -> None:
            super().__init__()

    return Generator
