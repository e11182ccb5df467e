"""Random tests as values: what draws a case, what judges it, what makes it smaller.

A module of the tests joins `python -m tests.nightly` with one line:

    GENERATOR = Generator("torch", draw=random_program, failure=failure, smaller=smaller, ...)

and one that has a function which raises AssertionError for a seed that fails with

    GENERATOR = checked("calls", check_seed)

`draw` makes the same case from the same seed, `failure` runs it and says what is wrong, `smaller`
yields simpler cases (the simplest first), and `as_code` writes a case as Python that calls
`reproduce`. What a process cannot report about itself (it aborts, hangs or takes all memory) is
seen by the one that started it: see tests/worker.py.
"""

from __future__ import annotations

import ast
import importlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# A compilation that takes longer is a failure of its own.
SLOW_COMPILE = 10.0


@dataclass(frozen=True)
class Failure:
    """What is wrong with a case. Cases that fail alike have equal kinds."""

    kind: str
    text: str
    # One of: wrong (a wrong result), error (an exception), slow (a compilation beyond the limit),
    # abort (the process ended), hang (it did not), memory (it took too much); or skipped, which is
    # no failure: the case tells nothing about the compiler, and the kind says why.
    what: str = "wrong"

    @property
    def skipped(self) -> bool:
        return self.what == "skipped"

    def __str__(self) -> str:
        return f"{self.what}, {self.kind}\n{self.text}"


def skipped(why: str, text: str = "") -> Failure:
    """A case that cannot be judged. The reason is said of several: "eager refuses them"."""
    return Failure(why, text, "skipped")


class Skipped(Exception):
    """The same, from a function that `checked` wraps."""


def _no_smaller(case: Any) -> Iterator[Any]:
    return iter(())


@dataclass(frozen=True)
class Generator:
    """One kind of random test."""

    name: str
    draw: Callable[[int], Any]
    failure: Callable[[Any], Failure | None]
    smaller: Callable[[Any], Iterator[Any]] = _no_smaller
    # A case as a Python file: its text, less what `header` writes.
    as_code: Callable[[Any], str] | None = None
    # What a case is made of in few words: findings that agree in it and in kind are one finding.
    about: Callable[[Any], str] = field(default=lambda case: "")
    # What every case needs and nothing remembers: imports that happen late, say. Run once before
    # processes are forked.
    prepare: Callable[[], None] = field(default=lambda: None)
    seconds: float = 60.0  # that a draw may take before it counts as hanging


def checked(
    name: str, check_seed: Callable[[int], object], error: type[Exception] = AssertionError
) -> Generator:
    """A generator around a function that raises, with a report, for a seed that fails."""

    def failure(seed: int) -> Failure | None:
        try:
            check_seed(seed)
        except Skipped as problem:
            return skipped(str(problem))
        except error as problem:
            text = str(problem)
            head = next((line for line in text.splitlines() if line.strip()), "")
            return Failure(_without_numbers(head), text)
        return None

    return Generator(name, int, failure)


def _without_numbers(text: str) -> str:
    return "".join("#" if c.isdigit() else c for c in text)[:80]


# ---- how long compiling took


class Stopwatch:
    """The longest compilation since it was reset, in seconds."""

    longest = 0.0


stopwatch = Stopwatch()


@contextmanager
def compiling() -> Iterator[None]:
    """Inside this block a program is compiled.

    The time is the smaller of the clock's and of the processor's: on a busy machine the clock also
    counts the others, and several threads together count more than the clock.
    """
    wall, busy = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        seconds = min(time.perf_counter() - wall, time.process_time() - busy)
        stopwatch.longest = max(stopwatch.longest, seconds)


def judged(generator: Generator, case: Any) -> tuple[Failure | None, float]:
    """What is wrong with a case, and how long its longest compilation took: where nothing else is
    wrong, that may be."""
    stopwatch.longest = 0.0
    found = generator.failure(case)
    took = stopwatch.longest
    if found is None and took > SLOW_COMPILE:
        text = f"compiling took {took:.1f} s, allowed are {SLOW_COMPILE:.0f} s"
        found = Failure("slow compile", text, "slow")
    return found, took


# ---- which there are


def names() -> dict[str, str]:
    """The modules of all generators by the generator's name; nothing is imported."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "\nGENERATOR" not in text:
            continue
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name in _registered(ast.parse(text)):
            if name in found:
                raise ValueError(f"two generators are called {name}: {found[name]} and {module}")
            found[name] = module
    return found


def _registered(tree: ast.Module) -> Iterator[str]:
    """The names given at `GENERATOR = …(name, …)`, or in a list of such at `GENERATORS = …`."""
    for statement in tree.body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        if statement.targets[0].id not in ("GENERATOR", "GENERATORS"):
            continue
        given = statement.value
        for call in given.elts if isinstance(given, ast.List | ast.Tuple) else [given]:
            first = call.args[0] if isinstance(call, ast.Call) and call.args else None
            if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
                raise ValueError(f"line {statement.lineno}: a generator is named by a string")
            yield first.value


def load(name: str, module: str) -> Generator:
    found = importlib.import_module(module)
    several = getattr(found, "GENERATORS", None) or [found.GENERATOR]
    return next(g for g in several if g.name == name)


# ---- findings as files


def file_text(
    generator: Generator, module: str, seed: int, case: Any, failure: Failure, note: str = ""
) -> str:
    """A Python file that shows a failure and exits with 1 as long as it is there."""
    about = [f"{generator.name}, seed {seed}: {failure.what}", failure.kind, "", failure.text]
    about += ["", note] if note else []
    quoted = "\n".join(about).replace("\\", "\\\\").replace('"""', "'''")
    header = f'"""{quoted.strip()}\n"""\n\nimport sys\n\nsys.path.insert(0, {str(ROOT)!r})\n'
    if generator.as_code is None or case is None:
        body = (
            "from tests.generators import reproduce_seeds\n\n"
            f"reproduce_seeds({generator.name!r}, {module!r}, [{seed}])\n"
        )
    else:
        body = generator.as_code(case)
    return header + body


def reproduce(generator: Generator, case: Any) -> None:
    """Run a case, print what is wrong with it, and exit with 1; with 0 where nothing is."""
    found, took = judged(generator, case)
    print(found if found is not None else f"right; compiled in {took:.2f} s")
    raise SystemExit(found is not None and not found.skipped)


def reproduce_seeds(name: str, module: str, seeds: list[int]) -> None:
    """Run drawn cases one after the other in this process; the last one is the one that fails."""
    generator = load(name, module)
    for seed in seeds[:-1]:
        judged(generator, generator.draw(seed))
    reproduce(generator, generator.draw(seeds[-1]))
