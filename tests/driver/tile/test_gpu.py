"""Launches on CUDA tensors, as far as they go without a GPU: what is compiled, and what the driver
is called with."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tilewright as tw
import tilewright.language as tl
from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.tile import gpu
from tilewright.runtime.cuda.module import Facts
from tilewright.targets import nvptx


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cpu = False  # type: ignore[assignment]
    device = SimpleNamespace(type="cuda", index=0)  # type: ignore[assignment]


def there(x: torch.Tensor) -> torch.Tensor:
    return x.as_subclass(OnGpu)


@dataclass
class Launches:
    """Stands for the driver: notes what it is asked for."""

    modules: list[str] = field(default_factory=list)
    launched: list[str] = field(default_factory=list)  # the code of each launch
    registers: int = 255
    calls: list[tuple[list[int], tuple[int, ...], tuple[int, ...]]] = field(default_factory=list)

    def module(self, ptx: str, on: Any) -> Any:
        self.modules.append(ptx)
        registers = 32 if ".minnctapersm" in ptx else self.registers
        facts = Facts(registers, 0, 0, 1024, 2048 // (32 * registers // 8))
        made = SimpleNamespace(facts=lambda threads: facts, ptx=ptx)
        return SimpleNamespace(function=lambda name, shared: made)

    def launcher(self, function: Any, threads: tuple[int, ...], count: int) -> Any:
        def go(given: bytes) -> int:
            stream, *words = memoryview(given).cast("q")
            assert len(words) == 3 + count and stream == 7
            self.calls.append((words[3:], tuple(words[:3]), threads))
            self.launched.append(function.ptx)
            return 0

        return SimpleNamespace(packed=lambda: go, failed=None)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    made = Launches()
    fake = SimpleNamespace(
        number=0, capability=90, use=lambda: None, numbers=dict, facts=(("threads", 2048),)
    )
    monkeypatch.setattr(gpu, "device", lambda number: fake)
    monkeypatch.setattr(gpu, "target_of", lambda number: nvptx.for_capability(90))
    monkeypatch.setattr(gpu, "Module", made.module)
    monkeypatch.setattr(gpu, "Launcher", made.launcher)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda number: 7, raising=False)
    return made


@tw.jit
def scaled_kernel(x, out, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


def test_a_launch_gives_addresses_numbers_and_sizes(launches: Launches) -> None:
    x, out = there(torch.ones(100)), there(torch.zeros(100))
    for _ in range(2):
        scaled_kernel[(4,)](x, out, 100, 0.5, BLOCK=32)
    assert len(launches.modules) == 1 and len(launches.calls) == 2
    given, blocks, threads = launches.calls[1]
    assert blocks == (4, 1, 1) and threads == (4, 8, 1)
    assert {x.data_ptr(), out.data_ptr(), 100} <= set(given)
    assert struct.unpack("<q", struct.pack("<fi", 0.5, 0))[0] in given


def test_warps_are_those_of_the_launch(launches: Launches) -> None:
    x, out = there(torch.ones(4096)), there(torch.zeros(4096))
    for _ in range(2):
        for warps in (None, 2, 8):
            scaled_kernel[(1,)](x, out, 4096, 2.0, BLOCK=4096, num_warps=warps)
    assert len(launches.modules) == 3
    assert [c[2] for c in launches.calls[3:]] == [(4, 8, 4), (4, 8, 2), (4, 8, 8)]


def test_tensors_on_two_devices_are_refused(launches: Launches) -> None:
    with pytest.raises(Invalid, match="two devices: x is on cuda:0, out is on the CPU"):
        scaled_kernel[(1,)](there(torch.ones(32)), torch.zeros(32), 32, 2.0, BLOCK=32)


def test_on_the_processor_the_same_kernel_still_runs(launches: Launches) -> None:
    x, out = torch.ones(100), torch.zeros(100)
    scaled_kernel[(4,)](x, out, 100, 0.5, BLOCK=32, num_warps=8)
    assert not launches.calls and float(out.sum()) == 50


def test_too_many_warps_are_refused_with_the_place(launches: Launches) -> None:
    x = there(torch.ones(32))
    with pytest.raises(Unsupported, match=r"scaled_kernel on a GPU: .* is launched with 64 warps"):
        scaled_kernel[(1,)](x, x, 32, 2.0, BLOCK=32, num_warps=64)


def test_forms_are_there_to_be_read(launches: Launches) -> None:
    x, out = there(torch.ones(100)), there(torch.zeros(100))
    kernel = scaled_kernel[(4,)](x, out, 100, 0.5, BLOCK=32)
    assert ".target sm_90a" in kernel.asm["ptx"]
    assert "Distribute(" in kernel.asm["trace"]


def test_few_registers_less_are_asked_for(launches: Launches) -> None:
    launches.registers = 40
    x, out = there(torch.ones(100, dtype=torch.float16)), there(torch.zeros(100))
    scaled_kernel[(4,)](x, out, 100, 0.5, BLOCK=128)
    assert len(launches.modules) == 2 and ".minnctapersm 16\n" in launches.launched[0]


@tw.jit
def idle_kernel(x, n):
    tl.program_id(0)


def test_a_kernel_that_does_nothing_is_not_launched(launches: Launches) -> None:
    x = there(torch.ones(32))
    for _ in range(2):
        kernel = idle_kernel[(4,)](x, 32)
    assert not launches.calls and "idle_kernel" in kernel.asm["ttir"]
