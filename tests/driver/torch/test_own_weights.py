"""Weights are in memory once per model and packed form: between programs, and instead of the
module."""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright import ops
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.weights.given_up import GivenUp, given_up, repacked
from tilewright.ir.node import Graph
from tilewright.ir.node import input as graph_input
from tilewright.ir.types import TensorType, f32
from tilewright.runtime import shared

ROOT = Path(__file__).resolve().parents[3]
GONE = "stores them packed"


def mlp(width: int = 64) -> Any:
    made = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
    return made.eval().requires_grad_(False)


def derived() -> int:
    gc.collect()
    return shared.held_bytes()


def weight_bytes(model: nn.Module) -> int:
    """What the module's own tensors take; those that were given up take nothing."""
    tensors = [*model.parameters(), *model.buffers()]
    return sum(x.numel() * x.element_size() for x in tensors if given_up(x) is None)


@pytest.fixture(autouse=True, scope="module")
def collected_before() -> None:
    """Garbage is collected often here: among what is made here."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_gradients() -> Any:
    with torch.no_grad():
        yield


# ---- one copy for all programs


def test_programs_of_a_module_share_what_is_packed() -> None:
    model, before = mlp(), derived()
    x = torch.randn(8, 64)
    first = tw.compile(model, x, strict=True)
    once = derived() - before
    assert once >= 2 * 64 * 128 * 4
    second = tw.compile(model, x[:3], strict=True, dynamic=False)
    second(x[:5])
    second(x[:7])
    assert len(second.units) == 3
    assert derived() - before == once
    for fast in (first, second):
        torch.testing.assert_close(fast(x[:7]), model(x[:7]))
    assert derived() - before == once
    del first, second, fast
    torch.compiler.reset()
    assert derived() <= before


def test_specialisations_share_too() -> None:
    # Sizes that the compiler cannot leave open: each has a program of its own.
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(48, 96)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(self.inner(x).sum(1)).real + x.shape[0]

    model, before = Mixed().eval().requires_grad_(False), derived()
    fast = tw.compile(model, dynamic=True)
    for n in (3, 5, 9):
        x = torch.randn(n, 4, 48)
        torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-4)
    packed = 48 * 96 * 4
    assert packed <= derived() - before < 2 * packed


def test_another_module_shares_nothing() -> None:
    a, b, x, before = mlp(), mlp(), torch.randn(4, 64), derived()
    fast = tw.compile(a, x), tw.compile(b, x)
    assert derived() - before >= 2 * weight_bytes(a) * 0.9
    torch.testing.assert_close(fast[0](x), a(x))
    torch.testing.assert_close(fast[1](x), b(x))


def test_an_edit_is_packed_once_for_all_programs() -> None:
    model, x, before = mlp(), torch.randn(4, 64), derived()
    fast = [tw.compile(model, x, strict=True) for _ in range(3)]
    once = derived() - before
    model[0].weight.mul_(2)
    for f in fast:
        torch.testing.assert_close(f(x), model(x))
    assert derived() - before == once


def test_refreshing_one_program_refreshes_those_that_share() -> None:
    model, x = mlp(), torch.randn(4, 64)
    first, second = tw.compile(model, x), tw.compile(model, x)
    model[0].weight.numpy()[:] *= 2
    tw.refresh(first)
    for fast in (first, second):
        torch.testing.assert_close(fast(x), model(x))


# ---- own_weights


def test_the_model_is_in_memory_once() -> None:
    model, x, before = mlp(256), torch.randn(4, 256), derived()
    size, expected = weight_bytes(model), model(x)
    fast = tw.compile(model, x, strict=True, own_weights=True)
    torch.testing.assert_close(fast(x), expected)
    assert weight_bytes(model) + derived() - before < 1.05 * size
    plain = mlp(256)
    unowned = tw.compile(plain, x, strict=True)
    torch.testing.assert_close(unowned(x), plain(x))
    assert weight_bytes(plain) + derived() - before < 3.1 * size, (
        "one owned and twice one that is not"
    )


def test_eager_use_gets_a_sentence() -> None:
    model, x = mlp(), torch.randn(4, 64)
    tw.compile(model, x, own_weights=True)
    weight: Any = model[0].weight
    uses = [
        lambda: model(x),
        lambda: weight + 1,
        lambda: weight.sum(),
        lambda: weight.data,
        lambda: weight.data_ptr(),
        lambda: weight.numpy(),
        lambda: weight.zero_(),
        lambda: model.state_dict(),
        lambda: model.load_state_dict(mlp().state_dict()),
        lambda: copy.deepcopy(model),
        lambda: torch.save(model, io.BytesIO()),
        lambda: nn.functional.linear(x, weight),
    ]
    for use in uses:
        with pytest.raises((tw.Invalid, RuntimeError), match=GONE) as caught:
            use()
        assert "0.weight" in str(caught.value)
    assert weight.shape == (128, 64) and weight.dtype is torch.float32
    assert "packed inside a compiled program" in repr(weight)
    assert model[0].bias.sum().isfinite(), "what is not packed stays"


def test_other_sizes_and_programs_find_what_is_packed() -> None:
    model, x, before = mlp(), torch.randn(8, 64), derived()
    expected = model(x)
    fast = tw.compile(model, x, own_weights=True)
    once = derived() - before
    for n in (4, 3, 7):
        torch.testing.assert_close(fast(x[:n]), expected[:n])
    later = tw.compile(model, x[:2])
    torch.testing.assert_close(later(x[:2]), expected[:2])
    assert derived() - before == once
    del fast
    torch.compiler.reset()
    again = tw.compile(model, x)
    torch.testing.assert_close(again(x), expected)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1)], ids=["rows", "channels last"])
def test_restored_weights_have_every_bit(order: tuple[int, ...]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(24, 52, 3)
            self.head = nn.Linear(52, 100)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).mean((2, 3)))

    model = Net().eval().requires_grad_(False)
    if order != (0, 1, 2, 3):
        model.conv.weight.data = model.conv.weight.to(memory_format=torch.channels_last)
    x = torch.randn(2, 24, 9, 9)
    state, expected = copy.deepcopy(model.state_dict()), model(x)
    strides = model.conv.weight.stride()
    fast = tw.compile(model, x, own_weights=True)
    assert all(given_up(p) for p in (model.conv.weight, model.head.weight))
    fast.restore_weights()
    assert model.conv.weight.stride() == strides
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    torch.testing.assert_close(model(x), expected)
    model.head.weight.zero_()
    torch.testing.assert_close(fast(x), model(x))


@pytest.mark.parametrize("scaled", [False, True])
def test_another_order_is_made_from_the_one_that_is_stored(scaled: bool) -> None:
    w = graph_input("w0", TensorType(f32, (30, 50)), "weight")
    value: Any = ops.mul(w, 3.0) if scaled else w
    rng = np.random.default_rng(0)
    elements = rng.standard_normal((30, 50)).astype(np.float32)
    exact = elements * np.float32(3) if scaled else elements
    old, new = (
        ops.relayout(ops.permute(value, (1, 0)), "k, j -> j//12, k, j%12"),
        ops.relayout(value, "j, k -> k//8, j, k%8"),
    )
    weight = shared.Weight("w")
    program = compile_graph(Graph("g", (w,), (old,)))
    held_now, wanted = (
        shared.Piece(shared.Recipe.of(n, (0,)), n.ttype, (weight,), program) for n in (old, new)
    )
    program.run([elements.ctypes.data], [held_now.address])
    assert repacked(GivenUp("w", weight, (held_now,)), wanted)
    packed = np.zeros((7, 30, 8), np.float32)
    for j, k in np.ndindex(30, 50):
        packed[k // 8, j, k % 8] = exact[j, k]
    found = (ctypes.c_float * packed.size).from_address(wanted.address)
    assert np.array_equal(np.array(found).reshape(packed.shape), packed)
    other = shared.Piece(shared.Recipe.of(ops.exp(w), (0,)), w.ttype, (weight,), program)
    assert not repacked(GivenUp("w", weight, (held_now,)), other)


def test_weights_may_be_given_anew() -> None:
    model, other, x = mlp(), mlp(), torch.randn(4, 64)
    fast = tw.compile(model, x, own_weights=True)
    model.load_state_dict(other.state_dict(), assign=True)
    torch.testing.assert_close(fast(x), other(x))
    with pytest.raises(tw.Invalid, match=GONE):
        model(x)
    model[0].weight.data = other[0].weight.clone()
    model[2].weight.data = torch.zeros(64, 128)
    torch.testing.assert_close(fast(x), model[2].bias.expand(4, 64))


def test_folded_weights_go_too_and_cannot_be_rebuilt() -> None:
    model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU()).eval()
    model.requires_grad_(False)
    x = torch.randn(2, 16, 12, 12)
    expected = model(x)
    fast = tw.compile(model, x, own_weights=True)
    torch.testing.assert_close(fast(x), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fast(x[:1]), expected[:1], rtol=1e-4, atol=1e-5)
    with pytest.raises(tw.Unsupported, match=r"0\.weight.* cannot be rebuilt") as caught:
        fast.restore_weights()
    assert "assign=True" in str(caught.value)


class Tied(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(384, 32), scale  # whole register tiles

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self.table(x), self.table.weight * self.scale)


def test_an_embedding_that_is_the_last_weight_too_is_stored_once() -> None:
    model, before = Tied(1.0).eval().requires_grad_(False), derived()
    x = torch.randint(0, 200, (4, 6))
    expected, size = model(x), weight_bytes(model)
    fast = tw.compile(model, x, own_weights=True)
    torch.testing.assert_close(fast(x), expected)
    torch.testing.assert_close(fast(x[:1]), expected[:1])
    assert given_up(model.table.weight) is not None
    assert weight_bytes(model) + derived() - before < 1.1 * size


def test_a_weight_that_is_read_elsewhere_stays() -> None:
    model = Tied(2.5).eval().requires_grad_(False)
    x = torch.randint(0, 200, (4, 6))
    fast = tw.compile(model, x, own_weights=True)
    assert given_up(model.table.weight) is None
    torch.testing.assert_close(fast(x), model(x))


def test_a_weight_of_which_a_part_is_folded_stays() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(512, 64)
            self.inner = nn.Linear(64, 128)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x + self.table(torch.arange(x.shape[1])))

    model = Positions().eval().requires_grad_(False)
    x = torch.randn(2, 512, 64)
    expected = {n: model(x[:, :n]) for n in (512, 100, 31)}
    fast = tw.compile(model, x, own_weights=True)
    assert given_up(model.table.weight) is None and given_up(model.inner.weight) is not None
    for n, y in expected.items():
        torch.testing.assert_close(fast(x[:, :n]), y)


def test_views_of_a_weight_keep_their_memory() -> None:
    model, x = mlp(), torch.randn(4, 64)
    view = model[0].weight.data[:2]
    before = view.clone()
    tw.compile(model, x, own_weights=True)
    assert torch.equal(view, before)


def test_arrays_of_numpy_keep_their_memory() -> None:
    model, x = mlp(128), torch.randn(4, 128)
    array = np.ones((256, 128), np.float32)
    model[0].weight.data = torch.from_numpy(array)
    tw.compile(model, x, own_weights=True)
    assert given_up(model[0].weight) is not None
    assert (array == 1).all()


def test_optimizer_steps_elsewhere_change_nothing() -> None:
    model, x = mlp(), torch.randn(4, 64)
    expected = model(x)
    fast = tw.compile(model, x, own_weights=True)
    for n in (3, 2):  # by now any size has the same program
        fast(x[:n])
    other = nn.Parameter(torch.ones(3))
    other.grad = torch.ones(3)
    torch.optim.SGD([other], lr=0.1).step()
    torch.testing.assert_close(fast(x), expected)
    torch.testing.assert_close(fast(x[:2]), expected[:2])
    tw.refresh(fast)
    torch.testing.assert_close(fast(x), expected)


def test_what_cannot_own_says_so() -> None:
    x = torch.randn(4, 64)
    with pytest.raises(tw.Invalid, match=r"needs a torch\.nn\.Module"):
        tw.compile(lambda t: t + 1, own_weights=True)
    with torch.enable_grad(), pytest.raises(tw.Unsupported, match="gradients"):
        tw.compile(mlp().requires_grad_(True), x, own_weights=True)
    with pytest.raises(tw.Invalid, match="took no weights"):
        tw.compile(mlp(), x).restore_weights()
    backend = torch.compile(mlp(), backend="tilewright", options={"own_weights": True})
    with pytest.raises(Exception, match="own_weights is for whole modules"):
        backend(x)


RESIDENT = """
import gc, os, torch
import tilewright as tw
def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
torch.set_grad_enabled(False)
x = torch.randn(1, 2048)
warm = torch.nn.Sequential(torch.nn.Linear(2048, 64))
for own in (False, True):
    tw.compile(warm, x, own_weights=own)(x)
alive = []  # nothing is freed meanwhile, which would be counted against what is allocated
for own in (True, False):
    start = resident()
    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6)))
    size = sum(p.numel() * 4 for p in model.parameters())
    fast = tw.compile(model, x, own_weights=own)
    fast(x)
    fast(torch.randn(3, 2048))
    print((resident() - start) / size)
    alive.append((model, fast))
"""


@pytest.mark.slow  # `test_the_model_is_in_memory_once` counts the bytes of tensors and packed forms
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_resident_memory() -> None:
    run = subprocess.run([sys.executable, "-c", RESIDENT], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    own, both = map(float, run.stdout.split())
    assert own < 1.3 and 1.7 < both < 2.3
