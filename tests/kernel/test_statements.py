"""Branches, atomics, reports and pointers in the nest form: text, tools, checks, the interpreter's
errors, and steps around them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.errors import Invalid, Refused
from tilewright.ir import dim as D
from tilewright.ir.expr import Load, load
from tilewright.kernel import steps  # noqa: F401  (traces name them)
from tilewright.kernel.check import CheckFailed, verify
from tilewright.kernel.interpret import RunError, run
from tilewright.kernel.nest import (
    If,
    Loop,
    Nest,
    marks,
    own_marks,
    reads,
    seek,
    stages_in,
    substitute,
    transform,
    walk,
    writes,
)
from tilewright.kernel.step import apply, parse_trace
from tilewright.kernel.steps.join import Join
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.kernel.variables import free_vars, inner_vars

ALL = """
nest k where n: 1..
  in p: *f32
  out q: *i32
  memory m: *bf16
  local t: i32[4]
  alloc t
  for i in n:
    if #(i) < 3:
      s: q[${t[0]}+i] = cast<i32>(select(#(i) < 2, p[i-4], 0.0))
    else:
      a: add relaxed q[0] with t[0] into t[1]
      c: cas acq_rel q[0] with t[0] where t[2] + 1:i32 into t[i]
      print 3 of t[0]; t[1]
    assert 4 on t[0] < t[1]
  while w on t[0] < t[1]:
    t: t[0] add= 1:i32
    if t[0] == 4:i32:
      print 7
  for j in ${t[0]}:
    m: m[2*j] = 0.0:bf16
"""


def made(text: str) -> Nest:
    return parse_nest(text.strip("\n"))


def test_statements_are_found_by_their_marks_where_a_walk_finds_them() -> None:
    body = made(ALL).body
    known = {mark for s in body for mark in marks(s)}
    assert {("loop", "j"), ("stage", "s"), ("branch", "")} <= known
    for mark in (*known, ("loop", "nowhere")):
        walked = [(s, p) for s, p in walk(body) if mark in own_marks(s)]
        assert list(seek(body, mark)) == walked
        dropped = transform(body, lambda s, mark=mark: () if mark in own_marks(s) else (s,), mark)
        assert not any(mark in marks(s) for s in dropped)


def test_text_and_back() -> None:
    n = made(ALL)
    assert nest_text(n).strip() == ALL.strip()
    assert parse_nest(nest_text(n)) == n
    verify(n)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("  a: add relaxed q[0]", "expected KIND ORDER BUFFER"),
        ("  print of t[0]", "expected print NUMBER"),
        ("  wait for it", "expected a loop, an alloc"),
    ],
)
def test_bad_text_gets_a_sentence(line: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        made(f"nest k\n  out q: *i32\n  local t: i32[4]\n  alloc t\n{line}\n")


def test_tree_tools_see_inside() -> None:
    n = made(ALL)
    loop = n.body[1]
    assert isinstance(loop, Loop)
    assert stages_in(loop) == {"s", "a", "c"}
    assert {x.name for x in free_vars(loop)} == {"n"}
    assert {x.name for x in inner_vars(loop)} == {"i"}
    assert {str(x.source) for x in reads(loop)} == {"p", "t"}
    assert writes((loop,)) == {"q", "t"}
    assert sum(isinstance(s, If) for s, _ in walk(n.body)) == 2
    without = transform(n.body, lambda s: () if stages_in(s) == {"t"} else (s,))
    assert all(stages_in(s) != {"t"} for s, _ in walk(without))


def test_substitute_reaches_conditions_extents_and_cells() -> None:
    n = made(ALL)
    loop = n.body[1]
    assert isinstance(loop, Loop)

    def other(x: Load) -> Load:
        return load("u", x.index, x.dtype) if x.source == "t" else x

    changed = [substitute(s, {loop.var: D.as_int(loop.var) + 1}, other) for s in loop.body]
    assert "u" in {str(x.source) for s in changed for x in reads(s)}
    assert "t" not in {str(x.source) for s in changed for x in reads(s)}
    text = nest_text(Nest("k", n.buffers, (loop.around(tuple(changed)), n.body[-1]), n.dims))
    assert "if #(i+1) < 3:" in text and "into t[i+1]" in text
    last = substitute(n.body[-1], {}, other)
    assert isinstance(last, Loop) and {str(x.source) for x in reads(last)} == {"u"}


HEAD = """nest k where n: 1..
  in p: *f32
  out q: *f32
  out y: f32[n]
  local t: f32[4]
  alloc t
"""


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("a: add relaxed p[0] with 1.0", "a is an atomic on p, which is an input"),
        ("a: add relaxed t[0] with 1.0", "a is an atomic on t, which is no argument"),
        ("a: add relaxed q[0] with 1", "a computes i64, q holds f32"),
        ("a: xor relaxed q[0] with 1.0", "a is xor of f32"),
        ("a: cas relaxed q[0] with 1.0", "cas and nothing else compares"),
        ("a: add relaxed q[0] with 1.0 where 2.0", "cas and nothing else compares"),
        ("a: add relaxed q[0] with 1.0 into p[0]", "the result of a goes to p"),
        ("a: add relaxed q[0,1] with 1.0", "q is written with 2 indices, it has 1 axes"),
        ("a: add relaxed q[0] with 1.0 into t[]", "t is written with 0 indices"),
        ("s: p[0] = 1.0", "s writes the input p"),
        ("s: q[0] = u[0]", "u is not a buffer here"),
        ("assert 3", "assert 3 has no condition"),
        ("print 3 on t[0] < 1.0", "print 3 has a condition"),
        ("while w on t[0]:\n    s: q[0] = 1.0", "the condition of while w is f32, not bool"),
        (
            "lane i in 4:\n    while w on t[0] < 1.0:\n      s: q[i] = 1.0",
            "while w is inside the l",
        ),
        ("if t[0] < 1.0:\n    parallel i in n grain 1:\n      s: y[i] = 1.0", "inside a branch"),
        ("if t[0] < 1.0:\n    alloc t\n    s: q[0] = 1.0", "t is allocated while it is live"),
    ],
)
def test_checks(body: str, says: str) -> None:
    with pytest.raises((CheckFailed, Invalid), match=says):
        verify(parse_nest(f"{HEAD}  {body}\n"))


def test_memory_that_is_not_live() -> None:
    n = made("""
nest k
  in p: *f32
  out q: *f32
  local t: f32[4]
  if p[0] < 1.0:
    alloc t
    t: t[0] = 1.0
  s: q[0] = t[0]
""")
    with pytest.raises(CheckFailed, match="s uses t, which is not allocated here") as failure:
        verify(n)
    assert ">" in str(failure.value).splitlines()[-1]


def test_a_fault_after_an_else_is_marked_at_its_line() -> None:
    n = made("""
nest k
  out q: *f32
  if q[0] < 1.0:
    s: q[0] = 1.0
  else:
    s: q[0] = 2.0
  s: q[0] = 1.0:f64
""")
    with pytest.raises(CheckFailed) as failure:
        verify(n)
    assert str(failure.value).splitlines()[-1] == "> s: q[0] = 1.0:f64"


# ---- the interpreter


def test_accesses_outside_what_a_pointer_points_to() -> None:
    n = made("""
nest k where n: 1..
  in p: *f32
  out q: *f32
  for i in n:
    s: q[i] = select(#(i) < 3, p[i-1], 0.0)
""")
    p, q = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    with pytest.raises(RunError, match=r"s: p\[i-1\] reads outside what p points to at i=0"):
        run(n, {"p": p, "q": q}, {"n": 4})
    run(n, {"p": (p, 1), "q": q}, {"n": 4})
    np.testing.assert_array_equal(q, [0, 1, 2, 0])
    with pytest.raises(RunError, match=r"s: q\[i\] writes outside what q points to at i=4"):
        run(n, {"p": (p, 1), "q": q}, {"n": 5})
    with pytest.raises(Invalid, match="p points to f32, not to int64"):
        run(n, {"p": np.arange(4), "q": q}, {"n": 4})
    with pytest.raises(Invalid, match="p is a pointer: it is given as a contiguous array"):
        run(n, {"p": np.zeros((4, 4), np.float32)[:, 0], "q": q}, {"n": 4})


def test_threads_race_where_they_write_but_not_in_atomics() -> None:
    text = """
nest k where n: 1..
  out q: *i32
  parallel i in n grain 1:
    {}
"""
    q = np.zeros(1, np.int32)
    with pytest.raises(RunError, match="two iterations of parallel i write one cell"):
        run(made(text.format("s: q[0] = cast<i32>(#(i))")), {"q": q}, {"n": 5})
    q[:] = 0
    run(made(text.format("s: add relaxed q[0] with cast<i32>(#(i))")), {"q": q}, {"n": 5})
    assert q[0] == 10


# ---- steps

BESIDE = """
nest k where n: 1..
  in p: *f32
  out q: *f32
  local t: f32[64]
  local s: f32[4]
  alloc t
  alloc s
  for t.i in 64:
    t: t[t.i] = select(#(t.i) < #(n), p[t.i], 0.0)
  for s.i in 4:
    s: s[s.i] = 0.0
  for s.j in 4:
    for s.k in 16:
      s: s[s.j] add= t[16*s.j+s.k]
  for q.i in 64:
    if #(q.i) < #(n):
      q: q[q.i] = t[q.i] / s[(q.i//16)]
  for a.i in 4:
    a: add relaxed q[a.i] with s[a.i]
"""


def results(n: Nest, size: int) -> np.ndarray:
    p = (np.arange(size) % 7 + 1).astype(np.float32)
    q = np.zeros(max(size, 4), np.float32)
    run(n, {"p": p, "q": q}, {"n": size})
    return q


@pytest.mark.parametrize(
    "trace",
    [
        "Split('t.i', 8)\nVectorize('t.i.1')",
        "Split('q.i', 16)\nVectorize('q.i.1')",
        "Split('q.i', 6)\nPeel('q.i.0')\nVectorize('q.i.1')",
        "Reorder(('s.k', 's.j'))\nVectorize('s.j')",
        "RFactor('s', ('s.k',), 'u')\nComputeAt('u', 's.j')",
        "Unroll('a.i')",
        "Fuse('s.j', 's.k', 's.f')",
        "Split('s.k', 4)\nRFactor('s', ('s.k.1',), 'u')\nVectorize('u.k.1')",
    ],
)
def test_steps_next_to_branches_do_not_change_the_result(trace: str) -> None:
    n = made(BESIDE)
    verify(n)
    changed = apply(n, parse_trace(trace))
    verify(changed)
    for size in (1, 3, 40, 64):
        np.testing.assert_array_equal(results(n, size), results(changed, size))


@pytest.mark.parametrize(
    ("step", "says"),
    [
        ("Vectorize('a.i')", "there is the atomic a in a.i, which nothing crosses"),
        ("Parallel('a.i')", "there is the atomic a in a.i, which nothing crosses"),
        ("Parallel('s.k')", "s.k is inside s.j"),
        ("ComputeInline('t')", "it moves what is computed, which is not known to be safe next to"),
        ("CacheRead('q', 'p', 'q.i')", "it moves what is computed"),
        ("ComputeAt('t', 's.j')", "t and the one loop that reads it do not stand in one body"),
        ("Pad('t', 0, 8)", "it moves what is computed"),
    ],
)
def test_steps_that_refuse(step: str, says: str) -> None:
    n = made(BESIDE)
    try:
        trace = parse_trace(step)
    except Invalid as e:
        pytest.fail(str(e))
    with pytest.raises(Refused, match=says):
        apply(n, trace)


def test_an_input_written_in_between_keeps_a_stage_where_it_is() -> None:
    n = made("""
nest k
  in p: *f32
  out q: *f32
  local x: f32[4]
  local t: f32[4]
  alloc x
  alloc t
  for x.i in 4:
    x: x[x.i] = p[x.i]
  for t.i in 4:
    t: t[t.i] = x[t.i] * 2.0
  for x.j in 4:
    x: x[x.j] = 0.0
  for q.i in 4:
    q: q[q.i] = t[q.i]
""")
    with pytest.raises(Refused, match="x is written before that is read"):
        apply(n, parse_trace("ComputeAt('t', 'q.i')"))


# Stages of a tile kernel have names of their own, which are not those of their buffers.
PANELS = """
nest k where n: 0..64
  out p: *f32
  out q: *f32
  local b: f32[4,2]
  local c: f32[4,3]
  alloc b
  alloc c
  for s1.i in 4:
    for s1.j in 2:
      s1: b[s1.i,s1.j] = p[2*s1.i+s1.j]
  for s2.i in 4:
    for s2.k in 3:
      s2: c[s2.i,s2.k] = p[s2.i]
  {between}
  for d.i in 4:
    for d.j in 2:
      for d.k in 3:
        d: c[d.i,d.k] add= b[d.i,d.j] * cast<f32>(#(d.k+1))
  for s3.i in 4:
    for s3.k in 3:
      if #(s3.i) < #(n):
        s3: q[3*s3.i+s3.k] = c[s3.i,s3.k]
"""


def test_what_a_product_reads_and_starts_from_is_set_in_its_loops() -> None:
    n = made(PANELS.format(between="").replace("  \n", ""))
    trace = "ComputeAt('b', 'd.i')\nInitAt('c', 'd.i')"
    changed = apply(n, parse_trace(trace))
    verify(changed)
    assert changed.buffer("b").shape == (1, 2)
    found = []
    for x in (n, changed):
        p, q = np.arange(8, dtype=np.float32), np.zeros(12, np.float32)
        run(x, {"p": p, "q": q}, {"n": 4})
        found.append(q)
    assert found[0].any()
    np.testing.assert_array_equal(found[0], found[1])


@pytest.mark.parametrize("step", ["ComputeAt('b', 'd.i')", "InitAt('c', 'd.i')"])
@pytest.mark.parametrize(
    ("between", "says"),
    [
        ("s4: p[0] = 1.0", "p is written before that is read"),
        ("s4: q[0] = 1.0", "a pointer, and one is written through"),
    ],
)
def test_what_is_written_in_between_stays_before(step: str, between: str, says: str) -> None:
    n = made(PANELS.format(between=between))
    with pytest.raises(Refused, match=says):
        apply(n, parse_trace(step))


def test_loops_are_joined_across_what_needs_only_the_first() -> None:
    """What is between them goes after both, unless both use memory that may be the same."""
    text = """
nest k
  out p: *f32
  local a: f32[4]
  local b: f32[4]
  local c: f32[4]
  alloc a
  alloc b
  alloc c
  for s1.i in 4:
    s1: a[s1.i] = p[s1.i]
  for s2.i in 2:
    s2: b[s2.i] = a[s2.i] * {other}
  for s3.i in 4:
    s3: c[s3.i] = a[s3.i] + {second}
  for s4.i in 4:
    s4: p[s4.i] = c[s4.i] + b[s4.i%2]
"""
    trace = parse_trace("Join('s1.i', 's3.i')")
    n = made(text.format(other="2.0", second="1.0"))
    changed = apply(n, trace)
    verify(changed)
    found = [np.arange(4, dtype=np.float32) for _ in range(2)]
    for x, p in zip((n, changed), found, strict=True):
        run(x, {"p": p}, {})
    np.testing.assert_array_equal(found[0], found[1])
    with pytest.raises(Refused, match="what is between them"):
        apply(made(text.format(other="p[0]", second="p[1]")), trace)


def test_a_branch_may_not_run() -> None:
    """The last iteration to write is not the last one that runs: the order of loops shows."""
    n = made("""
nest k
  in c: bool[3,4]
  out y: f32[1]
  for i in 3:
    for j in 4:
      if c[i,j]:
        y: y[0] = cast<f32>(#(4*i+j))
""")
    with pytest.raises(Refused, match="different iterations of i write"):
        apply(n, parse_trace("Reorder(('j', 'i'))"))


def test_a_branch_reads_what_lanes_would_have_changed() -> None:
    n = made("""
nest k
  out y: f32[9]
  for i in 8:
    if y[i] > 0.0:
      y: y[i+1] = 0.0
""")
    with pytest.raises(Refused, match="i carries a dependence"):
        apply(n, parse_trace("Vectorize('i')"))


def test_while_and_report_are_not_crossed() -> None:
    n = made("""
nest k where n: 1..
  out y: f32[n]
  for i in n:
    for j in 4:
      assert 1 on y[i] > 0.0
  for k in n:
    while w on y[k] > 0.0:
      y: y[k] add= -1.0
""")
    with pytest.raises(Refused, match="there is assert 1 in i, which nothing crosses"):
        apply(n, parse_trace("Reorder(('j', 'i'))"))
    with pytest.raises(Refused, match="there is while w in k, which nothing crosses"):
        apply(n, parse_trace("Parallel('k')"))


ACROSS = """
nest k
  in x: *f32
  out p: *f32
  out y: f32[]
  local t: f32[8]
  alloc t
  for a in 8:
    t: t[a] = x[a] * 2.0
  {between}
  for b in 8:
    y: y[] add= t[b]
"""


@pytest.mark.parametrize(
    ("between", "refused"),
    (("p: p[0] = 1.0", True), ("p: p[0] = x[3]", True), ("y: y[] = 0.0", False)),
)
def test_loops_are_not_joined_across_what_may_write_to_the_same_memory(
    between: str, refused: bool
) -> None:
    n = parse_nest(ACROSS.format(between=between).strip("\n"))
    if refused:
        with pytest.raises(Refused, match="what is between them writes through a pointer"):
            Join("a", "b").apply(n)
    else:
        assert "y: y[] add= t[a]" in nest_text(Join("a", "b").apply(n))


GRID = """
nest k where n: 1..
  out q: *i32
  in of: *i64
  independent program in n:
    s: q[${of[program]}] = 7:i32
"""


def test_programs_of_a_grid_are_independent_by_definition() -> None:
    """Where they write is read from memory: of a serial loop nobody could prove that."""
    n = made(GRID)
    assert parse_nest(nest_text(n)) == n
    verify(n)
    shared = apply(n, parse_trace("Parallel('program', 3)"))
    assert isinstance(shared.body[0], Loop)
    assert (shared.body[0].kind, shared.body[0].grain) == ("parallel", 3)
    serial = made(GRID.replace("independent", "for"))
    with pytest.raises(Refused):
        apply(serial, parse_trace("Parallel('program', 3)"))
    with pytest.raises(CheckFailed, match="independent program is inside j"):
        verify(
            made(
                GRID.replace("  independent", "  for j in n:\n    independent").replace(
                    "    s:", "      s:"
                )
            )
        )


def test_programs_that_wait_are_claimed_one_by_one() -> None:
    n = made(
        """
nest k where n: 1..
  out q: *i32
  independent program in n:
    while w waits on q[0] == 0:i32:
      a: load acquire q[0] with 0:i32
"""
    )
    (grid,) = apply(n, parse_trace("Parallel('program')")).body
    assert isinstance(grid, Loop) and grid.kind == "parallel"
    with pytest.raises(Refused, match="wait for each other"):
        apply(n, parse_trace("Parallel('program', 2)"))
