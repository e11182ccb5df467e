"""What torch does in a trace is left out where nobody asked for it, and nothing else is."""

from __future__ import annotations

import logging
import sys

import pytest
import torch
from torch import nn
from torch._decomp.decompositions_for_rng import PhiloxState
from torch._dynamo import utils
from torch._logging import _internal as logs

from tilewright.driver.torch.quick_torch import from_the_first, unwritten


def test_configurations_are_written_for_others_and_for_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kept(backend: str) -> list[str | None]:
        torch.compile(lambda x: x + 1, backend=backend)(torch.randn(3))
        last = utils._compilation_metrics[-1]
        return [last.inductor_config, last.dynamo_config]

    assert kept("tilewright") == [None, None]
    assert all(kept("eager"))
    monkeypatch.setattr(logs.trace_log, "handlers", [logging.NullHandler()])
    assert unwritten(lambda: "text", lambda: True)() == "text"


def test_graphs_of_a_training_step_are_printed_for_others_and_for_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed: list[object] = []
    monkeypatch.setattr(
        torch.fx.GraphModule, "print_readable", lambda self, **_: printed.append(self)
    )
    x = torch.randn(3, requires_grad=True)

    def compiled(backend: str) -> int:
        torch._dynamo.reset()
        printed.clear()
        torch.compile(lambda x: (x * x).sum(), backend=backend)(x).backward()
        return len(printed)

    assert compiled("tilewright") == 0
    assert compiled("aot_eager") == 3  # of both directions together, and of each
    monkeypatch.setattr(logs.trace_log, "handlers", [logging.NullHandler()])
    assert compiled("tilewright") >= 3


def test_gradients_of_scans_and_steps_of_optimizers_do_without_inductor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("compile_fx", "cudagraph_trees"):  # an import of these is an error from now on
        monkeypatch.setitem(sys.modules, f"torch._inductor.{name}", None)
    net, x = nn.GRU(3, 4), torch.randn(5, 2, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    @torch.compile(backend="tilewright", fullgraph=True)
    def loss() -> torch.Tensor:
        return net(x)[0].square().sum()

    @torch.compile(backend="tilewright")
    def step() -> None:
        optimizer.step()

    net(x)[0].square().sum().backward()
    wanted = [p.grad.clone() for p in net.parameters() if p.grad is not None]
    optimizer.zero_grad()
    before = [p.detach().clone() for p in net.parameters()]
    loss().backward()
    step()
    for p, g, start in zip(net.parameters(), wanted, before, strict=True):
        torch.testing.assert_close(p.grad, g, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(p.detach(), start - 0.1 * g, rtol=1e-4, atol=1e-5)


def test_states_of_generators_begin_alike_and_apart() -> None:
    one, other = PhiloxState(), PhiloxState()
    one.set_state(torch.ones(1), torch.ones(1))
    one.advance_offset(4)
    assert not other.seed.numel() and not other.offset_advanced_at_least_once
    with pytest.raises(AssertionError, match="must not be empty"):
        other.validate_state()
    one.reset()
    assert vars(one) == vars(other) == vars(PhiloxState())


def test_a_state_is_made_as_torch_makes_the_first() -> None:
    class State:
        pass

    made: list[object] = []

    def reset(self: State) -> None:
        made.append(self)
        vars(self)["seed"] = len(made)

    again, one, other = from_the_first(reset), State(), State()
    again(one)
    again(other)
    assert len(made) == 1 and vars(one) == vars(other) == {"seed": 1}
