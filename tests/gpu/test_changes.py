"""Arguments that a program on a GPU changes: the stand-in of tests/gpu/fake.py runs it."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from tests.gpu.assembler import assemble, needs_ptxas
from tests.gpu.fake import FakeLibrary, fake_machine, on_fake_gpu, texts_are_known
from tests.seeds import every_run
from tilewright import targets
from tilewright.llvm.objects import cached_ptx
from tilewright.runtime.cuda import program, write_back
from tilewright.runtime.cuda.machine import Machine

Gpu = tuple[FakeLibrary, Machine]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    monkeypatch.setattr(program, "FEWEST", 0)
    with texts_are_known(monkeypatch):
        yield fake_machine()


@every_run(0)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_of_norms(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    """They are changed by the program, once a call, and torch sees that they were."""
    library, machine = gpu
    monkeypatch.setattr(torch, "_foreach_copy_", None)
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2)).to(dtype)
    other = copy.deepcopy(net)
    fast = on_fake_gpu(net, machine, strict=True)
    near = 1e-5 if dtype is torch.float32 else 2e-2
    versions = [b._version for b in net.buffers()]
    for k in range(3):
        x = torch.randn(4, 3, dtype=dtype)
        for f in (fast, other):
            f(x).square().sum().backward()
        for ours, theirs in zip(net.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=near, atol=near)
        assert all(b._version > v for b, v in zip(net.buffers(), versions, strict=True))
        versions = [b._version for b in net.buffers()]
        assert library.replays == 2 * k  # the first step is launched kernel by kernel


def test_arguments_of_any_size(gpu: Gpu) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    _, machine = gpu
    kinds = (torch.float32, torch.int64, torch.uint8, torch.float16)
    given = [
        torch.arange(draw.choice((1, 3, 8, 64, 700)), device="cpu").to(draw.choice(kinds))
        for _ in range(draw.randrange(2, 6))
    ]
    given.append(torch.arange(34, dtype=torch.float32)[1:])  # at an odd address

    def f(x: torch.Tensor, *changed: torch.Tensor) -> torch.Tensor:
        total = x.sum()
        for c in changed:
            total = total + c.sum()
            c.add_(1)
        return total

    fast = on_fake_gpu(f, machine, strict=True)
    want = [x.clone() for x in given]
    with torch.no_grad():
        for k in range(3):
            x = torch.full((3,), float(k))
            torch.testing.assert_close(fast(x, *given), f(x, *want))
            assert all(map(torch.equal, given, want)), f"after call {k}"


def test_arguments_stay_where_data_is_wrong(gpu: Gpu) -> None:
    _, machine = gpu
    table = torch.arange(5.0)

    def f(at: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        count.add_(1)
        return table[at] * count

    fast = on_fake_gpu(f, machine, strict=True)
    count = torch.zeros(4)
    with torch.no_grad():
        fast(torch.tensor([1, 2, 0, 4]), count)
        fast(torch.tensor([1, 2, 5, 4]), count)
        with pytest.raises(IndexError):
            fast(torch.tensor([1, 2, 0, 4]), count)
    assert count.tolist() == [1.0] * 4


@needs_ptxas
def test_ptxas_takes_the_kernel() -> None:
    target = targets.get("cuda:90")
    room = write_back.Room((128, 8, 6, 4096, 1 << 20, 3))
    (made,) = assemble(cached_ptx(write_back.text(room), target), target.cpu)
    assert not made.spilled
