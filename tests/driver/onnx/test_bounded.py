"""Results whose size only data decides: alone, before other operators, and where sizes have to be
numbers."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra onnx is not installed")
from onnx import ModelProto, parser
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.onnx.session import Session


def model(head: str, body: str) -> ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> g {head} {{ {body} }}')


def session(m: ModelProto) -> Session:
    return tw.onnx.load(m.SerializeToString())


def same(s: Session, m: ModelProto, **feeds: np.ndarray) -> list[Any]:
    """What the session gives, which is what ONNX's reference gives."""
    got, wanted = s.run(None, feeds), ReferenceEvaluator(m).run(None, feeds)
    assert isinstance(wanted, list)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return got


def mixed(n: int, share: float, seed: int = 0) -> np.ndarray:
    """Rows of which only a share is above 0 in their first column."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((n, 4)).astype(np.float32)
    x[:, 0] = np.where(random.uniform(size=n) < share, 1, -1)
    return x


ROUTED = """
    col = Slice(x, zero, one, one)
    hit = Greater(col, low)
    w = NonZero(hit)
    rows = Gather<axis=0>(w, first)
    some = Gather<axis=0>(x, rows)
    z = MatMul(some, x_t)
    total = ReduceSum<keepdims=0>(z)
    all = Relu(x)
    y = Concat<axis=0>(some, all)
"""
ROUTED_HEAD = """(float[N, 4] x, float[4, 2] x_t) => (float[K, 2] z, float total, float[M, 4] y)
<int64[1] zero = {0}, int64[1] one = {1}, int64 first = {0}, float low = {0.0}>"""


def test_what_follows_is_a_program_of_its_own() -> None:
    m = model(ROUTED_HEAD, ROUTED)
    s = session(m)
    weights = np.random.default_rng(1).standard_normal((4, 2)).astype(np.float32)
    for n, share in ((9, 0.5), (40, 0.2), (9, 0.9), (1, 1.0)):
        same(s, m, x=mixed(n, share), x_t=weights)
    assert len(s.programs) == 2 and s.specialised == [{}]  # for all sizes
    z, total, y = same(s, m, x=mixed(7, 0.0), x_t=weights)
    assert z.shape == (0, 2) and total == 0 and y.shape == (7, 4)


def test_sizes_that_have_to_be_numbers_and_follow_each_other() -> None:
    body = """
    hit = Greater(x, low)
    some = Compress<axis=0>(x, hit)
    v, k = TopK(some, one)
    u = Unique(some)
    w = NonZero(u)
    """
    head = """(float[N] x) => (float[1] v, float[A] u, int64[1, B] w)
    <float low = {0.0}, int64[1] one = {1}>"""
    m = model(head, body)
    s = session(m)
    random = np.random.default_rng(0)
    for n in (6, 11, 6):
        same(s, m, x=random.integers(-2, 4, n).astype(np.float32))
    with pytest.raises(Invalid, match="topk"):
        s(np.full(3, -1.0, np.float32))


# batches, classes, boxes of a class at most, overlap, score
BOXES = ((1, 1, 30, 0.4, 0.0), (2, 3, 4, 0.1, 0.3), (1, 2, 5, 0.5, 2))


def test_boxes_that_overlap() -> None:
    head = """(float[B, 30, 4] boxes, float[B, C, 30] scores, int64[1] most, float[1] limit,
    float[1] least) => (int64[K, 3] y)"""
    names = "boxes, scores, most, limit, least"
    for center in (0, 1):
        m = model(head, f"y = NonMaxSuppression<center_point_box={center}>({names})")
        s = session(m)
        for b, c, most, limit, least in BOXES:
            random = np.random.default_rng(b)
            feeds = {
                "boxes": random.uniform(size=(b, 30, 4)).astype(np.float32),
                "scores": random.integers(0, 20, (b, c, 30)).astype(np.float32) / 20,
                "most": np.array([most]),
                "limit": np.array([limit], np.float32),
                "least": np.array([least], np.float32),
            }
            same(s, m, **feeds)
        assert "most" not in {name for made in s.specialised for name in made}


def test_values_of_such_a_result_that_decide_a_shape() -> None:
    m = model(
        "(int64[N] x) => (float[A, B] y)",
        "w = NonZero(x)\n v = Squeeze(w)\n y = ConstantOfShape(v)",
    )
    s = session(m)
    for places in ([0, 3, 0, 4], [0, 3, 2, 0]):
        same(s, m, x=np.array(places))
    assert "x" in s.specialised[-1]


def test_sizes_inside_of_loops_and_branches() -> None:
    body = """
    y = Loop(n, cond, x) <body = b (int64 i, bool c, float[3] a) => (bool d, float[3] e) {
        d = Identity(c)
        w = NonZero(a)
        f = Cast<to=1>(w)
        t = ReduceSum<keepdims=0>(f)
        e = Sub(a, t)
    }>
    """
    m = model("(float[3] x, int64 n) => (float[3] y) <bool cond = {1}>", body)
    same(session(m), m, x=np.array([3, 0, 1], np.float32), n=np.array(2))  # rounds written out
    body = """
    t = ReduceSum<keepdims=0>(x)
    c = Cast<to=9>(t)
    y = If(c) <then_branch = a () => (int64[1, K] p) { p = NonZero(x) },
               else_branch = b () => (int64[1, K] q) { q = NonZero(t) }>
    """
    with pytest.raises(Unsupported, match="If: a result inside of it has a size that only data"):
        session(model("(float[3] x) => (int64[1, K] y)", body))


def test_a_condition_that_is_too_long() -> None:
    m = model("(float[N] x, bool[M] c) => (float[K] y)", "y = Compress<axis=0>(x, c)")
    s, x = session(m), np.arange(3, dtype=np.float32)
    same(s, m, x=x, c=np.array([True, False]))
    np.testing.assert_array_equal(s(x, np.array([False, True, True, False])), x[1:])
    with pytest.raises(Invalid, match="index 3 is outside of an axis of 3"):
        s(x, np.array([False, True, True, True]))
