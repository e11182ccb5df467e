"""Legal nests: what each rewriting makes of a nest, and that the result stays what it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernel.examples import EXAMPLES
from tests.kernel.random_groups import arrays
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.kernel.check import verify
from tilewright.kernel.group import Buffer
from tilewright.kernel.interpret import RunError, run
from tilewright.kernel.legal import REWRITINGS, check_legal, legalise
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.targets import default, get

TARGET = Target("small", "x86_64-unknown-linux-gnu", "x86-64", stack=1024)

CASES = {
    "memory": (
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  local t: f32[8]
  local u: f32[4*n]
  register r: f32[2]
  alloc t
  alloc u
  alloc r
  for i in n:
    t: t[0] = x[i]
    u: u[i] = t[0]
    r: r[1] = u[i]
    y: y[i] = r[1]
""",
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  stack t: f32[8]
  heap u: f32[4*n]
  register r: f32[2]
  alloc t
  alloc u
  alloc r
  for i in n:
    t: t[0] = x[i]
    u: u[i] = t[0]
    r: r[1] = u[i]
    y: y[i] = r[1]
""",
    ),
    "lanes": (
        """
nest k
  in x: f32[13]
  out y: f32[13]
  lane j in 13:
    y: y[j] = x[j] * 2.0
""",
        """
nest k
  in x: f32[13]
  out y: f32[13]
  lane j in 8:
    y: y[j] = x[j] * 2.0
  lane j in 4:
    y: y[j+8] = x[j+8] * 2.0
  lane j in 1:
    y: y[j+12] = x[j+12] * 2.0
""",
    ),
    "lanes ragged": (
        """
nest k
  in x: f32[30]
  out y: f32[30]
  for i in 8:
    lane j in min(-4*i+30,4):
      y: y[4*i+j] = x[4*i+j] * 2.0
""",
        """
nest k
  in x: f32[30]
  out y: f32[30]
  for i in 8:
    if #(min(-4*i+30,4)) >= 4:
      lane j in min(-4*i+30,4) pragma lanes 4:
        y: y[4*i+j] = x[4*i+j] * 2.0
    else:
      lane j in min(-4*i+30,4) pragma lanes 4, ragged 1, masked 1:
        y: y[4*i+j] = x[4*i+j] * 2.0
