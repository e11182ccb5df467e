"""How a command is found, what help says, and how the program ends."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib import import_module

import pytest

from tilewright.base.errors import Invalid, MissingExtra, Unsupported
from tilewright.driver import cli
from tilewright.driver.cli import commands as registry
from tilewright.driver.cli.command import Command
from tilewright.driver.looking.shown import Shown, plain

HELP = """
import sys
from tilewright.driver.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert not end.code
found = [m for m in ("torch", "llvmlite", "numpy", "onnx") if m in sys.modules]
assert not found, f"help loads {found}"
"""


def test_help_starts_fast() -> None:
    run = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert all(f"  {name} " in run.stdout for name in registry.COMMANDS)
    assert "130 stopped by Ctrl-C" in run.stdout


def test_as_a_module() -> None:
    for name in ("tilewright", "tilewright.driver.cli"):
        run = subprocess.run([sys.executable, "-m", name, "fly"], capture_output=True, text=True)
        assert run.returncode == 2 and "there is no command 'fly'" in run.stderr


def test_every_command_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    """That its own parser accepts."""
    parsers = {p.prog.removeprefix("tilewright "): p for p in cli.command_parsers()}
    assert list(parsers) == list(registry.COMMANDS)
    for name in registry.COMMANDS:
        command = registry.command_of(name)
        assert 2 <= len(command.examples) <= 4, name
        for example in command.examples:
            words = [w.strip("'") for w in example.split(" > ")[0].split()]
            assert words[: len(name.split())] == name.split()
            parsers[name].parse_args(words[len(name.split()) :])
        assert command.json or "--json" in parsers[name].format_help(), name


def raising(problem: BaseException) -> Command:
    def do(given: argparse.Namespace, out: Shown) -> int:
        raise problem

    return Command(lambda parser: None, do, ())


@pytest.mark.parametrize(
    ("problem", "code"),
    [
        (Invalid("such an input"), 2),
        (MissingExtra("onnx"), 2),
        (Unsupported("such an operator"), 1),
        (RuntimeError("something"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_codes(
    problem: BaseException,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = import_module("tilewright.driver.cli.main")
    monkeypatch.setattr(module, "command_of", lambda name: raising(problem))
    assert cli.main(["demo"]) == code
    said = capsys.readouterr()
    assert not said.out and "Traceback" not in said.err
    assert str(problem) in said.err


def test_values_as_json() -> None:
    """What JSON lacks is null or text."""
    assert plain({"x": float("nan"), 3: (1, None, True)}) == {"x": None, "3": [1, None, True]}
    assert plain(sys) == str(sys)
