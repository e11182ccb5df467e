"""Legal nests: what each rewriting makes of a nest, and that the result stays what it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.kernel.examples import EXAMPLES
from tests.kernel.legal.cases import CASES
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
