"""A space of schedules: a trace some of whose arguments are decisions.

    rows = ordered(4, 6, 8, default=8)
    keep = choice(False, True, default=True)
    Split(loop='y.i0', factor=rows)
    attempt(Peel(loop='y.i0.0'))
    if keep == True: SetScope(buffer='t', scope='register')
    if rows != 4: Unroll(loop='y.i0.1')

It prints so and is read back. An assignment decides everything, and `replay` applies the steps in
order: one that the nest refuses makes the point illegal, unless it is only attempted. The steps
that were applied are an ordinary trace, which knows nothing of the space.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice, product
from math import prod
from random import Random

from tilewright.base.errors import Invalid, Refused, require
from tilewright.base.source import parse_expression
from tilewright.kernel.defaults.scheduler import Applied
from tilewright.kernel.nest import Nest, Work
from tilewright.kernel.step import STEPS, Step, Trace
from tilewright.tune.space.decision import (
    Argument,
    Assignment,
    Decision,
    Plain,
    argument_names,
    argument_text,
    argument_value,
    parse_argument,
)

# Values of a step's own decisions that are tried before a point is given up.
MOST_TRIES = 32
# How often a decision that is no size is drawn as by default, beside where it is so by chance.
USUAL = 0.6
# The decision that says which of several schedules a space was opened from.
SKETCH = "sketch"


@dataclass(frozen=True)
class Condition:
    """A decision is one value, or is not."""

    name: str
    value: Plain
    equal: bool = True

    def __str__(self) -> str:
        return f"{self.name} {'==' if self.equal else '!='} {self.value!r}"


@dataclass(frozen=True)
class OpenStep:
    """A step whose arguments may mention decisions; taken only where all conditions hold, and
    passed over where it is `attempted` and refused."""

    kind: type[Step]
    arguments: tuple[tuple[str, Argument], ...]
    when: tuple[Condition, ...] = ()
    attempted: bool = False

    @classmethod
    def of(cls, step: Step, attempted: bool = False, **opened: Argument) -> OpenStep:
        """A step of a trace with some of its arguments open."""
        given = {f.name: getattr(step, f.name) for f in fields(step)}
        usual = {f.name: f.default for f in fields(step)}
        shown = {k: v for k, v in given.items() if k in opened or v != usual[k]}
        return cls(type(step), tuple((shown | opened).items()), attempted=attempted)

    def under(self, *conditions: Condition) -> OpenStep:
        """The same with more conditions."""
        return replace(self, when=(*self.when, *conditions))

    def __str__(self) -> str:
        given = ", ".join(f"{name}={argument_text(x)}" for name, x in self.arguments)
        shown = f"{self.kind.__name__}({given})"
        shown = f"attempt({shown})" if self.attempted else shown
        tests = " and ".join(map(str, self.when))
        return f"if {tests}: {shown}" if tests else shown

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The decisions that it depends on."""
        inside = (n for _, x in self.arguments for n in argument_names(x))
        return tuple(dict.fromkeys((*(c.name for c in self.when), *inside)))

    def may_be_of(self, sketch: Plain) -> bool:
        return all((sketch == c.value) == c.equal for c in self.when if c.name == SKETCH)

    def holds(self, given: Assignment) -> bool:
        return all((given[c.name] == c.value) == c.equal for c in self.when)

    def step(self, given: Assignment) -> Step:
        return self.kind(**{name: argument_value(x, given) for name, x in self.arguments})


@dataclass(frozen=True)
class Point:
    """A legal point of a space: what was decided, the steps that were applied, their nest."""

    given: Assignment
    trace: Trace
    nest: Nest

    @property
    def key(self) -> Trace:
        """What tells points apart: assignments that lead to the same steps are one point."""
        return self.trace


