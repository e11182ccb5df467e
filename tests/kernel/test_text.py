"""Groups, nests and traces print and parse back; errors of the parser name the line."""

from __future__ import annotations

import subprocess
import sys
from itertools import accumulate

import pytest

from tests.kernel.examples import EXAMPLES
from tests.kernel.random_groups import sample
from tilewright.base.errors import Invalid
from tilewright.kernel.check import verify
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import parse_trace, print_trace, trace_digest
from tilewright.kernel.text import group_text, nest_text, parse_group, parse_nest
from tilewright.targets import default


@pytest.mark.parametrize("name", EXAMPLES)
def test_groups_and_every_nest_on_the_way(name: str) -> None:
    text = EXAMPLES[name].text
    g = parse_group(text)
    verify(g)
    assert group_text(g) == text
    trace, final = default_schedule(g, default())
    nests = list(accumulate(trace, lambda n, step: step.apply(n), initial=start(g)))
    for n in nests:
        assert parse_nest(nest_text(n)) == n
    assert nests[-1] == final
    assert parse_trace(print_trace(trace)) == trace
    assert eval(repr(trace), {type(s).__name__: type(s) for s in trace}) == trace


def test_random_groups() -> None:
    for seed in range(200):
        g = sample(seed).group
        assert parse_group(group_text(g)) == g, f"seed {seed}"
        assert parse_nest(nest_text(start(g))) == start(g), f"seed {seed}"


CHAINS = """group product
  in a: f32[32,64]
  in b: f32[64,32]
  out y: f32[32,32]
  local t: f32[32,32]
  t[t.i0,t.i1] add= a[t.i0,t.r0] * b[t.r0,t.i1] for t.i0 in 32, t.i1 in 32, t.r0 in 64 in chains of 16 from 0.0
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in 32, y.i1 in 32
"""  # noqa: E501


def test_sums_in_chains() -> None:
    """A group says how many terms are added one after the other; default schedules obey."""
    g, plain = parse_group(CHAINS), parse_group(CHAINS.replace(" in chains of 16", ""))
    assert group_text(g) == CHAINS and g.stage("t").chain == 16 and g != plain
    trace, _ = default_schedule(g, default())
    assert "Split(loop='t.r0', factor=16)" in print_trace(trace)
    assert "RFactor" in print_trace(trace)
    assert "RFactor" not in print_trace(default_schedule(plain, default())[0])


RUNS = """group bags
  in a: i64[40]
  in x: f32[40,64]
  in z: f32[9,64]
  out y: f32[9,64]
  y[${max(min(a[y.i0], 8), 0)},y.i1] add= x[y.i0,y.i1] for y.i0 in 40, y.i1 in 64 in order of runs from z[y.init.i0,y.init.i1]
"""  # noqa: E501


def test_updates_in_runs() -> None:
    """A group says that equal places mostly follow each other; a row of them is in registers."""
    g, plain = parse_group(RUNS), parse_group(RUNS.replace(" of runs", ""))
    assert group_text(g) == RUNS and g.stage("y").runs and g != plain
    assert parse_nest(nest_text(start(g))) == start(g)
    for one in (g, plain):
        nest = legalise(default_schedule(one, default())[1], default())
        assert any(b.scope == "stack" for b in nest.buffers) == (one is g)


def test_a_trace_may_have_comments_and_empty_lines() -> None:
    text = "# first\nSplit('i', 4)\n\n  Peel('i.0')  # then\n"
    assert [str(s) for s in parse_trace(text)] == ["Split(loop='i', factor=4)", "Peel(loop='i.0')"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Split('i', 4)\nSplot('i', 4)", "line 2 of the trace is not a step: .*Splot"),
        ("Peel()", "line 1 of the trace is not a step"),
        ("Split('i', open('f'))", "line 1 of the trace is not a step"),
        ("__import__('os')", "line 1 of the trace is not a step"),
        ("Split('i', 4", "line 1 of the trace is not a step"),
    ],
)
def test_bad_traces(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        parse_trace(text)


HEAD = "group g\n  in x: f32[4]\n  out y: f32[4]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty text where a group was expected"),
        ("nest g\n", "expected 'group NAME'"),
        ("group g\n  in x: f99[4]\n", "line 2: expected NAME: dtype"),
        (HEAD + "  y[y.i0] = x[y.i0]\n", "line 4: expected 'for VARIABLE in EXTENT"),
        (HEAD + "  z[z.i0] = x[z.i0] for z.i0 in 4\n", "line 4: expected BUFFER"),
        (HEAD + "  y[y.i0 = x[y.i0] for y.i0 in 4\n", "line 4: a bracket is not closed"),
        (HEAD + "  y[y.i0] = x[q] for y.i0 in 4\n", "q"),
        (HEAD + "  y[y.i0] = cosine(x[y.i0]) for y.i0 in 4\n", "cosine"),
    ],
)
def test_bad_groups(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        parse_group(text)


NEST = "nest g\n  in x: f32[4]\n  out y: f32[4]\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("group g\n", "expected 'nest NAME'"),
        (
            NEST + "  for i in 4:\n    hello\n",
            "line 5: expected a loop, an alloc, a barrier or a store",
        ),
        (NEST + "  for i in 4:\n        y: y[i] = x[i]\n", "line 5: unexpected indentation"),
        (NEST + "  for i in 4:\n    y: y[j] = x[i]\n", "j"),
    ],
)
def test_bad_nests(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        parse_nest(text)


def test_comments_and_commas_around_steps() -> None:
    plain = parse_trace("Split('y.i0', 16)\nMaterialise('y', '#(y.i0) + 1', 'm')")
    text = "# first\n  Split('y.i0', 16),  # why\n\nMaterialise('y', '#(y.i0) + 1', 'm')  # a # b\n"
    assert parse_trace(text) == plain
    assert parse_trace(print_trace(plain)) == plain


def test_a_digest_is_the_same_in_every_process() -> None:
    trace = parse_trace("Split('y.i0', 16)\nVectorize('y.i0.1')")
    code = (
        "import tilewright.kernel.steps\n"
        "from tilewright.kernel.step import parse_trace, trace_digest\n"
        f"print(trace_digest(parse_trace({print_trace(trace)!r})))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == trace_digest(trace)
    assert trace_digest(trace[:1]) != trace_digest(trace)
