"""`tilewright bench`: in a process of its own, since it times other compilers too. bench/ stands
above driver/ and is named here only."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module

from tilewright.driver.cli.command import Command, PassedOn

_BENCH = "tilewright.bench"
_ARGUMENTS = "tilewright.bench.arguments"


def _arguments(parser: argparse.ArgumentParser) -> None:
    import_module(_ARGUMENTS).add_arguments(parser)


def _process(words: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", _BENCH, *words]).returncode


COMMAND = Command(
    _arguments,
    PassedOn(_process),
    (
        "bench models --threads 4",
        "bench bert model.py:net --peers eager,onnxruntime",
        "bench ops --json numbers.json",
    ),
    "Programs are timed in turns, with the same threads and precision, every result checked. Also: "
    "`bench overhead` (what a call costs besides its kernels), `bench schedules` (a matrix product "
    "by schedule steps alone, against the peak), `bench peak` (what this machine can do).",
    json=False,
)
