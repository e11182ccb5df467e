"""Every operator on every one of its samples: the definition must agree with the numpy reference.

The reference runs on float64. As in the oracle of the suites, a result is right when its error is
at most twice the error of the reference at working precision plus four units in the last place: of
the largest value, and for elementwise operators of each single value, or one huge value would
excuse all others.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, Op
from tilewright.ir.operator import OPERATORS, Sample, operator, outputs_of, sample_node
from tilewright.ir.types import DType, TensorType, as_dtype, bf16, f16, f32, f64
from tilewright.ops import BUILDERS
from tilewright.ops.samples import case, extremes, normal

assert BUILDERS  # importing the folder fills OPERATORS

EAGER_FACTOR, ULPS = 2.0, 4.0
DIGITS = {f64: 52, f32: 23, f16: 10, bf16: 7}
LEAST_EXPONENT = {f64: -1022, f32: -126, f16: -14, bf16: -126}

Executor = Callable[[Node, Sequence[np.ndarray]], list[np.ndarray]]


def graph_of(n: Node) -> Graph:
    return Graph("sample", n.inputs, outputs_of(n))


def run_interpreter(n: Node, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    return evaluate(graph_of(n), args)


def run_native(n: Node, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The compiled CPU path; bfloat16 travels as its upper sixteen bits."""
    events = importlib.import_module("tilewright.base.events")
    driver = importlib.import_module("tilewright.driver.compile")
    program = driver.compile_graph(graph_of(n), driver.Options(), events.Log())
    ins = [_to_memory(a, x.dtype) for a, x in zip(args, n.inputs, strict=True)]
    outs = [np.zeros(t.shape, _memory_dtype(t.dtype)) for t in program.outputs]
    program.run([a.ctypes.data for a in ins], [a.ctypes.data for a in outs], [])
    return [_from_memory(a, t.dtype) for a, t in zip(outs, program.outputs, strict=True)]


def _memory_dtype(dtype: DType) -> np.dtype:
    return np.dtype(np.uint16) if dtype is bf16 else dtype.numpy


def _to_memory(a: np.ndarray, dtype: DType) -> np.ndarray:
    held = np.ascontiguousarray(as_dtype(a, dtype)).reshape(np.shape(a))
    return (held.view(np.uint32) >> 16).astype(np.uint16) if dtype is bf16 else held


def _from_memory(a: np.ndarray, dtype: DType) -> np.ndarray:
    return (a.astype(np.uint32) << 16).view(np.float32) if dtype is bf16 else a


def has_native() -> bool:
    return importlib.util.find_spec("tilewright.driver.compile") is not None


EXECUTORS: dict[str, Executor] = {"interpreter": run_interpreter}
if has_native():
    EXECUTORS["native"] = run_native


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


def problems(s: Sample, run: Executor) -> Iterator[str]:
    """What is wrong with the operator on this sample, one sentence per output."""
    n = sample_node(s)
    results = run(n, s.args)
    wanted, rough = reference(s, n, wide=True), reference(s, n, wide=False)
    nodes = outputs_of(n)
    if not len(results) == len(wanted) == len(nodes):
        yield f"{len(results)} results, {len(wanted)} from the reference, {len(nodes)} typed"
        return
    for k, (got, want, near, o) in enumerate(zip(results, wanted, rough, nodes, strict=True)):
        if problem := _problem(np.asarray(got), np.asarray(want), np.asarray(near), o.ttype, s.op):
            yield f"output {k}: {problem}"


def _problem(
    got: np.ndarray, want: np.ndarray, near: np.ndarray, t: TensorType, op: Op
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
    if op.elementwise:
        allowed = EAGER_FACTOR * noise + ULPS * ulp(z, t.dtype)
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


@pytest.mark.parametrize("name", sorted(OPERATORS))
@pytest.mark.parametrize("executor", sorted(EXECUTORS))
def test_definition_agrees_with_reference(name: str, executor: str) -> None:
    samples: list[Sample] = list(OPERATORS[name].samples())  # type: ignore[attr-defined]
    assert samples, f"{name} has no samples"
    found = [
        f"{s.op} on {', '.join(f'{d}{list(a.shape)}' for d, a in zip(s.dtypes or (), s.args))}: {p}"
        for s in samples
        for p in problems(s, EXECUTORS[executor])
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_properties_hold(name: str) -> None:
    """Commutative operators commute and linear ones scale, on their own samples."""
    cls: Any = OPERATORS[name]
    if not (cls.commutative or cls.linear):
        return
    for s in cls.samples():
        n = sample_node(s)
        if cls.commutative:
            got = run_interpreter(n, s.args)[0]
            flipped = Sample(s.op, s.args[::-1], s.dtypes[::-1] if s.dtypes else None)
            np.testing.assert_array_equal(
                got, run_interpreter(sample_node(flipped), flipped.args)[0]
            )
        dtype = n.inputs[0].dtype if n.inputs else f32
        # Doubling is exact in every float format, far from the ends of its range.
        tame = all(np.abs(a).max(initial=0) < 2**10 for a in s.args)
        for k in cls.linear if dtype.is_float and tame else ():
            doubled = tuple(a * a.dtype.type(2) if j == k else a for j, a in enumerate(s.args))
            once, twice = run_interpreter(n, s.args)[0], run_interpreter(n, doubled)[0]
            rtol = 1e-2 if DIGITS[dtype] < 12 else 1e-5
            np.testing.assert_allclose(twice, 2 * once, rtol=rtol, atol=1e-6)


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
        bad = [p for s in wrong.samples() for p in problems(s, run_interpreter)]
    finally:
        del OPERATORS["wrong_for_test"]
    assert bad
    right = case(add(), normal(3, 5), normal(3, 5, seed=1))
    assert not list(problems(right, run_interpreter))
    one_off = lambda n, args: [evaluate(graph_of(n), args)[0] + np.float32(1e-3)]  # noqa: E731
    assert list(problems(right, one_off))
    lost_nan = lambda n, args: [np.nan_to_num(evaluate(graph_of(n), args)[0])]  # noqa: E731
    assert list(problems(case(add(), extremes(14), normal(14)), lost_nan))
    narrow = lambda n, args: [evaluate(graph_of(n), args)[0].astype(np.float16)]  # noqa: E731
    assert list(problems(right, narrow))
