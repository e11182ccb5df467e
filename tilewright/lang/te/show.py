"""A schedule to look at: the loops, the buffers, and what each step did, as text or as one page.

It needs a group and a trace only, so that what the compiler chose itself can be shown as well.
"""

from __future__ import annotations

import difflib
import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tilewright.ir import dim as D
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.nest import Nest, start
from tilewright.kernel.step import Step
from tilewright.kernel.text import group_text, nest_text

from .page import page


@dataclass(frozen=True)
class Shown:
    """A trace with the nest before its first step and after each."""

    group: Group
    trace: tuple[Step, ...]
    nests: tuple[Nest, ...]

    @property
    def last(self) -> Nest:
        return self.nests[-1]

    def text(self) -> str:
        """The loop tree, the buffers with scope and size in bytes, and the steps."""
        rows = [(b.scope, b.name, shape_text(b), bytes_text(b)) for b in self.last.buffers]
        widths = [max(len(r[k]) for r in rows) for k in range(4)]
        table = ["  ".join(x.ljust(w) for x, w in zip(r, widths)).rstrip() for r in rows]
        numbered = [f"{k:>3}  {s}" for k, s in enumerate(self.trace, 1)] or ["     none yet"]
        parts = [
            f"{self.last.name}: {count_text(len(self.trace), 'step')}",
            "Loops\n" + "\n".join(f"  {x}" for x in loop_lines(self.last)),
            "Buffers\n" + "\n".join(f"  {x}" for x in table),
            "Steps\n" + "\n".join(numbered),
        ]
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        """One self-contained page."""
        pairs = zip(self.trace, pairwise(self.nests), strict=True)
        steps = [_step_html(k, s, a, b) for k, (s, (a, b)) in enumerate(pairs, 1)]
        return page(
            title=self.last.name,
            summary=self._summary(),
            loops=_code_html(loop_lines(self.last)),
            buffers="\n".join(_buffer_rows(self.last)),
            definition=_code_html(group_text(self.group).rstrip().splitlines()),
            steps="\n".join(steps) or "<p>No steps yet: these are the naive loops.</p>",
        )

    def _summary(self) -> str:
        inside = [b for b in self.last.buffers if b.scope not in ("in", "out")]
        counts = [
            count_text(len(self.group.stages), "stage"),
            count_text(len(self.trace), "step"),
            count_text(len(inside), "internal buffer"),
        ]
        return " · ".join(counts)


def present(group: Group, trace: Sequence[Step], html: str | Path | None) -> Path | None:
    """Print a trace, or write its page."""
    shown = show_trace(group, trace)
    if html is None:
        print(shown.text(), end="")
        return None
    path = Path(html)
    path.write_text(shown.html(), encoding="utf-8")
    return path


def show_trace(group: Group, trace: Sequence[Step]) -> Shown:
    """What a trace makes of a group, step by step."""
    nests = [start(group)]
    for s in trace:
        nests.append(s.apply(nests[-1]))
    return Shown(group, tuple(trace), tuple(nests))


