"""Loops of which one step is traced for all, or for all but the first or the last one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

STEPS = 20
CELL = nn.GRUCell(4, 4).double()
LSTM = nn.LSTMCell(4, 4).double()


def states(x: Tensor, w: Tensor) -> Any:
    h, out = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h @ w)
        out.append(h)
    return torch.stack(out, 1), h, out[3]


def backwards(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS - 1, -1, -1):
        h = torch.tanh(x[:, t] * w[0] + x[..., t - STEPS, 1:2] + h)
    return h


def neighbours(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(1, STEPS):
        h = torch.tanh(x[:, t] - 0.5 * x[:, t - 1] + h @ w)
    return h


def windows(x: Tensor, w: Tensor) -> Any:
    flat, h, out = x.flatten(1), x.new_zeros(3, 4), x.new_zeros(3, 4 * STEPS)
    for t in range(STEPS):
        h = torch.tanh(flat[:, 4 * t : 4 * t + 4] @ w + h)
        out[:, 4 * t : 4 * (t + 1)] = h
    return out, t


def one_wide(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 1, 4)
    for t in range(STEPS):
        h = h * 0.5 + x[:, t : t + 1] @ w
    return h


def gru(x: Tensor, w: Tensor) -> Any:
    h, outs = x.new_zeros(3, 4), []
    for t in range(STEPS):
        h = CELL(x[:, t], h)
        outs.append(h)
    return torch.stack(outs)


def lstm(x: Tensor, w: Tensor) -> Any:
    state = x.new_zeros(3, 4), x.new_zeros(3, 4)
    outs = []
    for t in range(STEPS):
        state = LSTM(x[:, t], state)
        outs.append(state[0])
    return torch.cat(outs, -1), state


def states_before(x: Tensor, w: Tensor) -> Any:
    h, outs = x[:, 0], []
    for t in range(STEPS):
        outs.append(h)
        h = torch.sin(h @ w + x[:, t])
    return torch.stack(outs), outs[0] is not None, h


def two_before(x: Tensor, w: Tensor) -> Any:
    a, b = x[:, 0] * 1, x[:, 1] * 1
    for _ in range(2 * STEPS):
        a, b = b, torch.sin(a + b @ w)
    return a, b


def number_at_first(x: Tensor, w: Tensor) -> Any:
    h = 0.0
    for t in range(STEPS):
        h = x[:, t] + h * 0.5
    return h


def nothing_at_first(x: Tensor, w: Tensor) -> Any:
    h = None
    for t in range(STEPS):
        h = x[:, t] if h is None else torch.tanh(h @ w + x[:, t])
    return h


def first_step_differs(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        if t > 0:
            h = h + x[:, t - 1]
    return h


def last_step_differs(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = h @ w + x[:, t]
        if t < STEPS - 1:
            h = torch.tanh(h)
    return h


def previous_input(x: Tensor, w: Tensor) -> Any:
    before, h = x[:, 0] * 0, x.new_zeros(3, 4)
    for t in range(STEPS):
        now = x[:, t]
        h = torch.tanh(h @ w + now - before)
        before = now
    return h


def last_temporary(x: Tensor, w: Tensor) -> Any:
    y = h = x.new_zeros(3, 4)
    for t in range(STEPS):
        y = h * 2 + x[:, t]
        h = torch.tanh(y @ w)
    return y + h


def inside_functions(x: Tensor, w: Tensor) -> Any:
    outs: list[Tensor] = []

    def step(h: Tensor, t: int) -> Tensor:
        new = torch.tanh(h @ w + x[:, t])
        outs.append(new)
        return new

    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = step(h, t)
    return torch.stack(outs)


def rolls(x: Tensor, w: Tensor) -> Any:
    """A loop in a function that is called."""
    return states(x, w)[0] + states(x.flip(1), w)[0]


def short_inside_long(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        for _ in range(3):
            h = torch.tanh(h @ w + x[:, t])
    return h


def long_inside_short(x: Tensor, w: Tensor) -> Any:
    for _ in range(2):
        h = x.new_zeros(3, 4)
        for t in range(STEPS):
            h = torch.tanh(h @ w + x[:, t])
        x = x + h[:, None]
    return x


def without_gradient(x: Tensor, w: Tensor) -> Any:
    with torch.no_grad():
        target = states(x, w)[0]
    return states(x, w)[0] - target.flip(1)


def changed_afterwards(x: Tensor, w: Tensor) -> Any:
    """The last state is one of the list, and an item is changed."""
    _, h, _ = states(x, w)
    h = h * 1
    out, g = [], x.new_zeros(3, 4)
    for t in range(STEPS):
        g = torch.sin(g + x[:, t])
        out.append(g)
    g.mul_(2)
    out[2].add_(10)
    return torch.stack(out), g, out[-1], out[2]


def mean_of_all(x: Tensor, w: Tensor) -> Any:
    h, outs = x.new_zeros(3, 4), []
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        outs.append((h, h.mean()))
    return torch.stack([m for _, m in outs]), sum(a for a, _ in outs)


def negative_in_order(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(-STEPS, 0):
        h = torch.tanh(h @ w + x[:, t])
    return h, t


def joined_along_axes(x: Tensor, w: Tensor) -> Any:
    """Torch's functions take numpy's names."""
    first: Any = {"axis": 1}
    last: Any = {"axis": -1}
    outs, h = [], x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        outs.append(h)
    return torch.stack(outs, **first), torch.cat(outs, **last)
