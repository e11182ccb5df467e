"""Training steps on the stand-in of tests/gpu/fake.py: a forward program and that of its gradient
are one function of autograd (driver/torch/step.py), whose tensors share memory."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.gpu.fake import FakeLibrary, fake_machine, on_fake_gpu, texts_are_known
from tests.gpu.training import STEPS, launch_times, rows
from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.torch import many
from tilewright.runtime.cuda import program
from tilewright.runtime.cuda.machine import Machine

Gpu = tuple[FakeLibrary, Machine]
Step = Callable[[Any, torch.Tensor], torch.Tensor]


@pytest.fixture(scope="module")
def gpu() -> Iterator[Gpu]:
    with pytest.MonkeyPatch.context() as m, texts_are_known(m):
        m.setattr(program, "FEWEST", 0)
        m.setattr(many, "FEWEST", 2)
        yield fake_machine()


class Net(nn.Module):
    """Two results, one without a gradient, and statistics that a step changes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tanh(self.second(torch.tanh(self.first(x))))
        return self.norm(x), x.argmax(1)


class Pair:
    """A module, and the same in eager, after a step that compiles its gradient."""

    def __init__(self, machine: Machine) -> None:
        torch.manual_seed(0)
        self.net = Net()
        self.other = copy.deepcopy(self.net)
        self.fast = on_fake_gpu(self.net, machine, strict=True)
        self.step(lambda f, x: loss_of(f, x).backward())

    def step(self, step: Callable[[Any, torch.Tensor], object]) -> None:
        """Gradients and statistics are eager's afterwards."""
        x = torch.randn(4, 3)
        step(self.fast, x)
        step(self.other, x)
        for p, q in zip(self.net.parameters(), self.other.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4)
        for a, b in zip(self.net.buffers(), self.other.buffers(), strict=True):
            torch.testing.assert_close(a, b)

    def clear(self) -> None:
        self.net.zero_grad()
        self.other.zero_grad()


@pytest.fixture(scope="module")
def compiled(gpu: Gpu) -> Pair:
    return Pair(gpu[1])


@pytest.fixture
def pair(compiled: Pair) -> Pair:
    compiled.clear()
    return compiled


def loss_of(f: Any, x: torch.Tensor) -> torch.Tensor:
    """No sum of squares: behind a norm that is constant."""
    return (f(x)[0] + 0.5).square().square().mean()


def test_a_step_is_one_function(pair: Pair) -> None:
    """Few tensors are kept: inputs as they are, and memory. Gradients of weights share theirs."""
    y, where = pair.fast(torch.randn(4, 3))
    assert type(y.grad_fn).__name__ == "StepBackward" and not where.requires_grad
    weights = list(pair.net.parameters())
    saved = y.grad_fn.saved_tensors
    others = [x for x in saved if not any(x is w for w in weights) and x.ndim == 1]
    assert len({x.dtype for x in others}) == len(others) <= 3
    y.sum().backward()
    assert len({p.grad.untyped_storage().data_ptr() for p in weights if p.grad is not None}) == 1
    pair.clear()
    pair.other.load_state_dict(pair.net.state_dict())


def test_steps_and_gradients_that_add_up(pair: Pair) -> None:
    for _ in range(3):
        pair.step(lambda f, x: loss_of(f, x).backward())
    kept = [p.grad for p in pair.net.parameters()]
    values = [g.clone() for g in kept if g is not None]
    pair.clear()
    pair.step(lambda f, x: loss_of(f, x).backward())
    for g, v in zip(kept, values, strict=True):
        assert g is not None and torch.equal(g, v), "a gradient that somebody holds was overwritten"


def test_two_forward_passes_before_their_gradients(pair: Pair) -> None:
    def step(f: Any, x: torch.Tensor) -> None:
        first, second = loss_of(f, x), loss_of(f, 2 * x)
        first.backward()
        second.backward()

    pair.step(step)


def test_a_graph_that_is_retained(pair: Pair) -> None:
    def step(f: Any, x: torch.Tensor) -> None:
        loss = loss_of(f, x)
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    pair.step(step)


