"""Ensembles of trees against ONNX's evaluator, and indices that are out of range."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra onnx is not installed")
import onnx
from onnx import helper as h
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.base.errors import Invalid, Unsupported

FEATURES = 4


def forest(prefix: str, trees: int, targets: int, depth: int, seed: int = 0) -> dict[str, Any]:
    """Attributes of random whole trees."""
    random = np.random.default_rng(seed)
    out: dict[str, list[Any]] = {}

    def add(**values: Any) -> None:
        for k, v in values.items():
            out.setdefault(k, []).append(v)

    inner = 2**depth - 1
    for t in range(trees):
        for n in range(2 * inner + 1):
            leaf = n >= inner
            add(
                nodes_treeids=t,
                nodes_nodeids=n,
                nodes_featureids=int(random.integers(FEATURES)),
                nodes_values=float(np.float32(random.normal())),
                nodes_modes="LEAF" if leaf else str(random.choice(["BRANCH_LEQ", "BRANCH_GT"])),
                nodes_truenodeids=0 if leaf else 2 * n + 1,
                nodes_falsenodeids=0 if leaf else 2 * n + 2,
                nodes_missing_value_tracks_true=int(random.integers(2)),
            )
            for target in range(targets) if leaf else ():
                add(
                    **{
                        f"{prefix}_treeids": t,
                        f"{prefix}_nodeids": n,
                        f"{prefix}_ids": target,
                        f"{prefix}_weights": float(np.float32(random.normal())),
                    }
                )
    return out


def model(kind: str, outputs: list[tuple[str, int, int]], **attributes: Any) -> onnx.ModelProto:
    node = h.make_node(kind, ["x"], [o[0] for o in outputs], domain="ai.onnx.ml", **attributes)
    values = [h.make_tensor_value_info(n, t, ["N", "K"][:r]) for n, t, r in outputs]
    x = h.make_tensor_value_info("x", 1, ["N", FEATURES])
    opsets = [h.make_opsetid("", 18), h.make_opsetid("ai.onnx.ml", 3)]
    return h.make_model(h.make_graph([node], "g", [x], values), opset_imports=opsets)


def judged(made: onnx.ModelProto) -> None:
    x = np.random.default_rng(1).standard_normal((9, FEATURES)).astype(np.float32)
    got = tw.onnx.load(made.SerializeToString()).run(None, {"x": x})
    wanted = ReferenceEvaluator(made).run(None, {"x": x})
    assert isinstance(wanted, list)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_votes_are_added_or_compared() -> None:
    for how, targets in (("SUM", 2), ("MAX", 1)):
        attributes = forest("target", 3, targets, 2)
        settings = {"aggregate_function": how, "n_targets": targets, "base_values": [0.5] * targets}
        judged(model("TreeEnsembleRegressor", [("y", 1, 2)], **attributes, **settings))
    attributes = forest("class", 2, 3, 2)
    labels = {"classlabels_int64s": [5, 7, 9], "post_transform": "SOFTMAX"}
    outputs = [("label", 7, 1), ("scores", 1, 2)]
    judged(model("TreeEnsembleClassifier", outputs, **attributes, **labels))


def test_trees_that_are_not_trees_are_refused() -> None:
    attributes = forest("target", 1, 1, 1)
    attributes["nodes_featureids"][1] = 99  # of a leaf: nobody reads it
    judged(model("TreeEnsembleRegressor", [("y", 1, 2)], **attributes, n_targets=1))
    attributes["nodes_featureids"][0] = 99
    made = model("TreeEnsembleRegressor", [("y", 1, 2)], **attributes, n_targets=1)
    with pytest.raises(Invalid, match="a feature of a tree is out of range"):
        tw.onnx.load(made.SerializeToString())(np.zeros((1, FEATURES), np.float32))
    labels = forest("class", 1, 1, 1) | {"classlabels_int64s": [0, 1]}
    made = model("TreeEnsembleClassifier", [("l", 7, 1), ("s", 1, 2)], **labels)
    with pytest.raises(Unsupported, match="one of two classes only"):
        tw.onnx.load(made.SerializeToString())
