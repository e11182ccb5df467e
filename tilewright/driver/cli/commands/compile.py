"""`tilewright compile`: what a model becomes, on this machine or for another one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.driver.cli.command import Command
from tilewright.driver.cli.models import NOTES, asked, model_arguments
from tilewright.driver.looking.explain import ProgramReport
from tilewright.driver.looking.shown import Column, Shown
from tilewright.driver.looking.tables import bytes_text, count, short_place
from tilewright.driver.program.elsewhere import code_elsewhere
from tilewright.driver.program.options import Options
from tilewright.ir.target import Target


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument("--dump", type=Path, metavar="DIR", help="write every stage there")
    parser.add_argument(
        "--target",
        metavar="NAME",
        help=f"compile for another processor than this one: {', '.join(targets.names())}",
    )


def _compile(given: argparse.Namespace, out: Shown) -> int:
    target = targets.get(given.target) if given.target else targets.default()
    if target.grid is not None:
        raise Invalid(
            f"{target.name} is a GPU: programs are compiled for one where it is",
            hint="--target names a processor",
        )
    here, dump = _runs(target), given.dump.resolve() if given.dump else knobs.dump.get()
    if given.dump and not here:
        raise Invalid(
            f"stages are written of programs that run here, and {target.name} is another machine",
            hint="leave --dump or --target out",
        )
    model, how = asked(given)
    name = given.target if given.target and here else knobs.target.get()
    overrides = knobs.dump.override(dump), knobs.target.override(name)
    with out.step(f"compiling {model.name}"), overrides[0], overrides[1]:
        made = model.explained(how)
    rows = [_row(p) for p in made.programs]
    if not here:
        with out.step(f"compiling for {target.name}"):
            rows = [_elsewhere(p, how.options(), target) for p in made.programs]
    out.put(model=model.name)
    _show(rows, out)
    out.put(fallbacks=_said(made.fallbacks), graph_breaks=_said(made.graph_breaks))
    fallbacks, breaks = len(made.fallbacks), len(made.graph_breaks)
    out.say(f"{count(fallbacks, 'fallback')}, {count(breaks, 'graph break')}")
    for e in (*made.fallbacks, *made.graph_breaks):
        out.say(f"  {e.kind.replace('-', ' ')}: {e.message} ({short_place(e.where)})")
    if dump:
        out.put(stages=dump)
        out.say(f"stages are in {dump}; edit one and set {knobs.resume.name}")
    return 0


def _runs(target: Target) -> bool:
    try:
        targets.require_runnable(target)
    except Invalid:
        return False
    return True


def _said(events: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"why": e.message, "where": e.where} for e in events]


def _row(p: ProgramReport) -> dict[str, Any]:
    return {
        "program": p.name,
        "target": p.target.name if p.target is not None else None,
        "operators": p.operators,
        "kernels": len(p.kernels),
        "calls": p.calls,
        "cached": sum(k.cached for k in p.kernels),
        "arena_bytes": p.arena,
        "seconds": p.seconds,
    }


def _elsewhere(p: ProgramReport, options: Options, target: Target) -> dict[str, Any]:
    """The same program for another machine, without its weights."""
    if p.graph is None:
        return _row(p) | {"target": target.name}
    data = code_elsewhere(p.graph, target, options)
    return _row(p) | {
        "target": target.name,
        "kernels": len(data.kernels),
        "calls": sum(k.calls for k in data.kernels),
        "cached": sum(k.cached for k in data.kernels),
        "arena_bytes": data.arena,
        "code_bytes": sum(map(len, data.images)),
        "seconds": sum(k.seconds for k in data.kernels),
    }


def _show(rows: Sequence[dict[str, Any]], out: Shown) -> None:
    columns: dict[str, Column] = {
        "program": "program",
        "target": "target",
        "operators": "operators",
        "distinct kernels": "kernels",
        "calls": "calls",
        "from the cache": "cached",
        "memory": lambda r: bytes_text(r["arena_bytes"]),
        "seconds": lambda r: f"{r['seconds']:.2f}",
    }
    if any("code_bytes" in r for r in rows):
        columns["objects"] = lambda r: bytes_text(r.get("code_bytes", 0))
    out.table("programs", rows, columns)


COMMAND = Command(
    _arguments,
    _compile,
    (
        "compile model.py:net --input 'f32[1,3,224,224]'",
        "compile model.onnx --target arm64",
        "compile model.py:net --dump stages",
    ),
    NOTES,
)
