"""Graphs as ONNX models: every operator on its samples, judged by ONNX's own evaluator and by what
is read back; sizes that are symbols; what ONNX cannot say."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra onnx is not installed")
import onnx
from onnx import defs
from onnx.reference import ReferenceEvaluator

from tests.ops.test_samples import Case, problems, samples_of
from tilewright import ops
from tilewright.base.errors import Invalid, Unsupported
from tilewright.capture.onnx.elements import ELEMENT_OF, numpy_of
from tilewright.capture.onnx.model import checked
from tilewright.capture.onnx.translate import leaves_of, translate
from tilewright.capture.to_onnx.graph import write
from tilewright.ir import dim as D
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Input, Node, input, item
from tilewright.ir.operator import OPERATORS, Sample, outputs_of
from tilewright.ir.types import TensorType, b1, bf16, f16, f32, f64, i64

# Operators that ONNX cannot say in any use, as far as samples show.
NEVER = set(
    """
    any_zero arranged as_strided_scatter avg_pool_backward bernoulli bit_cast
    conv_weight_valid conv_backward_weight cummax cummin digamma dropout erfc erfinv
    index_check key_ranks lgamma linear_scan pad_words running_max
    logcumsumexp max_pool_backward nextafter patches radix_pass rand randint randn relayout
    sar shl shr softmax_matmul softmax_parts softmax_parts_log sort_words told window_argmax
    window_count window_max window_route window_spread window_sum winograd_input winograd_output
    winograd_products winograd_weight word_ranks worst zero_insert adaptive_avg_pool_backward
    """.split()
)
SINCE = {"cumprod": 26}
# What ONNX's evaluator does in its own way: NaN in sorting and maxima, grouped transposed
# convolutions, erf in 32 bits, log-softmax that overflows, scans of no rounds or from the end.
NOT_JUDGED = ("conv", "conv_backward_input", "erf", "gelu", "log_softmax", "max_pool", "scan")


def run_onnx(opset: int, back: bool) -> Any:
    """An executor of samples: by ONNX's evaluator, or by the graph that is read back."""

    def run(cases: Sequence[Case]) -> list[list[np.ndarray]]:
        out = []
        for n, args in cases:
            made = write(Graph("g", n.inputs, outputs_of(n)), {}, (), opset)
            labels = [x.op.label for x in n.inputs if isinstance(x.op, Input)]
            if back:
                found = _read_back(made, dict(zip(labels, args)))
            else:
                types = [numpy_of(ELEMENT_OF[x.dtype]) for x in n.inputs]
                feeds = {k: np.asarray(a).astype(t) for k, a, t in zip(labels, args, types)}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    results: Any = ReferenceEvaluator(made).run(None, feeds)
                    found = list(results)
            kinds = [o.dtype.numpy for o in outputs_of(n)]
            out.append([np.asarray(f).astype(k) for f, k in zip(found, kinds, strict=True)])
        return out

    return run


