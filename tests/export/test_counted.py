"""Packages where data decides sizes, and with loops and branches inside: results have their real
size in C, Python and JavaScript."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch.export import Dim

import tilewright as tw
from tests.driver.onnx.test_bounded import ROUTED, ROUTED_HEAD, mixed, model
from tests.export.boxes import kept
from tests.export.harness import Package, library
from tests.web.test_loader import answers, tensor
from tilewright.base.errors import Unsupported

pytest.importorskip("onnx", reason="the extra onnx is not installed")
from onnx.reference import ReferenceEvaluator


class Chosen(nn.Module):
    """Rows by a mask, sizes that follow each other, a bound of the user's, a result twice."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        rows = x[(x > 0).any(1)]
        again = rows[rows > 1]
        torch._check(again.shape[0] <= 60)
        return rows, again, again, x.sum(1)


class Selected(nn.Module):
    """Whatever else eager selects by data: places, values that are put by a mask, different ones,
    masks of other axes."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = x.clone()
        y[x > 0.5] = torch.exp(x)[x > 0.5]
        values, which, many = torch.unique(x, return_inverse=True, return_counts=True)
        top, pairs = torch.masked_select(x, x > 1), torch.where(x[:, :2] > 0)
        return x.nonzero(), y, values, which, many, values.unique(), top, *pairs, x[:, x[0] > 0]


_DRAWN = torch.randn(13, 5, generator=torch.Generator().manual_seed(0))
CASES = [_DRAWN[:4], _DRAWN[4:].round(), -torch.ones(3, 5), 2 * torch.ones(12, 5)]
ROWS = ({0: Dim("rows", min=1, max=40)},)


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("counted") / "p"
    made = tw.export(Chosen(), CASES[0], path=path, dynamic=ROWS, target=["host", "wasm32"])
    shapes = [x["shape"] for x in made.manifest["outputs"]]
    assert made.manifest["format"] == 2
    assert shapes == [["output0_0", 5], ["output1_0"], ["output1_0"], ["rows"]]
    assert made.manifest["counted"] == {"output0_0": "rows", "output1_0": "5*rows"}
    return path


def compare(net: nn.Module, path: Path) -> None:
    of_c, of_python = Package(path), tw.load(path)
    for x in CASES:
        right = net(x)
        for got in (of_c(x.numpy()), of_python(x.numpy())):
            for a, b in zip(got, right, strict=True):
                np.testing.assert_allclose(a, b.numpy(), rtol=1e-6, atol=1e-6, strict=True)
    of_c.close()


def test_results_have_their_real_size(chosen: Path) -> None:
    compare(Chosen(), chosen)
    with pytest.raises(ValueError, match=r"Runtime assertion failed for expression u[0-9]+ <= 60"):
        tw.load(chosen)(2 * np.ones((13, 5), np.float32))


@pytest.mark.slow
def test_all_that_eager_selects(tmp_path: Path) -> None:
    tw.export(Selected(), CASES[0], path=tmp_path / "p", dynamic=ROWS)
    compare(Selected(), tmp_path / "p")


def test_in_a_page(chosen: Path) -> None:
    for x, found in zip(CASES, answers(chosen, *({"inputs": {"x": tensor(x)}} for x in CASES))):
        for got, want in zip(found["results"].values(), Chosen()(x), strict=True):
            assert got["shape"] == list(want.shape)
            np.testing.assert_allclose(got["data"], want.flatten(), rtol=1e-5, atol=1e-6)


def test_the_plain_call_of_c_says_what_to_call(chosen: Path) -> None:
    package = Package(chosen)
    none = ctypes.c_size_t(0)
    assert library().tw_run(package.handle, None, none, None, none, None)
    assert b"tw_run_shapes tells them" in library().tw_error_text()
    package.close()


def test_an_onnx_model_goes_on_with_such_sizes(tmp_path: Path) -> None:
    m, path = model(ROUTED_HEAD, ROUTED), tmp_path / "routed.onnx"
    path.write_bytes(m.SerializeToString())
    made = tw.export(path, path=tmp_path / "p")
    assert made.manifest["counted"] == {"z_0": "N"}
    assert made.manifest["outputs"][2]["shape"] == ["N+z_0", 4]
    weights = np.random.default_rng(1).standard_normal((4, 2)).astype(np.float32)
    package = tw.load(tmp_path / "p")
    for n, share in ((9, 0.5), (40, 0.2), (9, 0.0), (9, 1.0), (1, 1.0), (1, 0.0)):
        x = mixed(n, share, n)
        right = ReferenceEvaluator(m).run(None, {"x": x, "x_t": weights})
        assert isinstance(right, list)
        for a, b in zip(package(x, weights), right, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, strict=True)


def test_boxes_that_overlap(tmp_path: Path) -> None:
    """Torchvision's operator, which stands in here where it is not installed, class by class."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    if not hasattr(torch.ops.torchvision, "nms"):
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

        def nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
            return kept(boxes, scores, torch.zeros(len(boxes)), iou_threshold, -1.0)

        def like(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
            n = torch.library.get_ctx().new_dynamic_size()
            return boxes.new_empty((n,), dtype=torch.int64)

        library.impl("nms", nms, "CPU")
        torch.library.register_fake("torchvision::nms", like)

    def best(boxes: Tensor, scores: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        apart = boxes + (classes * (boxes.max() + 1))[:, None]
        keep = torch.ops.torchvision.nms(apart, scores, 0.3)
        return keep, boxes[keep]

    def drawn(seed: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(seed)
        low = torch.rand(40, 2)
        boxes = torch.cat([low, low + 1 + torch.rand(40, 2)], 1)
        return boxes, torch.rand(40), torch.randint(3, (40,))

    tw.export(best, *drawn(0), path=tmp_path / "p")
    package = tw.load(tmp_path / "p")
    for seed in range(3):
        right = best(*drawn(seed))
        assert 3 < len(right[0]) < 36
        for a, b in zip(package(*(x.numpy() for x in drawn(seed))), right, strict=True):
            np.testing.assert_array_equal(a, b.numpy())


class Flow(nn.Module):
    """A branch, a loop whose end data decides, and a scan."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        either = torch.cond(x.sum() > 0, lambda y: y * 2, lambda y: y.sin(), (x,))
        rounds, small = while_loop(
            lambda k, y: y.abs().sum() > 1, lambda k, y: (k + 1, y / 2), (torch.zeros(1), x)
        )
        last, sums = scan(lambda a, b: (a + b, (a * b).clone()), x[0], x)
        return either, rounds, small, last, sums, self.cell(x[:, None])[0]


LOOPS = """
    t = ReduceSum<keepdims=0>(x)
    c = Greater(t, low)
    y = If(c) <then_branch = a () => (float[3] p) { p = Neg(x) },
               else_branch = b () => (float[3] q) { q = Add(x, x) }>
    z = Loop(n, yes, x) <body = l (int64 i, bool k, float[3] v) => (bool d, float[3] w) {
        w = Sub(v, low)
        s = ReduceMax<keepdims=0>(w)
        d = Greater(s, low)
    }>
    last, sums = Scan<num_scan_inputs = 1, body = m (float a, float b) => (float e, float f) {
        e = Add(a, b)
        f = Mul(a, b)
    }>(low, x)
"""


def test_branches_and_loops(tmp_path: Path) -> None:
    head = """(float[3] x, int64 n) => (float[3] y, float[3] z, float last, float[3] sums)
    <float low = {0.5}, bool yes = {1}>"""
    m, path = model(head, LOOPS), tmp_path / "loops.onnx"
    path.write_bytes(m.SerializeToString())
    tw.export(path, path=tmp_path / "p")
    package = tw.load(tmp_path / "p")
    for numbers, n in (([3, 0, 1], 2), ([3, 0, 1], 9), ([-1, 0, 0.25], 4), ([9, 1, 2], 0)):
        x, n = np.array(numbers, np.float32), np.array(n)
        right = ReferenceEvaluator(m).run(None, {"x": x, "n": n})
        assert isinstance(right, list)
        for a, b in zip(package(x, n), right, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


@pytest.mark.slow
def test_branches_and_loops_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Flow().eval().requires_grad_(False)
    tw.export(net, torch.randn(6, 4), path=tmp_path / "p")
    package = tw.load(tmp_path / "p")
    for x in (torch.randn(6, 4), torch.rand(6, 4) * 9, torch.full((6, 4), -1e-3)):
        for a, b in zip(package(x.numpy()), net(x), strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6, strict=True)


def test_a_recurrent_layer_of_any_length(tmp_path: Path) -> None:
    """It is a loop of the code, not written out."""
    torch.manual_seed(0)
    net = nn.GRU(3, 4).requires_grad_(False)
    dims = ({0: Dim("length", min=2, max=99), 1: Dim("batch", min=1, max=9)},)
    made = tw.export(net, torch.randn(5, 2, 3), path=tmp_path / "p", dynamic=dims)
    package = tw.load(tmp_path / "p")
    for length, batch in ((2, 1), (5, 2), (7, 9), (40, 3), (99, 4)):
        x = torch.randn(length, batch, 3)
        for a, b in zip(package(x.numpy()), net(x), strict=True):
            np.testing.assert_allclose(a, b.numpy(), rtol=1e-5, atol=1e-6, strict=True)
    assert len(made.levels[0].code) < 30_000


def test_what_cannot_be_a_package(tmp_path: Path) -> None:
    def inside(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.nonzero().sum(), lambda y: y.sum().long(), (x,))

    with pytest.raises(Unsupported, match=r"aten\.nonzero\.default inside a branch has no native"):
        tw.export(inside, torch.randn(4), path=tmp_path / "p")
