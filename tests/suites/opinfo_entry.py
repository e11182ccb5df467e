"""Checks one OpInfo entry: compile its first samples, run them, ask the oracle."""

import copy
import time
import traceback
import warnings
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.exc import Unsupported, UserError
from torch.utils import _pytree as pytree

from tests.suites.adapter import compiled, unsupported_operators, watched
from tests.suites.draws import is_random, random_disagreements
from tests.suites.opinfo_runs import Outcome, Settings
from tilewright.bench.oracle import disagreements, in_double, shape_disagreement

# Memory nobody wrote: only its shape and dtype can be compared.
UNINITIALISED = ("empty", "new_empty", "resize_")
# Of an entry whose first samples are empty or views, every seventh of the others is tried until one
# is computed: neighbours are alike.
MOST, STEP = 24, 7


def call_plainly(op: Callable, *args: Any, **kwargs: Any) -> Any:
    """Stands in for torch's `wrapper_set_seed`, whose generator handling Dynamo refuses to trace.

    About thirty random entries would otherwise never reach a backend; the checks do the seeding.
    """
    return op(*args, **kwargs)


def entry_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def entries(dtype: torch.dtype) -> list[Any]:
    """The database's entries that take `dtype` on a CPU, in its order."""
    # It takes seconds to import, which collecting tests and processes that only die need not pay.
    from torch.testing._internal import common_methods_invocations as invocations

    setattr(invocations, "wrapper_set_seed", call_plainly)  # noqa: B010 (an import there, private to type checkers)
    return [op for op in invocations.op_db if dtype in op.supported_dtypes("cpu")]


def checker(settings: Settings) -> Callable[[str], Outcome]:
    """Checks entries by name, one after the other, in this process."""
    dtype = getattr(torch, settings.dtype)
    known = {entry_name(op): op for op in entries(dtype)}
    flags = torch._dynamo.config.patch(
        capture_scalar_outputs=settings.strict,
        capture_dynamic_output_shape_ops=settings.strict,
    )

    def check(name: str) -> Outcome:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with flags:
                return check_entry(
                    known[name], dtype, settings.samples, settings.backend, settings.strict
                )
        finally:
            torch.set_num_threads(threads)

    return check


def check_entry(
    op: Any, dtype: torch.dtype, samples: int, backend: str, strict: bool, seed: int = 0
) -> Outcome:
    """Run an entry's first samples; the first that is not right decides."""
    outcome = Outcome(entry_name(op), "right")
    start = time.perf_counter()
    torch.manual_seed(seed)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        drawn = iter(op.sample_inputs("cpu", dtype, requires_grad=False))
        for sample in islice(
            chain(islice(drawn, samples), islice(drawn, STEP - 1, None, STEP)), MOST
        ):
            if outcome.samples >= samples and (_ran(outcome) or not strict):
                break
            outcome.samples += 1
            _check_sample(outcome, op, sample, backend, strict)
            if outcome.status != "right":
                break
    if outcome.status == "right" and outcome.samples == 0:
        outcome.status, outcome.detail = "eager", "the entry has no samples of this dtype"
    # The interpreter compiles no kernels; what it evaluates is judged all the same.
    if outcome.status == "right" and strict and not _ran(outcome) and backend != "interpreter":
        outcome.status = "no kernel"
    outcome.seconds = time.perf_counter() - start
    return outcome


def _ran(outcome: Outcome) -> bool:
    """Was anything computed, by native code or by a library that programs call by name?"""
    return outcome.kernels > 0 or bool(outcome.libraries)


def _check_sample(outcome: Outcome, op: Any, sample: Any, backend: str, strict: bool) -> None:
    inputs = ((sample.input, *sample.args), sample.kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    def draw(function: Callable) -> Callable[[int], Any]:
        def once(seed: int) -> Any:
            # Results and inputs: in-place entries are judged by what they leave behind.
            args, kwargs = _copied(inputs)
            torch.manual_seed(seed)
            return function(*args, **kwargs), _tensors((args, kwargs))

        return once

    eager = draw(call)
    try:
        expected = eager(0)
    except Exception as error:
        outcome.status, outcome.detail = "eager", _first_line(error)
        return
    torch._dynamo.reset()
    try:
        with watched(backend) as work:
            ours = draw(compiled(call, backend, strict=strict, fullgraph=strict, work=work))
            result = ours(0)
    except Exception as error:
        outcome.status, outcome.detail = _classify(error)
        outcome.fallbacks = unsupported_operators(error)
        return
    outcome.kernels += work.kernels
    outcome.fallbacks += work.fallbacks
    outcome.libraries += work.libraries
    if problems := _problems(op, inputs, call, ours, eager, result, expected):
        outcome.status, outcome.detail = "wrong", "; ".join(problems)


def _tensors(inputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


def _copied(inputs: Any) -> Any:
    try:
        return copy.deepcopy(inputs)  # keeps strides, offsets and shared storage
    except RuntimeError:  # compressed sparse tensors have no storage to copy
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, inputs)


def _problems(
    op: Any, inputs: Any, call: Callable, ours: Any, eager: Any, result: Any, expected: Any
) -> list[str]:
    if op.name.startswith(UNINITIALISED):
        pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(expected))
        tensors = [(x, y) for x, y in pairs if isinstance(y, torch.Tensor)]
        return [problem for x, y in tensors if (problem := shape_disagreement(x, y))]
    if is_random(eager):
        return random_disagreements(ours, eager)
    return disagreements(result, expected, _reference(call, inputs, expected))


def _reference(call: Callable, inputs: Any, expected: Any) -> Any:
    def call_and_keep(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs), _tensors((args, kwargs))

    args, kwargs = inputs
    try:
        torch.manual_seed(0)
        reference = in_double(call_and_keep, *args, **kwargs)
    except (RuntimeError, TypeError, ValueError):
        # Entries that look at the dtype itself refuse doubles; eager's result is all there is.
        return expected
    same = [
        isinstance(x, torch.Tensor) == isinstance(y, torch.Tensor)
        and (not isinstance(x, torch.Tensor) or x.shape == y.shape)
        for x, y in zip(pytree.tree_leaves(reference), pytree.tree_leaves(expected))
    ]
    return reference if all(same) else expected


def _classify(error: Exception) -> tuple[str, str]:
    if operators := unsupported_operators(error):
        return "unsupported", ", ".join(operators)
    if isinstance(error, Unsupported | UserError) or "DataDependent" in str(error):
        return "capture", _first_line(error)
    return "error", f"{type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("Set TORCHDYNAMO", "backend="))]
    place = _place(error)
    return " ".join(said[:3])[:300] + (f" ({place})" if place else "")


def _place(error: BaseException) -> str:
    """The compiler's innermost line on the way of an error."""
    error = getattr(error, "inner_exception", None) or error
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "/tilewright/" in f.filename]
    if not ours:
        return ""
    path = Path(ours[-1].filename)
    return f"{path.parent.name}/{path.name}:{ours[-1].lineno}"
