"""Models as ONNX files: torch to a graph, to ONNX, and back gives the same values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra onnx is not installed")
import onnx
import torch
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.export import to_onnx as writing
from tilewright.ir.node import Graph, input
from tilewright.ir.types import TensorType, f32


class Rows(torch.nn.Module):
    def forward(self, x: torch.Tensor, i: torch.Tensor) -> dict[str, torch.Tensor]:
        y = x.flatten(2).transpose(1, 2)
        values, places = (torch.softmax(y, 2).amax(2) + i[:, None]).topk(2)
        return {"rows": torch.where(y > 0, y, y.new_zeros(())) % 0.75, "best": values, "at": places}


class Layers(torch.nn.Module):
    """Convolutions, pools, norms, attention and indexing."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.norm = torch.nn.BatchNorm2d(8)
        self.up = torch.nn.Upsample(scale_factor=2, mode="bilinear")
        self.embed = torch.nn.Embedding(10, 8)
        self.attend = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor, i: torch.Tensor) -> dict[str, torch.Tensor]:
        y = torch.nn.functional.max_pool2d(self.up(self.norm(self.conv(x)).relu()), 2)
        rows = self.attend(y.flatten(2).transpose(1, 2) + self.embed(i)[:, None])
        values, places = rows.amax(2).topk(2)
        return {"rows": rows, "best": values, "at": places}


@pytest.mark.parametrize("kind", [Rows, pytest.param(Layers, marks=pytest.mark.slow)])
def test_a_module_and_back(kind: type[torch.nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = kind().eval()
    x, i = torch.randn(2, 3, 8, 8), torch.tensor([3, 7])
    path = tmp_path / "net.onnx"
    dynamic = {"x": {0: torch.export.Dim("batch")}, "i": {0: torch.export.Dim("batch")}}
    made = tw.to_onnx(net, x, i, path=path, dynamic=dynamic)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    assert [v.name for v in made.graph.input] == ["x", "i"]
    assert made.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    session = tw.onnx.load(path)
    evaluator = ReferenceEvaluator(made)
    for batch in (2, 5):
        x, i = torch.randn(batch, 3, 8, 8), torch.randint(0, 10, (batch,))
        feeds = {"x": x.numpy(), "i": i.numpy()}
        with torch.no_grad():
            wanted = net(x, i)
        for found in (session.run(None, feeds), evaluator.run(None, feeds)):
            assert isinstance(found, list)
            by_name = dict(zip(["rows", "best", "at"], found, strict=True))
            for name, value in wanted.items():
                np.testing.assert_allclose(by_name[name], value.numpy(), rtol=1e-4, atol=1e-5)
    assert len(session.programs) == 1


def test_weights_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = torch.nn.Linear(40, 30), torch.randn(2, 40)
    monkeypatch.setattr(writing, "BESIDE", 100)
    with pytest.raises(Invalid, match="do not fit into one message"):
        tw.to_onnx(net, x)
    path = tmp_path / "net.onnx"
    tw.to_onnx(net, x, path=path)
    assert (tmp_path / "net.onnx.data").stat().st_size > 4096
    onnx.checker.check_model(path)
    with torch.no_grad():
        np.testing.assert_allclose(tw.onnx.load(path)(x.numpy()), net(x).numpy(), rtol=1e-5)


def test_graphs_with_and_without_weights() -> None:
    x, w = input("x", TensorType(f32, (2, 3))), input("w", TensorType(f32, (3, 4)), "weight")
    graph = Graph("g", (w, x), (tw.ops.matmul(x, w),))
    values = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    rows = np.ones((2, 3), np.float32)
    inside = tw.to_onnx(graph, weights={"w": values}, names=["y"])
    assert [v.name for v in (*inside.graph.input, *inside.graph.output)] == ["x", "y"]
    outside = tw.to_onnx(graph, opset=18)
    assert [v.name for v in outside.graph.input] == ["w", "x"]
    for made, feeds in ((inside, {"x": rows}), (outside, {"x": rows, "w": values})):
        results: Any = ReferenceEvaluator(made).run(None, feeds)
        (y,) = results
        np.testing.assert_allclose(np.asarray(y), rows @ values, rtol=1e-6)
    with pytest.raises(Invalid, match="the graph has no input 'v'"):
        tw.to_onnx(graph, weights={"v": values})


def test_what_cannot_be_said_is_named() -> None:
    def odd(x: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(x) + torch.cummax(x, 0).values

    with pytest.raises(Unsupported, match=r"these operators: cummax: .*; lgamma: "):
        tw.to_onnx(odd, torch.randn(3, 4))
