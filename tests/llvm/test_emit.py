"""The emitter decides nothing: the same nest gives the same text, and every step shows in it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.kernel.examples import EXAMPLES
from tests.kernel.native import Native
from tests.seeds import crossed
from tilewright.base.errors import Invalid, Refused
from tilewright.kernel.interpret import run
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest, find, start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Step, Trace, apply, parse_trace, print_trace
from tilewright.kernel.steps.set_scope import SetScope
from tilewright.kernel.steps.unroll import Unroll
from tilewright.kernel.text import group_text, parse_group, parse_nest
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.targets import default, get

MACHINES = ("x86-64", "x86-64-v3", "x86-64-v4")


@pytest.mark.parametrize("name", EXAMPLES)
def test_replaying_the_printed_trace_on_the_printed_group_gives_the_same_bytes(name: str) -> None:
    target = default()
    group = EXAMPLES[name].group
    trace, nest = default_schedule(group, target)
    text = emit(legalise(nest, target), target)
    again = apply(start(parse_group(group_text(group))), parse_trace(print_trace(trace)))
    assert emit(legalise(again, target), target) == text
    assert emit(legalise(nest, target), target) == text


def followed(n: Nest, trace: Trace) -> Nest:
    """The steps of a trace; those that need one which was left out fall away too."""
    for step in trace:
        try:
            n = step.apply(n)
        except Refused:
            continue
    return n


def writes_no_loop(step: Step, before: Nest) -> bool:
    """A scope is where memory lives; one iteration written out is that iteration."""
    if isinstance(step, Unroll):
        return all(x.extent == 1 for x, _ in find(before, step.loop))
    return isinstance(step, SetScope)


@pytest.mark.parametrize(("name", "part"), crossed(EXAMPLES, range(3), 3))
def test_deleting_a_step_changes_the_emitted_loops(name: str, part: int) -> None:
    """Each third step, from the first, the second or the third on."""
    target = default()
    group = EXAMPLES[name].group
    trace, nest = default_schedule(group, target)
    text = emit(legalise(nest, target), target)
    before = start(group)
    for k, step in enumerate(trace):
        if k % 3 == part and not writes_no_loop(step, before):
            other = followed(before, trace[k + 1 :])
            assert emit(legalise(other, target), target) != text, f"without {step!r}"
        before = step.apply(before)


@pytest.mark.parametrize(("name", "machine"), crossed(EXAMPLES, MACHINES, 3))
def test_objects_for_other_machines(name: str, machine: str) -> None:
    target = get(machine)
    _, nest = default_schedule(EXAMPLES[name].group, target)
    assert compile_object(emit(legalise(nest, target), target), target)[:4] == b"\x7fELF"


ODD = """
group k
  in a0: bf16[{n}]
  out y0: bf16[{n}]
  out y1: i8[{n}]
  y0[y0.i0] = cast<bf16>(#(y0.i0)) for y0.i0 in {n}
  y1[y1.i0] = cast<i8>(max(y0[y1.i0], a0[y1.i0])) for y1.i0 in {n}
"""


@pytest.mark.parametrize("n", range(2, 24))
def test_vectors_are_powers_of_two_wide(n: int) -> None:
    """Of other widths LLVM aborts on some: this cast of three, for one."""
    group = parse_group(ODD.format(n=n).strip())
    nest = apply(start(group), parse_trace("Vectorize('y0.i0')\nVectorize('y1.i0')"))
    native = Native(nest)
    widths = {int(w) for w in re.findall(r"<(\d+) x ", native.text)}
    assert all(w & (w - 1) == 0 for w in widths)
    a = np.linspace(-3, 20, n).astype(np.float32)
    got, expected = native({"a0": a}), run(nest, {"a0": a})
    np.testing.assert_array_equal(got["y0"], expected["y0"])
    np.testing.assert_array_equal(got["y1"], expected["y1"])


def test_a_nest_that_is_not_legal_is_refused() -> None:
    text = "nest k\n  out y: f32[13]\n  lane j in 13:\n    y: y[j] = 1.0\n"
    with pytest.raises(Invalid, match=r"nest k is not legal for .*lane j in 13 is no vector"):
        emit(parse_nest(text), default())


def test_only_some_buffers_of_unknown_size_have_room_on_the_stack() -> None:
    """Together no more than half of what the target allows."""
    target, count = default(), 24
    lines = ["nest k where n: 1..100000", "  in x: f32[n]", "  out y: f32[n]"]
    lines += [f"  local t{k}: f32[n]" for k in range(count)]
    lines += [f"  alloc t{k}" for k in range(count)]
    lines.append("  for i in n:")
    lines += [f"    t{k}: t{k}[i] = {f't{k - 1}' if k else 'x'}[i] + 1.0" for k in range(count)]
    lines.append(f"    y: y[i] = t{count - 1}[i]")
    nest = parse_nest("\n".join(lines))
    rooms = re.findall(r"alloca \[(\d+) x i8\]", emit(legalise(nest, target), target))
    assert 0 < sum(map(int, rooms)) <= target.stack // 2
    native = Native(nest, target)
    for n in (1, 1000, 60000):
        x = np.arange(n, dtype="f4")
        found = native({"x": x, "y": np.zeros_like(x)}, {"n": n})
        np.testing.assert_array_equal(found["y"], x + count)
