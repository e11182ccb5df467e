"""Judging a PyTorch program: compiled, in eager and in float64, its gradients too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from tests.driver.torch_programs import Program, Sizes
from tests.generators import Failure, compiling, skipped
from tests.shrinking import error
from tests.suites.adapter import unsupported_operators
from tests.suites.rounding import FACTOR, NUDGES, Nudged, nudged
from tilewright.bench.oracle import InDouble
from tilewright.capture.torch.recurrent import recurrent_layers
from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.options import TorchOptions
from tilewright.ir.node import Graph
from tilewright.runtime.cuda.machine import Machine

# What torch captures, run in eager: before and after its decompositions, which differ in strides.
CAPTURED = ("aot_eager", "aot_eager_decomp_partition")


@dataclass
class Ran:
    """What a call gives, by name: results, gradients, and what it changed in place."""

    values: dict[str, Any]


def failure(program: Program) -> Failure | None:
    """What is wrong with the compiled program, or None. One that eager refuses is skipped, and what
    torch's own capture does differently from eager is not ours: where it fails too, the program is
    skipped."""
    try:
        eager = _all_calls(program, program.module())
    except Exception as problem:  # made by shrinking, as a rule
        return skipped("eager refuses them", str(problem))
    torch._dynamo.reset()
    ours = _ours(program, strict=True)
    found = ours if isinstance(ours, Failure) else _judged(program, ours, eager)
    if found is None or found.skipped:
        return found
    for backend in CAPTURED:
        torch._dynamo.reset()
        try:
            with torch._dynamo.config.patch(allow_rnn=True):
                captured = _all_calls(program, _compiled(program, backend, {}))
        except Exception as problem:
            return skipped("torch's own capture refuses them", f"{problem}\n{found}")
        if not isinstance(ours, Failure) and _judged(program, ours, captured) is None:
            return skipped("torch's own capture differs from eager alike", str(found))
    return found


def _judged(program: Program, ours: list[Ran], right: list[Ran]) -> Failure | None:
    try:
        exact = _exact(program)
    except RuntimeError as problem:
        # `x.to(torch.float16)` is no copy there: what is changed in place later is not what it was.
        return skipped("eager refuses them in float64", str(problem))
    for k, (got, want) in enumerate(zip(ours, right, strict=True)):
        for name in want.values:
            problem = _difference(got.values[name], want.values[name], exact[k].values[name])
            if problem and not _within_rounding(program, k, name, got, want):
                where = f" with {dict(program.calls[k])}" if program.calls[k] else ""
                return Failure(f"wrong {name.split()[0]}", f"{name}{where} {problem}")
    return None


class _Timed(Session):
    """Measures what is ours of a compilation: of a long program, torch's capture takes most."""

    def unit(self, kind: str, gm: torch.fx.GraphModule) -> Callable[..., Any]:
        with compiling():
            return super().unit(kind, gm)

    def compile_graph(
        self,
        graph: Graph,
        machine: Machine | None = None,
        updates: tuple[tuple[int, int], ...] = (),
        spent: tuple[int, ...] = (),
        fresh: bool = False,
    ) -> Any:
        with compiling():
            return super().compile_graph(graph, machine, updates, spent, fresh)


def timed(gm: torch.fx.GraphModule, inputs: Sequence[Any], options: Any) -> Callable[..., Any]:
    """The backend `tilewright`, with a clock."""
    return _Timed(TorchOptions.parse(options)).backend(gm, inputs)


def _compiled(program: Program, backend: str | Callable[..., Any], options: Any) -> Any:
    dynamic = True if program.dynamic else None
    return torch.compile(
        program.module(), backend=backend, fullgraph=True, dynamic=dynamic, options=options
    )


def _ours(program: Program, strict: bool) -> list[Ran] | Failure:
    """What the compiled program gives. Where an operator has no translation, eager runs it."""
    try:
        with recurrent_layers():
            ran = _all_calls(program, _compiled(program, timed, {"strict": strict}))
    except Exception as problem:  # reported with the program that shows it
        if strict and unsupported_operators(problem):
            torch._dynamo.reset()
            return _ours(program, strict=False)
        cause = _cause(problem)
        return error(cause, "" if cause is problem else f"{type(problem).__name__} from ")
    return ran


def _cause(problem: BaseException) -> BaseException:
    """The exception that torch wrapped, where it did."""
    inner = getattr(problem, "inner_exception", None) or problem.__cause__
    return _cause(inner) if isinstance(inner, BaseException) else problem


def _all_calls(
    program: Program, module: nn.Module, wide: bool = False, nudge: torch.Generator | None = None
) -> list[Ran]:
    """One call after the other: a module may change from one to the next."""
    return [_run(program, module, sizes, wide, nudge) for sizes in program.calls]


