"""`tilewright optimize`: a search for a faster graph, and what it found: as text and as a page."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tilewright.base.events import Log, recording
from tilewright.driver.looking.picture import around, picture
from tilewright.driver.looking.rules import words
from tilewright.driver.looking.shown import Column, Shown
from tilewright.driver.program.compile import prepare
from tilewright.driver.program.default_passes import chosen_passes
from tilewright.driver.program.options import Options
from tilewright.driver.program.searched import Measured, with_search
from tilewright.ir.node import Graph, Node
from tilewright.ir.pattern import Rule
from tilewright.ir.pipeline import Pipeline
from tilewright.superopt.search import Found, mined_rules, searched_rules
from tilewright.superopt.search_pass import Search
from tilewright.superopt.terms import Equality
from tilewright.targets import default as default_target

DRAWN = 40  # changed operators of a picture, at most

Compile = Callable[[Pipeline], object]
"""The program compiled by these passes with `optimize="search"`."""


@dataclass(frozen=True)
class Searched:
    """One graph of the program: what was found of its pieces, and what a clock said."""

    name: str
    found: tuple[tuple[Found, int], ...]
    measured: Measured

    @property
    def better(self) -> list[tuple[Found, int]]:
        return [(f, times) for f, times in self.found if f.proof]

    @property
    def limits(self) -> list[str]:
        """What a larger budget could change."""
        pieces, different = sum(times for _, times in self.found), len(self.found)
        late = sum(f.ended == "seconds" for f, _ in self.found)
        said = []
        if pieces > 1:
            said.append(f"searched in {pieces} pieces, {different} of them different")
        if late:
            said.append(f"the budget ended {late} of {different} searches: another run may differ")
        return said


def passes(given: str | None, seconds: int) -> Pipeline:
    """The list of passes with a search that may take so long."""
    listed = with_search(chosen_passes(given, default_target(), "reassociate"))
    return listed.replacing(Search.name, Search(seconds=seconds))


def searched(listed: Pipeline, compile: Compile) -> list[Searched]:
    """Compile, and what the searches of all graphs found."""
    with recording() as heard:
        compile(listed)
    judged = [e.data for e in heard.of("search") if "measured" in e.data]
    return [
        Searched(x["graph"].name, tuple(_found(x["graph"], x["passes"])), x["measured"])
        for x in judged
    ]


def _found(graph: Graph, listed: Pipeline) -> Iterator[tuple[Found, int]]:
    """What a search finds of a graph: the same each time."""
    log = Log()
    prepare(graph, Options(passes=listed), default_target(), log)
    for e in log.of("search"):
        if "found" in e.data:
            yield e.data["found"], e.data["times"]


# ---- text


_COLUMNS: dict[str, Column] = {
    "#": "#",
    "rule": lambda r: f"{r['rule']}, {r['times']} times" if r["times"] > 1 else r["rule"],
    "of": "of",
    "what it says": "says",
}


def show(found: Iterable[Searched], page: Path | None, out: Shown) -> int:
    """Print what was found; write it as a page."""
    found, graphs = list(found), list[dict[str, Any]]()
    for s in found:
        out.say(f"{s.name}: {s.measured}", "bold")
        for said in s.limits:
            out.say(said)
        pieces = []
        for f, times in s.better:
            out.say(summary(f, times))
            rules = [
                {"#": k, "rule": rule, "of": type_, "times": count, "says": statement(rule)}
                for k, (rule, type_, count) in enumerate(applications(f), 1)
            ]
            out.table("", rules, _COLUMNS)
            estimate = {"before": f.before, "after": f.after}
            pieces.append({"times": times, "estimated_seconds": estimate, "rules": rules})
        graphs.append({"name": s.name, "measured": str(s.measured), "pieces": pieces})
    out.put(graphs=graphs)
    if not any(s.better for s in found):
        out.say("no rule leads to a cheaper graph")
    if page is not None:
        page.write_text(page_of(found))
        out.say(f"a page with pictures and proofs is in {page}")
    return 0


def summary(f: Found, times: int) -> str:
    often = f" ({times} times in the graph)" if times > 1 else ""
    gone, new = (_counted(nodes) for nodes in (f.removed, f.added))
    return (
        f"{f.before * 1e6:.1f} us by the estimate, then {f.after * 1e6:.1f}{often}: "
        f"{gone} became {new}"
    )


def _counted(nodes: Iterable[Node]) -> str:
    count = Counter(n.op.name for n in nodes if n.inputs)
    return ", ".join(f"{n} {name}" for name, n in sorted(count.items())) or "nothing"


def applications(f: Found) -> list[tuple[str, str, int]]:
    """Rules in the order in which they are applied, what they were applied to, and how often in a
    row."""
    out: list[tuple[str, str, int]] = []
    for step in f.proof:
        rule, type_ = step.rule, str(step.after.type)
        if out and out[-1][:2] == (rule, type_):
            out[-1] = rule, type_, out[-1][2] + 1
        else:
            out.append((rule, type_, 1))
    return out


def _known(label: str) -> Rule | Equality | None:
    name = label.removesuffix(", of several").removesuffix(", back")
    by_hand = {r.label: r for r in searched_rules()}
    return mined_rules().get(name) or by_hand.get(label)


def statement(label: str) -> str:
    rule = _known(label)
    return "" if rule is None else str(rule).removeprefix(f"{label}: ")


# ---- page

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { padding: .2rem .8rem; text-align: left;
border-bottom: 1px solid #ddd } figure { overflow-x: auto; border: 1px solid #ddd; margin: 1rem 0;
padding: .5rem } code { font-size: 13px } summary { cursor: pointer }
"""


