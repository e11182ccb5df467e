"""The nest interpreter is right, and strict about what native code would get away with."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.errors import Invalid
from tilewright.ir.types import bf16, round_bf16
from tilewright.kernel import interpret
from tilewright.kernel.interpret import RunError, run, run_group
from tilewright.kernel.lockstep import lockstep
from tilewright.kernel.nest import Loop
from tilewright.kernel.text import parse_group, parse_nest

X = np.arange(6, dtype=np.float32)


def nest(body: str, buffers: str = "in x: f32[6]\n  out y: f32[6]") -> str:
    return f"nest k\n  {buffers}\n{body}"


def test_loops_of_every_kind_agree() -> None:
    for word in ("for", "parallel", "unroll", "lane"):
        grain = " grain 2" if word == "parallel" else ""
        n = parse_nest(nest(f"  {word} i in 6{grain}:\n    y: y[-i+5] = x[i] * 2.0\n"))
        np.testing.assert_array_equal(run(n, {"x": X})["y"], X[::-1] * 2)


def test_a_group_against_numpy() -> None:
    g = parse_group(
        """
group k where M: 1..
  in a: f32[M,5]
  in b: f32[5,7]
  out y: f32[M,7]
  local t: f32[M,7]
  t[t.i0,t.i1] add= a[t.i0,t.r0] * b[t.r0,t.i1] for t.i0 in M, t.i1 in 7, t.r0 in 5 from 0.0
  y[y.i0,y.i1] = max(t[y.i0,y.i1], 0.0) for y.i0 in M, y.i1 in 7
"""
    )
    a, b = np.random.randn(3, 5).astype("f"), np.random.randn(5, 7).astype("f")
    got = run_group(g, {"a": a, "b": b}, {"M": 3})["y"]
    np.testing.assert_allclose(got, np.maximum(a @ b, 0), rtol=1e-5)


@pytest.mark.parametrize("kind", ["for", "unroll"])
def test_an_order_does_not_change(kind: str) -> None:
    n = parse_nest(nest(f"  y: y[0] = x[0]\n  {kind} i in 5:\n    y: y[i+1] = y[i] + x[i+1]\n"))
    np.testing.assert_array_equal(run(n, {"x": X})["y"], np.cumsum(X))


def test_an_unsound_lane_loop_shows() -> None:
    n = parse_nest(nest("  y: y[0] = x[0]\n  lane i in 5:\n    y: y[i+1] = y[i] + x[i+1]\n"))
    assert not np.array_equal(run(n, {"x": X})["y"], np.cumsum(X))


def test_the_last_store_wins() -> None:
    n = parse_nest(nest("  for i in 6:\n    y: y[0] = x[i]\n", "in x: f32[6]\n  out y: f32[1]"))
    assert run(n, {"x": X})["y"][0] == 5


def test_accumulating_into_bfloat16_rounds_every_time() -> None:
    buffers = "in x: bf16[40]\n  out y: bf16[]"
    n = parse_nest(nest("  y: y[] = 0.0:bf16\n  for i in 40:\n    y: y[] add= x[i]\n", buffers))
    x = round_bf16(np.full(40, 0.1, np.float32))
    want = np.float32(0)
    for v in x:
        want = round_bf16(np.asarray(want + v))
    assert run(n, {"x": x})["y"] == want
    assert bf16.numpy == np.float32


def test_fresh_memory_is_garbage() -> None:
    buffers = "in x: f32[6]\n  out y: f32[6]\n  local t: f32[6]"
    n = parse_nest(nest("  alloc t\n  for i in 6:\n    y: y[i] = t[i]\n", buffers))
    assert np.isnan(run(n, {"x": X})["y"]).all()


def test_an_output_may_start_with_contents() -> None:
    n = parse_nest(nest("  for i in 6:\n    y: y[i] add= x[i]\n"))
    np.testing.assert_array_equal(run(n, {"x": X, "y": X})["y"], 2 * X)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("  for i in 6:\n    y: y[i] = x[i+1]\n", r"x\[i\+1\] reads outside axis 0 of 6 at i=5"),
        ("  for i in 7:\n    y: y[i] = 0.0\n", r"y\[i\] writes outside axis 0 of 6 at i=6"),
        ("  for i in 6:\n    y: y[i-1] = x[i]\n", r"y\[i-1\] writes outside axis 0 of 6 at i=0"),
        ("  for i in 6:\n    y: x[i] = 0.0\n", "the input x is written"),
        ("  for i in 6:\n    for i in 2:\n      y: y[i] = 0.0\n", "inside another loop of that"),
        ("  parallel i in 6 grain 1:\n    y: y[0] = x[i]\n", "two iterations of parallel i write"),
        (
            "  parallel i in 5 grain 1:\n    y: y[i+1] = y[i]\n",
            r"parallel i reads y\[i\], which another one writes",
        ),
        ("  for i in 2:\n    parallel j in 3 grain 1:\n      y: y[j] = 0.0\n", "j is inside i"),
    ],
)
def test_what_no_nest_may_do(body: str, says: str) -> None:
    with pytest.raises(RunError, match=says):
        run(parse_nest(nest(body)), {"x": X})


def test_memory_lives_in_its_body_only() -> None:
    buffers = "in x: f32[6]\n  out y: f32[6]\n  local t: f32[6]"
    body = "  for i in 6:\n    alloc t\n    t: t[i] = x[i]\n  for i in 6:\n    y: y[i] = t[i]\n"
    with pytest.raises(RunError, match="not allocated"):
        run(parse_nest(nest(body, buffers)), {"x": X})


def test_a_guarded_read_counts_where_it_is_taken() -> None:
    n = parse_nest(nest("  for i in 6:\n    y: y[i] = select(#(i-1) >= 0, x[i-1], 9.0)\n"))
    np.testing.assert_array_equal(run(n, {"x": X})["y"], [9, 0, 1, 2, 3, 4])
    n = parse_nest(nest("  for i in 6:\n    y: y[i] = select(#(i) < 1, x[i-1], 9.0)\n"))
    with pytest.raises(RunError, match=r"x\[i-1\] reads outside axis 0 of 6 at i=0"):
        run(n, {"x": X})


def test_a_read_guarded_in_one_arm_is_checked_in_the_other() -> None:
    n = parse_nest(nest("  for i in 6:\n    y: y[i] = select(#(i) < 5, x[i+1], x[i+1] + 1.0)\n"))
    with pytest.raises(RunError, match="at i=5"):
        run(n, {"x": X})


def test_arguments_are_checked() -> None:
    n = parse_nest(nest("  for i in 6:\n    y: y[i] = x[i]\n"))
    with pytest.raises(Invalid, match="reads x, which is not given"):
        run(n, {})
    with pytest.raises(Invalid, match=r"x has shape \(6,\), not \(5,\)"):
        run(n, {"x": X[:5]})
    symbolic = "nest k where M: 1..\n  out y: f32[M]\n  for i in M:\n    y: y[i] = 0.0\n"
    with pytest.raises(Invalid, match="needs a value for M"):
        run(parse_nest(symbolic), {})


# ---- iterations that run together


CARRIED = """
nest carried where n: 0..9
  in x: f32[n,4,5]
  out y: f32[n,4]
  local a: f32[1]
  local b: f32[n,4]
  alloc b
  for i in n:
    for j in 4:
      y: y[i,j] = 1.0
      b: b[i,j] = 0.5
  for i in n:
    for j in 4:
      for k in {times}:
        alloc a
        a: a[0] = y[i,j] * 0.5 + x[i,j,k]
        b: b[i,j] = b[i,j] + a[0] * y[i,j]
        y: y[{where}] = a[0] - b[i,j]
