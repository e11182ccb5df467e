"""Graphs for GPUs from end to end, their code run on this processor in place of a GPU."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.gpu import emulate, te_kernels
from tests.gpu.programs import PROGRAMS
from tests.graph.build import arg, build, graph
from tilewright.base.errors import Invalid
from tilewright.driver.program import grid_run
from tilewright.driver.program.grid_run import GridFunction, GridKernel, GridProgram, check_tensor
from tilewright.ir import dim as D
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, constant
from tilewright.ir.types import bf16, f32
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal import legalise
from tilewright.llvm.grid import emit_kernels
from tilewright.runtime.cuda.device import Device
from tilewright.runtime.cuda.driver import Driver


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A device whose kernels run here, on the memory of CPU tensors."""

    def loaded(k: GridKernel, alignment: int = 16) -> emulate.Loaded:
        return emulate.Loaded(
            emit_kernels(legalise(k.nest, emulate.PLAIN), emulate.PLAIN, alignment)
        )

    monkeypatch.setattr(GridKernel, "loaded", loaded)
    monkeypatch.setattr(grid_run, "current_stream", lambda number: 0)
    monkeypatch.setattr(grid_run, "check_tensor", _sizes_of)
    monkeypatch.setattr(grid_run, "DEVICE", "cpu")
    monkeypatch.setattr(Device, "use", lambda self: None)
    return Device(0, "this processor", 75, (), 0, 0, Mock(spec=Driver))


def _sizes_of(name: str, t: Any, b: Buffer, number: int, sizes: dict[str, int]) -> None:
    for d, n in zip(b.shape, t.shape, strict=True):
        if D.is_sym(d):
            sizes[D.the_sym(d).name] = int(n)


def judge(g: Graph, tensors: list[torch.Tensor], on: Device, close: float = 1e-5) -> None:
    got = GridProgram(g, on)(*tensors)
    want = evaluate(g, [t.float().numpy() if t.is_floating_point() else t.numpy() for t in tensors])
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x.float().numpy(), y, rtol=close, atol=close)


def test_one_kernel(processor: Device) -> None:
    torch.manual_seed(0)
    judge(PROGRAMS["softmax"](f32, 3, 100), [torch.randn(3, 100)], processor)
    x = torch.randn(3, 64).to(torch.bfloat16)
    judge(PROGRAMS["rms_norm"](bf16, 3, 64), [x, x[0].clone()], processor, 2e-2)


def test_several_kernels_reshapes_and_constants(processor: Device) -> None:
    torch.manual_seed(1)
    x = arg("x", 6, 8)
    table = constant(np.arange(8, dtype=np.float32), f32)
    sums = build.sum(build.mul(x, table), (1,), False)
    rows = build.reshape(build.softmax(x, 1), (48,))
    g = graph(build.add(build.reshape(rows, (8, 6)), sums), sums)
    judge(g, [torch.randn(6, 8)], processor)


def test_a_te_program(processor: Device) -> None:
    s, args = te_kernels.vector_add()
    lowered = tw.lower(s, args, target="cuda:75")
    f = GridFunction(lowered.nest, lowered.arguments, emulate.PLAIN, processor)
    for n in (5, 300, 300):
        a, b = torch.randn(n), torch.randn(n)
        c = torch.full_like(a, float("nan"))
        f(a, b, c)
        torch.testing.assert_close(c, a + b)
    with pytest.raises(Invalid, match="the output c overlaps a in memory"):
        f(a, b, a)
    with pytest.raises(Invalid, match="2 arguments were given, 3 are needed: a, b, c"):
        f(a, b)


def test_tensors_at_any_address(processor: Device) -> None:
    room = torch.randn(3 * 64 + 1)
    x = room[1:].view(3, 64)
    assert x.data_ptr() % 16
    judge(PROGRAMS["softmax"](f32, 3, 64), [x], processor)


def test_sizes_that_are_not_known(processor: Device) -> None:
    g = PROGRAMS["biased"](f32, D.sym("R", 1), D.sym("C", 1))
    program = GridProgram(g, processor)
    for rows, columns in ((2, 5), (3, 70)):
        x, b = torch.randn(rows, columns), torch.randn(columns)
        (got,) = program(x, b)
        torch.testing.assert_close(got, torch.relu(x + b))


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        ([1.0], "is a list, not a torch tensor"),
        (torch.zeros(3), "is on cpu, the function runs on cuda:0"),
        (torch.zeros(3, device="meta"), "is on meta"),
    ],
)
def test_tensors_that_do_not_fit(tensor: Any, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        check_tensor("x", tensor, Buffer("x", f32, (3,), "in"), 0, {})
