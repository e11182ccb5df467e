"""Completion, as shells do it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tilewright.driver.cli import command_parsers, main
from tilewright.driver.cli.commands import COMMANDS


def script(capsys: pytest.CaptureFixture[str], shell: str) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def test_bash(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The words that bash offers for a line, the last of which is being written."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    cases = {
        "tilewright comp": ["compile", "completion"],
        "tilewright --": ["--help", "--version"],
        "tilewright tune co": ["collect"],
        "tilewright tune collect --gr": ["--groups"],
        "tilewright run model.py --no": ["--no-check"],
        "tilewright run -": ["-h", "--help", "-i", "--input", "--strict", "--passes", "-o"]
        + ["--output", "--check", "--no-check", "--json"],
        "tilewright explain m --form l": ["llvm"],
        "tilewright records me": ["merge"],
        "tilewright bench --dev": ["--device"],
        "tilewright compile model": ["model.py", "model.onnx"],
        "tilewright run m -o model.o": ["model.onnx"],
        "tilewright nothing ": [],
    }
    asked = ""
    for line in cases:
        words = " ".join(f"'{w}'" for w in line.split(" "))
        asked += f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _tilewright; "
        asked += 'echo "${COMPREPLY[@]}"\n'
    there = "touch model.py model.onnx\n"
    text = f"{script(capsys, 'bash')}\n{there}{asked}"
    run = subprocess.run([bash, "-s"], input=text, capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0 and not run.stderr, run.stderr
    offered = [sorted(line.split()) for line in run.stdout.splitlines()]
    assert offered == [sorted(words) for words in cases.values()]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_and_option_is_there(capsys: pytest.CaptureFixture[str], shell: str) -> None:
    """And the shell, where it is installed, finds nothing wrong with the script."""
    text = script(capsys, shell)
    for name in COMMANDS:
        assert all(word in text for word in name.split())
    for parser in command_parsers():
        for option in (o for a in parser._actions for o in a.option_strings):
            assert (option.lstrip("-") if shell == "fish" else option) in text
    if found := shutil.which(shell):
        run = subprocess.run([found, "-n"], input=text, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
