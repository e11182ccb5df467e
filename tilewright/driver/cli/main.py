"""`tilewright COMMAND …`: finds the command, calls it, and turns errors into sentences."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version

from rich.console import Console

from tilewright.base import knobs
from tilewright.base.errors import TilewrightError
from tilewright.driver.cli.command import Help, PassedOn, parser_of
from tilewright.driver.cli.commands import ALIASES, COMMANDS, command_of
from tilewright.driver.cli.problems import CODES, FAILED, INTERRUPTED, status_of, told
from tilewright.driver.looking.shown import Shown

EXAMPLES = (
    "run model.py:net --input 'x=f32[1,3,224,224]'",
    "explain model.onnx",
    "compile --help",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the words say; gives the exit code (see problems.py)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = chosen(words)
    if name is None:
        argument_parser().parse_args(words)  # helps, or says what is wrong
        return 2
    out = Shown()
    try:
        command = command_of(name)
        if isinstance(command.do, PassedOn):
            return command.do.do(rest)
        given = parser_of(name, COMMANDS[name], command).parse_args(rest)
        out = Shown(json=getattr(given, "json", None) is True)
        # Standard output is for the JSON object: what a model prints goes elsewhere.
        with redirect_stdout(sys.stderr) if out.json else nullcontext():
            status = command.do(given, out)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # somebody reads the first lines only
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as problem:
        status = _report(problem, out)
    out.put(status=status)
    out.end()
    return status


def chosen(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """The command that the first words name, and the others."""
    for count in (2, 1):
        name = " ".join(words[:count])
        name = ALIASES.get(name, name)
        if len(words) >= count and name in COMMANDS:
            return name, words[count:]
    return None, words


def _report(problem: Exception, out: Shown) -> int:
    errors, said = Console(stderr=True), told(problem)
    if knobs.logs.get().shows("debug"):
        errors.print("".join(traceback.format_exception(problem)), markup=False, highlight=False)
    errors.print("[bold red]error:[/]", end=" ")
    errors.print(said, markup=False, highlight=False, soft_wrap=True)
    ours = isinstance(problem, TilewrightError)
    hint = problem.hint if ours else None
    out.put(error=problem.what if ours else said.splitlines()[0], hint=hint)
    return status_of(problem)


# ---- parsers


def argument_parser() -> argparse.ArgumentParser:
    """Of what stands before a command."""
    width = max(map(len, COMMANDS)) + 2
    listed = "\n".join(f"  {name:<{width}}{about}" for name, about in COMMANDS.items())
    examples = "\n".join(f"  tilewright {x}" for x in EXAMPLES)
    parser = argparse.ArgumentParser(
        prog="tilewright",
        usage="tilewright [-h] [--version] COMMAND …",
        description="A machine-learning compiler: PyTorch programs and ONNX models in, native "
        "code out.",
        epilog=f"commands:\n{listed}\n\nexamples:\n{examples}\n\n{CODES}\n"
        "Results go to standard output, or as JSON with --json; progress to standard error.",
        formatter_class=Help,
    )
    parser.add_argument("--version", action="version", version=f"tilewright {_version()}")
    parser.add_argument("command", metavar="COMMAND", type=_known, help="one of those below")
    return parser


def command_parsers() -> Iterator[argparse.ArgumentParser]:
    """Of all commands."""
    for name, about in COMMANDS.items():
        yield parser_of(name, about, command_of(name))


def _known(word: str) -> str:
    """Called with words that are no command."""
    close = get_close_matches(word, [*COMMANDS, *ALIASES], 1)
    meant = f"did you mean {close[0]}?" if close else "see tilewright --help"
    raise argparse.ArgumentTypeError(f"there is no command {word!r}: {meant}")


def _version() -> str:
    try:
        return version("tilewright")
    except PackageNotFoundError:
        return "(not installed)"
