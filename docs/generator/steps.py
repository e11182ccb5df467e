"""The catalogue of schedule steps, from their registry and the texts that their tests check."""

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import tilewright.kernel.steps  # noqa: F401  (fills STEPS)
from docs.generator.pieces import block, code, details, doc_of, paragraphs, table
from tilewright.kernel.step import STEPS, Step, parse_trace

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "kernel" / "golden"

INTRODUCTION = """# Schedule steps

Generated from the registry of `tilewright/kernel/steps/`. A step is a checked function from a nest
of loops to a nest of loops. It refuses, in a sentence, where it cannot be done or where the result
could change; nothing is half-applied. A schedule is a tuple of steps, printed one per line as below
and read back by `tw.compile(f, schedules={kernel: trace})`.

The loops before and after each step are those that `tests/kernel/test_steps.py` checks: each of
them was run, and gave the same result. Names of loops begin with the stage that they belong to:
`y.i0` is the first axis of `y`, `s.r0` the first axis that `s` is summed over, `y.i0.1` the inner
half of a loop that was split. [How to write a step](../extend/step.md).
"""


@dataclass(frozen=True)
class Example:
    """One file of the tests: the loops, the step, the loops afterwards."""

    name: str
    before: str
    step: str
    after: str

    @property
    def shows(self) -> str:
        return type(parse_trace(self.step)[0]).__name__


def example(path: Path) -> Example:
    before, step, after = path.read_text().strip("\n").split("\n\n")
    return Example(path.stem, before, step, after)


def examples() -> dict[str, list[Example]]:
    """Those of every step, the plainest first: the one that is called as the step is."""
    found: dict[str, list[Example]] = {}
    for path in sorted(GOLDEN.glob("*.txt"), key=lambda p: (len(p.stem), p.stem)):
        made = example(path)
        found.setdefault(made.shows, []).append(made)
    return found


def shown(e: Example) -> str:
    return "\n".join(
        [
            block(e.before, "text", "before"),
            block(e.step, "python"),
            block(e.after, "text", "after"),
        ]
    )


def section(name: str, cls: type[Step], found: list[Example]) -> str:
    out = [f"## {name}\n", paragraphs(doc_of(cls))]
    rows = [
        [code(f.name), code(f.type), "" if f.default is MISSING else code(repr(f.default))]
        for f in fields(cls)
    ]
    if rows:
        out.append(table(["field", "type", "default"], rows))
    first, *others = found
    out.append(shown(first))
    for e in others:
        title = re.sub(r"[-_]", " ", e.name)
        out.append(details(f"Another example: {title}", shown(e)))
    return "\n".join(out)


def page() -> str:
    found = examples()
    parts = [section(name, cls, found[name]) for name, cls in sorted(STEPS.items())]
    return "\n".join([INTRODUCTION, *parts])
