"""Triton's own unit tests on Tilewright, from a checkout of theirs.

    python -m tests.suites.triton_tests CHECKOUT            # about 8,400 cases, compiled
    python -m tests.suites.triton_tests CHECKOUT -k test_dot --jobs 2

The cases are those that Triton runs on its own interpreter. What is known not to pass stands in
triton_expected.json. They ask for `scipy`; `--jobs` asks for pytest-xdist.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.suites.checkouts import run_tests

FILES = ("test_core.py", "test_standard.py", "test_random.py")
EXPECTED = Path(__file__).with_name("triton_expected.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.triton_tests")
    parser.add_argument("checkout", type=Path, help="sources of Triton")
    parser.add_argument("-k", metavar="WORDS", help="only the tests that pytest's -k selects")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    folder = options.checkout.resolve() / "python" / "test" / "unit" / "language"
    if not folder.is_dir():
        parser.error(f"{options.checkout} is no checkout of Triton: it has no {folder}")
    if options.jobs > 1 and find_spec("xdist") is None:
        parser.error("--jobs needs pytest-xdist: pip install pytest-xdist")
    arguments = ["-m", "interpreter", *FILES]
    arguments += ["-k", options.k] if options.k else []
    arguments += ["-n", str(options.jobs)] if options.jobs > 1 else []
    return run_tests(folder, arguments, EXPECTED)


if __name__ == "__main__":
    sys.exit(main())