""",
    ),
    "lanes of a rest": (
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  lane j in (n%4):
    y: y[4*(n//4)+j] = x[4*(n//4)+j] * 2.0
""",
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  if #((n%4)) >= 1:
    lane j in (n%4) pragma lanes 4, ragged 1, masked 1:
      y: y[4*(n//4)+j] = x[4*(n//4)+j] * 2.0
""",
    ),
    "lanes wider than a vector": (
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  lane j in min(8,n):
    y: y[j] = x[j] * 2.0
""",
        """
nest k where n: 1..100
  in x: f32[n]
  out y: f32[n]
  if #(min(8,n)) >= 8:
    lane j in min(8,n) pragma lanes 8:
      y: y[j] = x[j] * 2.0
  else:
    for j.v in ((min(8,n)+3)//4):
      if #(min(-4*j.v+min(8,n),4)) >= 4:
        lane j in min(-4*j.v+min(8,n),4) pragma lanes 4:
          y: y[j+4*j.v] = x[j+4*j.v] * 2.0
      else:
        lane j in min(-4*j.v+min(8,n),4) pragma lanes 4, ragged 1, masked 1:
          y: y[j+4*j.v] = x[j+4*j.v] * 2.0
""",
    ),
    "interleave": (
        """
nest k
  in x: f32[2,8]
  out y: f32[8,2]
  out z: f32[8,3]
  lane i in 8:
    unroll k in 2:
      y: y[i,k] = x[k,i]
    unroll c in 2:
      z: z[i,c] = x[c,i]
  lane i in 8:
    unroll k in 2:
      y: y[i,k] = y[i,k] + 1.0
    z: z[i,2] = 0.0
""",
        """
nest k
  in x: f32[2,8]
  out y: f32[8,2]
  out z: f32[8,3]
  lane i in 8:
    unroll k in 2 pragma interleave 1:
      y: y[i,k] = x[k,i]
    unroll c in 2:
      z: z[i,c] = x[c,i]
  lane i in 8:
    unroll k in 2:
      y: y[i,k] = y[i,k] + 1.0
    z: z[i,2] = 0.0
""",
    ),
    "hoist": (
        """
nest k
  in x: f32[100]
  in w: f32[8,2]
  out y: f32[8]
  for i in 8:
    for r in 100:
      unroll u in 2:
        y: y[i] add= x[r] * exp(w[i,u])
""",
        """
nest k
  in x: f32[100]
  in w: f32[8,2]
  out y: f32[8]
  let h0: f32[2]
  for i in 8:
    alloc h0
    unroll u in 2:
      h0: h0[u] = exp(w[i,u])
    for r in 100:
      unroll u in 2:
        y: y[i] add= x[r] * h0[u]
""",
    ),
    # Under a condition, or in a loop that may not run, only what is surely there is read before.
    "hoist conditions": (
        """
nest k where n: 0..
  in x: f32[4]
  in z: f32[n+3]
  out y: f32[n]
  for i in n:
    if #(i) < 5:
      y: y[i] = x[3] + z[n+2] + z[i]
    else:
      y: y[i] = x[1]
""",
        """
nest k where n: 0..
  in x: f32[4]
  in z: f32[n+3]
  out y: f32[n]
  let h0: f32[]
  let h1: f32[]
  alloc h0
  h0: h0[] = x[3] + z[n+2]
  alloc h1
  h1: h1[] = x[1]
  for i in n:
    if #(i) < 5:
      y: y[i] = h0[] + z[i]
    else:
      y: y[i] = h1[]
""",
    ),
    # A choice reads one of two: neither is read before the loop unless it is surely there.
    "hoist choices": (
        """
nest k where n: 1..
  in x: f32[n]
  in z: f32[n]
  out y: f32[n]
  out q: f32[n]
  for i in n:
    y: y[i] = select(#(i) > 2, x[2], z[0])
    q: q[i] = select(#(n) > 2, x[2], z[0])
""",
        """
nest k where n: 1..
  in x: f32[n]
  in z: f32[n]
  out y: f32[n]
  out q: f32[n]
  let h0: f32[]
  let h1: f32[]
  alloc h0
  h0: h0[] = z[0]
  alloc h1
  h1: h1[] = select(#(n) > 2, x[2], z[0])
  for i in n:
    y: y[i] = select(#(i) > 2, x[2], h0[])
    q: q[i] = h1[]
""",
    ),
    # What a loop writes or allocates is read in it, and so is what a ragged loop may not have.
    "hoist stays": (
        """
nest k
  in x: f32[30]
  out y: f32[30]
  out s: f32[2]
  local t: f32[2]
  for i in 8:
    for r in 5:
      alloc t
      t: t[0] = 1.0
      s: s[1] = s[0] + t[0]
      unroll j in min(-4*i+30,4):
        y: y[4*i+j] = x[4*i+j]
""",
        """
nest k
  in x: f32[30]
  out y: f32[30]
  out s: f32[2]
  local t: f32[2]
  for i in 8:
    for r in 5:
      alloc t
      t: t[0] = 1.0
      s: s[1] = s[0] + t[0]
      unroll j in min(-4*i+30,4):
        y: y[4*i+j] = x[4*i+j]
""",
    ),
    # Numbers that are read to know where to read or write are reads as well.
    "hoist places": (
        """
nest k
  in x: f32[8]
  in p: i64[3]
  out y: f32[8]
  out z: f32[8,3]
  for i in 3:
    lane j in 4:
      z: z[j,i] = x[${p[2]}+j] * x[${p[1]}]
    y: y[i+${p[0]}] = x[i]
""",
        """
nest k
  in x: f32[8]
  in p: i64[3]
  out y: f32[8]
  out z: f32[8,3]
  let h0: f32[4]
  let h1: i64[]
  alloc h0
  lane j in 4:
    h0: h0[j] = x[${p[2]}+j] * x[${p[1]}]
  alloc h1
  h1: h1[] = p[0]
  for i in 3:
    lane j in 4:
      z: z[j,i] = h0[j]
    y: y[${h1[]}+i] = x[i]
""",
    ),
    # Behind a pointer only what is chosen is read: whole vectors, none, or with a mask.
    "masks": (
        """
nest k where n: 0..
  in p: *f32
  out y: f32[8]
  lane j in 8:
    y: y[j] = select(#(j) < #(n), p[j], 0.0) * 2.0
""",
        """
nest k where n: 0..
  in p: *f32
  out y: f32[8]
  register m0: f32[8]
  alloc m0
  if 0 < #(n) & 7 < #(n):
    lane j in 8:
      m0: m0[j] = p[j]
  else:
    if 0 >= #(n) & 7 >= #(n):
      lane j in 8:
        m0: m0[j] = 0.0
    else:
      lane j in 8 pragma masked 1:
        m0: m0[j] = select(#(j) < #(n), p[j], 0.0)
  lane j in 8:
    y: y[j] = m0[j] * 2.0
""",
    ),
    # A condition that may change more than once is evaluated for every lane, once for all of them.
    "masks every": (
        """
nest k
  in p: *f32
  in c: bool[8]
  out y: f32[8]
  out q: *f32
  lane j in 8:
    y: y[j] = 1.0
    if c[j]:
      q: q[j] = 2.0
    else:
      y: y[j] = p[j]
""",
        """
nest k
  in p: *f32
  in c: bool[8]
  out y: f32[8]
  out q: *f32
  register m0: bool[]
  lane j in 8:
    y: y[j] = 1.0
  alloc m0
  m0: m0[] = true
  lane j in 8:
    m0: m0[] and= c[j]
  if m0[]:
    lane j in 8:
      q: q[j] = 2.0
  else:
    lane j in 8 pragma masked 1:
      if c[j]:
        q: q[j] = 2.0
      else:
        y: y[j] = p[j]
""",
    ),
    # Stores that are one have all that they read before them.
    "masks interleaved": (
        """
nest k where n: 0..
  in p: *f32
  out y: f32[4,2]
  lane i in 4:
    unroll k in 2 pragma interleave 1:
      y: y[i,k] = select(#(i+4*k) < #(n), p[4*k+i], 0.0)
""",
        """
nest k where n: 0..
  in p: *f32
  out y: f32[4,2]
  register m0: f32[2,4]
  alloc m0
  unroll k in 2:
    if #(4*k) < #(n) & #(4*k+3) < #(n):
      lane i in 4:
        m0: m0[k,i] = p[i+4*k]
    else:
      if #(4*k) >= #(n) & #(4*k+3) >= #(n):
        lane i in 4:
          m0: m0[k,i] = 0.0
      else:
        lane i in 4 pragma masked 1:
          m0: m0[k,i] = select(#(i+4*k) < #(n), p[i+4*k], 0.0)
  lane i in 4:
    unroll k in 2 pragma interleave 1:
      y: y[i,k] = m0[k,i]
""",
    ),
    "accesses": (
        """
nest k
  in x: f32[6]
  out y: f32[8]
  lane j in 8:
    y: y[j] = select(#(j) < 6, x[j], 1.0)
""",
        """
nest k
  in x: f32[6]
  out y: f32[8]
  lane j in 8 pragma edges 1:
    y: y[j] = select(#(j) < 6, x[j], 1.0)
""",
    ),
    # One condition for all lanes, and zeros where it does not hold; plain reads say nothing.
    "accesses zeros": (
        """
nest k
  in x: f32[3,8]
  out y: f32[4,8]
  for i in 4:
    lane j in 8:
      y: y[i,j] = select(#(i) < 3, x[i,j], 0.0)
  lane j in 8:
    y: y[0,j] = x[0,j] + 1.0
""",
        """
nest k
  in x: f32[3,8]
  out y: f32[4,8]
  for i in 4:
    lane j in 8 pragma edges 1, zeros 1:
      y: y[i,j] = select(#(i) < 3, x[i,j], 0.0)
  lane j in 8:
    y: y[0,j] = x[0,j] + 1.0
""",
    ),
    "accesses adjacent": (
        """
nest k where n: 1..8
  in p: *f32
  in t: i32[4]
  out q: *f32
  out y: f32[4]
  lane j in 4:
    y: y[j] = p[${t[j]}]
  lane j in 4:
    y: y[j] = p[j] + p[2*j]
  lane j in 2:
    q: q[j*n] = 1.0
""",
        """
nest k where n: 1..8
  in p: *f32
  in t: i32[4]
  out q: *f32
  out y: f32[4]
  lane j in 4 pragma adjacent 1:
    y: y[j] = p[${t[j]}]
  lane j in 4:
    y: y[j] = p[j] + p[2*j]
  lane j in 2 pragma adjacent 1:
    q: q[j*n] = 1.0
""",
    ),
    # The target has no masked accesses.
    "accesses cold": (
        """
nest k
  in p: *f32
  in c: bool[8]
  out y: f32[8]
  lane j in 8 pragma masked 1:
    if c[j]:
      y: y[j] = 2.0
  lane j in 8:
    y: y[j] = select(c[j], p[j], 1.0)
""",
        """
nest k
  in p: *f32
  in c: bool[8]
  out y: f32[8]
  lane j in 8 pragma masked 1, edges 1, cold 1:
    if c[j]:
      y: y[j] = 2.0
  lane j in 8 pragma cold 1:
    y: y[j] = select(c[j], p[j], 1.0)
""",
    ),
}


