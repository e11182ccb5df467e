"""Launches on CUDA tensors, as far as they go without a GPU: what is compiled, and what the driver
is called with."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tilewright as tw
import tilewright.language as tl
from tests.gpu.fake_tiles import there
from tests.gpu.tile_kernels import load
from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.tile import arguments, gpu, gpu_maps, jit
from tilewright.driver.tile.devices import gpu_among
from tilewright.runtime.cuda.module import Facts
from tilewright.targets import nvptx


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
        def go(maps: int, given: bytes) -> int:
            stream, *words = memoryview(given).cast("q")
            assert len(words) == 3 + count + maps and stream == 7
            self.calls.append((words[3:], tuple(words[:3]), threads))
            self.launched.append(function.ptx)
            return 0

        return SimpleNamespace(packed=lambda maps: partial(go, maps), failed=None)


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


class Address:
    """An address with a type, as libraries pass tensors to kernels: it does not say where."""

    def __init__(self, of: torch.Tensor, first: int = 0):
        self.dtype = of.dtype
        self.address = of.data_ptr() + first * of.element_size()

    def data_ptr(self) -> int:
        return self.address


class View(Address):
    """One that says whose storage it is in."""

    def __init__(self, of: torch.Tensor, first: int = 0):
        super().__init__(of, first)
        self.of = of

    def untyped_storage(self) -> Any:
        return self.of.untyped_storage()


@pytest.mark.parametrize("wrapped", [Address, View])
def test_the_driver_says_where_an_address_is(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, wrapped: type[Address]
) -> None:
    f = tw.jit(scaled_kernel.fn)
    x, out, here = torch.ones(132), torch.zeros(132), torch.zeros(132)
    ours = [range(t.data_ptr(), t.data_ptr() + t.nbytes) for t in (x, out)]
    at = lambda address: 0 if any(address in r for r in ours) else None  # noqa: E731
    monkeypatch.setattr(arguments, "gpu_at", at)
    for _ in range(2):
        f[(4,)](wrapped(x), wrapped(out, 4), 100, 0.5, BLOCK=32)
    assert not out.any(), "it ran on the processor"
    assert [words[:2] for words, *_ in launches.calls] == [[x.data_ptr(), out.data_ptr() + 16]] * 2
    f[(4,)](there(x), wrapped(out), 100, 0.5, BLOCK=32)
    with pytest.raises(Invalid, match="two devices: x is on cuda:0, out is on the CPU"):
        f[(4,)](there(x), wrapped(here), 100, 0.5, BLOCK=32)
    f[(4,)](x, wrapped(here), 100, 0.5, BLOCK=32)
    assert float(here.sum()) == 50
    assert gpu_among([3, wrapped(here)]) is None and gpu_among([None, wrapped(out)]) == 0


def test_what_has_no_address_is_on_no_device(launches: Launches) -> None:
    f = tw.jit(scaled_kernel.fn)
    empty, x = Address(torch.ones(0)), torch.ones(32)
    assert empty.data_ptr() == 0
    f[(1,)](empty, there(x), 1, 0.5, BLOCK=32)
    assert len(launches.calls) == 1
    f[(0,)](empty, x, 1, 0.5, BLOCK=32)
    assert len(launches.calls) == 1 and not launches.calls[0][0][0]


@tw.jit
def idle_kernel(x, n):
    tl.program_id(0)


def test_a_kernel_that_does_nothing_is_not_launched(launches: Launches) -> None:
    x = there(torch.ones(32))
    for _ in range(2):
        kernel = idle_kernel[(4,)](x, 32)
    assert not launches.calls and "idle_kernel" in kernel.asm["ttir"]


# ---- launches as before


@tw.jit
def moved_kernel(x, out, n, step, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at * step, tl.load(x + at, mask=at < n) * by, mask=at < n)


def tensors_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the processor stand for those of a GPU: their class is torch's own."""
    monkeypatch.setattr(jit, "gpu_of", lambda function, given: 0)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda self: 0)


