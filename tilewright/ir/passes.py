"""Passes: frozen dataclasses with a text form, `Simplify{rounds=8}, FoldConstants`.

Subclassing `Pass` is all it takes; fields are options. What a pass expects of its place in a list
is declared with the class (`Order`), and `ir/pipeline.py` checks lists against it. Between passes
the named checks of the level run on request, and every stage can be written to a file that parses
back.
"""

from __future__ import annotations

import difflib
import inspect
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.ir.check import level_of, verify
from tilewright.ir.node import Graph, Node, node, rebuild
from tilewright.ir.reader import Reader
from tilewright.ir.rewrite import map_subgraphs, subgraphs
from tilewright.ir.target import Target
from tilewright.ir.text import attribute_text, read_attribute

PASSES: dict[str, type[Pass]] = {}
T = TypeVar("T")
P = TypeVar("P", bound="Pass")
_TARGET = "target"  # the key of a field's metadata


@dataclass(frozen=True)
class Order:
    """What a pass expects of the list that it stands in. Passes are named, so that a pass can be
    declared before those it refers to."""

    after: tuple[str, ...] = ()  # these stand before it, where the list has them
    before: tuple[str, ...] = ()  # these stand after it, where the list has them
    needs: tuple[str, ...] = ()  # the list has these, before it
    required: str = ""  # why every list has it
    repeats: bool = False  # it may stand in a list several times
    rounds: bool = False  # results may round differently: not with precision="strict"
    version: str = ""  # of a user's own pass: programs are cached for this version of its code
    inside: bool = False  # it goes into graphs of control flow by itself
    # What it makes of a part of a graph depends on what is near: equal regions become equal ones.
    regions: bool = False


@dataclass(frozen=True)
class Pass:
    """A program in, a program out. Subclasses are frozen dataclasses that define `apply`."""

    name: ClassVar[str] = ""
    order: ClassVar[Order] = Order()

    def __init_subclass__(
        cls,
        *,
        after: tuple[str, ...] = (),
        before: tuple[str, ...] = (),
        needs: tuple[str, ...] = (),
        required: str = "",
        repeats: bool = False,
        rounds: bool = False,
        version: str = "",
        inside: bool = False,
        regions: bool = False,
    ) -> None:
        super().__init_subclass__()
        cls.name = cls.__name__
        about = (after, before, needs, required, repeats, rounds, version, inside, regions)
        cls.order = Order(*about)
        known = PASSES.get(cls.name)
        if known is not None and known.__module__ != cls.__module__:
            raise TypeError(f"the pass {cls.name} is in {known.__module__} and {cls.__module__}")
        PASSES[cls.name] = cls

    def apply(self, program: Any, log: Log) -> Any:
        raise NotImplementedError(f"the pass {self.name} does nothing")

    @classmethod
    def of(cls: type[P], target: Target) -> P:
        """The pass without options, for a machine."""
        return cls().on(target)

    def on(self: P, target: Target) -> P:
        """The pass for a machine: fields that are `of_target` say what it is like."""
        known = {f.name: f.metadata[_TARGET](target) for f in fields(self) if _TARGET in f.metadata}
        return replace(self, **known) if known else self

    @property
    def rounds_differently(self) -> bool:
        return self.order.rounds

    @property
    def own(self) -> bool:
        """Was it defined by a user, outside this package?"""
        return not type(self).__module__.startswith("tilewright.")

    @classmethod
    def about(cls) -> str:
        """The first sentence of its description."""
        text = " ".join((inspect.getdoc(cls) or "").split())
        head, stop, _ = text.partition(". ")
        return head + stop.strip() if text and not text.startswith(f"{cls.__name__}(") else ""

    def __str__(self) -> str:
        """Options that differ from their default are shown."""
        shown = [
            f"{f.name}={attribute_text(getattr(self, f.name))}"
            for f in options(type(self))
            if f.default is MISSING or getattr(self, f.name) != f.default
        ]
        return f"{self.name}{{{', '.join(shown)}}}" if shown else self.name


def of_target(default: T, read: Callable[[Target], T]) -> T:
    """A field that says what the machine is like. It is no option, and no part of the text: `on`
    fills it in. The default is for a pass that is used without a target."""
    made: Any = field(default=default, metadata={_TARGET: read})
    return made


def options(cls: type[Pass]) -> list[Field[Any]]:
    """The fields that are for users to set."""
    return [f for f in fields(cls) if _TARGET not in f.metadata]


def passes_text(passes: Sequence[Pass]) -> str:
    return ", ".join(map(str, passes))


def parse_passes(text: str) -> tuple[Pass, ...]:
    """The passes that the text names, in order."""
    r = Reader(text, "passes")
    out: list[Pass] = []
    while not r.sees_kind("end"):
        out.append(_read_pass(r))
        if not r.take(","):
            r.end()
    return tuple(out)


