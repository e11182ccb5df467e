"""Python's parser is used by one thread at a time."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor

from tilewright.base.source import parse_expression, parse_module


def test_threads_parse_at_the_same_time():
    """Other threads have their turn inside the parser where Python code runs there: in what is
    called before and after unused objects are collected."""
    text = "def f(x):\n" + "\n".join(f"    x = (x + {k}) * g(x, [{k}])" for k in range(60))
    threshold = gc.get_threshold()

    def others(*_: object) -> None:
        time.sleep(0)

    gc.callbacks.append(others)
    gc.set_threshold(100)
    try:
        with ThreadPoolExecutor(4) as pool:
            trees = list(pool.map(lambda _: parse_module(text), range(20)))
    finally:
        gc.callbacks.remove(others)
        gc.set_threshold(*threshold)
    assert all(len(tree.body[0].body) == 60 for tree in trees)  # type: ignore[attr-defined]
    assert parse_expression("(1, 2)").elts[1].value == 2  # type: ignore[attr-defined]
