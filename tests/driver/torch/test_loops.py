"""Loops of torch (while_loop, scan, map, associative_scan) and recurrent layers as native loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_each
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils import _pytree as pytree

import tilewright as tw
from tests.seeds import drawn
from tilewright.capture.torch import recurrent
from tilewright.driver.torch.api import Compiled

W = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
TABLE = torch.randn(10, 3, generator=torch.Generator().manual_seed(1))


class Torch:
    """Torch's operators of control flow."""

    while_loop = staticmethod(while_loop)
    scan = staticmethod(scan)
    map = staticmethod(map_each)
    associative_scan = staticmethod(associative_scan)


class Plain:
    """The same in Python."""

    @staticmethod
    def while_loop(more: Any, body: Any, values: Any) -> Any:
        while more(*values):
            values = body(*values)
        return values

    @staticmethod
    def scan(step: Any, carry: Any, x: torch.Tensor, dim: int, reverse: bool = False) -> Any:
        out = []
        for s in x.flip(0) if reverse else x:
            carry, made = step(carry, s)
            out.append(made)
        out = out[::-1] if reverse else out
        return carry, pytree.tree_map(lambda *parts: torch.stack(parts), *out)

    @staticmethod
    def map(f: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([f(s) for s in x])

    @staticmethod
    def associative_scan(f: Any, x: torch.Tensor, dim: int, combine_mode: str) -> torch.Tensor:
        out = [x[0]]
        for s in x[1:]:
            out.append(f(out[-1], s))
        return torch.stack(out)


def counted(by: Any, x: torch.Tensor) -> Any:
    def body(k: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return k + 1, torch.tanh(y @ W)

    return by.while_loop(lambda k, y: k < 5, body, (torch.tensor(0), x))


def carried(by: Any, x: torch.Tensor) -> Any:
    """Trees of values, from the end."""

    def step(c: Any, s: torch.Tensor) -> Any:
        return (torch.tanh(c[0] @ W + s), c[1] + 1), {"a": c[0] * s, "b": s.sum()}

    return by.scan(step, (torch.zeros(3), torch.zeros(2)), x, dim=0, reverse=True)


def mapped(by: Any, x: torch.Tensor) -> Any:
    return by.map(lambda s: (s @ W).sin(), x)


def associated(by: Any, x: torch.Tensor) -> Any:
    return by.associative_scan(lambda a, b: a * b, x, dim=0, combine_mode="generic")


def nested(by: Any, x: torch.Tensor) -> Any:
    def step(c: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def body(k: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return k + 1, (y * s).sin()

        _, y = by.while_loop(lambda k, y: k < 3, body, (torch.tensor(0), c))
        return y + s, y * 2

    return by.scan(step, torch.ones(3), x, dim=0)


def looked_up(by: Any, x: torch.Tensor) -> Any:
    at = (x[:, :1] * 3).long()

    def step(c: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        row = nn.functional.embedding(k, TABLE)[0]
        return c + row, c * row

    return by.scan(step, torch.zeros(3), at, dim=0)


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(pytree.tree_leaves(got), pytree.tree_leaves(want))


@pytest.mark.parametrize("f", drawn([carried, counted, nested, mapped, associated], quick=1))
def test_loops_are_as_in_python(f: Callable[..., Any]) -> None:
    with torch.no_grad():
        # Torch writes associative scans out itself, with sizes that are not known to fit.
        dynamic = f is not associated
        fast = tw.compile(partial(f, Torch), dynamic=dynamic, strict=True)
        for n in (4, 9) if dynamic else (9,):
            x = torch.rand(n, 3)
            close(fast(x), f(Plain, x))


def test_an_index_out_of_range_in_one_round_is_an_error() -> None:
    with torch.no_grad():
        fast = tw.compile(partial(looked_up, Torch), strict=True)
        x = torch.rand(4, 3)
        close(fast(x), looked_up(Plain, x))
        x[2, 0] = 9.0
        with pytest.raises(IndexError, match="index out of range"):
            fast(x)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm both ways": lambda: nn.LSTM(4, 6, 2, bidirectional=True, batch_first=True),
    "gru": lambda: nn.GRU(4, 6),
    "lstm projected": lambda: nn.LSTM(4, 6, proj_size=3),
    "rnn": lambda: nn.RNN(4, 6, nonlinearity="relu", bias=False),
    "gru both ways": lambda: nn.GRU(4, 6, 2, bidirectional=True),
    "rnn both ways": lambda: nn.RNN(4, 6, 2, bidirectional=True),
}


def layer_results(layer: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
    return pytree.tree_leaves(layer(x))


@pytest.mark.parametrize("name", drawn(list(LAYERS), quick=1))
def test_recurrent_layers(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    fast = tw.compile(layer, strict=True)
    with torch.no_grad():
        x = torch.randn(3, 5, 4)
        close(layer_results(fast, x), layer_results(layer, x))


@pytest.mark.parametrize("name", drawn(["gru", *(x for x in LAYERS if x != "gru")], quick=1))
def test_gradients_of_recurrent_layers(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    x = torch.randn(3, 5, 4)
    got, want = [], []
    fast = tw.compile(layer, strict=True)
    for f, into in ((fast, got), (layer, want)):
        losses = [y.square().sum() for y in layer_results(f, x)]
        into += torch.autograd.grad(torch.stack(losses).sum(), list(layer.parameters()))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    # Weights, which all steps have alike, are not kept for each step.
    assert isinstance(fast, Compiled)
    (forward,) = (u for u in fast.units if u.kind == "forward")
    kept = [b.shape for s in forward.captured.segments for b in s.buffers]
    weights = {tuple(w.shape) for w in layer.parameters() if w.dim() == 2}
    assert any(len(shape) == 3 for shape in kept)
    assert not any(shape[1:] in weights for shape in kept), kept


def test_packed_sequences_are_as_eager() -> None:
    layer = nn.GRU(4, 6)
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 3, 4), torch.tensor([5, 4, 2]))
    with torch.no_grad():
        close(tw.compile(layer)(packed)[0].data, layer(packed)[0].data)


@pytest.mark.slow
def test_a_long_sequence_takes_no_more_kernels() -> None:
    layer = nn.RNN(4, 6)
    counts = []
    with torch.no_grad():
        for length in (3, 600):
            fast = tw.compile(layer, strict=True)
            x = torch.randn(length, 2, 4)
            close(fast(x)[0], layer(x)[0])
            counts.append([k.calls for u in tw.explain(fast).programs for k in u.kernels])
    assert counts[0] == counts[1]


def test_torch_is_left_as_it_was() -> None:
    op = torch.ops.aten.lstm.input
    before = dict(op.py_kernels)
    with pytest.raises(ValueError, match="stop"), recurrent.recurrent_layers():
        assert op.py_kernels != before and torch._dynamo.config.allow_rnn
        raise ValueError("stop")
    assert op.py_kernels == before and not torch._dynamo.config.allow_rnn
