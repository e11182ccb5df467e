"""Judges one architecture in inference or in a training step, as one graph and strictly."""

from __future__ import annotations

import copy
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import nn

from tests.suites.adapter import Work, compiled, unsupported_operators, watched
from tests.suites.architecture_builds import build
from tests.suites.opinfo_entry import classified
from tests.suites.opinfo_runs import Outcome, Settings
from tests.suites.rounding import nudged, within_rounding
from tilewright.bench.oracle import disagreements, in_double

# Inputs that are drawn: a tiny model gives few numbers, whose errors are luck.
DRAWS = 2


def checker(settings: Settings) -> Callable[[str], Outcome]:
    """Checks architectures by name, one after the other, in this process."""

    def check(name: str) -> Outcome:
        outcome = Outcome(name, "right")
        start = time.perf_counter()
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with warnings.catch_warnings(), torch.set_grad_enabled(settings.gradients):
                warnings.simplefilter("ignore")
                _check(outcome, settings)
        finally:
            torch.set_num_threads(threads)
        outcome.seconds = time.perf_counter() - start
        return outcome

    return check


def _check(outcome: Outcome, settings: Settings) -> None:
    try:
        module, _ = build(outcome.name)
        inputs = [build(outcome.name, seed)[1] for seed in range(DRAWS)]
        module.train(settings.gradients)
        use = _steps if settings.gradients else _results
        expected = use(copy.deepcopy(module), inputs)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:200]
        where = f"{Path(place.filename).name}:{place.lineno}"
        outcome.status, outcome.detail = "eager", f"{type(error).__name__}: {said} ({where})"
        return
    wide = copy.deepcopy(module).double()
    choose: Any = getattr(wide.inner, "set_experts_implementation", None)
    if choose is not None:
        choose("eager")  # the other one multiplies no doubles
    reference = in_double(lambda given: use(wide, given), inputs)

    def under(backend: str, work: Work) -> Any:
        torch._dynamo.reset()
        mine, whole = copy.deepcopy(module), settings.strict
        return use(mine, inputs, compiled(mine, backend, strict=whole, fullgraph=whole, work=work))

    def captured() -> Any:
        """What torch's capture gives, run in eager; None where it raises."""
        try:
            return under("aot_eager", Work())
        except Exception:  # whatever it is, it is not ours
            return None

    try:
        with watched(settings.backend) as work:
            found = under(settings.backend, work)
    except Exception as error:
        outcome.status, outcome.detail = classified(error)
        outcome.fallbacks = unsupported_operators(error)
        if outcome.status in ("error", "capture"):
            outcome.status = "error" if captured() is not None else "capture"
        return
    outcome.kernels, outcome.fallbacks = work.kernels, work.fallbacks
    outcome.libraries = work.libraries

    def again(drawn: torch.Generator) -> Any:
        other = copy.deepcopy(module)
        for p in other.parameters():
            p.data.copy_(nudged(p.data, drawn))
        return use(other, [tuple(nudged(x, drawn) for x in given) for given in inputs])

    if problems := disagreements(found, expected, reference):
        outcome.status, outcome.detail = "wrong", "; ".join(problems)
        other = captured()
        if other is None or disagreements(other, expected, reference):
            outcome.status = "alike"
        elif within_rounding(found, expected, again):
            outcome.status = "rounding"
    elif settings.backend == "tilewright" and not work.kernels:
        outcome.status = "no kernel"


def _results(module: nn.Module, inputs: Any, call: Callable | None = None) -> Any:
    """What the model gives for each of the inputs."""
    return [(module if call is None else call)(*given) for given in inputs]


def _steps(module: nn.Module, inputs: Any, call: Callable | None = None) -> Any:
    """The same, and gradients of all weights for a fixed weighing of the results: those of all
    inputs add up."""
    found = []
    for given in inputs:
        results = [x for x in (module if call is None else call)(*given) if x.is_floating_point()]
        drawn = torch.Generator().manual_seed(0)
        weights = [torch.randint(-4, 5, x.shape, generator=drawn).to(x.dtype) / 4 for x in results]
        asked = [(x, w) for x, w in zip(results, weights, strict=True) if x.requires_grad]
        torch.autograd.backward([x for x, _ in asked], [w for _, w in asked])
        found.append([x.detach() for x in results])
    grads = {name: p.grad for name, p in module.named_parameters()}
    return found, grads, dict(module.named_buffers())
