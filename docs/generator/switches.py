"""The catalogues of environment variables and of the command line."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from docs.generator.pieces import code, table, words
from tilewright.base import knobs
from tilewright.bench.__main__ import argument_parser as bench_parser
from tilewright.driver.cli import argument_parser
from tilewright.triton.__main__ import argument_parser as triton_parser

VARIABLES = """# Environment variables

Generated from `tilewright/base/knobs.py`, where each is declared once with its type and default.
They are read when they are needed, so a process may change them. A value that is not understood is
an error that says what is.
"""
COMMANDS = """# Command line

Generated from the argument parsers.
"""


def default_text(knob: knobs.Knob) -> str:
    """What holds where the variable is not set; a folder is described in the knob's own words."""
    value = knob.default()
    if isinstance(value, Path):
        return "see there"
    if isinstance(value, bool):
        return code(int(value))
    return code(value) if value is not None and str(value) else "not set"


def variables() -> str:
    rows = ([code(k.name), words(k.doc), default_text(k)] for k in knobs.every())
    return "\n".join([VARIABLES, table(["variable", "what it does", "default"], rows)])


def subcommands(p: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in p._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def argument_row(a: argparse.Action) -> list[str]:
    shape = a.metavar if isinstance(a.metavar, str) else a.dest
    if a.choices is not None:
        shape = "{" + ",".join(map(str, a.choices)) + "}"
    takes = "" if a.nargs == 0 else f" {shape}"
    said = ", ".join(a.option_strings) + takes if a.option_strings else shape
    shown = a.default is not None and a.default is not argparse.SUPPRESS and a.nargs != 0
    default = ",".join(a.default) if isinstance(a.default, list) else a.default
    return [code(said), words((a.help or "").replace("%%", "%")), code(default) if shown else ""]


def command(p: argparse.ArgumentParser) -> str:
    about = words(p.description or "")
    arguments = [
        a
        for a in p._actions
        if not isinstance(a, argparse._HelpAction | argparse._SubParsersAction)
    ]
    out = [f"## `{p.prog}`\n", f"{about}\n"]
    if arguments:
        out.append(table(["argument", "what it does", "default"], map(argument_row, arguments)))
    if p.epilog:
        out.append(words(p.epilog) + "\n")
    return "\n".join(out)


def commands() -> str:
    ours = argument_parser()
    bench = bench_parser()
    # `tilewright bench` passes its arguments on to a process with a parser of its own.
    inside = [p for p in subcommands(ours) if p.prog != bench.prog]
    return "\n".join([COMMANDS, *map(command, [ours, *inside, bench, triton_parser()])])