def _shape(b: Buffer, sizes: dict[str, int]) -> tuple[int, ...]:
    """Behind a pointer there is as much as the cases need where their conditions hold."""
    return (8,) if b.pointer else tuple(int(D.evaluate(d, sizes)) for d in b.shape)


def given(n: Nest, sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs = [b for b in n.buffers if b.scope == "in"]
    shapes = {b: _shape(b, sizes) for b in inputs}
    made = {b.name: rng.integers(0, 4, s).astype(b.dtype.numpy) for b, s in shapes.items()}
    outputs = [b for b in n.buffers if b.scope == "out"]
    return made | {b.name: np.zeros(_shape(b, sizes), np.float32) for b in outputs}


@pytest.mark.parametrize("name", CASES)
def test_what_a_rewriting_makes(name: str) -> None:
    before, after = CASES[name]
    n = parse_nest(before)
    made = REWRITINGS[name.split()[0]](n, TARGET)
    assert nest_text(made) == after.lstrip()
    assert REWRITINGS[name.split()[0]](made, TARGET) == made
    sizes = {s.name: 5 for s in n.dims}
    want, got = (run(x, given(n, sizes), sizes) for x in (n, made))
    for k in want:
        np.testing.assert_array_equal(got[k], want[k])


NAMED = [("host", x) for x in sorted(EXAMPLES)[::2]]
NAMED += [("x86-64-v4", x) for x in sorted(EXAMPLES)[1::4]]


@pytest.mark.parametrize("machine, name", NAMED)
def test_legal_nests_are_nests(machine: str, name: str) -> None:
    target = default() if machine == "host" else get(machine)
    _, nest = default_schedule(EXAMPLES[name].group, target)
    legal = legalise(nest, target)
    verify(legal)
    check_legal(legal, target)
    assert legalise(legal, target) == legal
    assert parse_nest(nest_text(legal)) == legal


@pytest.mark.parametrize("name", sorted(EXAMPLES)[::4])
def test_legal_nests_compute_the_same(name: str) -> None:
    target, example = default(), EXAMPLES[name]
    _, nest = default_schedule(example.group, target)
    for sizes in example.dims[:1]:
        data = arrays(example.group, sizes, 0)
        want, got = (run(x, data, sizes) for x in (nest, legalise(nest, target)))
        for k in want:
            np.testing.assert_array_equal(got[k], want[k])


def test_memory_of_threads_stays_their_own() -> None:
    n = parse_nest(CASES["memory"][0])
    assert REWRITINGS["memory"](n, get("cuda:80")) is n


@pytest.mark.parametrize(
    "text, says",
    (
        (CASES["memory"][0], "t is local, which says neither stack nor heap"),
        (CASES["lanes"][0], "lane j in 13 is no vector"),
        (CASES["interleave"][1].replace("y[i,k] = x", "y[i,1-k] = x"), "k does not fill"),
        (CASES["interleave"][1].replace("lane i", "for i"), "k does not fill"),
    ),
)
def test_nests_that_are_not_legal(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=f"nest k is not legal for small: {says}"):
        check_legal(parse_nest(text), TARGET)


def test_a_stack_buffer_has_a_size() -> None:
    n = parse_nest(CASES["memory"][1].replace("1..100", "1..").replace("heap", "stack"))
    with pytest.raises(Invalid, match="u is on the stack and its size has no constant bound"):
        check_legal(n, TARGET)


def test_lanes_that_are_not_there_are_found() -> None:
    """A whole vector stands under the test that all of its lanes exist."""
    text = CASES["lanes ragged"][1].replace(">= 4", ">= 0")
    n = parse_nest(text)
    with pytest.raises(RunError, match="lane loop j has 2 iterations, and says 4"):
        run(n, given(n, {}))


def test_a_read_before_its_condition_is_found() -> None:
    """What only an emitter knew is in the nest: reading too early is seen when it is run."""
    early = CASES["hoist conditions"][1].replace("x[3] + z[n+2]", "x[3] + z[n+5]")
    n = parse_nest(early)
    with pytest.raises(RunError, match=r"h0: z.* reads outside axis 0 of 3"):
        run(n, given(n, {"n": 0}), {"n": 0})


@pytest.mark.parametrize(
    "old, new, says",
    (
        ("h0: h0[u] = exp", "h0: h0[u] add= exp", "h0 is a let and is not set by one statement"),
        ("x[r] * h0[u]", "x[r] * h0[1-u]", "h0 is a let and is used at -u.1, not at loops"),
    ),
)
def test_lets_that_are_none(old: str, new: str, says: str) -> None:
    text = CASES["hoist"][1]
    assert old in text
    with pytest.raises(Invalid, match=says):
        check_legal(parse_nest(text.replace(old, new)), TARGET)


def test_the_stack_is_the_target_s() -> None:
    n = parse_nest(CASES["memory"][0])
    roomy = replace(TARGET, stack=4096)
    assert REWRITINGS["memory"](n, roomy).buffer("u").scope == "stack"
