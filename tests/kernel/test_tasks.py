"""Task graphs: their text, their checks, and runs of them on the executor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.seeds import crossed
from tilewright import targets
from tilewright.base.errors import Invalid
from tilewright.ir.check import CheckFailed
from tilewright.ir.types import bf16, to_memory
from tilewright.kernel import simt_tasks
from tilewright.kernel.check import verify
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.simt_tasks import Body
from tilewright.kernel.tasks import (
    Phase,
    TaskGraph,
    Use,
    Wait,
    check,
    faults,
    ordered,
    parse_tasks,
    print_tasks,
)
from tilewright.kernel.text import parse_group, parse_nest

TARGET = targets.get("cuda:80")
N = 2048  # elements of a vector: 8 blocks of 256 threads

MAP = f"""
group twice
  in x: f32[{N}]
  out y: f32[{N}]
  y[y.i] = x[{N - 1}-y.i] * 2.0 for y.i in {N}
"""


def chain(length: int) -> list[Phase]:
    """Maps one after the other, each of which reads what the one before wrote, in other blocks; two
    places of the arena in turn."""
    size = 4 * N
    out = []
    for k in range(length):
        source = Use("in0") if k == 0 else Use("arena", (k - 1) % 2 * size, size)
        into = Use("arena", k % 2 * size, size, True)
        out.append(Phase("twice", (8, 1, 1), 256, (source, into)))
    return out


def nest() -> Nest:
    return legalise(default_schedule(parse_group(MAP), TARGET)[1], TARGET)


def bodies(g: TaskGraph) -> list[Body]:
    made, code = [], nest()
    for p in g.phases:
        places = {n: (u.space, u.start) for n, u in zip("xy", p.uses, strict=True)}
        made.append(Body(code, 0, {}, places))
    return made


def run(g: TaskGraph, seed: int, calls: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.standard_normal(N).astype(np.float32)
    memory = {"in0": x.view(np.uint8).copy(), "arena": np.full(8 * N, 0xA5, np.uint8)}
    simt_tasks.run(g, bodies(g), memory, seed, calls)
    last = g.phases[-1].uses[-1].start
    got = memory["arena"][last : last + 4 * N].view(np.float32)
    length = len(g.phases)
    want = (x if length % 2 == 0 else x[::-1]) * np.float32(2**length)
    np.testing.assert_array_equal(got, want)
    return got


def graph(length: int = 5, blocks: int = 3) -> TaskGraph:
    return check(ordered(chain(length), blocks, 256), blocks)


def test_text_is_parsed_back() -> None:
    g = graph()
    assert parse_tasks(print_tasks(g)) == g
    assert "wait 0 8" in print_tasks(g)
    for text, said in (
        ("phases", "begins with"),
        ("tasks: 1 blocks of 32 threads, 0 counters\n  wait 1 2\n", "belongs to no phase"),
        (print_tasks(g) + "  sleep 3\n", "is no part of a phase"),
    ):
        with pytest.raises(Invalid, match=said):
            parse_tasks(text)


def test_waits_that_others_imply_are_left_out() -> None:
    # Phase 3 writes what phase 1 wrote and phase 2 read: it waits for phase 2 alone.
    assert [len(p.waits) for p in graph().phases] == [0, 1, 1, 1, 1]
    assert graph().counters == 4 and graph().phases[-1].counter == -1


@pytest.mark.parametrize(("blocks", "seed"), crossed([1, 3, 11], range(3), step=3))
def test_the_order_of_blocks_does_not_matter(blocks: int, seed: int) -> None:
    run(graph(blocks=blocks), seed, calls=2)


def with_phase(g: TaskGraph, k: int, **changes: Any) -> TaskGraph:
    p = replace(g.phases[k], **changes)
    return replace(g, phases=(*g.phases[:k], p, *g.phases[k + 1 :]))


FAULTS = {
    "a missing wait": (lambda g: with_phase(g, 2, waits=()), "does not wait", "orders them"),
    "a missing signal": (lambda g: with_phase(g, 1, counter=-1), "no phase adds", "no block can"),
    "a missing fence": (lambda g: with_phase(g, 1, release=False), "a fence", "orders them"),
    "a count too small": (
        lambda g: with_phase(g, 2, waits=(Wait(1, 3),)),
        "has 8 tasks",
        "orders them",
    ),
    "a count too large": (
        lambda g: with_phase(g, 2, waits=(Wait(1, 9),)),
        "has 8 tasks",
        "no block can",
    ),
    "a counter that is not reset": (
        lambda g: replace(g, counters=2),
        "only 2 are reset",
        "orders them",
    ),
    "a wait for itself": (
        lambda g: with_phase(g, 2, waits=(Wait(2, 8),)),
        "does not come before",
        "no block can",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    plant, said, seen = FAULTS[name]
    bad = plant(graph())
    assert any(said in x for x in faults(bad)), list(faults(bad))
    with pytest.raises(RunError, match=seen):
        for seed in range(20):  # a count that is too small is a race in some orders only
            run(bad, seed, calls=2)


def test_blocks_that_are_not_resident_are_refused() -> None:
    with pytest.raises(Invalid, match="only 2 are resident"):
        check(graph(), 2)


EARLY = """
nest streamed
  in w: f32[4,64]
  in x: f32[64]
  out y: f32[4]
  shared t: f32[64]
  local s: f32[1]
  block.x y.i0 in 4:
    alloc t
    thread.x t.i0 in 64:
      t: async t[t.i0] = w[y.i0,t.i0]
    commit
    await
    alloc s
    s: s[0] = 0.0
    wait 0
    thread.x s.r0 in 64:
      s: s[0] add= t[s.r0] * x[s.r0]
    thread.x y.i1 in 1:
      y: y[y.i0] = s[0]
