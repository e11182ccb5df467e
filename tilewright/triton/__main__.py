"""`python -m tilewright.triton [--device cpu] [--backend NAME] [--checkout DIR] (script.py | -m
module) [args…]`."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path

from tilewright.base import knobs
from tilewright.base.errors import TilewrightError
from tilewright.triton import install
from tilewright.triton.modules import checkout_around


def argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tilewright.triton",
        description="Runs a script that imports triton with Tilewright in its place.",
        usage="%(prog)s [--device cpu] [--backend NAME] [--checkout DIR] "
        "(script.py | -m module) [args …]",
    )
    parser.add_argument(
        "--device", choices=["cpu"], help="tensors that the script creates on a GPU are on the CPU"
    )
    parser.add_argument(
        "--backend",
        metavar="NAME",
        help="the back end that the script sees, if it supports GPUs only: cuda, cuda:90, hip",
    )
    parser.add_argument(
        "--checkout",
        type=Path,
        help="sources of Triton, for modules that are not part of its language (default: the "
        "checkout in which the script lies, if it does)",
    )
    return parser


def main(argv: list[str]) -> int | None:
    own, rest = _split(argv)
    parser = argument_parser()
    options = parser.parse_args(own)
    if not rest:
        parser.error("which script?")
    is_module = rest[0] == "-m"
    if is_module and len(rest) < 2:
        parser.error("-m needs the name of a module")
    checkout = options.checkout or _found([a for a in rest if not a.startswith("-")])
    # Processes that the script starts, and pytest's plugin, do the same.
    if options.device:
        os.environ[knobs.triton_device.name] = options.device
    if options.backend:
        os.environ[knobs.triton_backend.name] = options.backend
    if checkout is not None:
        os.environ[knobs.triton_checkout.name] = str(checkout)
    try:
        knobs.triton_backend.get()
        install(options.device, checkout)
    except TilewrightError as problem:
        parser.error(str(problem))
    if is_module:
        if rest[1] == "pytest":
            plugins = os.environ.get("PYTEST_PLUGINS", "").split(",")
            ours = "tilewright.triton.pytest_plugin"
            os.environ["PYTEST_PLUGINS"] = ",".join(p for p in (*plugins, ours) if p)
        sys.argv = rest[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
        return None
    script = Path(rest[0])
    if not script.is_file():
        parser.error(f"there is no file {script}")
    sys.argv = rest
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")
    return None


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """Our options, and the script with its own."""
    at = 0
    while at < len(argv) and argv[at].startswith("-") and argv[at] != "-m":
        at += 1 if "=" in argv[at] or argv[at] in ("-h", "--help") else 2
    return argv[:at], argv[at:]


def _found(words: list[str]) -> Path | None:
    for word in words:
        path = Path(word.split("::")[0])
        if path.exists() and (found := checkout_around(path)):
            return found
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