def test_gradients_without_accumulation(pair: Pair) -> None:
    def step(f: Any, x: torch.Tensor) -> None:
        x = x.clone().requires_grad_()
        weights = list((pair.net if f is pair.fast else pair.other).parameters())
        found.append(torch.autograd.grad(loss_of(f, x), [x, *weights]))

    found: list[tuple[torch.Tensor, ...]] = []
    pair.step(step)
    pair.step(step)
    for ours, theirs in zip(found[::2], found[1::2], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_hooks(pair: Pair) -> None:
    """On parameters, and on what is kept: copies lie contiguously, wherever the tensors were."""
    seen: list[tuple[int, ...]] = []
    handles = [m.first.weight.register_hook(lambda g: 2 * g) for m in (pair.net, pair.other)]

    def pack(x: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return torch.empty(x.shape, dtype=x.dtype).copy_(x)

    def step(f: Any, x: torch.Tensor) -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            loss = loss_of(f, x)
        loss.backward()

    pair.step(step)
    for h in handles:
        h.remove()
    assert seen


def test_hooks_that_return_something_else(pair: Pair) -> None:
    def pack(x: torch.Tensor) -> torch.Tensor:
        return x[:32] if x.numel() > 32 else x  # of memory, not of weights

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = loss_of(pair.fast, torch.randn(4, 3))
    with pytest.raises(Invalid, match="came back as"):
        loss.backward()
    pair.other.load_state_dict(pair.net.state_dict())


def test_weights_that_change_in_between(pair: Pair) -> None:
    loss = loss_of(pair.fast, torch.randn(4, 3))
    with torch.no_grad():
        pair.net.second.weight.mul_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    pair.other.load_state_dict(pair.net.state_dict())


def test_gradients_of_gradients_are_refused(pair: Pair) -> None:
    loss = loss_of(pair.fast, torch.randn(4, 3))
    (g,) = torch.autograd.grad(loss, [pair.net.first.weight], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()
    loss = loss_of(pair.fast, torch.randn(4, 3))
    weight = pair.net.first.weight
    with pytest.raises(Unsupported, match="within vmap"):
        torch.vmap(lambda g: torch.autograd.grad(loss, weight, g)[0])(torch.ones(2))
    pair.other.load_state_dict(pair.net.state_dict())


def test_gradients_of_many_losses_at_once(pair: Pair) -> None:
    x, scales = torch.randn(4, 3), torch.tensor([1.0, -2.0])
    found, wanted = (
        torch.autograd.grad([loss_of(net, x)], [weight], [scales], is_grads_batched=True)[0]
        for net, weight in (
            (pair.fast, pair.net.first.weight),
            (pair.other, pair.other.first.weight),
        )
    )
    assert found.shape == wanted.shape == (2, *pair.net.first.weight.shape)
    torch.testing.assert_close(found, wanted)
    pair.other.load_state_dict(pair.net.state_dict())


def test_memory_is_given_back(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept lives until the gradient has run, though the loss lives on; gradients until they
    are dropped."""
    plain = many.Parts.memory

    def memory(self: many.Parts) -> Any:
        bases, places = plain(self)
        storages.extend(b.untyped_storage()._weak_ref() for b in bases)
        return bases, places

    storages: list[Any] = []
    monkeypatch.setattr(many.Parts, "memory", memory)
    loss = loss_of(pair.fast, torch.randn(4, 3))
    kept = len(storages)
    assert kept and not any(map(torch.UntypedStorage._expired, storages))
    loss.backward()
    gc.collect()
    expired = [*map(torch.UntypedStorage._expired, storages)]
    assert all(expired[:kept]) and not any(expired[kept:])
    pair.net.zero_grad()
    assert all(map(torch.UntypedStorage._expired, storages))
    for x in storages:
        torch.UntypedStorage._free_weak_ref(x)
    pair.other.load_state_dict(pair.net.state_dict())


def test_a_call_without_gradients(pair: Pair) -> None:
    x = torch.randn(4, 3)
    with torch.no_grad():
        got, want = pair.fast(x)[0], pair.other(x)[0]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    pair.step(lambda f, x: loss_of(f, x).backward())


def test_a_result_that_is_kept(gpu: Gpu) -> None:
    """The gradient reads the caller's own tensor, and torch notices that it was changed."""
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2), nn.Tanh())
    other = copy.deepcopy(net)
    fast = on_fake_gpu(net, gpu[1], strict=True)
    for _ in range(3):
        x = torch.randn(4, 3)
        for f, m in ((fast, net), (other, other)):
            m.zero_grad()
            f(x).square().sum().backward()
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    y = fast(torch.randn(4, 3))
    assert type(y.grad_fn).__name__ == "StepBackward"
    with torch.no_grad():
        y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_launches_of_a_step_are_timed(gpu: Gpu) -> None:
    """Each by the name under which the table of tests.gpu.training looks for it."""
    net, x = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 2)), torch.randn(4, 3)
    fast = on_fake_gpu(net, gpu[1], strict=True)
    for _ in range(3):
        net.zero_grad()
        y = fast(x)
        y.square().sum().backward(retain_graph=True)
    for unit in fast.units:
        (made,) = unit.programs
        assert isinstance(made, program.CudaProgram)
        ours, others = launch_times(made)
        found = list(rows(made, ours))
        assert sum(map(len, ours.values())) == STEPS * sum(r.count for r in found) and not others
        assert found and all(r.measured is not None for r in found)


