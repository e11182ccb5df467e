"""Every step: the loops before and after as golden text, the same result, and its refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.kernel.attention_examples import (
    ALL_THREE,
    COPIES,
    IN_GROUPS,
    IN_PARTS,
    MANY_COPIES,
    ONLINE,
    THRICE,
)
from tests.kernel.box_groups import ALL_BOXED, BOXED, BOXES, ONE_FOR_ALL
from tests.kernel.fuzz import Judge
from tests.kernel.step_examples import (
    AHEAD,
    BEFORE,
    BROADCAST,
    CHAIN,
    COPIED,
    COPY,
    DIAGONAL,
    DOWN,
    EMPTY,
    EXAMPLES,
    FROM,
    GATHER,
    GRID,
    LATE,
    LATER,
    LOWEST_BEFORE,
    MAP,
    MATRICES,
    OUTPUTS,
    PACKED,
    PART,
    PIPED,
    POOLED,
    ROWS,
    RUNNING,
    SCALED,
    SCAN,
    SCANNED,
    SCATTER,
    SCATTERED,
    SOME_PARTS,
    STREAMED,
    SUM,
    SYMBOLIC,
    TRIANGLE,
    TURNED,
    TWO,
    WINDOW,
)
from tests.kernel.step_groups import DEFERRED
from tilewright.base.errors import Refused
from tilewright.ir import dim as D
from tilewright.kernel.check import verify
from tilewright.kernel.group import Group
from tilewright.kernel.interpret import run
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import STEPS, apply, parse_trace
from tilewright.kernel.text import nest_text, parse_group, parse_nest
from tilewright.targets import families

families()  # declares the instructions that steps may name

# What not every CPU has; test_simt.py and tests/targets run these.
NOT_NATIVE = ("bind", "synchronise", "set-scope-shared", "tensorize", "pipeline-asynchronous")
NOT_NATIVE += (
    "swizzle",
    "distribute",
    "begin-early",
    "roles",
    "bring-once",
    "walk",
    "mirror",
    "reverse",
    "join-copies",
    "wait-once",
    "delay",
    "hasten",
    "defer",
    "add-atomically",
    "finish-last",
    "finish-last-columns",
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_before_and_after(name: str, golden: Callable[[str, str], None]) -> None:
    text, before, step = EXAMPLES[name]
    g = parse_group(text) if text.strip().startswith("group") else parse_nest(text.strip("\n"))
    n = apply(start(g) if isinstance(g, Group) else g, parse_trace(before))
    (s,) = parse_trace(step)
    after = s.apply(n)
    golden(name, f"{nest_text(n)}\n{s}\n\n{nest_text(after)}")
    if isinstance(g, Nest):
        verify(after)
        assert nest_text(after) != nest_text(n)
        rng = np.random.default_rng(0)
        inputs = [b for b in g.buffers if b.scope == "in"]
        shapes = [tuple(D.evaluate(d, {}) for d in b.shape) for b in inputs]
        given = {b.name: rng.integers(-9, 9, x) for b, x in zip(inputs, shapes, strict=True)}
        for x, y in zip(run(n, given).values(), run(after, given).values(), strict=True):
            np.testing.assert_array_equal(x, y)
        return
    sizes = [{"n": k} for k in (1, 4, 7)] if g.dims() else [{}]
    judge = Judge(g, sizes)
    judge.exact = False
    for k in range(len(sizes)):
        judge.nest(after, k)
    if name not in NOT_NATIVE:
        judge.native(after)
    assert nest_text(after) != nest_text(n)


def test_every_step_has_an_example() -> None:
    shown = {type(parse_trace(step)[0]).__name__ for _, _, step in EXAMPLES.values()}
    assert shown == set(STEPS)


# (group, steps before, the step, what its refusal says)
REFUSALS = [
    (MAP, "", "Split('y.i7', 4)", "there is no loop y.i7"),
    (MAP, "", "Library(('y',))", "not one sum of products"),
    (MATRICES, "", "Library(('s', 'y'))", "more is done to the sums than a conversion"),
    (MATRICES, "Split('s.i0', 2)", "Library(('s',))", "not stored element by element"),
    (MATRICES, "Library(('s',))", "Split('s.i1', 2)", "a library is called for these loops"),
    (MAP, "", "Split('y.i0', 0)", "0 is not a positive factor"),
    (MAP, "", "Split('y.i0', -2)", "-2 is not a positive factor"),
    (GRID, "Vectorize('y.i1')", "Split('y.i1', 2)", "y.i1 is already lane"),
    (GRID, "", "Reorder(('y.i0',))", "two or more"),
    (GRID, "", "Reorder(('y.i0', 'y.i0'))", "two or more different"),
    (TWO, "", "Reorder(('y.i0', 't.i1'))", "not perfectly nested"),
    (GRID, "Parallel('y.i0')", "Reorder(('y.i1', 'y.i0'))", "y.i0 is already parallel"),
    (GRID, "Vectorize('y.i1')", "Reorder(('y.i1', 'y.i0'))", "y.i1 is already lane"),
    (MAP, "Split('y.i0', 16)", "Reorder(('y.i0.1', 'y.i0.0'))", "depends on y.i0.0"),
    (DIAGONAL, "", "Reorder(('s.i1', 's.i0'))", "s.i0 carries an order: an iteration .* reads"),
    (GRID, "", "Fuse('y.i1', 'y.i0', 'f')", "y.i0 is not the only thing inside y.i1"),
    (GRID, "", "Fuse('y.i0', 'y.i1', 'y.i0')", "something called y.i0 already"),
    (GRID, "", "Fuse('y.i0', 'y.i1', 'two words')", "'two words' is not a name"),
    (GRID, "Parallel('y.i0')", "Fuse('y.i0', 'y.i1', 'f')", "both loops must be serial"),
    (MAP, "Split('y.i0', 16)", "Fuse('y.i0.0', 'y.i0.1', 'f')", "depends on y.i0.0"),
    (GRID, "", "FuseAxes('y', 0)", "y is an argument"),
    (TWO, "", "FuseAxes('t', 1)", "t has no axes 1 and 2"),
    (POOLED, DOWN, "Slide('y', 0, 1)", "y is an argument"),
    (POOLED, DOWN, "Slide('w', 1, 3)", "has no two axes 1 and 3"),
    (POOLED, DOWN, "Slide('w', 0, 2)", "do not move by one number of places"),
    (POOLED, DOWN, "Slide('w', 2, 1)", "do not move by one number|more than their"),
    (POOLED, f"{DOWN}\nSplit('w.i1', 2)", "Slide('w', 1, 2)", "is not all of one loop"),
    (POOLED, f"{DOWN}\nUnroll('w.r1')", "Slide('w', 1, 2)", "w.r1 is already unroll"),
    (MATRICES, "RFactor('s', ('s.r0',), 'w')", "Slide('w', 1, 2)", "do not move by one number"),
    (GRID, "", "Parallel('y.i0', 0)", "0 is not a positive grain"),
    (GRID, "", "Parallel('y.i0', 1, -1)", "-1 is no usual size"),
    (GRID, "", "Parallel('y.i1')", "y.i1 is inside y.i0"),
    (SUM, "Reorder(('s.r0', 's.i0'))", "Parallel('s.r0')", "accumulates into s"),
    (SCAN, "Split('s.i1', 9)", "Parallel('s.i1.0')", "s.i1.0 is inside s.i0"),
    (SCATTER, "", "Parallel('y.i0')", "different iterations of y.i0 write y"),
    (SCATTER, "Split('y.i0', 3)", "Vectorize('y.i0.1')", "different iterations"),
    (SCAN, "", "Vectorize('s.i1')", "which another one writes"),
    (MAP, "", "Vectorize('y.i0')", "100 lanes are too many"),
    (SYMBOLIC, "", "Vectorize('y.i0')", "not a constant"),
    (GRID, "Vectorize('y.i1')", "Vectorize('y.i0')", "lane y.i1 is inside y.i0"),
    (DIAGONAL, "", "Vectorize('s.i0')", "s.i0 carries a dependence: an iteration of s.i0 reads s"),
    (TRIANGLE, "Trim('s.r0')", "Vectorize('s.i0')", "the extent of s.r0 differs per lane"),
    (TWO, "ComputeAt('t', 'y.i0')", "Vectorize('y.i0')", "t is allocated per lane"),
    (MAP, "Split('y.i0', 4)", "ScanLanes('y.i0.1')", "is not around one store that carries"),
    (SYMBOLIC, "", "ScanLanes('y.i0')", "not a constant"),
    (SYMBOLIC, "", "Unroll('y.i0')", "not a constant"),
    (MAP, "", "Unroll('y.i0')", "100 copies are too many"),
    (GRID, "", "Peel('y.i0')", "y.i0 has no ragged tail"),
    (SUM, "", "Trim('s.r0')", "every iteration of s.r0 may matter"),
    (TRIANGLE, "", "Trim('y.i0')", "every iteration of y.i0 may matter"),
    (TRIANGLE, "Unroll('s.r0')", "Trim('s.r0')", "s.r0 is already unroll"),
    (BEFORE, "", "Trim('s.r0')", "every iteration of s.r0 may matter"),
    (LOWEST_BEFORE, "", "Trim('s.r0')", "every iteration of s.r0 may matter"),
    (LOWEST_BEFORE, "", "Trim('t.r0')", "every iteration of t.r0 may matter"),
    (SOME_PARTS, "", "Trim('p.r0')", "every iteration of p.r0 may matter"),
    (MAP, "Split('y.i0', 16); Parallel('y.i0.0')", "Peel('y.i0.0')", "already parallel"),
    (SYMBOLIC, "Split('y.i0', 32)", "Peel('y.i0.0', cases=True)", "31 cases of the tail"),
    (TWO, "", "ComputeAt('x', 'y.i0')", "x is an argument"),
    (TWO, "", "ComputeAt('q', 'y.i0')", "there is no buffer q"),
    (TWO, "", "ComputeAt('t', 'y.i9')", "there is no loop y.i9"),
    (TWO, "", "ComputeAt('t', 't.i0')", "there is no loop t.i0|nothing inside"),
    (TWO, "ComputeAt('t', 'y.i1')", "ComputeAt('t', 'y.i0')", "moves inwards only"),
    (TWO, "ComputeAt('t', 'y.i0')", "ComputeAt('t', 'y.i0')", "computed at y.i0 already"),
    (TWO, "Vectorize('y.i1')", "ComputeAt('t', 'y.i1')", "nothing can be allocated there"),
    (TWO, "Split('t.i1', 2)", "ComputeAt('t', 'y.i0')", "no longer one whole loop"),
    (
        MAP,
        "Split('y.i0', 16); Peel('y.i0.0'); CacheRead('x', 'y', 'c')",
        "ComputeAt('c', 'y.i0.1')",
        "2 copies that read c",
    ),
    (SCAN, "", "ComputeAt('s', 'y.i1')", "s reads itself"),
    (WINDOW, "ComputeAt('t', 'y.i0')", "ComputeInline('t')", "split or placed|placed inside"),
    (CHAIN, "", "ComputeWith('z', 'y.i0')", "t is used between z and y.i0"),
    (TWO, "", "ComputeWith('y', 'y.i0')", "y.i0 is a loop of y"),
    (OUTPUTS, "", "Join('b.i0', 'a.i0')", "a.i0 comes before b.i0"),
    (SUM, "", "Join('s.i0', 's.r0')", "do not run equally often|one body"),
    (AHEAD, "", "Join('t.i0', 'y.i0')", "which another one|before"),
    (MAP, "", "Join('y.i0', 'nothing')", "no loop"),
    (SUM, "", "ComputeWith('y', 's.r0')", "has no loop of extent 64"),
    (AHEAD, "", "ComputeWith('y', 't.i0')", "which another one writes as t"),
    (SUM, "", "ComputeInline('s')", "only a stage with one plain store"),
    (TWO, "", "ComputeInline('y')", "y is an output"),
    (TWO, "", "ComputeInline('nothing')", "there is no stage nothing"),
    (SCAN, "", "ComputeInline('s')", "s reads itself"),
    (
        TWO,
        "CacheRead('x', 't', 'c'); ComputeAt('c', 't.i0')",
        "ComputeInline('t')",
        "c is placed inside",
    ),
    (MAP, "", "CacheRead('x', 'y', 'x')", "something called x already"),
    (MAP, "", "CacheRead('y', 'y', 'c')", "y does not read y"),
    (MAP, "", "CacheRead('q', 'y', 'c')", "there is no buffer q"),
    (SCAN, "", "CacheRead('s', 's', 'c')", "s is written while s runs"),
    (SUM, "", "RFactor('s', ('s.i0',), 'p')", "s.i0 is not a reduction loop"),
    (SUM, "", "RFactor('s', ('s.r0',), 's')", "something called s already"),
    (SUM, "", "RFactor('s', (), 'p')", "name the loops"),
    (SUM, "", "RFactor('y', ('s.r0',), 'p')", "not loops of the reduction y"),
    (SUM, "Split('s.i0', 2)", "RFactor('s', ('s.r0',), 'p')", "split or placed"),
    (TWO, "", "SetScope('t', 'cache')", "cache is not a scope"),
    (TWO, "", "SetScope('y', 'register')", "y is an argument"),
    (SUM, "", "InitAt('y', 'y.i0')", "y is not a reduction"),
    (SUM, "", "InitAt('s', 's.r0')", "s.r0 accumulates into the same cells of s again"),
    (SUM, "Reorder(('s.r0', 's.i0'))", "InitAt('s', 's.i0')", "s.r0 accumulates into the same"),
    (SUM, "", "InitAt('s', 'y.i0')", "y.i0 is not a loop of the update alone"),
    (SUM, "ComputeAt('s', 'y.i0')", "InitAt('s', 'y.i0')", "not a loop of the update alone"),
    (SUM, "Split('s.init.i0', 2)", "InitAt('s', 's.i0')", "no longer one whole loop"),
    (SUM, "Split('s.i0', 2); Peel('s.i0.0')", "InitAt('s', 's.i0.0')", "1 and 2 statements"),
    (SUM, "ReverseComputeAt('y', 's.i0')", "InitAt('s', 's.i0')", "y reads s on the way"),
    (SCATTER, "", "InitAt('y', 'y.i0')", "y is not a reduction"),
    (PART, "", "InitAt('y', 'y.i0')", "do not reach all cells of y"),
    (SUM, "", "ReverseComputeAt('y', 's.r0')", "s is not complete in one iteration of s.r0"),
    (SUM, "", "ReverseComputeAt('s', 'y.i0')", "nothing inside y.i0 computes what s reads"),
    (ROWS, "", "ReverseComputeAt('y', 't.i1')", "t.i1 would compute the same cells of y piece"),
    (WINDOW, "", "ReverseComputeAt('y', 't.i0')", "y reads t at different places"),
    (TURNED, "", "ReverseComputeAt('y', 't.i0')", "does not read t along a loop of its own"),
    (CHAIN, "", "ReverseComputeAt('z', 'y.i0')", "nothing inside y.i0 computes what z reads"),
    (LATE, "", "ReverseComputeAt('y', 't.i0')", "y also reads u, which is computed there or later"),
    (SCANNED, "", "ReverseComputeAt('y', 't.i1')", "y reads itself at y.*, in another iteration"),
    (FROM, "", "ReverseComputeAt('y', 't.i0')", "y starts from values of t"),
    (TWO, "Vectorize('t.i1')", "ReverseComputeAt('y', 't.i1')", "t.i1 is lane"),
    (TWO, "Split('y.i0', 2)", "ReverseComputeAt('y', 't.i0')", "along a loop of its own"),
    (TWO, "", "DoubleBuffer('x')", "x is an argument"),
    (TWO, "", "DoubleBuffer('t')", "t is not allocated inside a loop"),
    (TWO, "", "Prefetch('q', 'y.i0')", "there is no buffer q"),
    (TWO, "", "Prefetch('x', 'y.i0')", "nothing in y.i0 reads or writes x"),
    (TWO, "", "Prefetch('x', 't.i0', 0)", "0 is not a positive distance"),
    (TWO, "ComputeAt('t', 'y.i0')", "Prefetch('t', 'y.i0')", "t is a new one in every iteration"),
    (GATHER, "", "Prefetch('x', 'y.i0')", "where x is read is itself read from memory"),
    (LATER, COPY, "Prefetch('x', 'y.i0', 1, 'y.i1')", "where x is read is itself read from memory"),
    (
        COPIED,
        "ComputeAt('t', 'y.i0')\nReorder(('t.i2', 't.i1'))",
        "Prefetch('x', 'y.i0', 1, 'y.i1')",
        "t.i1 does not read neighbours in x",
    ),
    (SUM, "", "Prefetch('x', 's.i0', 1, 'y.i0')", "y.i0 is no loop inside s.i0"),
    (SUM, "", "Prefetch('x', 's.i0', level=4)", "there is no cache of level 4"),
    (MAP, "", "Pragma('y.i0', 'fast', 1)", "fast is no pragma.*\n.*unroll, nontemporal"),
    (MAP, "", "Pragma('y.i0', 'unroll', 1000)", "1000 is not a value of unroll"),
    (GRID, "Unroll('y.i1')", "Pragma('y.i1', 'unroll', 2)", "y.i1 is already unroll"),
    (PACKED, "", "Pad('t', 0, 0)", "0 is not a positive factor"),
    (PACKED, "", "Pad('t', 1, 4)", "t has no axis 1"),
    (PACKED, "", "Pad('t', 0, 50)", "would touch w"),
    (TWO, "", "Permute('t', (0, 0))", "is not an order of 2 axes"),
    (TWO, "", "Permute('y', (1, 0))", "y is an argument"),
    (TWO, "", "Relayout('y', 'i, j -> j, i')", "y is an output"),
    (GRID, "", "Tile('y.i0', 'y.i0', 2, 2)", "a tile has two loops"),
    (BROADCAST, "", "Materialise('y', 'exp(z[y.i1])', 'e')", "y does not compute exp"),
    (BROADCAST, "", "Materialise('q', 'exp(x[y.i0])', 'e')", "there is no stage q"),
    (BROADCAST, "", "Materialise('y', 'exp(x[y.i0])', 'z')", "something called z already"),
    (WINDOW, "", "Materialise('y', 't[y.i0-1]', 'e')", "inside t only under a condition"),
    (WINDOW, "", "Materialise('y', '0.0', 'e')", "a number already"),
    (ONLINE, IN_PARTS, "Rebase('e', 't_f0')", "e is relative to another value"),
    (ONLINE, IN_PARTS, "Rebase('e', 't_0n')", "t_0n does not rescale to a greater maximum"),
    (ONLINE, IN_PARTS, "Rebase('s', 't_f1')", "s is not written once"),
    (ONLINE, IN_PARTS, "AddInto('s')", "t_1 is not something and s added to it"),
    (ONLINE, IN_PARTS, "AddInto('e')", "e is not one sum from 0"),
    (SUM, "", "Unmask('s.r0')", "no condition surely holds in the first iterations"),
    (MAP, "", "Reverse('y.i0')", "y.i0 is serial"),
    (MAP, "", "Mirror('y.i0', 4)", "y.i0 is serial, not blocks"),
    (MAP, "Bind('y.i0', 'block.x')", "Mirror('y.i0', 3)", "3 iterations are no pairs"),
    (MAP, "Bind('y.i0', 'block.x')", "Mirror('y.i0', 64)", "no multiple of 64"),
    (SCAN, "", "Backwards('s.i1')", "which another one writes"),
    (ONE_FOR_ALL, ALL_BOXED, "BringOnce(('u',))", "no loop with roles comes after u"),
    (BOXES, BOXED, "BringOnce(('t',))", "no loop with roles comes after t"),
    (ONE_FOR_ALL, BOXED + "Roles('y.i0.0', 2)", "BringOnce(('u',))", "u is not brought by"),
    (SCALED, "", "BeginEarly('y.i1')", "y.i1 does not stand in the body of a block"),
    (SCALED, STREAMED, "BeginEarly('y.i1.0')", "y.i1.0 waits for no copies"),
    (SCALED, f"{PIPED}\nBeginEarly('y.i1.0')", "BeginEarly('y.i1.0')", "no copies of inputs"),
    (COPIES, "SetScope('u', 'shared')", "JoinCopies('u')", "u is read before a group is committed"),
    (COPIES, IN_GROUPS, "JoinCopies('s')", "s is local"),
    (MANY_COPIES, IN_GROUPS, "JoinCopies('u')", "may have no iteration, and nothing else waits"),
    (GRID, "", "Delay('y.i0', 'y')", "y is no asynchronous product that y.i0 waits for"),
    (MAP, "Bind('y.i0', 'block.x')", "Pragma('y.i0', 'registers', 240)", "no loop has a producer"),
    (MAP, "Bind('y.i0', 'block.x')", "Pragma('y.i0', 'registers', 20)", "no multiple of 8"),
    (GRID, "", "Hasten('y.i0')", "y.i0 does not begin several asynchronous products"),
    (THRICE, ALL_THREE + "Hasten('o.r0')\n", "Hasten('o.r0')", "lets products go on already"),
    (DEFERRED, "", "Defer('a')", "is written before"),
    (DEFERRED, "ComputeAt('a', 'b.i0')", "Defer('a')", "a has no nest of its own"),
    (SCATTERED, "AddAtomically('y')", "AddAtomically('y')", "added up atomically already"),
    (MAP, "", "AddAtomically('y')", "y adds nothing up"),
    (GRID, "", "WaitOnce('y.i0')", "y.i0 does not end with a wait for products"),
    (TWO, "", "Components('t', 1)", "t is no tuple"),
    (RUNNING, "", "Components('t', 1)", "inside other loops than its own"),
    (RUNNING, "", "Components('t', 0)", "no components are the same along axis 0"),
    (RUNNING, "", "Components('t', 2)", "t has no axis 2"),
    (TWO, "ComputeAt('t', 'y.i0')", "Materialise('y', 't[0,y.i1]', 'e')", "written when y begins"),
    (
        MAP,
        "Split('y.i0', 16)",
        "Materialise('y', 'exp(x[16*y.i0.0+y.i0.1])', 'e')",
        "the extent of y.i0.1 varies",
    ),
    (GRID, "", "Tile('y.i0', 'y.i1', 2, 0)", "0 is not a positive factor"),
    (SUM, "", "Tile('y.i0', 's.i0', 2, 2)", "not perfectly nested"),
    (TWO, "", "Relayout('q', 'i, j -> j, i')", "there is no buffer q"),
    (TWO, "", "Relayout('t', 'i, j -> j//4, i')", "cannot be read back from its blocks"),
    (TWO, "", "Relayout('t', 'i -> i')", "takes 1 axes"),
    (TWO, "", "Relayout('t', 'i, j')", "has no '->'"),
    (
        TWO,
        "Relayout('x', 'i, j -> j, i')",
        "Relayout('x', 'i, j -> j, i')",
        "laid out by i, j -> j, i already",
    ),
]


@pytest.mark.parametrize(("text", "before", "step", "says"), REFUSALS, ids=lambda x: str(x)[:40])
def test_refusals(text: str, before: str, step: str, says: str) -> None:
    n = apply(start(parse_group(text)), parse_trace(before.replace("; ", "\n")))
    (s,) = parse_trace(step)
    with pytest.raises(Refused, match=says) as refusal:
        s.apply(n)
    assert str(refusal.value).startswith(type(s).__name__), "a refusal names its step"
    verify(n)


def test_a_hint_says_what_there_is() -> None:
    n = start(parse_group(TWO))
    with pytest.raises(Refused) as refusal:
        parse_trace("Split('t.i5', 2)")[0].apply(n)
    assert refusal.value.hint == "the loops are t.i0, t.i1, y.i0, y.i1"


def test_steps_do_not_change_the_nest_they_are_given() -> None:
    n = start(parse_group(MAP))
    text = nest_text(n)
    apply(n, parse_trace("Split('y.i0', 16)\nPeel('y.i0.0')\nVectorize('y.i0.1')"))
    assert nest_text(n) == text


def test_a_loop_that_may_be_empty_is_fused() -> None:
    """Code divides by its extent before the loop, which is never run then."""
    group = parse_group(EMPTY)
    nest = apply(start(group), parse_trace("Fuse('y.i0', 'y.i1', 'y.f')\nParallel('y.f', 4)"))
    judge = Judge(group, [{"n": 0}, {"n": 1}, {"n": 13}])
    for k in range(3):
        judge.nest(nest, k)
    judge.native(nest)
