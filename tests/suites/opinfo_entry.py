"""Checks one OpInfo entry: compile its first samples, run them, ask the oracle."""

import copy
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo.exc import Unsupported, UserError
from torch.utils import _pytree as pytree

from tests.suites.adapter import Work, compiled, unsupported_operators, watched
from tests.suites.draws import is_random, random_disagreements
from tests.suites.opinfo_runs import Outcome, Settings
from tests.suites.rounding import nudged, within_rounding
from tilewright.bench.oracle import disagreements, in_double, shape_disagreement

# Memory nobody wrote: only its shape and dtype can be compared.
UNINITIALISED = ("empty", "new_empty", "resize_")
# Of values and where they are, which of equal ones is meant is not said: what stands there counts.
ANY_OF_EQUAL = ("topk", "kthvalue", "sort", "argsort")
# Of an entry whose first samples are empty or views, others are tried until one is computed: every
# seventh first, since neighbours are alike.
MOST, STEP = 24, 7


def call_plainly(op: Callable, *args: Any, **kwargs: Any) -> Any:
    """Stands in for torch's `wrapper_set_seed`, whose generator handling Dynamo refuses to trace.

    About thirty random entries would otherwise never reach a backend; the checks do the seeding.
    """
    return op(*args, **kwargs)


def entry_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def entries(dtype: torch.dtype, gradients: bool = False) -> list[Any]:
    """The database's entries that take `dtype` on a CPU, in its order; or those of them that it
    says can be differentiated."""
    # It takes seconds to import, which collecting tests and processes that only die need not pay.
    from torch.testing._internal import common_methods_invocations as invocations
    from torch.testing._internal import common_utils
    from torch.testing._internal.opinfo import core

    setattr(invocations, "wrapper_set_seed", call_plainly)  # noqa: B010 (an import there, private to type checkers)
    # For each sample torch reads the sources of the whole stack, in search of a test of its own.
    for module in (common_utils, core):
        setattr(module, "extract_test_fn", lambda: None)  # noqa: B010 (the same)
    known = [op for op in invocations.op_db if dtype in op.supported_dtypes("cpu")]
    if not gradients:
        return known
    known = [op for op in known if op.supports_autograd]
    return [op for op in known if dtype in op.supported_backward_dtypes("cpu")]


def checker(settings: Settings) -> Callable[[str], Outcome]:
    """Checks entries by name, one after the other, in this process."""
    known = {entry_name(op): op for op in entries(getattr(torch, settings.dtype))}
    flags = torch._dynamo.config.patch(
        capture_scalar_outputs=settings.strict,
        capture_dynamic_output_shape_ops=settings.strict,
    )

    def check(name: str) -> Outcome:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with flags:
                return check_entry(known[name], settings)
        finally:
            torch.set_num_threads(threads)

    return check


def check_entry(op: Any, settings: Settings, seed: int = 0) -> Outcome:
    """Run an entry's first samples; the first that is not right decides."""
    outcome = Outcome(entry_name(op), "right")
    start = time.perf_counter()
    torch.manual_seed(seed)
    dtype, gradients = getattr(torch, settings.dtype), settings.gradients
    with warnings.catch_warnings(), torch.set_grad_enabled(gradients):
        warnings.simplefilter("ignore")
        drawn = _wanted(op.sample_inputs("cpu", dtype, requires_grad=gradients), gradients)
        for sample in islice(_in_turn(drawn, settings.samples), MOST):
            enough = outcome.samples >= settings.samples
            if enough and (_ran(outcome) or not settings.strict):
                break
            outcome.samples += 1
            _check_sample(outcome, op, sample, settings)
            if outcome.status != "right":
                break
    if outcome.status == "right" and outcome.samples == 0:
        outcome.status, outcome.detail = "eager", "the entry has no samples of this dtype"
    # The interpreter compiles no kernels; what it evaluates is judged all the same.
    natural = settings.strict and settings.backend != "interpreter"
    if outcome.status == "right" and natural and not _ran(outcome):
        outcome.status = "no kernel"
    outcome.seconds = time.perf_counter() - start
    return outcome


def _in_turn(drawn: Iterator[Any], first: int) -> Iterator[Any]:
    """The first samples, then every seventh of the others, then the rest of them."""
    yield from islice(drawn, first)
    others = list(islice(drawn, MOST * STEP))
    yield from others[STEP - 1 :: STEP]
    yield from (x for k, x in enumerate(others, start=1) if k % STEP)


def _ran(outcome: Outcome) -> bool:
    """Was anything computed, by native code or by a library that programs call by name?"""
    return outcome.kernels > 0 or bool(outcome.libraries)


def _wanted(samples: Iterable[Any], gradients: bool) -> Iterator[Any]:
    """Samples; of gradients, those with an input that asks for one."""
    for sample in samples:
        given = _tensors(((sample.input, *sample.args), sample.kwargs))
        if not gradients or any(x.requires_grad for x in given):
            yield sample


