"""Recurrent layers of torch, written as scans while a model is captured.

Torch writes them out, a step after the other, which takes minutes for a long sequence. Here a layer
is products of its whole input with its weights, and one scan over the sequence for what depends on
the state (`torch.ops.higher_order.scan`), which has gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import Context
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch._C import DispatchKey
from torch._dynamo import config as dynamo_config
from torch._higher_order_ops.scan import scan_op
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.functional import linear

from tilewright.capture.torch.first_states import first_states

Tensors = Sequence[torch.Tensor]
# New states of: states, one slice of the products with the input, weights of the state.
Cell = Callable[[Tensors, torch.Tensor, Tensors], list[torch.Tensor]]
_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


def _simple(function: Callable[[torch.Tensor], torch.Tensor]) -> Cell:
    def cell(states: Tensors, x: torch.Tensor, weights: Tensors) -> list[torch.Tensor]:
        return [function(x + linear(states[0], *weights))]

    return cell


def _gru(states: Tensors, x: torch.Tensor, weights: Tensors) -> list[torch.Tensor]:
    r, z, n = x.chunk(3, 1)
    of_r, of_z, of_n = linear(states[0], *weights).chunk(3, 1)
    reset, update = (r + of_r).sigmoid(), (z + of_z).sigmoid()
    new = (n + of_n * reset).tanh()
    return [(states[0] - new) * update + new]


def _lstm(
    states: Tensors, x: torch.Tensor, weights: Tensors, projected: bool
) -> list[torch.Tensor]:
    h, cell = states
    *own, last = weights if projected else (*weights, None)
    i, f, g, o = (x + linear(h, *own)).chunk(4, 1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    h = o.sigmoid() * cell.tanh()
    return [linear(h, last) if last is not None else h, cell]


def _direction(
    cell: Cell,
    x: torch.Tensor,
    states: Tensors,
    params: Tensors,
    biases: bool,
    back: bool,
    inside: torch.Tensor | None = None,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(results at all positions, last states) of one layer in one direction. `inside`: of sequences
    with lengths of their own, whether a position is one of theirs: others leave states alone."""
    w_input, w_state, *rest = params
    bias, own = (rest[0], [w_state, *rest[1:]]) if biases else (None, [w_state, *rest])
    products = linear(x, w_input, bias)
    sliced = [products] if inside is None else [products, inside]
    sliced = [s.flip(0) for s in sliced] if back else sliced
    count, fixed = len(states), len(states) + len(sliced)

    def step(*args: torch.Tensor) -> list[torch.Tensor]:
        new = cell(args[:count], args[count], args[fixed:])
        shown = new[0]
        if inside is not None:
            own = args[count + 1]
            new = [torch.where(own, n, s) for n, s in zip(new, args, strict=False)]
            shown = torch.where(own, new[0], 0.0)
        # Results of a scan are tensors of their own, also beside what its gradient keeps.
        return [*(s.clone() for s in new), shown.clone()]

    *last, whole = scan_op(step, first_states(states, (products, *own)), sliced, tuple(own))
    return (whole.flip(0) if back else whole), last


