"""`tilewright completion`: what shells complete, read off the parsers."""

from __future__ import annotations

import argparse

from tilewright.driver.cli.command import Command, parser_of
from tilewright.driver.cli.commands import COMMANDS, command_of
from tilewright.driver.cli.completion import SHELLS, Words, script
from tilewright.driver.looking.shown import Shown


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SHELLS), help="that will read the script")


def _completion(given: argparse.Namespace, out: Shown) -> int:
    known = {name: _words(name, about) for name, about in COMMANDS.items()}
    text = script(given.shell, known)
    out.put(shell=given.shell, script=text)
    out.text(text)
    return 0


def _words(name: str, about: str) -> Words:
    parser = parser_of(name, about, COMMAND if name == "completion" else command_of(name))
    return Words.of(about, parser)


COMMAND = Command(
    _arguments,
    _completion,
    (
        "completion bash > ~/.local/share/bash-completion/completions/tilewright",
        'completion zsh > "${fpath[1]}/_tilewright"',
        "completion fish > ~/.config/fish/completions/tilewright.fish",
    ),
)