def _check_sample(outcome: Outcome, op: Any, sample: Any, settings: Settings) -> None:
    given = ((sample.input, *sample.args), sample.kwargs)
    asks = [x.requires_grad for x in _tensors(given)]
    inputs = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, given)

    def call(*args: Any, **kwargs: Any) -> Any:
        return op.op(*args, **kwargs)

    def using(function: Callable) -> Callable[..., Any]:
        """What is judged: results and inputs, since in-place entries are judged by what they leave
        behind; or results and gradients."""

        def once(*args: Any, **kwargs: Any) -> Any:
            if not settings.gradients:
                results = function(*args, **kwargs)
                return settled(op, results, args, kwargs), _tensors((args, kwargs))
            wanted = [x for x, asked in zip(_tensors((args, kwargs)), asks) if asked]
            for x in wanted:
                x.requires_grad_()
            return _with_gradients(function(*args, **kwargs), wanted, sample.output_process_fn_grad)

        return once

    def draw(function: Callable) -> Callable[[int], Any]:
        use = using(function)

        def once(seed: int) -> Any:
            args, kwargs = _copied(inputs)
            torch.manual_seed(seed)
            return use(*args, **kwargs)

        return once

    def nudged_draw(drawn: torch.Generator) -> Any:
        args, kwargs = pytree.tree_map(lambda x: nudged(x, drawn), _copied(inputs))
        torch.manual_seed(0)
        return using(call)(*args, **kwargs)

    def under(backend: str, work: Work) -> Callable[[int], Any]:
        torch._dynamo.reset()
        whole = settings.strict
        return draw(compiled(call, backend, strict=whole, fullgraph=whole, work=work))

    def captured() -> Any:
        """What torch's capture gives, run in eager; None where it raises."""
        try:
            return under("aot_eager", Work())(0)
        except Exception:  # whatever it is, it is not ours
            return None

    eager = draw(call)
    try:
        expected = eager(0)
    except Exception as error:
        outcome.status, outcome.detail = "eager", _first_line(error)
        return
    try:
        with watched(settings.backend) as work:
            ours = under(settings.backend, work)
            result = ours(0)
    except Exception as error:
        outcome.status, outcome.detail = classified(error)
        outcome.fallbacks = unsupported_operators(error)
        if outcome.status == "error" and captured() is None:
            outcome.status = "alike"
        return
    outcome.kernels += work.kernels
    outcome.fallbacks += work.fallbacks
    outcome.libraries += work.libraries
    if op.name.startswith(UNINITIALISED):
        problems = _other_shapes(result, expected)
    elif is_random(eager):
        problems = random_disagreements(ours, eager)
    else:
        reference = _reference(using(call), inputs, expected)
        problems = disagreements(result, expected, reference)
        if problems:
            other = captured()
            outcome.status, outcome.detail = "wrong", "; ".join(problems)
            if other is None or disagreements(other, expected, reference):
                outcome.status = "alike"
            elif within_rounding(result, expected, nudged_draw):
                outcome.status = "rounding"
        return
    if problems:
        outcome.status, outcome.detail = "wrong", "; ".join(problems)


def settled(op: Any, results: Any, args: Any, kwargs: Any) -> Any:
    """Of places that any order of equal values may give: what stands there, and of a whole order
    that each place is there once. A stable sort has one order only."""
    if op.name not in ANY_OF_EQUAL or kwargs.get("stable"):
        return results
    first = 1 if op.name in ("sort", "argsort") else 2  # where the axis stands among arguments
    dim = kwargs.get("dim", args[first] if len(args) > first else -1)
    places = results if isinstance(results, torch.Tensor) else results[1]
    x = args[0].reshape(1) if args[0].dim() == 0 else args[0]
    at = places if places.dim() == x.dim() else places.unsqueeze(dim if args[0].dim() else 0)
    there = x.gather(dim, at)
    once = at.sort(dim).values if first == 1 else places.shape
    return () if results is places else results[0], there, once


def _with_gradients(results: Any, wanted: list[torch.Tensor], processed: Callable) -> Any:
    """Results, whether each has a gradient, and the gradients of the inputs for weights of the
    results that depend on their shapes alone. What the database says of results that are not unique
    (the signs of eigenvectors, say) is applied first."""
    leaves = _tensors(results)
    outputs = [x for x in _tensors(processed(results)) if x.requires_grad]
    drawn = torch.Generator().manual_seed(0)
    weights = [torch.randint(-4, 5, x.shape, generator=drawn).to(x.dtype) / 4 for x in outputs]
    found: Any = ()
    if outputs:
        found = torch.autograd.grad(outputs, wanted, weights, allow_unused=True)
    asked = [x.requires_grad for x in leaves]
    plain = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, results)
    return plain, asked, [None if x is None else x.detach() for x in found]


def _tensors(inputs: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]


def _copied(inputs: Any) -> Any:
    try:
        return copy.deepcopy(inputs)  # keeps strides, offsets and shared storage
    except RuntimeError:  # compressed sparse tensors have no storage to copy
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.clone, inputs)


def _other_shapes(result: Any, expected: Any) -> list[str]:
    pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(expected))
    tensors = [(x, y) for x, y in pairs if isinstance(y, torch.Tensor)]
    return [problem for x, y in tensors if (problem := shape_disagreement(x, y))]


def _reference(use: Callable, inputs: Any, expected: Any) -> Any:
    args, kwargs = inputs
    try:
        torch.manual_seed(0)
        reference = in_double(use, *args, **kwargs)
    except (RuntimeError, TypeError, ValueError):
        # Entries that look at the dtype itself refuse doubles; eager's result is all there is.
        return expected
    leaves, theirs = pytree.tree_leaves(reference), pytree.tree_leaves(expected)
    same = len(leaves) == len(theirs) and all(
        isinstance(x, torch.Tensor) == isinstance(y, torch.Tensor)
        and (not isinstance(x, torch.Tensor) or x.shape == y.shape)
        for x, y in zip(leaves, theirs)
    )
    return reference if same else expected


def classified(error: Exception) -> tuple[str, str]:
    """The status of what was raised while compiling, and what it said."""
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