def count_text(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def loop_lines(n: Nest) -> list[str]:
    """The loops and statements alone, as nest_text writes them."""
    lines = nest_text(n).rstrip().splitlines()[1:]
    heads = tuple(f"  {b.scope} {b.name}: " for b in n.buffers)
    kept = [x for x in lines if not x.startswith((*heads, "  combine "))]
    return [x.removeprefix("  ") for x in kept]


def shape_text(b: Buffer) -> str:
    return f"{b.dtype}[{','.join(map(str, b.shape))}]"


def bytes_text(b: Buffer) -> str:
    """`4096 bytes`, with the larger unit where it says more; `4*n bytes` where sizes are open."""
    size = D.ceildiv(b.size * b.dtype.bits, 8)
    if not isinstance(size, int):
        return f"{size} bytes"
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= scale:
            return f"{size} bytes ({size / scale:.4g} {unit})"
    return f"{size} bytes"


# ---- the page's pieces

_TOKEN = re.compile(r"[A-Za-z_][\w.]*|\d+(?:\.\d+)?(?:e[+-]?\d+)?|\s+|.")
_KEYWORDS = (
    "for parallel unroll lane tensor alloc barrier async commit wait prefetch"
    " in out local register shared"
).split()


def _word_html(word: str, first: bool) -> str:
    text = html.escape(word)
    if first and (word in _KEYWORDS or re.fullmatch(r"(block|thread)\.[xyz]", word)):
        return f'<b class="k {word.partition(".")[0]}">{text}</b>'
    return f'<span class="n">{text}</span>' if word[:1].isdigit() else text


def _line_html(line: str, fresh: set[int] | None = None) -> str:
    """A line in colours; `fresh` are the tokens to mark."""
    out, first = [], True
    for k, word in enumerate(_TOKEN.findall(line)):
        shown = _word_html(word, first)
        out.append(f"<mark>{shown}</mark>" if fresh and k in fresh else shown)
        first = first and word.isspace()
    return "".join(out)


def _code_html(lines: Sequence[str]) -> str:
    return "\n".join(_line_html(x) for x in lines)


def _buffer_rows(n: Nest) -> Iterator[str]:
    for b in n.buffers:
        cells = (b.name, b.scope, shape_text(b), bytes_text(b))
        yield "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>"


def _described(n: Nest) -> list[str]:
    """Loops, and the internal buffers, whose scope and shape steps change as well."""
    own = [b for b in n.buffers if b.scope not in ("in", "out")]
    return [*(f"{b.scope} {b.name}: {shape_text(b)}" for b in own), *loop_lines(n)]


def _step_html(number: int, s: Step, before: Nest, after: Nest) -> str:
    left, right = _described(before), _described(after)
    rows = "\n".join(_rows(left, right))
    what = _first_sentence(s)
    return (
        f'<details class="step" open><summary><span class="number">{number}</span>'
        f"<code>{html.escape(str(s))}</code></summary>\n"
        f"<p>{html.escape(what)}</p>\n"
        f'<table class="diff"><tr><th>before</th><th>after</th></tr>\n{rows}\n</table></details>'
    )


def _first_sentence(s: Step) -> str:
    """What the step's documentation begins with."""
    lines = (type(s).__doc__ or "").strip().split("\n\n")[0].split()
    return " ".join(lines)


def _rows(left: list[str], right: list[str]) -> Iterator[str]:
    matcher = difflib.SequenceMatcher(None, left, right, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            yield from _equal_rows(left[a:b])
            continue
        for k in range(max(b - a, d - c)):
            old = left[a + k] if a + k < b else None
            new = right[c + k] if c + k < d else None
            gone, fresh = _token_changes(old or "", new or "")
            yield f"<tr>{_cell(old, 'old', gone)}{_cell(new, 'new', fresh)}</tr>"


# Longer stretches that did not change are folded, with so many lines shown on either side.
_CONTEXT = 3


def _equal_rows(lines: list[str]) -> Iterator[str]:
    if len(lines) <= 2 * _CONTEXT + 1:
        yield from (f"<tr>{_cell(x)}{_cell(x)}</tr>" for x in lines)
        return
    yield from _equal_rows(lines[:_CONTEXT])
    hidden = f"{len(lines) - 2 * _CONTEXT} lines as they were"
    yield f'<tr><td class="skip" colspan="2">{hidden}</td></tr>'
    yield from _equal_rows(lines[-_CONTEXT:])


def _cell(line: str | None, kind: str = "", marks: set[int] | None = None) -> str:
    if line is None:
        return '<td class="none"></td>'
    return f'<td class="{kind}">{_line_html(line, marks)}</td>'


def _token_changes(old: str, new: str) -> tuple[set[int], set[int]]:
    """Which tokens of two lines differ; none is marked where the lines have little in common."""
    a, b = _TOKEN.findall(old), _TOKEN.findall(new)
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    if not old or not new or matcher.ratio() < 0.4:
        return set(), set()
    gone, fresh = set[int](), set[int]()
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind != "equal":
            gone |= set(range(i, j))
            fresh |= set(range(k, m))
    return gone, fresh