def _run(
    program: Program,
    module: Any,
    sizes: Sizes,
    wide: bool = False,
    nudge: torch.Generator | None = None,
) -> Ran:
    given = program.arguments(sizes)
    if nudge is not None:
        given = [nudged(x, nudge) for x in given]
    if wide:
        given = [_widened(x) for x in given]
    with nullcontext() if nudge is None else Nudged(nudge):
        with torch.set_grad_enabled(program.grad):
            results = module(*given)
        values: dict[str, Any] = {f"result {k}": x for k, x in enumerate(results)}
        values |= {f"strides {k}": strides(x) for k, x in enumerate(results)}
        if program.grad:
            values |= _gradients(program, module, given, results)
    for (name, spec), x in zip(program.inputs.items(), given, strict=True):
        if isinstance(x, Tensor) and not spec.grad:
            values[f"argument {name}"] = x
    values |= {f"buffer {name.removeprefix('_orig_mod.')}": b for name, b in module.named_buffers()}
    detached = {n: x.detach().clone() if isinstance(x, Tensor) else x for n, x in values.items()}
    return Ran(detached)


def _gradients(
    program: Program, module: nn.Module, given: list[Any], results: Sequence[Any]
) -> dict[str, Any]:
    """Of all inputs and parameters, for fixed random weights of the results."""
    outputs = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
    wanted = {f"gradient of {n}": x for n, x in zip(program.inputs, given) if _asks(x)}
    for name, p in module.named_parameters():
        wanted[f"gradient of {name.removeprefix('_orig_mod.')}"] = p
    if not outputs or not wanted:
        return {}
    drawn = torch.Generator().manual_seed(program.seed)
    weights = []
    for r in outputs:
        w = torch.randint(-4, 5, r.shape, generator=drawn).double() / 4
        weights.append(w.to(r.dtype))
    found = torch.autograd.grad(outputs, list(wanted.values()), weights, allow_unused=True)
    return dict(zip(wanted, found, strict=True))


def _asks(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad


def _exact(program: Program) -> list[Ran]:
    """The program in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        module = program.module().double()
        # Numbers that were narrow before they were widened.
        for a, b in zip(module.parameters(), _narrow(program).parameters(), strict=True):
            a.data.copy_(b.data)
        with InDouble():
            return _all_calls(program, module, wide=True)
    finally:
        torch.set_default_dtype(before)


def _narrow(program: Program) -> nn.Module:
    torch.set_default_dtype(torch.float32)
    try:
        return program.module()
    finally:
        torch.set_default_dtype(torch.float64)


def _widened(x: Any) -> Any:
    if not isinstance(x, Tensor) or not x.is_floating_point():
        return x
    return x.detach().double().requires_grad_(x.requires_grad)


def _within_rounding(program: Program, which: int, name: str, got: Ran, want: Ran) -> bool:
    """Does eager's result move as far when everything is rounded another way?

    A value on the edge of a jump (a tie of a maximum, a rectifier at 0) or far from where it can be
    computed well has no right result to the last digits.
    """
    ours, right = got.values[name], want.values[name]
    if not isinstance(ours, Tensor) or not isinstance(right, Tensor):
        return False
    if ours.shape != right.shape or ours.dtype != right.dtype or not ours.is_floating_point():
        return False
    drawn = torch.Generator().manual_seed(program.seed)
    moved = torch.zeros_like(right, dtype=torch.float64)
    for _ in range(NUDGES):
        other = _all_calls(program, program.module(), nudge=drawn)[which].values[name]
        moved = torch.maximum(moved, (other.double() - right.double()).abs())
    off = (ours.double() - right.double()).abs()
    return bool((off <= FACTOR * moved.max()).all()) and bool(moved.isfinite().all())


def _difference(ours: Any, eager: Any, exact: Any) -> str | None:
    if not isinstance(eager, Tensor):
        return None if ours is eager or ours == eager else f"is {ours!r}, in eager {eager!r}"
    if not isinstance(ours, Tensor):
        return f"is {ours!r}, in eager a tensor"
    if (ours.dtype, ours.shape) != (eager.dtype, eager.shape):
        return f"is {kind(ours)}, in eager {kind(eager)}"
    if not eager.is_floating_point():
        wrong = int((ours != eager).sum())
        return (
            f"differs in {wrong} of {eager.numel()} elements{_first(ours, eager)}"
            if wrong
            else None
        )
    if eager.numel() == 0:
        return None
    x, y, z = (t.double() for t in (ours, eager, exact))
    if not torch.equal(x.isnan(), y.isnan()):
        return f"is not a number in other places than eager's{_first(ours, eager)}"
    if not torch.equal(x.isinf(), y.isinf()):
        return f"is infinite in other places than eager's{_first(ours, eager)}"
    x, y, z = (t.nan_to_num(0, 0, 0) for t in (x, y, z))
    own = float((y - z).abs().max())
    # Rounding to the dtype at every call; one sample of an error may be small by luck.
    eps = torch.finfo(eager.dtype).eps
    allowed = 4 * own + 64 * eps * max(1.0, float(z.abs().max()))
    off = float((x - z).abs().max())
    if off <= allowed:
        return None
    return f"is off by {off:.3g}, allowed is {allowed:.3g}{_first(ours, eager)}"


def _first(ours: Tensor, eager: Tensor) -> str:
    """The element that is furthest off."""
    off = (ours.double() - eager.double()).abs().nan_to_num(torch.inf).flatten()
    at = int(off.argmax())
    return f": got {ours.flatten()[at].item()}, expected {eager.flatten()[at].item()}"


def strides(x: Tensor) -> list[int]:
    """Of axes that have one: torch itself does not say the same of axes of one element."""
    return [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]


def kind(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}, strides {list(x.stride())}"