@dataclass(frozen=True)
class Space:
    """Decisions and steps that depend on them; immutable, printed and parsed."""

    decisions: tuple[Decision, ...]
    steps: tuple[OpenStep, ...]

    def __post_init__(self) -> None:
        known: dict[str, Decision] = {}
        for d in self.decisions:
            require(d.name not in known, f"there are two decisions called {d.name}")
            known[d.name] = d
        for s in self.steps:
            for name in s.names:
                hint = f"the decisions are {', '.join(known) or 'none'}"
                require(name in known, f"{s} mentions {name}, which is no decision", hint=hint)
            for c in s.when:
                known[c.name].check(c.value)

    @cached_property
    def named(self) -> Mapping[str, Decision]:
        return {d.name: d for d in self.decisions}

    @property
    def size(self) -> int:
        """Assignments, legal or not."""
        return prod(len(d.values) for d in self.decisions)

    @property
    def default(self) -> Assignment:
        return {d.name: d.default for d in self.decisions}

    @cached_property
    def _conditions(self) -> frozenset[str]:
        """The decisions that steps are taken or not by."""
        return frozenset(c.name for s in self.steps for c in s.when)

    @cached_property
    def _of_sketch(self) -> Mapping[Plain, tuple[OpenStep, ...]]:
        """The steps of each sketch: most are of one alone."""
        which = self.named.get(SKETCH)
        values = which.values if which is not None else ()
        return {v: tuple(s for s in self.steps if s.may_be_of(v)) for v in values}

    def taken(self, given: Assignment) -> Iterator[OpenStep]:
        """The steps whose conditions hold."""
        some = self._of_sketch[given[SKETCH]] if SKETCH in self.named else self.steps
        return (s for s in some if s.holds(given))

    def complete(self, given: Assignment) -> Assignment:
        """An assignment in the order of the decisions, defaults where it says nothing."""
        for name, value in given.items():
            if name not in self.named:
                hint = f"the decisions are {', '.join(self.named) or 'none'}"
                raise Invalid(f"{name} is no decision of the space", hint=hint)
            self.named[name].check(value)
        return {d.name: given.get(d.name, d.default) for d in self.decisions}

    def relevant(self, given: Assignment) -> Assignment:
        """Without decisions that nothing depends on where the others are as they are: points that
        differ in these alone are one."""
        used = self._conditions.union(*(s.names for s in self.taken(given)))
        return {name: value for name, value in given.items() if name in used}

    def random(self, rng: Random) -> Assignment:
        return {d.name: rng.choice(d.values) for d in self.decisions}

    def replay(self, work: Work, given: Assignment, applied: Applied | None = None) -> Point:
        """The point of an assignment. Raises what the first illegal step says."""
        given, applied = self.complete(given), applied or Applied()
        nest, trace = applied.start(work), []
        for s in self.taken(given):
            step = s.step(given)
            try:
                nest = applied.apply(step, nest)
            except Refused:
                if not s.attempted:
                    raise
                continue
            trace.append(step)
        return Point(given, tuple(trace), nest)

    def legal(self, work: Work, given: Assignment, applied: Applied | None = None) -> Point | None:
        """The same; None where some step refuses."""
        try:
            return self.replay(work, given, applied)
        except (Refused, Invalid):
            return None

    def draw(
        self,
        work: Work,
        rng: Random,
        prefer: Callable[[Decision], Sequence[Plain]] | None = None,
        applied: Applied | None = None,
    ) -> Point | None:
        """A legal point at random, decided step by step: where a step is refused, the decisions
        that it is the first to use are made again. `prefer` gives the values of a decision in the
        order to try; by default any. None where nothing legal follows from earlier decisions."""
        applied = applied or Applied()
        nest, trace = applied.start(work), list[Step]()
        given: dict[str, Plain] = {}

        def shuffled(d: Decision) -> Sequence[Plain]:
            # What is no size is more often than not as it was: few copies, say, help at all.
            if not d.ordered and d.name != SKETCH and rng.random() < USUAL:
                return (d.default, *(v for v in d.values if v != d.default))
            return rng.sample(d.values, len(d.values))

        order = prefer or shuffled
        for s in self.steps:
            for c in s.when:
                if c.name not in given:
                    given[c.name] = order(self.named[c.name])[0]
            if not s.holds(given):
                continue
            new = [n for n in s.names if n not in given]
            tries = islice(product(*(order(self.named[n]) for n in new)), MOST_TRIES)
            for values in tries:
                given.update(zip(new, values, strict=True))
                step = s.step(given)
                try:
                    nest = applied.apply(step, nest)
                except (Refused, Invalid):
                    continue
                trace.append(step)
                break
            else:
                if not s.attempted:
                    return None
        return Point(self.complete(given), tuple(trace), nest)

    def __str__(self) -> str:
        return "".join(f"{x}\n" for x in (*self.decisions, *self.steps))


def closed(trace: Iterable[Step]) -> tuple[OpenStep, ...]:
    """The steps of a trace, with nothing open."""
    return tuple(OpenStep.of(s) for s in trace)


def parse_space(text: str) -> Space:
    """What a space prints."""
    decisions: list[Decision] = []
    steps: list[OpenStep] = []
    for k, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip() if line.strip().startswith("#") else line.strip()
        if not line:
            continue
        try:
            if "=" in (head := line.split("(")[0]) and not line.startswith("if "):
                decisions.append(_decision(head, line))
            else:
                steps.append(_open_step(line))
        except (SyntaxError, AssertionError, KeyError, TypeError, ValueError) as e:
            raise Invalid(
                f"line {k} of the space is neither a decision nor a step: {line!r} ({e})",
                hint="such as `rows = ordered(4, 8, default=8)` or `Split(loop='i', factor=rows)`",
            ) from None
    return Space(tuple(decisions), tuple(steps))


def _decision(head: str, line: str) -> Decision:
    name = head.split("=")[0].strip()
    call = parse_expression(line.split("=", 1)[1].strip())
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    assert call.func.id in ("ordered", "choice"), "it is `ordered` or `choice`"
    values = tuple(ast.literal_eval(a) for a in call.args)
    (default,) = (ast.literal_eval(a.value) for a in call.keywords if a.arg == "default")
    return Decision(name, values, default, call.func.id == "ordered")


def _open_step(line: str) -> OpenStep:
    when: list[Condition] = []
    if line.startswith("if "):
        tests, line = line[3:].split(": ", 1)
        found = parse_expression(tests)
        for test in found.values if isinstance(found, ast.BoolOp) else [found]:
            assert isinstance(test, ast.Compare) and isinstance(test.left, ast.Name)
            equal = isinstance(test.ops[0], ast.Eq)
            assert equal or isinstance(test.ops[0], ast.NotEq), "a test is == or !="
            when.append(Condition(test.left.id, ast.literal_eval(test.comparators[0]), equal))
    call = parse_expression(line)
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
    attempted = call.func.id == "attempt"
    if attempted:
        (inner,) = call.args
        assert isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name)
        call = inner
    assert isinstance(call.func, ast.Name) and not call.args, "arguments are named"
    kind = STEPS[call.func.id]
    arguments = tuple((a.arg, parse_argument(a.value)) for a in call.keywords if a.arg)
    return OpenStep(kind, arguments, tuple(when), attempted)