class Turned(nn.Module):
    """A result that is a view of an input: AOTAutograd makes it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x
        for f in self.parts:
            y = torch.tanh(f(y))
        return y, x.t()


def test_graphs_that_need_more_stay_with_aotautograd(gpu: Gpu) -> None:
    net = Turned()
    other = copy.deepcopy(net)
    fast = on_fake_gpu(net, gpu[1], strict=True)
    for _ in range(2):
        x = torch.randn(4, 3)
        for f, m in ((fast, net), (other, other)):
            m.zero_grad()
            y, turned = f(x)
            assert turned.data_ptr() == x.data_ptr()
            y.square().sum().backward()
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    assert type(y.grad_fn).__name__ != "StepBackward"


# ---- tensors made and read by native loops

FORMS: list[many.Form] = [
    ((3, 4), (4, 1), torch.float32),
    ((), (), torch.float32),
    ((2, 3, 4, 5, 6, 7), (2520, 840, 210, 42, 7, 1), torch.bfloat16),
    ((4, 3), (1, 4), torch.int64),
    ((0, 5), (5, 1), torch.bfloat16),
    ((3, 2, 2, 2), (8, 1, 4, 2), torch.bool),
    ((5,), (1,), torch.complex64),
    ((7,), (1,), torch.float32),
]


def test_many_tensors_are_made_at_once() -> None:
    parts = many.parts(FORMS, lambda s, t, d: torch.empty_strided(s, t, dtype=d))
    assert parts is not None
    for _ in range(3):
        made, places = parts()
        assert [(tuple(x.shape), x.stride(), x.dtype) for x in made] == FORMS
        assert [x.data_ptr() for x in made if x.numel()] == [
            p for x, p in zip(made, places, strict=True) if x.numel()
        ]
        assert not any(x._is_view() or x.requires_grad for x in made)
        for k, x in enumerate(made):
            x.fill_(k % 2)
        for k, x in enumerate(made):
            assert bool((x == k % 2).all()), "tensors overlap"
        assert len({x.untyped_storage().data_ptr() for x in made if x.numel()}) == 5
    kept = weakref.ref(made[0])
    del made, x
    assert kept() is None


def test_addresses_are_read_at_once() -> None:
    tensors = [torch.empty_strided(s, t, dtype=d) for s, t, d in FORMS if 0 not in s] * 2
    tensors[3] = nn.Parameter(torch.randn(3))
    read = many.addresses([(k, x.stride()) for k, x in enumerate(tensors)])
    anyhow = many.addresses([(k, None) for k in range(len(tensors))])
    assert read is not None and anyhow is not None
    where = [x.data_ptr() for x in tensors]
    assert read(tensors) == anyhow(tensors) == where
    turned = [tensors[0].t().contiguous().t(), *tensors[1:]]
    assert read(turned) == [] and anyhow(turned) == [turned[0].data_ptr(), *where[1:]]
    for other in (None, 3, torch.empty(0, 5), torch.empty(3, device="meta")):
        assert read([*tensors[:-1], other]) == anyhow([*tensors[:-1], other]) == []


def test_addresses_are_not_read_where_tensors_are_not_known_to_lie(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(many, "find_places", lambda: None)
    for f in (many._native, many._reading):
        f.cache_clear()
    try:
        assert many.addresses([(k, None) for k in range(20)]) is None
        assert many._native()[1] is None
    finally:
        for f in (many._native, many._reading):
            f.cache_clear()
