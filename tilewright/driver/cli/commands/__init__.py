"""The commands, in the order in which help lists them. Each is a file here, loaded when it is used,
so that it may import what it needs; what `tilewright --help` says of it stands below."""

from __future__ import annotations

from importlib import import_module

from tilewright.driver.cli.command import Command

COMMANDS = {
    "run": "run a model, show its results, and check them",
    "compile": "compile a model, and tell kernels, times and what the cache had",
    "export": "write a model as a package that runs without Python, on this machine or others",
    "info": "show what a package holds, without running any of it",
    "serve": "serve a package over HTTP, with batches, metrics and a page for people",
    "keygen": "make a pair of keys to sign packages with",
    "sign": "sign a package with a private key",
    "verify": "compare a package's files with its manifest, and its signature with a public key",
    "explain": "show kernels, schedules, refusals, memory and compile time of a model",
    "doctor": "run a model, and tell what was not compiled, why, and what to change",
    "bench": "time models, operators or a program against other compilers",
    "tune": "search for faster schedules of a model's kernels, and record them",
    "tune collect": "measure schedules of groups drawn at random, which models learn from",
    "tune train": "train a model on measured schedules, and say how well it ranks others",
    "records": "list, merge or check schedules that tuning recorded",
    "fleet": "list the machines that measure for `tune --fleet`",
    "calibrate": "measure this machine (a minute at most): estimates use its numbers",
    "optimize": "search for a faster graph by proved rules, and measure it",
    "validate": "judge every stage of a compile against the one before it",
    "bisect": "find the stage of a compile that makes results wrong",
    "prove": "prove the rewrite rules, and say which are only tested",
    "mine": "find rewrite rules by enumeration, and prove them",
    "passes": "show the default list of passes, with a line on each",
    "cache": "show what the disk cache holds, or remove it",
    "demo": "compile a real model, check it, and compare its time with eager",
    "completion": "print a script with which a shell completes commands and options",
}
ALIASES = {"rules": "prove"}


def command_of(name: str) -> Command:
    """Loads the file of a command."""
    module = f"{__name__}.{name.replace(' ', '_')}"
    found: Command = import_module(module).COMMAND
    return found