def _read_back(made: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    found = translate(checked(made, "test"), feeds)
    (part,) = found.parts
    values: dict[Node, np.ndarray] = {n: read() for n, read in found.weights.items()}
    for name, tree in found.inputs.items():
        (leaf,) = leaves_of(tree)
        values[leaf.node] = feeds[name]
    graph = part.part.graph
    given = evaluate(graph, [values[n] for n in graph.inputs])
    by_node = dict(zip(part.part.gives, given))
    return [by_node[leaf.node] for tree in found.outputs.values() for leaf in leaves_of(tree)]


def written(samples: Sequence[Sample], opset: int) -> list[Sample]:
    """Those that ONNX can say."""
    from tilewright.ir.operator import sample_node

    out = []
    for s in samples:
        n = sample_node(s)
        try:
            write(Graph("g", n.inputs, outputs_of(n)), {}, (), opset)
        except Unsupported:
            continue
        out.append(s)
    return out


def judged(name: str, opset: int, every: int) -> list[str]:
    halves = (f16, bf16)  # ONNX says nothing of the precision in which sums are
    some = [s for s in samples_of(name) if not s.dtypes or not set(s.dtypes) & set(halves)]
    some = written(some[::every], opset)
    missing = name in NEVER or opset < SINCE.get(name, 0)
    assert some or missing or every > 1, f"no sample of {name} is written"
    assert not some or name not in NEVER, f"{name} is written: take it off the list"
    wrong = [] if name in NOT_JUDGED else list(problems(some, run_onnx(opset, False)))
    return [*wrong, *problems(some, run_onnx(opset, True))]


def test_every_operator_on_some_samples() -> None:
    wrong = []
    for name in sorted(set(OPERATORS) - NEVER):
        wrong += judged(name, 20, 7)
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("opset", [18, 20, 23, defs.onnx_opset_version()])
def test_every_operator_on_all_samples(opset: int) -> None:
    wrong = []
    for name in sorted(OPERATORS):
        wrong += judged(name, opset, 1)
    assert not wrong, "\n".join(wrong)


# ---- symbols, names, refusals


def sized() -> Graph:
    """Sizes that are symbols: in shapes, in ranges, as numbers."""
    n, m = D.sym("n", 1), D.sym("m", 1)
    x, w = input("x", TensorType(f32, (n, m, 4))), input("w", TensorType(f32, (4, 3)), "weight")
    rows = ops.reshape(ops.matmul(x, w), (n * m, 3))
    halves = ops.reshape(ops.pad(rows, (0, 0), (n * m, 0)), (2, n * m, 3))
    place = ops.cast(ops.reshape(ops.iota(m, 2, 3), (1, m, 1)), f32)
    more = ops.add(ops.mul(x, place), ops.cast(ops.number(D.floordiv(n + 5, 2), i64), f32))
    return Graph("sized", (w, x), (halves, ops.expand(more, (n, m, 4)), ops.roll(x, [1 - m], [1])))


def test_symbolic_sizes_and_weights() -> None:
    graph = sized()
    w = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    made = write(graph, {"w": w}, ("halves", "more", "turned"))
    assert [v.name for v in made.graph.input] == ["x"]
    assert [v.name for v in made.graph.output] == ["halves", "more", "turned"]
    shape = made.graph.input[0].type.tensor_type.shape.dim
    assert [d.dim_param or d.dim_value for d in shape] == ["n", "m", 4]
    for n, m in ((2, 3), (5, 1)):
        x = np.random.default_rng(1).standard_normal((n, m, 4)).astype(np.float32)
        wanted = evaluate(graph, [w, x])
        found = ReferenceEvaluator(made).run(None, {"x": x})
        assert isinstance(found, list)
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_everything_that_cannot_be_said_is_named_at_once() -> None:
    x = input("x", TensorType(f32, (4, 6)))
    graph = Graph("g", (x,), (ops.erfc(ops.lgamma(x)), item(ops.cummax(ops.relu(x), 0), 0)))
    with pytest.raises(Unsupported, match=r"these operators: cummax: .*; erfc: .*; lgamma: "):
        write(graph, {})
    with pytest.raises(Invalid, match="opset 3 is not written"):
        write(Graph("g", (x,), (ops.relu(x),)), {}, opset=3)
    with pytest.raises(Invalid, match=r"the weight x is f32\[4,6\], and \[3\] was given"):
        write(Graph("g", (x,), (ops.relu(x),)), {"x": np.zeros(3, np.float32)})


def test_results_that_are_inputs_and_branches() -> None:
    x, p = input("x", TensorType(f64, (3,))), input("p", TensorType(b1, ()))
    a = input("a", TensorType(f64, (3,)))
    then, other = Graph("t", (a,), (ops.exp(a),)), Graph("o", (a,), (ops.neg(a),))
    both = ops.cond(p, then, other, (x,))
    made = write(Graph("g", (x, p), (x, item(both, 0), item(both, 0))), {})
    values = np.array([1.0, -2.0, 3.0])
    for flag in (True, False):
        found = ReferenceEvaluator(made).run(None, {"x": values, "p": np.array(flag)})
        assert isinstance(found, list)
        wanted = np.exp(values) if flag else -values
        for got, want in zip(found, (values, wanted, wanted), strict=True):
            np.testing.assert_allclose(got, want)
