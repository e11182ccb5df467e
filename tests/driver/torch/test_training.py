"""Training steps: what is kept is told, gradients and updates of weights are right."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch._vmap_internals import _vmap
from torch.autograd.functional import jacobian

import tilewright as tw
from tests.driver.training_models import trained, without_chance
from tests.seeds import drawn
from tilewright.bench.resident import ResidentPeak
from tilewright.driver.api import history_of
from tilewright.driver.torch import call as calls
from tilewright.runtime import room
from tilewright.runtime.memory import GIVES_BACK


def test_what_is_kept_for_the_gradient_is_told() -> None:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4)))
    x = torch.randn(8, 16)
    found = {}
    for share in (1.0, 0.5):
        step = tw.compile(lambda x: net(x).square().mean(), strict=True, activation_memory=share)
        step(x).backward()
        (found[share],) = tw.explain(step).of("kept")
    assert found[1.0].data["bytes"] == found[1.0].data["usual"] > 0
    assert 0 < found[0.5].data["bytes"] <= found[1.0].data["bytes"] // 2
    assert found[0.5].data["again"] and "without a limit" in found[0.5].message


@pytest.mark.skipif(not GIVES_BACK, reason="only 64-bit Linux takes pages back (madvise)")
def test_what_was_kept_goes_back_while_gradients_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a limit of memory; they are as eager's, and as they are where nothing goes back."""
    torch.manual_seed(0)
    count = 8
    net = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(count)))
    weights = list(net.parameters())
    x = torch.randn(512, 512)
    peaks, found = {}, {}
    for gives in (False, True):
        monkeypatch.setattr(calls, "GIVES_BACK", gives)
        torch._dynamo.reset()
        step = tw.compile(lambda x: net(x).square().mean(), strict=True, activation_memory=0.99)
        step(x).backward()
        net.zero_grad(set_to_none=True)
        room.trim()
        peak = ResidentPeak()
        step(x).backward()
        peaks[gives] = peak.grown()
        found[gives] = [p.grad for p in weights]
        net.zero_grad(set_to_none=True)
        loss = step(x)  # a gradient that is asked for twice finds what was kept
        first = torch.autograd.grad(loss, weights, retain_graph=True)
        for a, b in zip(first, torch.autograd.grad(loss, weights), strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)
    for a, b in zip(found[True], found[False], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    eager = torch.autograd.grad(net(x).square().mean(), weights)
    torch.testing.assert_close(found[True], list(eager))
    # Each activation and each gradient is 1 MB.
    assert peaks[True] < peaks[False] - count / 2 * x.nbytes, peaks


@pytest.mark.parametrize("dynamic", [None, True])
def test_logarithms_of_a_softmax_over_nothing(dynamic: bool | None) -> None:
    """The maximum of nothing is an error; eager has none here."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.log_softmax(0).square().sum(0)

    torch._dynamo.reset()
    fast = tw.compile(f, dynamic=dynamic)
    for rows in (3, 0) if dynamic else (0,):
        x = torch.randn(rows, 5, requires_grad=True)
        torch.testing.assert_close(fast(x), f(x))
        (ours,), (theirs,) = (torch.autograd.grad(g(x).sum(), x) for g in (fast, f))
        torch.testing.assert_close(ours, theirs)


def test_gradients_of_complex_tensors_and_numbers() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        z = torch.view_as_complex(x.view(-1, 2))
        return torch.view_as_real(z * (1 + 2j) / (3 - 1j) - z / 2j).square()

    x = torch.randn(12, requires_grad=True)
    (ours,), (theirs,) = (torch.autograd.grad(g(x).sum(), x) for g in (tw.compile(f), f))
    torch.testing.assert_close(ours, theirs)


def test_updates_of_an_optimizer_are_one_native_program() -> None:
    """Dynamo writes them with an operator of Inductor's, a product with a sum."""
    net = nn.Linear(3, 4)
    for p in net.parameters():
        p.grad = torch.randn_like(p)
    others = copy.deepcopy(net)
    for p, q in zip(net.parameters(), others.parameters(), strict=True):
        assert p.grad is not None
        q.grad = p.grad.clone()
    ours, eager = (torch.optim.AdamW(m.parameters(), 1e-2) for m in (net, others))

    def update() -> None:
        ours.step()

    fast = torch.compile(update, backend="tilewright", options={"strict": True})
    for _ in range(3):
        fast()
        eager.step()
    for p, q in zip(net.parameters(), others.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_gradients_are_computed_in_the_memory_of_what_was_kept() -> None:
    """Unless somebody may still read that."""
    net = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.GELU()) for _ in range(3)))
    step = tw.compile(lambda x: net(x).square().mean(), strict=True)
    x = torch.randn(1024, 128)  # few bytes are not worth it
    net(x).square().mean().backward()
    eager = [p.grad for p in net.parameters()]

    def judge() -> None:
        for p, g in zip(net.parameters(), eager, strict=True):
            torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-7)
            p.grad = None

    net.zero_grad()
    loss = step(x)
    loss.backward()
    judge()
    programs = [p for s in history_of(step)[0] for u in s.units for p in u.programs]
    assert any(p.spent for p in programs)
    loss = step(x)
    loss.backward(retain_graph=True)
    judge()
    loss.backward()
    judge()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    seen: list[torch.Tensor] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        loss = step(x)
    before = [x.clone() for x in seen]
    loss.backward()
    judge()
    assert len(before) > 3 and all(map(torch.equal, seen, before))