def unknown(name: str) -> str:
    """That there is no such pass, and which ones there are."""
    near = difflib.get_close_matches(name, PASSES, 1)
    known = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(PASSES))}"
    return f"there is no pass {name}; {known}"


def _read_pass(r: Reader) -> Pass:
    t = r.token
    name = r.name("a pass")
    cls = PASSES.get(name)
    if cls is None:
        r.problem(unknown(name), t)
    given: dict[str, Any] = {}
    if r.take("{"):
        known = {f.name: f for f in options(cls)}
        while not r.take("}"):
            at = r.token
            key = r.name("an option")
            if key not in known:
                has = ", ".join(known) or "none"
                r.problem(f"{name} has no option {key}; it has {has}", at)
            r.expect("=")
            at = r.token
            given[key] = read_attribute(r)
            default = known[key].default
            if default not in (None, MISSING) and type(given[key]) is not type(default):
                kind, like = type(default).__name__, attribute_text(default)
                r.problem(f"{key} of {name} is no {kind}; the default is {like}", at)
            if not r.take(",") and not r.sees("}"):
                r.fail("',' or '}'")
    try:
        return cls(**given)
    except (TypeError, Invalid) as why:
        r.problem(str(why), t)


# ---- running


@dataclass(frozen=True)
class PassRun:
    """What a pass did: how many nodes there were and are, how many of these are new, seconds.

    `whole`: nodes of the program before the first pass, where passes saw a part of it: that without
    most of its equal regions.
    """

    text: str
    before: int
    after: int
    changed: int
    seconds: float
    whole: int = 0


def run(
    passes: Sequence[Pass],
    program: Any,
    log: Log,
    check: bool | None = None,
    dump: Path | None = None,
    prefix: str = "",
    between: Callable[[str, Any], Any] | None = None,
    runs: list[PassRun] | None = None,
) -> Any:
    """Apply the passes in order. `check` and `dump` default to their environment switches.

    `between` sees the program before the first pass ("input") and after each one, by the pass's
    name, and gives the program to go on with; it then takes the place of `dump`. What each pass did
    to a graph is added to `runs`.
    """
    check = knobs.check.get() if check is None else check
    dump = knobs.dump.get() if dump is None and between is None else dump
    for k, p in enumerate((None, *passes)):
        name = p.name if p is not None else "input"
        if p is not None:
            before, began = program, time.perf_counter()
            program = applied(p, program, log)
            if p.own:
                _same_kind(p, program, before)
            if runs is not None:
                runs.append(_compared(str(p), before, program, time.perf_counter() - began))
        if between is not None:
            program = between(name, program)
        if check or (p is not None and p.own):
            verify(program, after=str(p) if p is not None else "")
        if dump is not None:
            _write(dump, k, f"{prefix}{name}", program)
    return program


def applied(p: Pass, program: Any, log: Log) -> Any:
    """The program after the pass, which sees the graphs of branches and loops too, as programs of
    their own."""
    if isinstance(program, Graph) and not p.order.inside:
        if any(subgraphs(n.op) for n in program.nodes()):
            program = rebuild(program, lambda n: _inside(p, n, log))
    return p.apply(program, log)


def _inside(p: Pass, n: Node, log: Log) -> Node:
    op = map_subgraphs(n.op, lambda g: applied(p, g, log))
    return n if op is n.op else node(op, *n.inputs)


def _compared(text: str, before: Graph, after: Graph, seconds: float) -> PassRun:
    old = before.nodes()
    if after is before:
        return PassRun(text, len(old), len(old), 0, seconds)
    new, known = after.nodes(), set(old)
    return PassRun(text, len(old), len(new), sum(n not in known for n in new), seconds)


def _same_kind(p: Pass, new: Any, old: Any) -> None:
    """A user's pass keeps what the program is called with and what it gives."""
    wrong = None
    if not isinstance(new, type(old)):
        wrong = f"gives a {type(new).__name__}, not a {type(old).__name__}"
    elif isinstance(new, Graph) and new.inputs != old.inputs:
        wrong = "changes the inputs of the graph"
    elif isinstance(new, Graph) and [o.type for o in new.outputs] != [o.type for o in old.outputs]:
        wrong = "changes the number or the types of the graph's outputs"
    if wrong is not None:
        code = type(p).apply.__code__
        raise Invalid(
            f"the pass {p} {wrong}",
            where=f"{code.co_filename}:{code.co_firstlineno}",
            hint="return a graph with the same inputs, such as `rebuild` makes",
        )


def _write(folder: Path, number: int, name: str, program: Any) -> None:
    path = folder / f"{number:02}-{name}.tw"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(level_of(program).text(program) + "\n")
    except OSError as why:
        raise Invalid(
            f"the stage {path.name} cannot be written to {folder}: {why.strerror or why}",
            hint=f"give {knobs.dump.name} a directory that can be written",
        ) from None