"""


@pytest.mark.parametrize("times", ["5", "i", "j+1"])
@pytest.mark.parametrize("where", ["i,j", "i,0", "i,3-j"])
def test_loops_that_run_together(times: str, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one iteration after the other: those in which a place is another one's do not."""
    n = parse_nest(CARRIED.format(times=times, where=where))
    last = n.body[-1]
    assert isinstance(last, Loop)
    found = lockstep(last)
    if where == "i,j":
        expected = {"5": ["i", "j"], "i": ["j"], "j+1": ["i"]}[times]
        assert found is not None and [q.name for q in found.together] == expected
    else:
        assert found is None
    for size in (0, 1, 4):
        x = np.random.default_rng(size).standard_normal((size, 4, 5)).astype(np.float32)
        together = run(n, {"x": x}, {"n": size})["y"]
        with monkeypatch.context() as m:
            m.setattr(interpret, "lockstep", lambda s: None)
            np.testing.assert_array_equal(run(n, {"x": x}, {"n": size})["y"], together)


def test_what_is_wrong_in_some_iterations_that_run_together() -> None:
    text = CARRIED.format(times="5", where="i,j")
    with pytest.raises(RunError, match=r"reads outside axis 2 of 5 at i=0, j=0, k=4"):
        run(parse_nest(text.replace("x[i,j,k]", "x[i,j,k+1]")), {"x": np.ones((2, 4, 5))}, {"n": 2})
    unset = parse_nest(text.replace("a: a[0] = y[i,j]", "a: a[0] = a[0]"))
    assert np.isnan(run(unset, {"x": np.ones((2, 4, 5))}, {"n": 2})["y"]).all()