"""


def early(first: str) -> TaskGraph:
    """A map, and products of its results with rows that are read before it is done."""
    made = Phase("k", (1, 1, 1), 64, (Use("in"), Use(first, writes=True)))
    uses = (Use("w"), Use("x"), Use("y", writes=True))
    return ordered([made, Phase("streamed", (4, 1, 1), 64, uses, early=("w",))], 3, 64)


def run_early(g: TaskGraph, seed: int) -> None:
    random = np.random.default_rng(seed)
    numbers = {"in": 64, "x": 64, "w": 4 * 64, "y": 4}
    memory = {k: random.standard_normal(n).astype("f4").view("u1") for k, n in numbers.items()}
    x, w = (memory[k].view("f4").copy() for k in ("in", "w"))
    double = parse_nest(
        "nest k\n  in a: f32[64]\n  out b: f32[64]\n  thread.x b.i0 in 64:\n"
        "    b: b[b.i0] = a[b.i0] + a[b.i0]\n"
    )
    into = next(u.space for u in g.phases[0].uses if u.writes)
    codes = [
        Body(double, 0, {}, {"a": ("in", 0), "b": (into, 0)}),
        Body(parse_nest(EARLY), 0, {}, {"w": ("w", 0), "x": ("x", 0), "y": ("y", 0)}),
    ]
    verify(codes[1].nest)
    simt_tasks.run(g, codes, memory, seed)
    want = w.reshape(4, 64).astype("f8") @ (2 * x.astype("f8"))
    np.testing.assert_allclose(memory["y"].view("f4"), want, rtol=1e-4, atol=1e-4)


def test_tasks_begin_before_they_wait() -> None:
    g = check(early("x"))
    assert g.phases[1].early == ("w",) and parse_tasks(print_tasks(g)) == g
    for seed in range(8):
        run_early(g, seed)


def test_what_an_earlier_phase_writes_is_not_read_early() -> None:
    """The graph waits before such tasks; one that does not is refused, and the executor sees it."""
    g = early("w")
    assert g.phases[1].early == () and not list(faults(g))
    bad = with_phase(g, 1, early=("w",))
    assert any("reads w before it waits" in x for x in faults(bad))
    with pytest.raises(RunError, match="orders them"):
        for seed in range(20):
            run_early(bad, seed)
    arena = with_phase(g, 1, early=("arena",))
    assert any("reads the arena before it waits" in x for x in faults(arena))


def test_only_copies_begin_before_the_wait() -> None:
    bad = EARLY.replace(
        "    await\n    alloc s\n    s: s[0] = 0.0\n", "    alloc s\n    s: s[0] = 0.0\n    await\n"
    )
    for text, said in (
        (bad, "more than copies of inputs is begun"),
        (
            EARLY.replace("    await\n", "    await\n    await\n"),
            "waits for earlier launches twice",
        ),
        (EARLY.replace("      t: async", "      await\n      t: async"), "twice"),
    ):
        with pytest.raises(CheckFailed, match=said):
            verify(parse_nest(text))


def test_narrow_numbers_are_codes_in_memory() -> None:
    text = MAP.replace("f32[", "bf16[").replace("* 2.0", f"+ x[{N - 1}-y.i]")
    code = legalise(default_schedule(parse_group(text), TARGET)[1], TARGET)
    x = np.arange(N, dtype=np.float32) % 128
    memory = {
        "a": to_memory(x, bf16).view(np.uint8).copy(),
        "b": np.zeros(2 * N, np.uint8),
    }
    uses = (Use("a"), Use("b", writes=True))
    tasks = len(simt_tasks._Code(Body(code, 0, {}, {}), 0).points)
    g = ordered([Phase("k", (tasks, 1, 1), 256, uses)], 2, 256)
    simt_tasks.run(g, [Body(code, 0, {}, {"x": ("a", 0), "y": ("b", 0)})], memory)
    want = to_memory(x[::-1] * 2, bf16).view(np.uint8)
    np.testing.assert_array_equal(memory["b"], want)
