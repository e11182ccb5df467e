"""Random tile kernels for `python -m tests.nightly`.

python -m tests.lang.tile.drawn_kernels --count 2000 [--first SEED]
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator

from tests.generators import Failure, Generator
from tests.lang.tile import random_running
from tests.lang.tile.random_kernels import kernel
from tests.lang.tile.random_writer import Kernel, Statement
from tests.seeds import run_generator


def failure(k: Kernel) -> Failure | None:
    found = random_running.failure(k)
    if found is None:
        return None
    wrong = re.search(r"differs|outside", found.kind) is not None
    return Failure(found.kind, found.text, "wrong" if wrong else "error")


def smaller(k: Kernel) -> Iterator[Kernel]:
    return itertools.chain(random_running._without(k), random_running._halved(k))


def as_code(k: Kernel) -> str:
    """The kernel's text, and what it is launched with."""
    body = "\n".join(line for s in k.body for line in s.lines(0))
    parts = {
        "grid": k.grid,
        "parameters": k.parameters,
        "arrays": k.arrays,
        "numbers": k.numbers,
        "errors": k.errors,
    }
    given = "".join(f"    {name}={value!r},\n" for name, value in parts.items())
    return (
        "from tests.generators import reproduce\n"
        "from tests.lang.tile.drawn_kernels import GENERATOR, written\n"
        "from tests.lang.tile.random_writer import ArraySpec\n\n"
        f"HELPERS = {k.helpers!r}\n\n"
        f'BODY = """\n{body}\n"""\n\n'
        f"KERNEL = written(\n    seed={k.seed},\n    helpers=HELPERS,\n    text=BODY,\n{given})\n"
        "print(KERNEL.source())\n"
        "reproduce(GENERATOR, KERNEL)\n"
    )


def written(text: str, **parts) -> Kernel:
    """A kernel whose body is one text."""
    inner = textwrap.indent(text.strip("\n"), "    ").removeprefix("    ")
    return Kernel(body=[Statement(inner)], **parts)


def about(k: Kernel) -> str:
    """The functions and statements of a kernel."""
    words = re.findall(r"tl\.\w+|libdevice\.\w+|\b(?:for|while|if|else|return)\b", k.source())
    return " ".join(sorted(set(words) - {"tl.load", "tl.store", "tl.arange", "tl.constexpr"}))


GENERATOR = Generator("kernels", kernel, failure, smaller, as_code, about)

if __name__ == "__main__":
    raise SystemExit(run_generator("kernels", 2000, __doc__))
