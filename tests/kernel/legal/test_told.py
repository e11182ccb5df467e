"""Results that the host is told: a kernel of a GPU writes what is not zero."""

from __future__ import annotations

import numpy as np

from tests.gpu import emulate
from tilewright.kernel.legal import legalise
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.targets import default, get


def test_what_the_host_is_told_is_written_where_it_is_not_zero() -> None:
    """By a GPU, whose host is far away; the processor's own memory gets every result."""
    text = """
nest k
  in x: i64[4]
  out y: i64[] told
  y: y[] = x[2]
"""
    n, gpu = parse_nest(text), get("cuda:90")
    assert parse_nest(nest_text(n)) == n and n.buffer("y").told
    made = legalise(n, gpu)
    assert "if x[2] != 0:" in nest_text(made) and legalise(made, gpu) == made
    assert "if" not in nest_text(legalise(n, default()))
    for value in (0, 7):
        x = np.full(4, value, np.int64)
        given = {"x": x, "y": np.array(5, np.int64)}
        assert emulate.run(n, given, target=gpu)["y"] == (value or 5)