def _layers(
    cell: Cell,
    x: torch.Tensor,
    hx: Tensors,
    params: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
    inside: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """All layers. `hx`: of each state, those of all layers and directions."""
    directions = 2 if bidirectional else 1
    each = len(params) // (num_layers * directions)
    x = x.transpose(0, 1) if batch_first else x
    lasts: list[list[torch.Tensor]] = []
    for layer in range(num_layers):
        made = []
        for d in range(directions):
            k = layer * directions + d
            own, states = params[k * each : (k + 1) * each], [s[k] for s in hx]
            whole, last = _direction(cell, x, states, own, has_biases, d == 1, inside)
            made.append(whole)
            lasts.append(last)
        x = torch.cat(made, 2) if bidirectional else made[0]
        if dropout and train and layer < num_layers - 1:
            x = torch.dropout(x, dropout, train=True)
    x = x.transpose(0, 1) if batch_first else x
    return (x, *(torch.stack(list(s), 0) for s in zip(*lasts, strict=True)))


def _shapes(
    x: torch.Tensor, hx: Tensors, params: Tensors, bidirectional: bool
) -> tuple[torch.Tensor, ...]:
    """Results of the right shapes that depend on all operands, where only shapes are asked for."""
    used = sum(p.sum() for p in (x, *hx, *params)) * 0
    width = hx[0].shape[2] * (2 if bidirectional else 1)
    return (x.new_zeros(*x.shape[:2], width) + used, *(h.new_zeros(h.shape) + used for h in hx))


def _written_as_scans(
    one_state: Cell | None,
    theirs: Callable[..., Any],
    x: torch.Tensor,
    hx: Any,
    params: Tensors,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    rest = has_biases, num_layers, dropout, train, bidirectional, batch_first
    states = list(hx) if one_state is None else [hx]
    if x.shape[1 if batch_first else 0] == 0:
        return theirs(x, hx, params, *rest)
    if get_proxy_mode() is None:
        return _shapes(x, states, params, bidirectional)
    projected = one_state is None and states[0].shape[2] != states[1].shape[2]
    cell = one_state or partial(_lstm, projected=projected)
    return _layers(cell, x, states, params, *rest)


_CELLS: dict[OpOverload, Cell | None] = {
    torch.ops.aten.lstm.input: None,
    torch.ops.aten.gru.input: _gru,
    torch.ops.aten.rnn_tanh.input: _simple(torch.tanh),
    torch.ops.aten.rnn_relu.input: _simple(torch.relu),
}


_MODES: dict[str, Cell | None] = {
    "LSTM": None,
    "GRU": _gru,
    "RNN_TANH": _simple(torch.tanh),
    "RNN_RELU": _simple(torch.relu),
}
_PACKED = (
    "packed_recurrent(str mode, Tensor x, Tensor lengths, Tensor[] hx, Tensor[] params, "
    "bool has_biases, int num_layers, float dropout, bool train, bool bidirectional) -> Tensor[]"
)
LIBRARY = torch.library.Library("tilewright", "DEF")


def define_packed(inside: Callable[[torch.Tensor, int], torch.Tensor]) -> None:
    """An operator: recurrent layers over padded sequences [steps, sequences, …] of given lengths.
    Gives results at all positions, 0 beyond the end of a sequence, and the last states of each."""

    def packed_recurrent(
        mode: str,
        x: torch.Tensor,
        lengths: torch.Tensor,
        hx: Tensors,
        params: Tensors,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> list[torch.Tensor]:
        if get_proxy_mode() is None:
            return list(_shapes(x, hx, params, bidirectional))
        projected = len(hx) > 1 and hx[0].shape[2] != hx[1].shape[2]
        cell = _MODES[mode] or partial(_lstm, projected=projected)
        own = inside(lengths, x.shape[0]).unsqueeze(2)
        rest = has_biases, num_layers, dropout, train, bidirectional, False
        return list(_layers(cell, x, hx, params, *rest, own))

    LIBRARY.define(_PACKED)
    LIBRARY.impl("packed_recurrent", packed_recurrent, "CompositeImplicitAutograd")


def as_scans() -> dict[OpOverload, Callable[..., Any]]:
    """Each layer's operator as scans, for tables of decompositions."""
    return {op: partial(_written_as_scans, cell, _theirs(op)) for op, cell in _CELLS.items()}


def _theirs(op: OpOverload) -> Callable[..., Any]:
    return _before.get(op, op.py_kernels)[_KEYS[0]]


_lock = Lock()
_inside = 0  # captures under way, of all threads
_before: dict[OpOverload, dict[Any, Any]] = {}
_allowed = dynamo_config.patch(allow_rnn=True)
# In newer versions of torch each thread has settings of its own, so each capture makes this one; in
# older ones they are everyone's.
with _allowed:
    _own_settings = not Context().run(lambda: dynamo_config.allow_rnn)


@contextmanager
def recurrent_layers() -> Iterator[None]:
    """Dynamo goes into recurrent layers, and what is captured has scans for them. The first capture
    that is under way puts them there, and the last one takes them away: another thread's that ends
    earlier does not."""
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1 and not _own_settings:
            _allowed.__enter__()
        if _inside == 1:
            for op, cell in _CELLS.items():
                kernels = _before[op] = dict(op.py_kernels)
                new = {key: partial(_written_as_scans, cell, kernels[key]) for key in _KEYS}
                _replace(op, kernels | new)
    try:
        with dynamo_config.patch(allow_rnn=True) if _own_settings else nullcontext():
            yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and not _own_settings:
                _allowed.__exit__(None, None, None)
            if _inside == 0:
                for op, kernels in _before.items():
                    _replace(op, kernels)
                _before.clear()


def _replace(op: OpOverload, kernels: dict[Any, Any]) -> None:
    op.py_kernels.clear()
    op.py_kernels.update(kernels)
    op._dispatch_cache.clear()
