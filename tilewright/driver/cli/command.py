"""A command: its arguments, what it does, and examples that its help shows."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.driver.looking.shown import Shown


@dataclass(frozen=True)
class PassedOn:
    """Takes its words as they are, such as those for another process."""

    do: Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Command:
    """What a file of `commands/` defines as COMMAND. `do` returns the exit code."""

    arguments: Callable[[argparse.ArgumentParser], None]
    do: Callable[[argparse.Namespace, Shown], int] | PassedOn
    examples: tuple[str, ...]  # without the word tilewright
    notes: str = ""
    json: bool = True  # has results to show; False where --json is an argument of its own


class Help(argparse.RawDescriptionHelpFormatter):
    """Examples stay on lines of their own."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def parser_of(name: str, about: str, command: Command) -> argparse.ArgumentParser:
    """The parser of one command."""
    examples = "\n".join(f"  tilewright {x}" for x in command.examples)
    notes = f"{_filled(command.notes)}\n\n" if command.notes else ""
    made = argparse.ArgumentParser(
        prog=f"tilewright {name}",
        description=_filled(about),
        epilog=f"{notes}examples:\n{examples}",
        formatter_class=Help,
    )
    command.arguments(made)
    if command.json:
        made.add_argument(
            "--json", action="store_true", help="results as one JSON object, for programs"
        )
    return made


def _filled(text: str, width: int = 96) -> str:
    """Lines that a terminal has room for."""
    lines, line = list[str](), ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join((*lines, line))


# ---- types of arguments


def positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def seconds(text: str) -> int:
    """`60s`, or `60`."""
    return positive(text.removesuffix("s"))