def test_a_launch_as_before_packs_addresses_only(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors_there(monkeypatch)
    f = tw.jit(moved_kernel.fn)
    x, y, out = torch.ones(128), torch.ones(128), torch.zeros(256)
    f[(4,)](x, out, 100, 2, 0.5, BLOCK=32, num_warps=2)
    assert len(f.again) == 0, "the first launch only makes the kernel"
    for source in (x, y, x):
        f[(4,)](source, out, 100, 2, 0.5, BLOCK=32, num_warps=2)
    assert len(f.again) == 1 and len(launches.modules) == 1
    first, *others = launches.calls
    for (words, blocks, threads), source in zip(others, (x, y, x), strict=True):
        assert words == [source.data_ptr(), *first[0][1:]]
        assert (blocks, threads) == first[1:]


@pytest.mark.parametrize(
    ("n", "by", "grid"), [(100, 0.25, (4,)), (99, 0.5, (4,)), (100, 0.5, (3,)), (True, 0.5, (4,))]
)
def test_other_numbers_are_other_launches(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, n: int, by: float, grid: tuple[int, ...]
) -> None:
    tensors_there(monkeypatch)
    f, plain = tw.jit(moved_kernel.fn), tw.jit(moved_kernel.fn)
    x, out = torch.ones(128), torch.zeros(256)
    for _ in range(3):
        f[(4,)](x, out, 100, 2, 0.5, BLOCK=32)
    f[grid](x, out, n, 2, by, BLOCK=32)
    plain[grid](x, out, n, 2, by, BLOCK=32)
    assert launches.calls[-1] == launches.calls[-2]


def test_what_equals_without_being_the_same_is_not_remembered(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors_there(monkeypatch)
    f = tw.jit(moved_kernel.fn)
    x, out = torch.ones(128), torch.zeros(256)
    for by in (0.0, 0.0, -0.0):
        f[(4,)](x, out, 100, 2, by, BLOCK=32)
    assert launches.calls[-1][0] != launches.calls[-2][0] and not f.again


def test_overlapping_and_unaligned_tensors_are_noticed(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors_there(monkeypatch)
    f = tw.jit(moved_kernel.fn)
    x, out = torch.ones(129), torch.zeros(256)
    for _ in range(3):
        f[(4,)](x[:128], out, 100, 2, 0.5, BLOCK=32)
    known = dict(f.again)
    for _ in range(2):
        f[(4,)](x[1:], out, 100, 2, 0.5, BLOCK=32)
    assert len(launches.modules) == 2, "another kernel, for addresses that are no multiples of 16"
    assert f.again == known, "which is not the one of the others"
    f[(4,)](out[:128], out, 100, 2, 0.5, BLOCK=32)
    assert len(launches.modules) == 3, "another one, for tensors in the same memory"


def test_descriptors_as_before_are_looked_up(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensor maps are those of the addresses, whether descriptors are the same ones or equal; other
    sizes, and descriptors that were changed, are other launches."""
    tensors_there(monkeypatch)
    made: list[int] = []

    def tensor_map(on: Any, dtype: str, item: int, *where: Any) -> Any:
        made.append(1)
        return SimpleNamespace(address=hash(tuple(map(str, where))))

    monkeypatch.setattr(gpu_maps, "TensorMap", tensor_map)
    bf16 = torch.bfloat16
    a, b, c, other = (torch.zeros(128, 128, dtype=bf16) for _ in range(4))

    def launch(f: Any, arrays: list[Any]) -> None:
        f[(4,)](*arrays, 128, 128, 128, 64, 64, 64, 8, False)

    def described(*of: torch.Tensor) -> list[Any]:
        return [tw.TensorDescriptor.from_tensor(x, [64, 64]) for x in of]

    fn = load(False).described_by_host_kernel.fn
    f, kept = tw.jit(fn), described(a, b, c)
    for _ in range(3):
        launch(f, kept)
    assert len(f.again) == 1
    changed = described(a, b, c)
    changed[0].base = other
    narrow = described(a, b, c)
    narrow[1].shape = [128, 96]
    for arrays in (kept, described(a, b, c), described(other, b, c), changed, narrow, kept):
        launch(f, arrays)
        before = len(made)
        launch(f, arrays)
        assert len(made) == before
        launch(tw.jit(fn), arrays)
        assert launches.calls[-1] == launches.calls[-2] == launches.calls[-3]
    assert len({tuple(words) for words, _, _ in launches.calls}) == 3


def test_descriptors_overlap_by_what_they_describe(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of launches as before addresses say it: parts of one storage may lie apart."""
    tensors_there(monkeypatch)
    monkeypatch.setattr(gpu_maps, "TensorMap", lambda *_: SimpleNamespace(address=0))
    a, b, c, both = (torch.zeros(n, 128, dtype=torch.bfloat16) for n in (128, 128, 128, 384))
    f = tw.jit(load(False).described_by_host_kernel.fn)

    def launch(*of: torch.Tensor) -> int:
        arrays = [tw.TensorDescriptor.from_tensor(x, [64, 64]) for x in of]
        f[(4,)](*arrays, 128, 128, 128, 64, 64, 64, 8, False)
        return len(launches.modules)

    plain = [launch(a, b, c) for _ in range(3)][-1]
    assert len(f.again) == 1
    assert launch(both[:128], b, both[128:256]) == plain
    assert launch(both[:128], b, both[64:192]) > plain
