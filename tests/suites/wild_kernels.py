"""Libraries of Triton kernels on Tilewright: their own tests, from a checkout of theirs.

    python -m tests.suites.wild_kernels CHECKOUT                     # one small case of each test
    python -m tests.suites.wild_kernels CHECKOUT -k softmax --cases 5

A library is known by its folders: Liger-Kernel, flash-linear-attention. Sizes of their tests are
meant for GPUs, so few cases of each are run, the smallest. What is known not to pass stands in
wild_expected.json. They ask for torch, and for what the library itself asks for (`transformers`,
`einops`).
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.suites.checkouts import run_tests

EXPECTED = Path(__file__).with_name("wild_expected.json")


@dataclass(frozen=True)
class Library:
    sources: str  # the folder that is imported from
    kernels: str  # a folder that no other library has
    tests: tuple[str, ...]  # patterns of files
    without: tuple[str, ...] = ()  # words in names of files whose tests ask for no Triton kernel

    def files(self, checkout: Path) -> list[str]:
        return [
            str(path.relative_to(checkout))
            for pattern in self.tests
            for path in sorted(checkout.glob(pattern))
            if not any(word in path.name for word in self.without)
        ]


LIBRARIES = {
    "liger": Library(
        sources="src",
        kernels="src/liger_kernel/ops",
        tests=("test/transformers/test_*.py",),
        without=("cutedsl", "cutile", "cute_", "auto_model", "monkey_patch", "trainer"),
    ),
    "fla": Library(
        sources=".",
        kernels="fla/ops",
        tests=("tests/ops/test_*.py", "tests/modules/test_*.py"),
        without=("tilelang", "backends", "cache"),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.wild_kernels")
    parser.add_argument("checkout", type=Path, help="sources of a library of kernels")
    parser.add_argument("--library", choices=LIBRARIES, help="default: which its folders show")
    parser.add_argument("--cases", type=int, default=1, help="of each test (default 1; 0: all)")
    parser.add_argument("-k", metavar="WORDS", help="only the tests that pytest's -k selects")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    shown = [n for n, known in LIBRARIES.items() if (checkout / known.kernels).is_dir()]
    name = options.library or next(iter(shown), None)
    if name not in shown:
        where = " or ".join(known.kernels for n, known in LIBRARIES.items() if name in (None, n))
        parser.error(
            f"{options.checkout} is no checkout of {name or 'a known library'}: no {where}"
        )
    library = LIBRARIES[name]
    arguments = ["-o", "log_cli=false", *library.files(checkout)]
    arguments += [f"--smallest={options.cases}"] if options.cases else []
    arguments += ["-k", options.k] if options.k else []
    return run_tests(checkout, arguments, EXPECTED, [checkout / library.sources])


if __name__ == "__main__":
    sys.exit(main())