def test_small_steps_go_past_aot_autograd() -> None:
    """However autograd calls them: twice, with hooks on what is kept, with gradients that lie
    otherwise, under transforms."""
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(5, 8, requires_grad=True)
    wanted = [x, *net.parameters()]
    fast = torch.compile(net, backend="tilewright")
    eager = [g.clone() for g in torch.autograd.grad(net(x).sum(), wanted)]
    fast(x).sum().backward()  # the gradient is compiled when it is first asked for
    y = fast(x)
    assert y.grad_fn is not None and "Step" in type(y.grad_fn).__name__
    for keep in (True, True, False):
        got = torch.autograd.grad(y.sum(), wanted, retain_graph=keep)  # strides of 0
        torch.testing.assert_close([*got], eager)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y.sum(), wanted)
    turned = torch.autograd.grad(fast(x), wanted, torch.ones(4, 5).T)
    torch.testing.assert_close([*turned], eager)

    def other(x: torch.Tensor) -> torch.Tensor:
        return x.t().contiguous().t() if x.ndim == 2 else x.clone()

    with torch.autograd.graph.saved_tensors_hooks(other, lambda x: x):
        y = fast(x)
    torch.testing.assert_close([*torch.autograd.grad(y.sum(), wanted)], eager)
    (first,) = torch.autograd.grad(fast(x).sum(), [x], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        first.sum().backward()
    many = torch.ones(3, 5, 4)
    found = torch.autograd.grad(fast(x), wanted, many, is_grads_batched=True)
    torch.testing.assert_close([*found], [g.expand(3, *g.shape) for g in eager])


@pytest.mark.parametrize("dynamic", drawn([None, True], 1))
def test_many_gradients_at_once(dynamic: bool | None) -> None:
    """What torch passes then are tensors without memory; one level within another too."""

    def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tanh(x @ y).exp().sum(1), (x * y).sin()

    fast = tw.compile(both, dynamic=dynamic)
    given = (torch.randn(3, 3), torch.randn(3, 3))
    expected = jacobian(both, given)
    for _ in range(2):
        torch.testing.assert_close(jacobian(fast, given, vectorize=True), expected)

    weights = torch.randn(2, 4, 3)
    found = []
    for f in (fast, both):
        x = given[0].clone().requires_grad_()
        result = f(x, given[1])[0]

        def gradient(weight: torch.Tensor, x=x, result=result) -> torch.Tensor:
            return torch.autograd.grad(result, x, weight, retain_graph=True)[0]

        found.append(_vmap(_vmap(gradient))(weights))
    torch.testing.assert_close(*found)


@pytest.mark.slow
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("name", ["transformer", "lstm", "unet"])
def test_gradients_of_networks(name: str, share: float) -> None:
    given = trained(name, small=True)
    without_chance(given.module)
    eager, exact = copy.deepcopy(given.module), copy.deepcopy(given.module).double()
    wide = [x.double() if x.is_floating_point() else x for x in given.batch]
    fast = tw.compile(given.module, activation_memory=share)
    for call, batch in ((fast, given.batch), (eager, given.batch), (exact, wide)):
        call(*batch).backward()
    every = (dict(m.named_parameters()) for m in (given.module, eager, exact))
    for (name, p), e, q in zip(*(x.items() if k == 0 else x.values() for k, x in enumerate(every))):
        assert p.grad is not None and e.grad is not None and q.grad is not None
        theirs = float((e.grad.double() - q.grad).abs().max())
        allowed = 2 * theirs + 4 * torch.finfo(torch.float32).eps * float(q.grad.abs().max())
        assert float((p.grad.double() - q.grad).abs().max()) <= allowed, name
