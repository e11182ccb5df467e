"""Every operator on every one of its samples: the definition must agree with the numpy reference.

The reference runs on float64. As in the oracle of the suites, a result is right when its error is
at most twice the error of the reference at working precision plus four units in the last place: of
the largest value, and for elementwise operators of each single value, or one huge value would
excuse all others. What an elementwise reference itself may be wrong by in float64 is added.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, input, node
from tilewright.ir.operator import OPERATORS, Sample, operator, outputs_of, sample_node
from tilewright.ir.types import DType, TensorType, as_dtype, bf16, f16, f32, f64
from tilewright.ops import BUILDERS
from tilewright.ops.samples import case, extremes, normal

assert BUILDERS  # importing the folder fills OPERATORS

EAGER_FACTOR, ULPS = 2.0, 4.0
QUICK = 3  # compiled samples per operator in the everyday run, at most
DIGITS = {f64: 52, f32: 23, f16: 10, bf16: 7}
LEAST_EXPONENT = {f64: -1022, f32: -126, f16: -14, bf16: -126}

Case = tuple[Node, Sequence[np.ndarray]]
Executor = Callable[[Sequence[Case]], list[list[np.ndarray]]]


def run_interpreter(cases: Sequence[Case]) -> list[list[np.ndarray]]:
    return [evaluate(Graph("sample", n.inputs, outputs_of(n)), args) for n, args in cases]


def graph_of(cases: Sequence[Case]) -> tuple[Graph, list[np.ndarray], list[int]]:
    """Cases as one graph, with memory for its inputs, and where the outputs of each end."""
    inputs: list[Node] = []
    outputs: list[Node] = []
    memory: list[np.ndarray] = []
    ends = []
    for k, (n, args) in enumerate(cases):
        own = [input(f"s{k}x{j}", x.ttype) for j, x in enumerate(n.inputs)]
        inputs += own
        outputs += outputs_of(node(n.op, *own))
        memory += [_to_memory(a, x.dtype) for a, x in zip(args, own, strict=True)]
        ends.append(len(outputs))
    return Graph("samples", tuple(inputs), tuple(outputs)), memory, ends


def run_native(cases: Sequence[Case]) -> list[list[np.ndarray]]:
    """The compiled CPU path, all cases as one program; bfloat16 travels as its upper 16 bits."""
    driver = importlib.import_module("tilewright.driver.program.programs")
    graph, memory, ends = graph_of(cases)
    outputs = graph.outputs
    program = driver.compile_graph(graph)
    shapes = [[d for d in o.shape if isinstance(d, int)] for o in outputs]
    results = [np.zeros(d, _memory_dtype(o.dtype)) for d, o in zip(shapes, outputs, strict=True)]
    program.run([a.ctypes.data for a in memory], [a.ctypes.data for a in results], [])
    values = [_from_memory(a, o.dtype) for a, o in zip(results, outputs, strict=True)]
    return [values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _memory_dtype(dtype: DType) -> np.dtype:
    return np.dtype(np.uint16) if dtype is bf16 else dtype.numpy


def _to_memory(a: np.ndarray, dtype: DType) -> np.ndarray:
    memory = np.ascontiguousarray(as_dtype(a, dtype)).reshape(np.shape(a))
    return np.asarray(memory.view(np.uint32) >> 16, np.uint16) if dtype is bf16 else memory


def _from_memory(a: np.ndarray, dtype: DType) -> np.ndarray:
    return np.asarray(a.astype(np.uint32) << 16).view(np.float32) if dtype is bf16 else a


def has_native() -> bool:
    return importlib.util.find_spec("tilewright.driver.program.compile") is not None


def ulp(x: np.ndarray, dtype: DType) -> np.ndarray:
    """The distance between neighbours at the magnitude of x."""
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(np.abs(x)))
    exponent = np.maximum(np.where(np.isfinite(exponent), exponent, -5000), LEAST_EXPONENT[dtype])
    return np.exp2(exponent - DIGITS[dtype])


def reference(s: Sample, n: Node, wide: bool) -> list[np.ndarray]:
    """The reference in float64, or at the precision that 16-bit floats are computed in."""
    args = []
    for a, x in zip(s.args, n.inputs, strict=True):
        exact = getattr(s.op, "exact", False)
        work = np.float64 if wide and not exact else x.dtype.accumulator.numpy
        args.append(np.asarray(a).astype(work) if x.dtype.is_float else np.asarray(a))
    with np.errstate(all="ignore"):
        out = s.op.reference(*args)  # type: ignore[attr-defined]
    return list(out) if isinstance(out, tuple) else [out]


def problems(samples: Sequence[Sample], run: Executor) -> Iterator[str]:
    """What is wrong with the operator on these samples, one sentence per output."""
    nodes = [sample_node(s) for s in samples]
    results = run([(n, s.args) for n, s in zip(nodes, samples, strict=True)])
    for s, n, got in zip(samples, nodes, results, strict=True):
        shown = ", ".join(repr(x.type) for x in n.inputs)
        for k, problem in _wrong(s, n, got):
            yield f"{s.op} of ({shown}), output {k}: {problem}"


def _wrong(s: Sample, n: Node, results: list[np.ndarray]) -> Iterator[tuple[int, str]]:
    wanted, rough = reference(s, n, wide=True), reference(s, n, wide=False)
    outs = outputs_of(n)
    assert len(results) == len(wanted) == len(outs), f"{s.op}: {len(outs)} outputs typed"
    for k, (got, want, near, o) in enumerate(zip(results, wanted, rough, outs, strict=True)):
        if problem := _problem(np.asarray(got), np.asarray(want), np.asarray(near), o.ttype, s):
            yield k, problem


def _problem(
    got: np.ndarray, want: np.ndarray, near: np.ndarray, t: TensorType, s: Sample
) -> str | None:
    if not got.shape == want.shape == t.shape:
        return f"shape {got.shape}, reference {want.shape}, type rule {t!r}"
    if got.dtype != t.dtype.numpy:
        return f"dtype {got.dtype}, type rule {t!r}"
    if not t.dtype.is_float:
        wrong = np.count_nonzero(got != want)
        return f"{wrong} of {got.size} values differ:\n{got}\n{want}" if wrong else None
    with np.errstate(all="ignore"):
        x, z, y = (a.astype(np.float64) for a in (got, want, near))
        rounded = as_dtype(z, t.dtype).astype(np.float64)
        if not _same_places(x, rounded):
            return f"NaN or infinity in other places:\n{x}\n{rounded}"
        finite = np.isfinite(x) & np.isfinite(z)
        x, y, z = x[finite], y[finite], z[finite]
        noise = np.where(np.isfinite(y), np.abs(y - z), 0)
    if not x.size:
        return None
    if s.op.elementwise:
        size = np.abs(z)
        if getattr(s.op, "cancels", False):  # a sum of the operands' size that nearly vanishes
            finite_args = [np.where(np.isfinite(a), np.abs(a), 0) for a in s.args]
            size = np.maximum(size, np.maximum(*np.broadcast_arrays(*finite_args))[finite])
        allowed = EAGER_FACTOR * noise + ULPS * ulp(size, t.dtype)
        allowed += getattr(s.op, "reference_error", 0.0)
    else:
        allowed = EAGER_FACTOR * noise.max() + ULPS * ulp(np.abs(z).max(), t.dtype)
    worst = int(np.argmax(np.abs(x - z) - allowed))
    if np.all(np.abs(x - z) <= allowed):
        return None
    limit = np.broadcast_to(allowed, x.shape)[worst]
    return f"{x[worst]!r} where the reference says {z[worst]!r}, allowed {limit:.3g}"


def _same_places(x: np.ndarray, y: np.ndarray) -> bool:
    same_nan = bool(np.all(np.isnan(x) == np.isnan(y)))
    infinite = np.isinf(x) | np.isinf(y)
    return same_nan and bool(np.all(x[infinite] == y[infinite]))


def samples_of(name: str) -> list[Sample]:
    found = list(OPERATORS[name].samples())  # type: ignore[attr-defined]
    assert found, f"{name} has no samples"
    return found


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_interpreter_agrees_with_reference(name: str) -> None:
    found = list(problems(samples_of(name), run_interpreter))
    assert not found, "\n".join(found)


@pytest.mark.skipif(not has_native(), reason="this checkout has no native compiler")
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_native_agrees_with_reference(name: str) -> None:
    """A few samples of each operator, spread over all of them; the slow test takes the rest."""
    found = samples_of(name)
    few = found[:: -(-len(found) // QUICK)]
    wrong = list(problems(few, run_native))
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.skipif(not has_native(), reason="this checkout has no native compiler")
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_native_agrees_on_every_sample(name: str) -> None:
    wrong = list(problems(samples_of(name), run_native))
    assert not wrong, "\n".join(wrong)


def once(n: Node, args: Sequence[np.ndarray]) -> np.ndarray:
    return run_interpreter([(n, args)])[0][0]


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_properties_hold(name: str) -> None:
    """Commutative operators commute and linear ones scale, on their own samples."""
    cls: Any = OPERATORS[name]
    if not (cls.commutative or cls.linear):
        return
    for s in cls.samples():
        n = sample_node(s)
        if cls.commutative:
            flipped = Sample(s.op, s.args[::-1], s.dtypes[::-1] if s.dtypes else None)
            other = once(sample_node(flipped), flipped.args)
            np.testing.assert_array_equal(once(n, s.args), other)
        dtype = n.inputs[0].dtype if n.inputs else f32
        # Doubling is exact in every float format, far from the ends of its range.
        tame = all(np.abs(a).max(initial=0) < 2**10 for a in s.args)
        for k in cls.linear if dtype.is_float and tame else ():
            doubled = tuple(a * a.dtype.type(2) if j == k else a for j, a in enumerate(s.args))
            rtol = 1e-2 if DIGITS[dtype] < 12 else 1e-5
            twice = 2 * once(n, s.args)
            np.testing.assert_allclose(once(n, doubled), twice, rtol=rtol, atol=1e-6)


def test_a_wrong_definition_is_caught() -> None:
    """The check itself: an operator that is off by a little, in one place or in its type, fails."""
    add = OPERATORS["add"]

    class Wrong(add):  # type: ignore[misc,valid-type]
        name = "wrong_for_test"

        @staticmethod
        def scalar(x: Any, y: Any) -> Any:
            return x + y * 1.00001

    wrong: Any = operator(Wrong)
    try:
        assert list(problems(list(wrong.samples()), run_interpreter))
    finally:
        del OPERATORS["wrong_for_test"]

    right = case(add(), normal(3, 5), normal(3, 5, seed=1))
    assert not list(problems([right], run_interpreter))

    def changed(how: Callable[[np.ndarray], np.ndarray]) -> Executor:
        return lambda cases: [[how(a) for a in outs] for outs in run_interpreter(cases)]

    assert list(problems([right], changed(lambda a: a + np.float32(1e-5))))
    assert list(problems([right], changed(lambda a: a.astype(np.float16))))
    odd = case(add(), extremes(14), normal(14))
    assert list(problems([odd], changed(np.nan_to_num)))
