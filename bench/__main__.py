"""`python -m bench models`, `overhead` or `schedules`; each takes `--help`."""

import argparse
import sys
from importlib import import_module

PARTS = {
    "models": "time per call, cold compile time and memory, beside the peers'",
    "overhead": "what a call costs besides its kernels",
    "schedules": "a matrix product by schedule steps alone, against the measured peak",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    modules = {name: import_module(f"bench.{name}") for name in PARTS}
    for name, what in PARTS.items():
        modules[name].add_arguments(parts.add_parser(name, help=what))
    given = parser.parse_args()
    return modules[given.part].main(given)


if __name__ == "__main__":
    sys.exit(main())
