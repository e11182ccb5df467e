"""PyTorch programs: functions and modules of the user's files, and what torch.export saved."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from tilewright.base.errors import Invalid
from tilewright.driver.cli.models.dims import OpenDim
from tilewright.driver.cli.models.inputs import Inputs, Value
from tilewright.driver.cli.models.model import How, Model, Result, Step
from tilewright.driver.export.api import Exported, export
from tilewright.driver.looking.bisect_torch import bisect
from tilewright.driver.looking.compare import compare
from tilewright.driver.looking.explain import Explanation, explain
from tilewright.driver.program.validation import Report
from tilewright.driver.torch.api import compile

CALLS = 2  # of a program that is tried: what a call changes shows in the next


def load(path: Path) -> TorchModel:
    """A program that `torch.export.save` wrote, with its example inputs."""
    try:
        saved = torch.export.load(path)
    except Exception as why:
        raise Invalid(
            f"{path} cannot be read as an exported program: {why}",
            hint="torch.export.save(torch.export.export(model, inputs), path) writes one",
        ) from why
    args, kwargs = saved.example_inputs or ((), {})
    module = saved.module()
    inputs = bound(module, args, kwargs, path.name) if saved.example_inputs else None
    return TorchModel(path.stem, module, inputs, saved)


class TorchModel(Model):
    """A program, and its inputs in order (None: not known); what torch.export made of it."""

    def __init__(
        self, name: str, program: Callable[..., Any], inputs: Any = None, saved: Any = None
    ) -> None:
        self.name, self.program, self.own_inputs, self.saved = name, program, inputs, saved

    def inputs(self, how: How) -> list[Any]:
        """Those that were given, or else its own."""
        if how.inputs:
            return given_inputs(self.program, how.inputs, self.name)
        if self.own_inputs is None:
            raise self.needs_inputs(f", or define {self.name}_inputs beside it")
        if isinstance(self.own_inputs, torch.Tensor):
            return [self.own_inputs]
        if isinstance(self.own_inputs, Mapping):
            return bound(self.program, (), self.own_inputs, self.name)
        return list(self.own_inputs)

    def explained(self, how: How, **options: Any) -> Explanation:
        options = {"passes": how.passes, **options}
        with torch.no_grad():
            return explain(compile(self.program, *self.inputs(how), strict=how.strict, **options))

    def tried(self, how: How) -> Explanation:
        with torch.no_grad():
            fast = compile(self.program, strict=how.strict, passes=how.passes)
            for _ in range(CALLS):
                fast(*self.inputs(how))
            return explain(fast)

    def results(self, how: How, step: Step, check: bool | None = None) -> list[Result]:
        inputs = self.inputs(how)
        if check is False:
            with torch.no_grad():
                with step(f"compiling {self.name}"):
                    fast = compile(self.program, *inputs, strict=how.strict, passes=how.passes)
                return [Result(*x) for x in _arrays(fast(*inputs))]
        found = compare(self.program, inputs, strict=how.strict, step=step, passes=how.passes)
        listed = _arrays(found.results)
        if len(found.errors) != len(listed):  # other results than eager's
            return [Result(*x, found.error.ours, 0.0, found.error.problem) for x in listed]
        return [
            Result(*x, e.ours, e.allowed, e.problem)
            for x, e in zip(listed, found.errors, strict=True)
        ]

    def exported(self, how: How, path: Path, dims: Sequence[OpenDim], **options: Any) -> Exported:
        options["name"] = options.get("name") or self.name
        if self.saved is not None and not dims and not how.inputs:  # with the sizes it has open
            return export(self.saved, path=path, **options)
        inputs = self.inputs(how)
        dynamic = _dynamic_shapes(self.program, inputs, dims, self.name)
        return export(self.program, *inputs, path=path, dynamic=dynamic, **options)

    def stages(self, how: How, only_if_wrong: bool) -> list[Report]:
        options, inputs = how.options(), self.inputs(how)
        named = {"strict": how.strict, "passes": how.passes}
        return bisect(self.program, inputs, options, only_if_wrong, **named)


def given_inputs(program: Callable[..., Any], given: Inputs, of: str) -> list[Any]:
    """Inputs of the command line as tensors, in the order of the parameters."""
    listed = [tensor(v) for v in given.listed]
    if not given.named:
        return listed
    return bound(program, listed, {k: tensor(v) for k, v in given.named.items()}, of)


def bound(
    program: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any], of: str
) -> list[Any]:
    """Arguments in the order of the parameters."""
    if not named:
        return list(args)
    forward = program.forward if isinstance(program, torch.nn.Module) else program
    try:
        found = inspect.signature(forward).bind(*args, **named)
    except TypeError as why:
        known = ", ".join(inspect.signature(forward).parameters)
        raise Invalid(f"{of}: {why}", hint=f"its inputs are {known}") from None
    found.apply_defaults()
    if found.kwargs:
        raise Invalid(
            f"{of} takes {', '.join(found.kwargs)} by name only",
            hint="write a function that takes its inputs in order",
        )
    return list(found.args)


def _dynamic_shapes(
    program: Callable[..., Any], inputs: Sequence[Any], dims: Sequence[OpenDim], of: str
) -> dict[str, Any] | None:
    """Sizes that stay open, as torch.export takes them."""
    if not dims:
        return None
    forward = program.forward if isinstance(program, torch.nn.Module) else program
    names = inspect.signature(forward).bind(*inputs).arguments
    found: dict[str, Any] = dict.fromkeys(names)
    known: dict[str, Any] = {}
    for d in dims:
        if d.input not in names:
            raise Invalid(
                f"--dim: {of} has no input {d.input or d.name!r}",
                hint=f"its inputs are {', '.join(names)}: {next(iter(names))}.0=batch:1..64",
            )
        if d.name not in known or d.low is not None:
            known[d.name] = torch.export.Dim(d.name, min=d.low, max=d.high)
        found[d.input] = {**(found[d.input] or {}), d.axis: d.name}
    return {k: v and {axis: known[n] for axis, n in v.items()} for k, v in found.items()}


def tensor(value: Value) -> torch.Tensor:
    made = torch.from_numpy(np.ascontiguousarray(value.array))
    return made.bfloat16() if value.dtype == "bf16" else made


def _arrays(results: Any) -> list[tuple[str, str, np.ndarray]]:
    """Name, dtype and array of each result; what is no tensor is passed over."""
    found = []
    for path, x in pytree.tree_flatten_with_path(results)[0]:
        if isinstance(x, torch.Tensor):
            name = re.sub(r"\W+", "_", pytree.keystr(path)).strip("_") or "result"
            wide = x.detach().float() if x.dtype is torch.bfloat16 else x.detach()
            found.append((name, str(x.dtype).removeprefix("torch."), wide.cpu().numpy()))
    return found
