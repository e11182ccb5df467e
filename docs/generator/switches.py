"""The catalogues of environment variables and of the command line."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path

from docs.generator.pieces import block, code, table, words
from tilewright.base import knobs
from tilewright.driver.cli import argument_parser, command_parsers
from tilewright.driver.cli.problems import CODES
from tilewright.triton.__main__ import argument_parser as triton_parser

VARIABLES = """# Environment variables

Generated from `tilewright/base/knobs.py`, where each is declared once with its type and default.
They are read when they are needed, so a process may change them. A value that is not understood is
an error that says what is.
"""
COMMANDS = f"""# Command line

Generated from the argument parsers. Results go to standard output, as tables or with `--json` as
one JSON object; what is going on goes to standard error. {CODES}

`tilewright completion bash` (or `zsh`, `fish`) prints a script with which a shell completes
commands, options and their values. `python -m tilewright` is the same as `tilewright`.
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
    arguments = [a for a in p._actions if not isinstance(a, argparse._HelpAction)]
    out = [f"## `{p.prog}`\n", f"{about}\n"]
    if arguments:
        out.append(table(["argument", "what it does", "default"], map(argument_row, arguments)))
    notes, _, examples = (p.epilog or "").partition("examples:\n")
    if notes.strip():
        out.append(words(notes) + "\n")
    if examples:
        out.append(block(inspect.cleandoc(examples), "bash"))
    return "\n".join(out)


def commands() -> str:
    # What the first says of the commands stands below with each.
    ours = argument_parser()
    ours.epilog = None
    return "\n".join([COMMANDS, *map(command, [ours, *command_parsers(), triton_parser()])])
