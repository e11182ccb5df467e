"""Columns of ONNX models that are put back to images, beside the operator's own definition."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra onnx is not installed")
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tests.seeds import drawn


@pytest.mark.parametrize("seed", drawn(range(8), 3))
def test_columns_become_an_image(seed: int) -> None:
    """Any number of axes, and pads that differ before and after the image."""
    draw = random.Random(seed)
    n = draw.randint(1, 3)
    many = lambda a, b: [draw.randint(a, b) for _ in range(n)]  # noqa: E731
    block, strides, dilations = many(1, 3), many(1, 3), many(1, 3)
    pads = [draw.randint(0, 2) for _ in range(2 * n)]
    image = [d * (k - 1) + 1 + draw.randint(0, 5) for d, k in zip(dilations, block)]
    windows = [
        (image[k] + pads[k] + pads[n + k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1
        for k in range(n)
    ]
    shape = (2, 3 * int(np.prod(block)), int(np.prod(windows)))
    col2im = helper.make_node(
        "Col2Im", list("xib"), ["y"], strides=strides, dilations=dilations, pads=pads
    )
    constants = [
        helper.make_tensor(name, TensorProto.INT64, [n], values)
        for name, values in (("i", image), ("b", block))
    ]
    graph = helper.make_graph(
        [col2im],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3, *image])],
        constants,
    )
    proto = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 18)])
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    evaluator: Any = ReferenceEvaluator(proto)
    (want,) = evaluator.run(None, {"x": x})
    (found,) = tw.onnx.load(proto.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(found, want, 1e-5, 1e-5)
