"""The report on spaces counts what is legal, and says why the rest is not."""

from __future__ import annotations

from tests.tune.space_report import reason, report_of, table
from tilewright.kernel.text import parse_group
from tilewright.targets import default

SUM = """
group sums
  in a: f32[40,50]
  out y: f32[40]
  local t: f32[40]
  t[t.i] add= a[t.i,t.r] for t.i in 40, t.r in 50 from 0.0
  y[y.i] = t[y.i] for y.i in 40
"""


def test_a_space_is_counted() -> None:
    found = report_of("sums", parse_group(SUM), default(), draws=12)
    assert found.sketches > 1 and found.decisions > found.sketches
    assert 0 < found.at_random <= 1 and 0 < found.drawn <= 1 and 1 < found.distinct <= 24
    assert found.refusals.total() == round(12 * (1 - found.at_random))
    assert "sums" in table([found])


def test_reasons_have_no_names_and_numbers() -> None:
    said = "Reorder(order=('t.i0', 't.r0')): the extent of t.i0.1 depends on t.i0.0 of 12"
    assert reason(said) == "Reorder: the extent of LOOP depends on LOOP of N"
