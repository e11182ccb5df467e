"""What the host does in a call of a program on a GPU, in microseconds of processor time, without a
GPU: `python -m tests.gpu.host_time`, or with `--models bert resnet50` (of tilewright.bench). A
stand-in for libcuda answers at once, so that what is left is ours and Dynamo's. Wall-clock times on
a GPU: tests/gpu/host_profile.py."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

from tests.gpu.fake import FakeLibrary, on_fake_gpu
from tilewright.driver.torch.api import Compiled
from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.options import TorchOptions
from tilewright.runtime.cuda.device import describe
from tilewright.runtime.cuda.driver import Driver
from tilewright.runtime.cuda.machine import Machine
from tilewright.runtime.cuda.program import CudaProgram
from tilewright.targets import get

ROUNDS = 9
CALLS = 300


class Idle(FakeLibrary):
    """A GPU that takes every launch and does nothing."""

    multiprocessors = 132

    def do_cuModuleLoadDataEx(self, out: Any, *_: Any) -> None:
        out._obj.value = 1

    def do_cuModuleGetFunction(self, out: Any, *_: Any) -> None:
        out._obj.value = 1

    def do_cuLaunchKernel(self, *_: Any) -> None:
        return

    def do_cuGraphAddKernelNode_v2(self, out: Any, *_: Any) -> None:
        out._obj.value = 1

    def do_cuGraphExecKernelNodeSetParams_v2(self, *_: Any) -> None:
        return

    def do_cuGraphLaunch(self, *_: Any) -> None:
        return


class Layer(nn.Module):
    """As many weights as a layer of BERT has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(6))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v, out, up, down = self.parts
        y = self.norms[0](x + out(torch.relu(q(x)) * torch.tanh(k(x)) + v(x)))
        return self.norms[1](y + down(torch.relu(up(y))))


def model(layers: int, width: int = 16) -> nn.Module:
    return nn.Sequential(*(Layer(width) for _ in range(layers))).eval()


def idle_machine() -> Machine:
    library = Idle()
    target = get("cuda:80")

    def allocate(size: int) -> tuple[int, object]:
        made = torch.empty(size + 256, dtype=torch.uint8)
        return made.data_ptr() + -made.data_ptr() % 256, made

    device = describe(0, Driver(library))
    return Machine(device, target, allocate, lambda: 0, lambda: False, lambda: None)


def cpu_us(call: Callable[[], object], calls: int = CALLS) -> float:
    """Microseconds of this thread for one call: the median of rounds."""
    found = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        for _ in range(calls):
            call()
        found.append((time.thread_time() - began) / calls * 1e6)
    return median(found)


def parts(fast: Compiled, args: tuple[torch.Tensor, ...]) -> dict[str, float]:
    """A call and what is in it."""
    for _ in range(8):
        fast(*args)
    seen = {"function": fast.original, "args": args, "kwargs": {}}
    check, run = fast._entries[0]
    fits, call = fast._quick[0]
    unit = fast.units[0]
    bound = unit._bound
    (program,) = unit.programs
    assert isinstance(program, CudaProgram) and bound is not None
    taken: list[list[Any]] = []
    unit_call = unit.direct

    def record(given: list[Any]) -> list[Any]:
        taken.append(list(given))
        return unit_call(given)

    (entry,) = (e for e in _entries(fast))
    fast.runner(entry, record)(fast.original, args, {})
    given = taken[0]
    outs = unit_call(list(given))
    tensors = bound.tensors
    now = bound(tensors)
    others = [x.data_ptr() for x in given if not any(x is t for t in tensors)]
    results = [o.data_ptr() for o in outs]
    return {
        "call": cpu_us(lambda: fast(*args)),
        "guards of Dynamo": cpu_us(lambda: check(seen)),
        "the same, of a module as it was": cpu_us(lambda: fits(seen)),
        "  what is not the module's": cpu_us(lambda: fits.__self__._rest(seen)),
        "code of Dynamo with ours": cpu_us(lambda: run(fast.original, args, {})),
        "the same, of a module as it was ": cpu_us(lambda: call(args, {})),
        "ours": cpu_us(lambda: unit_call(list(given))),
        "  weights": cpu_us(lambda: bound(tensors)),
        "  a result": cpu_us(lambda: torch.empty_strided((4, 16), (16, 1), dtype=torch.float32)),
        "  run": cpu_us(lambda: program.run_bound(now, others, results)),
        "  device": cpu_us(lambda: program.machine.device.leave(program.machine.device.enter())),
    }


def through_torch(net: nn.Module, machine: Machine, args: tuple[torch.Tensor, ...]) -> float:
    """The same call by torch.compile with our backend."""
    torch._dynamo.reset()
    session = Session(TorchOptions.parse({}), machines=lambda device: machine)
    fast = torch.compile(net, backend=session.backend)
    for _ in range(8):
        fast(*args)
    return cpu_us(lambda: fast(*args))


def _entries(fast: Compiled) -> list[Any]:
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return _debug_get_cache_entry_list(fast._frame.__code__)


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--layers", type=int, nargs="*", default=[1, 12])
    given.add_argument("--models", nargs="*", default=[])
    chosen = given.parse_args()
    torch.set_grad_enabled(False)
    cases: list[tuple[str, nn.Module, tuple[torch.Tensor, ...]]] = []
    if chosen.models:
        from tilewright.bench.models import build  # needs Hugging Face's transformers

        built = [(name, build(name, False)) for name in chosen.models]
        cases = [(name, ex.module, ex.inputs) for name, ex in built]
    else:
        cases = [(f"{n} layers", model(n), (torch.randn(4, 16),)) for n in chosen.layers]
    for name, net, args in cases:
        weights = sum(1 for _ in net.parameters())
        fast = on_fake_gpu(net, idle_machine())
        print(f"{name}, {weights} weights", flush=True)
        for what, us in parts(fast, args).items():
            print(f"  {us:8.1f} us  {what}", flush=True)
        print(f"  {through_torch(net, idle_machine(), args):8.1f} us  a call by torch.compile")
        torch._dynamo.reset()


if __name__ == "__main__":
    main()
