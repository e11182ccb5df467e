"""A process that compiles whole programs for another one, which does not wait for them.

It reads and answers as kernel_server.py does. It has a low priority: calls that the other process
makes meanwhile come first.
"""

from __future__ import annotations

import os

from tilewright import ops
from tilewright.base.events import Log
from tilewright.driver.program import kernel_server
from tilewright.driver.program.kernel_process import WholeProgram
from tilewright.driver.program.program_cache import record
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.text import parse_graph
from tilewright.runtime import pool

# About a tenth of a core that others want too.
_NICE = 10


def answer(request: WholeProgram) -> bytes | str:
    """The program, as an entry of the cache (out of which it is where it was there); or why there
    is none."""
    assert ops, "the graph's text names operators"
    log = Log()
    try:
        pool.set_threads(request.threads)
        made = compile_graph(parse_graph(request.graph), request.options, log)
        return record(made.data, log)
    except Exception as problem:
        return str(problem).strip().split("\n")[0] or type(problem).__name__


def main() -> None:
    if hasattr(os, "nice"):
        os.nice(_NICE)
    kernel_server.main(answer)