def page_of(found: Iterable[Searched]) -> str:
    """One file that needs nothing else: what changed, why it is the same, what it gained."""
    parts: list[str] = []
    for s in found:
        said = "; ".join((str(s.measured), *s.limits))
        parts.append(f"<h1>{escape(s.name)}</h1><p>{escape(said)}</p>")
        for f, times in s.better:
            parts.append(f"<p>{escape(summary(f, times))}</p>")
            for title, graph, marked in (
                ("before", f.given, f.removed),
                ("after", f.graph, f.added),
            ):
                drawn = picture(around(graph, marked, DRAWN), marked)
                more = len(marked) - DRAWN
                also = f", and {more} more operators" if more > 0 else ""
                parts.append(f"<h2>{title}{also}</h2><figure>{drawn}</figure>")
            parts.append(_rules_table(f))
    body = "\n".join(parts)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>tilewright optimize</title>'
        f"<style>{_STYLE}</style><body>{body}</body></html>\n"
    )


def _rules_table(f: Found) -> str:
    rows: list[str] = []
    for k, (label, type_, count) in enumerate(applications(f), 1):
        rule = _known(label)
        proof = "".join(f"<li>{escape(line)}</li>" for line in (words(rule) if rule else ()))
        said = f"<details><summary>proof</summary><ol>{proof}</ol></details>" if proof else "tested"
        often = f" ({count} times)" if count > 1 else ""
        rows.append(
            f"<tr><td>{k}</td><td>{escape(label)}{often}</td><td><code>{escape(type_)}</code></td>"
            f"<td><code>{escape(statement(label))}</code>{said}</td></tr>"
        )
    head = "<tr><th>#</th><th>rule</th><th>of</th><th>what it says</th></tr>"
    return f"<h2>rules, in order</h2><table>{head}{''.join(rows)}</table>"


# ---- progress


@contextmanager
def progress(out: Shown, what: str, seconds: int) -> Iterator[None]:
    """A bar that fills as the budget is used, with what was heard last."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    ended = threading.Event()
    with recording() as heard, Progress(*columns, console=out.progress, transient=True) as bar:
        task, began = bar.add_task(what, total=seconds), time.monotonic()

        def follow() -> None:
            while not ended.wait(0.2):
                last = heard.events[-1:]
                said = f"{what}: {last[0].kind}" if last else what
                bar.update(task, completed=time.monotonic() - began, description=said)

        watcher = threading.Thread(target=follow, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()
