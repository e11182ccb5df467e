"""The host's time of a launch of a tile kernel: `python -m tests.gpu.tile_host_time`.

On a GPU, beside Triton where it is installed. Without one (or with `--idle`) a stand-in for libcuda
takes every launch at once, in native code, so that what is left is ours.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from tests.gpu.fake import FakeLibrary
from tests.gpu.tile_kernels import load
from tilewright.driver.tile import gpu, jit
from tilewright.ir.target import Target
from tilewright.llvm.objects import cached_object, host_cpu
from tilewright.runtime.cuda.device import describe
from tilewright.runtime.cuda.driver import Driver
from tilewright.runtime.library import Library
from tilewright.targets.nvptx import for_capability

ROUNDS, CALLS = 15, 60  # few calls in a round: a queue of launches that is full waits
_NATIVE = """
define i32 @launch(ptr %f, i32 %a, i32 %b, i32 %c, i32 %d, i32 %e, i32 %g, i32 %h, ptr %s, ptr %p,
                   ptr %x) {
  ret i32 0
}
define i32 @current(ptr %out) {
  store i64 1, ptr %out
  ret i32 0
}
define i32 @change(ptr %c) {
  ret i32 0
}
"""


class Idle(FakeLibrary):
    """It takes every launch and does nothing, in native code."""

    def __init__(self) -> None:
        super().__init__()
        host = host_cpu()
        target = Target("idle", host.triple, host.cpu, host.features)
        self.native = Library([cached_object(_NATIVE, target)])
        word, half = ctypes.c_void_p, ctypes.c_uint
        kinds = {"launch": (word, *[half] * 7, *[word] * 3), "current": (word,), "change": (word,)}
        names = {
            "launch": "cuLaunchKernel",
            "current": "cuCtxGetCurrent",
            "change": "cuCtxSetCurrent",
        }
        for name, of in names.items():
            made = self.native.function(name, *kinds[name], result=ctypes.c_int)
            setattr(self, of, made)

    def do_cuModuleLoadDataEx(self, out: Any, *_: Any) -> None:
        out._obj.value = 1

    def do_cuModuleGetFunction(self, out: Any, *_: Any) -> None:
        out._obj.value = 1


@contextmanager
def idle() -> Iterator[None]:
    """Launches on tensors of the processor go to a GPU that does nothing."""
    on = describe(0, Driver(Idle()))
    stream = patch.object(torch._C, "_cuda_getCurrentRawStream", lambda number: 7, create=True)
    with (
        patch.object(gpu, "device", lambda number: on),
        patch.object(gpu, "target_of", lambda number: for_capability(90)),
        patch.object(jit, "gpu_of", lambda function, given: 0),
        patch.object(torch.Tensor, "get_device", lambda self: 0),
        stream,
    ):
        yield


def cases(m: Any, device: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Kernels of few and of many arguments."""
    x, y, z = (torch.zeros(4096, device=device) for _ in range(3))
    yield "add, 5 arguments", lambda: m.add_kernel[(4,)](x, y, z, 4096, BLOCK=1024)
    a, b, c = (torch.zeros(256, 256, device=device, dtype=torch.bfloat16) for _ in range(3))
    steps = (256, 1, 256, 1, 256, 1)
    yield (
        "matmul, 17 arguments",
        lambda: m.matmul_kernel[(4,)](
            a, b, c, 256, 256, 256, *steps, 128, 128, 64, 8, num_warps=8, num_stages=3
        ),
    )
    q, k, v, out = (torch.zeros(1, 4, 256, 64, device=device, dtype=a.dtype) for _ in range(4))
    yield (
        "attention, 10 arguments",
        lambda: m.attention_kernel[(4, 4)](q, k, v, out, 256, 0.125, 64, 64, 64, False),
    )
    block = (128, 128, 64)
    yield (
        "descriptors of the kernel's",
        lambda: m.described_kernel[(4,)](
            a, b, c, 256, 256, 256, 256, 256, 256, *block, True, False, num_warps=8, num_stages=3
        ),
    )
    boxes = ((a, [128, 64]), (b, [128, 64]), (c, [128, 128]))

    def walk(arrays: Sequence[Any]) -> Any:
        sizes = (256, 256, 256)
        return m.described_by_host_kernel[(4,)](
            *arrays, *sizes, *block, 8, False, num_warps=8, num_stages=3
        )

    def described() -> list[Any]:
        return [m.TensorDescriptor.from_tensor(x, box) for x, box in boxes]

    yield "descriptors of the host's", partial(walk, described())
    yield "descriptors made for each launch", lambda: walk(described())


def us(call: Callable[[], Any], clock: Callable[[], float], wait: Callable[[], Any]) -> list[float]:
    """Microseconds of a launch, round by round."""
    for _ in range(20):
        call()
    found = []
    for _ in range(ROUNDS):
        wait()
        began = clock()
        for _ in range(CALLS):
            call()
        found.append((clock() - began) / CALLS * 1e6)
    wait()
    return found


def measure(device: str, clock: Callable[[], float], wait: Callable[[], Any]) -> None:
    both = device == "cuda" and find_spec("triton") is not None
    for who in (False, True) if both else (False,):
        for name, call in cases(load(who), device):
            found = us(call, clock, wait)
            said = f"{'triton' if who else 'ours'} {name}"
            print(f"{said:36} {median(found):7.2f} us, least {min(found):7.2f}", flush=True)


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--idle", action="store_true", help="no GPU, though there may be one")
    if given.parse_args().idle or not torch.cuda.is_available():
        with idle():
            measure("cpu", time.thread_time, lambda: None)
        return
    measure("cuda", time.perf_counter, torch.cuda.synchronize)


if __name__ == "__main__":
    main()
