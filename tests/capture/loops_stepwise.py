"""Loops of which Python does something else in some steps, or of which a scan would be another."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.capture.loops_once import STEPS

LAYERS = nn.ModuleList([nn.Linear(4, 4) for _ in range(STEPS)]).double()
SCALES = [0.5 + 0.01 * k for k in range(STEPS)]


def at_seven(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        if t == 7:
            h = h * 2
    return h


def every_second(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) if t % 2 else h + x[:, t]
    return h


def rare(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        if t % 10 == 9:
            h = h * 0.5
    return h


def arithmetic(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t] * t)
    return h


def other_arithmetic(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) + 0.5 ** (t + 1)
    return h


def ends_early(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        if t == 13:
            break
        h = torch.tanh(h @ w + x[:, t])
    else:
        h = h * 100
    return h, t


def returns_early(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        if t >= 17:
            return h * 3
    return h


def skips_some(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        if t in (3, 11):
            continue
        h = torch.tanh(h @ w + x[:, t])
    return h


def counts(x: Tensor, w: Tensor) -> Any:
    h, k = x.new_zeros(3, 4), 0
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * (2 if k == 9 else 1)
        k += 1
    return h, k


def halves(x: Tensor, w: Tensor) -> Any:
    h, scale = x.new_zeros(3, 4), 1.0
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * scale
        scale *= 0.5
    return h


def numbers_of_a_list(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * SCALES[t]
    return h


def layer_by_layer(x: Tensor, w: Tensor) -> Any:
    h = x[:, 0]
    for t in range(STEPS):
        h = torch.tanh(LAYERS[t](h))
    return h


def reads_its_list(x: Tensor, w: Tensor) -> Any:
    h, outs = x[:, 0], [x[:, 0]]
    for t in range(STEPS):
        h = torch.tanh(outs[-1] @ w + x[:, t])
        outs.append(h)
    return h, len(outs)


def asks_for_the_length(x: Tensor, w: Tensor) -> Any:
    h, outs = x[:, 0], []
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        outs.append(h)
        if len(outs) > 10:
            h = h * 2
    return h


def reads_an_old_item(x: Tensor, w: Tensor) -> Any:
    h, outs = x[:, 0], []
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        outs.append(h)
        if t > 3:
            h = h + outs[t - 2]
    return h


def dictionary(x: Tensor, w: Tensor) -> Any:
    h, found = x[:, 0], {}
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        found[t] = h
    return found[5] + found[19]


class Holder:
    def __init__(self) -> None:
        self.count, self.h = 0, None


def attributes(x: Tensor, w: Tensor) -> Any:
    holder, h = Holder(), x[:, 0]
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        holder.count += 1
    return h, holder.count


def zeros_of_both_signs(x: Tensor, w: Tensor) -> Any:
    h, zero = x.new_zeros(3, 4), 0.0
    for t in range(STEPS):
        h = torch.tanh(h @ w) + torch.atan2(torch.full_like(h, zero), -x[:, t].abs())
        zero = -zero
    return h


def generator(x: Tensor, w: Tensor) -> Any:
    def scales() -> Any:
        k = 1.0
        while True:
            yield k
            k *= 0.9

    h, all_scales = x[:, 0], scales()
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * next(all_scales)
    return h


def nonlocal_counter(x: Tensor, w: Tensor) -> Any:
    k = 0

    def more() -> None:
        nonlocal k
        k += 1

    h = x[:, 0]
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        more()
    return h * k


def changes_its_state(x: Tensor, w: Tensor) -> Any:
    h, out = x.new_zeros(3, 4), []
    for t in range(STEPS):
        h += x[:, t] @ w
        out.append(h)
    return torch.stack(out)


def state_is_a_view(x: Tensor, w: Tensor) -> Any:
    x = x * 1
    h = x[:, 0]
    for t in range(1, STEPS):
        h = torch.tanh(h @ w + x[:, t])
        x[:, 0] = h
    return h, x


def sets_what_it_began_with(x: Tensor, w: Tensor) -> Any:
    out = x * 1
    h = out[:, 0]
    for t in range(STEPS):
        out[:, t] = torch.sin(x[:, t])
        h = torch.tanh(h @ w + x[:, t])
    return h, out


def reads_what_it_sets(x: Tensor, w: Tensor) -> Any:
    h, out = x.new_zeros(3, 4), x.new_zeros(3, STEPS + 1, 4)
    for t in range(STEPS):
        h = h * 0.5 + x[:, t]
        out[:, t + 1] = torch.sin(x[:, t] @ w + out[:, t]) + h
    return out


def lists_views(x: Tensor, w: Tensor) -> Any:
    """Slices in a list are parts of their tensor."""
    x, h, out = x * 1, x.new_zeros(3, 4), []
    for t in range(STEPS):
        now = x[:, t]
        h = torch.tanh(h @ w + now)
        out.append(now)
    out[3].add_(1)
    return h, x


def lists_twice(x: Tensor, w: Tensor) -> Any:
    """Two items that share memory."""
    h, out = x.new_zeros(3, 4), []
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        out.append(h)
        out.append(h.view(4, 3))
    out[4].add_(1)
    return out[5], out[4], out[-1]


def last_slice_is_changed(x: Tensor, w: Tensor) -> Any:
    x, now, h = x * 1, x, x.new_zeros(3, 4)
    for t in range(STEPS):
        now = x[:, t]
        h = torch.tanh(h @ w + now)
    now.mul_(3)
    return h, x, now


def other_dtype_later(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4).float()
    for t in range(STEPS):
        h = torch.tanh(h.to(x.dtype) @ w + x[:, t])
    return h


def grows(x: Tensor, w: Tensor) -> Any:
    h = x[:, 0]
    for t in range(STEPS):
        h = torch.cat([h, x[:, t]], -1)
    return h


def shapes_of_numbers(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(1, STEPS):
        h = torch.tanh(h + x[:, :t].mean(1))
    return h


def past_the_end(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 1, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t : t + 2].sum(1, keepdim=True))
    return h


def over_both_ends(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t - 3])
    return h


def random_steps(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = F.dropout(torch.sin(x[:, t] @ w + h), 1e-300)
    return h


def with_autocast(x: Tensor, w: Tensor) -> Any:
    x, w, h = x.float(), w.float(), x.new_zeros(3, 4).float()
    with torch.autocast("cpu", torch.bfloat16):
        for t in range(STEPS):
            h = torch.tanh(h @ w + x[:, t])
    return h


def change_places(x: Tensor, w: Tensor) -> Any:
    a, b, h = x[:, 0] * 1, x[:, 1] * 1, x.new_zeros(3, 4)
    for _ in range(STEPS + 1):
        a, b = b, a
        h = torch.tanh(h @ w + a)
    return a, b, h


def no_gradient_in_some(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        h = h * 2 if h.requires_grad else h
    return h


def asks_for_identity(x: Tensor, w: Tensor) -> Any:
    first = x[:, 0]
    h = first
    for t in range(STEPS):
        h = h * 2 if h is first else torch.tanh(h @ w + x[:, t])
    return h


def asks_elsewhere_for_identity(x: Tensor, w: Tensor) -> Any:
    first = x[:, 0]
    h = first

    def step(h: Tensor, t: int) -> Tensor:
        return torch.tanh(h @ w * (2.0 if h is first else 3.0) + x[:, t])

    for t in range(STEPS):
        h = step(h, t)
    return h


def same_as_before(x: Tensor, w: Tensor) -> Any:
    h = x[:, 0] * 1
    before = h
    for t in range(STEPS):
        factor = 2.0 if h is before else 3.0
        before = h
        h = torch.tanh(h @ w * factor + x[:, t])
    return h, before


def key_of_a_dictionary(x: Tensor, w: Tensor) -> Any:
    first = x[:, 0]
    h, factors = first, {first: 2.0}
    for t in range(STEPS):
        h = torch.tanh(h @ w * factors.get(h, 3.0) + x[:, t])
    return h


def number_of_an_object(x: Tensor, w: Tensor) -> Any:
    first = x[:, 0]
    h = first
    for t in range(STEPS):
        h = torch.tanh(h @ w * (2.0 if id(h) == id(first) else 3.0) + x[:, t])
    return h


def asks_by_the_class(x: Tensor, w: Tensor) -> Any:
    h = x[:, 0]
    for t in range(STEPS):
        h = torch.tanh(h @ w * (2.0 if Tensor.is_contiguous(h) else 3.0) + x[:, t])
    return h


def text_of_numbers(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * len(f"{t}")
    return h


def in_a_set(x: Tensor, w: Tensor) -> Any:
    h, chosen = x.new_zeros(3, 4), {2, 5, 17}
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * (2 if t in chosen else 1)
    return h


def compared_the_other_way(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * (2 if 11 == t else 1)
    return h


def truth_of_numbers(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(-7, STEPS - 7):
        h = torch.tanh(h @ w + x[:, t + 7]) * (2 if not t else 1)
    return h


def minimum(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, min(t, 12)])
    return h


def integer_division(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t // 2])
    return h


def caught(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        try:
            scale = SCALES[t + 5]
        except IndexError:
            scale = 1.0
        h = torch.tanh(h @ w + x[:, t]) * scale
    return h


def squared(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(4, 4 + STEPS):
        h = torch.tanh(h @ w + x[:, (t * t) % STEPS])
    return h


def comprehension(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        h = torch.stack([torch.tanh(h[k] @ w + x[k, t]) for k in range(3)])
    return h


def all_variables(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        now = [x[:, t]]
        h = torch.tanh(h @ w + now[0])
    return h, locals()["now"][0]


def makes_lists(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    out = [h] * STEPS
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t])
        out[t] = h
    return torch.stack(out)


def types_of_numbers(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        size = range(t)
        h = torch.tanh(h @ w + x[:, t]) * (len(size) + 1)
    return h


def random_of_python(x: Tensor, w: Tensor) -> Any:
    h, own = x.new_zeros(3, 4), random.Random(3)
    for t in range(STEPS):
        h = torch.tanh(h @ w + x[:, t]) * own.random()
    return h


def deleted(x: Tensor, w: Tensor) -> Any:
    h = x.new_zeros(3, 4)
    for t in range(STEPS):
        now = x[:, t]
        h = torch.tanh(h @ w + now)
        del now
    return h
