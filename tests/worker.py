"""A process that draws and judges cases of one generator, for tests/nightly.py.

    python -m tests.worker NAME MODULE                    # a line with a seed in, a line out
    python -m tests.worker NAME MODULE --minimal SEED …   # one failing case, made small

Answers are lines of JSON. What a case prints goes where errors go.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from typing import TextIO

from tests.generators import Failure, Generator, file_text, judged, load
from tests.shrinking import error, minimal, resident


def _draws(generator: Generator, answers: TextIO) -> None:
    print(json.dumps({"seconds": generator.seconds}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            found, took = judged(generator, generator.draw(int(line)))
        except Exception as problem:  # reported as what is wrong with this seed
            found, took = error(problem), 0.0
        answer = {"compile": took, "bytes": resident(os.getpid()), "failure": as_list(found)}
        print(json.dumps(answer), file=answers, flush=True)


def as_list(found: Failure | None) -> list[str] | None:
    return None if found is None else [found.kind, found.text, found.what]


def _minimal(generator: Generator, answers: TextIO, options: argparse.Namespace) -> None:
    try:
        case = generator.draw(options.minimal)
    except Exception as problem:  # a fault of the generator's own, or of what it runs to draw
        found, case = error(problem, "while drawing: "), None
    else:
        case, found = minimal(generator, case, options.seconds, options.most_mb << 20)
    answer: dict[str, object] = {"failure": as_list(found)}
    if found is not None:
        note = f"Draw {options.ordinal} of its run." if options.ordinal else ""
        answer["file"] = file_text(generator, options.module, options.minimal, case, found, note)
        answer["about"] = generator.about(case) if case is not None else ""
    print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("module")
    parser.add_argument("--minimal", type=int, metavar="SEED")
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--most-mb", type=int, default=6000)
    parser.add_argument("--ordinal", type=int)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    generator = load(options.name, options.module)
    if options.minimal is None:
        _draws(generator, answers)
    else:
        _minimal(generator, answers, options)


if __name__ == "__main__":
    main()
