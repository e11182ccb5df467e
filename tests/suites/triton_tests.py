"""Triton's own unit tests on Tilewright, from a checkout of theirs.

    python -m tests.suites.triton_tests CHECKOUT            # about 8,400 cases, compiled
    python -m tests.suites.triton_tests CHECKOUT -k test_dot --jobs 2
    python -m tests.suites.triton_tests CHECKOUT --beside --every 20 --jobs 6    # on a GPU

The cases are those that Triton runs on its own interpreter. What is known not to pass stands in
triton_expected.json. They ask for `scipy`; `--jobs` asks for pytest-xdist. `--device cuda` runs all
cases on a GPU, `--beside` runs them on Triton's own compiler too and says which part of what that
passes ours does.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.suites.checkouts import run_beside, run_tests

FILES = ("test_core.py", "test_standard.py", "test_random.py")
EXPECTED = Path(__file__).with_name("triton_expected.json")
EXPECTED_ON_GPU = Path(__file__).with_name("triton_expected_on_gpu.json")
BAR = 0.95  # of what Triton's own compiler passes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.triton_tests")
    parser.add_argument("checkout", type=Path, help="sources of Triton")
    parser.add_argument("-k", metavar="WORDS", help="only the tests that pytest's -k selects")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--every", type=int, default=1, help="one of so many cases")
    parser.add_argument("--beside", action="store_true", help="beside Triton, on a GPU")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of --beside, at most")
    options = parser.parse_args()
    folder = options.checkout.resolve() / "python" / "test" / "unit" / "language"
    if not folder.is_dir():
        parser.error(f"{options.checkout} is no checkout of Triton: it has no {folder}")
    if options.jobs > 1 and find_spec("xdist") is None:
        parser.error("--jobs needs pytest-xdist: pip install pytest-xdist")
    gpu = options.beside or options.device == "cuda"
    # Without settings of its own in the checkout pytest looks for no conftest above the tests.
    arguments = [*FILES, f"--every={options.every}", f"--confcutdir={options.checkout.resolve()}"]
    arguments += [] if gpu else ["-m", "interpreter"]
    arguments += ["-k", options.k] if options.k else []
    arguments += ["-n", str(options.jobs)] if options.jobs > 1 else []
    if options.beside:
        return int(run_beside(folder, arguments, options.seconds) < BAR)
    return run_tests(folder, arguments, EXPECTED_ON_GPU if gpu else EXPECTED, by=options.device)


if __name__ == "__main__":
    sys.exit(main())
