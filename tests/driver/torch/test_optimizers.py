"""Optimizer steps: native, in lockstep with eager, in place, and compiled once for all rates."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adafactor, Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import tilewright as tw
from tests.driver.optimizers import Lion

SHAPES = [(5, 7), (5,), (3, 2, 3), (1,), (40, 300), ()]
STEPS = 10
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def lockstep(make: Make, clip: bool = False, schedule: bool = False) -> Any:
    """Compiled, eager and float64 steps on equal gradients. The error is at most twice eager's and
    four units in the last place; parameters and states stay where they are."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    start = [torch.randn(s, dtype=torch.float32) for s in SHAPES]
    every = [[nn.Parameter(x.to(d)) for x in start] for d in (*[torch.float32] * 2, torch.float64)]
    optimizers = [make(ps) for ps in every]
    schedules = [ExponentialLR(o, 0.9) for o in optimizers] if schedule else []

    def step_of(k: int) -> Callable[[], None]:
        parameters, optimizer = every[k], optimizers[k]

        def step() -> None:
            if clip:
                nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()

        return step

    fast = tw.compile(step_of(0))
    steps = [fast, step_of(1), step_of(2)]
    places = [p.data_ptr() for p in every[0]]
    for k in range(STEPS):
        for own in zip(*every, strict=True):
            gradient = torch.randn(own[0].shape)
            for p in own:
                p.grad = gradient.to(p.dtype, copy=True)
        for step in steps:
            step()
        for s in schedules:
            s.step()
        if k == 2:
            places += [x.data_ptr() for x in tensors(optimizers[0])]
    assert places == [x.data_ptr() for x in (*every[0], *tensors(optimizers[0]))]
    for ours, eager, exact in zip(*every, strict=True):
        error, own = ((x.double() - exact).abs().max().item() for x in (ours, eager))
        unit = torch.finfo(torch.float32).eps * exact.abs().max().item()
        assert error <= 2 * own + 4 * unit
    return fast


def tensors(o: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [x for s in o.state.values() for x in s.values() if isinstance(x, torch.Tensor)]


def events(fast: Any, kind: str) -> list[str]:
    return [e.message for e in fast.log if e.kind == kind]


def test_clipped_with_a_rate_that_changes() -> None:
    fast = lockstep(lambda ps: AdamW(ps, lr=0.1, foreach=True), clip=True, schedule=True)
    assert events(fast, "fallback") == []
    # For the first rate as a constant, for others as an input; clipping once.
    programs = [p for u in fast.units for p in u.programs]
    assert len(programs) == 3
    for p in programs[1:]:
        assert {at for at, _ in p.updated} == set(range(len(p.outputs)))
    # One kernel for the tensors of all shapes, and few for single numbers.
    assert len(programs[-1].kernels) <= 4 < len(SHAPES)


def test_an_optimizer_of_ones_own() -> None:
    fast = lockstep(lambda ps: Lion(ps, lr=0.01))
    # Averages are made by the first step: the second one is another program, and the last.
    assert len(fast.units) == 2 and events(fast, "fallback") == []


OTHERS: dict[str, Make] = {
    "sgd": lambda ps: SGD(ps, lr=0.1),
    "sgd nesterov": lambda ps: SGD(
        ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=True
    ),
    "sgd single": lambda ps: SGD(ps, lr=0.1, momentum=0.9, maximize=True, foreach=False),
    "adam single": lambda ps: Adam(ps, lr=0.1, foreach=False, weight_decay=0.01),
    "adam amsgrad": lambda ps: Adam(ps, lr=0.1, foreach=True, amsgrad=True, maximize=True),
    "adamw single": lambda ps: AdamW(ps, lr=0.1, foreach=False, amsgrad=True),
    "lion": lambda ps: Lion(ps, lr=0.01),
    "adafactor": lambda ps: Adafactor(ps, lr=0.1, foreach=False),
    "adafactor foreach": lambda ps: Adafactor(ps, lr=0.1, foreach=True, weight_decay=0.01),
}


@pytest.mark.slow
@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("schedule", [False, True])
@pytest.mark.parametrize("name", list(OTHERS))
def test_lockstep(name: str, schedule: bool, clip: bool) -> None:
    fast = lockstep(OTHERS[name], clip, schedule)
    assert events(fast, "fallback") == []
    assert len(fast.units) <= 4


@pytest.mark.slow
def test_a_rate_that_is_a_tensor() -> None:
    make = lambda ps: Adam(ps, lr=torch.tensor(0.1, dtype=ps[0].dtype), foreach=False)  # noqa: E731
    fast = lockstep(make, schedule=True)
    assert events(fast, "fallback") == [] and len(fast.units) == 1


@pytest.mark.slow
def test_moving_average_of_a_model() -> None:
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(7, 5), nn.Linear(5, 3)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    averages = [AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9)) for m in models]
    updates = [tw.compile(averages[0].update_parameters), averages[1].update_parameters]
    for _ in range(5):
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
            p.data.add_(torch.randn_like(p))
            q.data.copy_(p.data)
        for m, update in zip(models, updates, strict=True):
            update(m)
    for p, q in zip(*(a.parameters() for a in averages), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("count", [1, 40])  # by name, and as a list
def test_examples_change_nothing(count: int) -> None:
    """A call that only compiles leaves arguments as they are, though the program writes to them."""
    xs = [torch.arange(5.0) + k for k in range(count)]
    before = copy.deepcopy(xs)

    def change(given: list[torch.Tensor]) -> None:
        for x in given:
            x.mul_(2).add_(1)

    fast = tw.compile(change, xs)
    assert all(map(torch.equal, xs, before))
    versions = [x._version for x in xs]
    fast(xs)
    assert all(torch.equal(x, b * 2 + 1) for x, b in zip(xs, before, strict=True))
    assert all(x._version > v for x, v in zip(xs, versions, strict=True))
