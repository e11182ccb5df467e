"""The cost of a nest: what is counted, what follows from it, and how it ranks schedules."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.kernel.examples import EXAMPLES
from tilewright.ir.register_tile import register_tile
from tilewright.ir.target import Target
from tilewright.ir.types import f32
from tilewright.kernel.cost import Cost, cost, together
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.group import Group
from tilewright.kernel.nest import start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.targets import get

ARM = replace(get("arm64"), l1=65536, l2=1 << 20, l3=32 << 20, cores=1)

PACKED = """
group packed
  in x: f32[{m},{k}]
  in w: f32[{blocks},{k},{width}]
  out y: f32[{m},{n}]
  local t: f32[{m},{n}]
  t[t.i0,t.i1] add= x[t.i0,t.r0] * w[t.i1//{width},t.r0,t.i1%{width}] for {loops} from 0.0
  y[y.i0,y.i1] = max(t[y.i0,y.i1], 0.0) for y.i0 in {m}, y.i1 in {n}
"""


def packed(m: int, k: int, n: int, width: int = 12) -> Group:
    loops = f"t.i0 in {m}, t.i1 in {n}, t.r0 in {k}"
    sizes = {"m": m, "k": k, "n": n, "blocks": n // width, "width": width}
    return parse_group(PACKED.format(**sizes, loops=loops))


def by(group: Group, choices: Choices | None = None, target: Target = ARM) -> Cost:
    return cost(default_schedule(group, target, choices or Choices())[1], target)


def test_products_are_counted_and_set_the_pace_of_a_good_tile() -> None:
    found = by(packed(96, 256, 96))
    assert found.products == 96 * 256 * 96 / (4 * 2)
    assert found.products <= found.compute < 1.15 * found.products
    assert found.cycles < 1.3 * found.products


def test_naive_loops_cost_more_than_tiles() -> None:
    group = packed(96, 256, 96)
    assert cost(start(group), ARM).cycles > 4 * by(group).cycles


def test_few_sums_wait_for_each_other() -> None:
    """One row of one vector: each product waits for the one before it."""
    one = by(packed(1, 256, 96), Choices(side=1))
    many = by(packed(1, 256, 96), Choices(side=3))
    assert one.compute > 2 * one.products
    assert many.compute < one.compute


def test_more_rows_than_registers_cost() -> None:
    group = packed(168, 256, 96)
    assert by(group, Choices(rows=8)).compute > 1.2 * by(group, Choices(rows=6)).compute


def test_what_a_cache_does_not_keep_is_moved_again() -> None:
    """Rows of 3 MB and a panel of columns: read once for each panel, or once if they are
    outside."""
    group = packed(3072, 256, 60)
    columns, rows = (by(group, Choices(outer=x)) for x in ("columns", "rows"))
    assert columns.moved[1] > 4 * 3072 * 256 * 4
    assert rows.moved[1] < 2 * 3072 * 256 * 4
    assert rows.cycles < columns.cycles
    assert columns.waiting(ARM) > 0.03 > rows.waiting(ARM)
    assert columns.once == rows.once == pytest.approx(4 * (3072 * 256 + 256 * 60 + 2 * 3072 * 60))


def test_a_block_of_rows_stays_in_the_cache() -> None:
    group = packed(1200, 1200, 1200)
    all_rows, some = by(group, Choices(outer="columns")), by(group, Choices(block=60))
    assert some.moved[1] < all_rows.moved[1] / 4


def test_threads_share_pieces_and_the_last_one_is_waited_for() -> None:
    group = packed(96, 256, 96)
    two = replace(ARM, cores=2)
    even, odd = by(group, target=two), by(packed(96, 256, 60), target=two)
    assert 1.7 < even.threads <= 2
    assert odd.threads < 1.7  # five panels: one thread has three of them
    assert by(group, target=ARM).threads == 1


@pytest.mark.parametrize("machine", ["arm64", "x86-64", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_nest_has_a_cost(name: str, machine: str) -> None:
    """Symbolic sizes are guessed, gathered indices are somewhere."""
    target, group = get(machine), EXAMPLES[name].group
    _, nest = default_schedule(group, target)
    for n in (nest, start(group)):
        found = cost(n, target)
        assert 0 < found.cycles < 1e12 and found.seconds(target) > 0
        assert found.compute > 0 and found.once > 0


def test_it_takes_milliseconds() -> None:
    _, nest = default_schedule(packed(197, 768, 3072), ARM)
    cost(nest, ARM)
    began = time.thread_time()
    for _ in range(5):
        cost(nest, ARM)
    assert (time.thread_time() - began) / 5 < 0.05  # about 1 ms


def test_what_takes_longest_sets_the_pace() -> None:
    assert together(1000, (0, 0, 0), ARM) == 1000
    waits = (0.0, 0.0, 1000.0 * ARM.memory_bandwidth)
    assert 1000 < together(1000, waits, ARM) < 2000
    assert together(10, waits, ARM) > 1000


@pytest.mark.parametrize("machine", ["arm64", "x86-64-v3", "x86-64-v4"])
def test_the_tile_of_the_rules_fits_the_registers(machine: str) -> None:
    """Whether an instruction keeps vectors of rows or spreads their elements."""
    target = replace(get(machine), cores=1)
    width = register_tile(target, f32).columns
    found = by(packed(192, 256, 2 * width, width), target=target)
    assert found.compute < 1.25 * found.products


def test_sums_in_plain_loops_spill_too() -> None:
    """Seven rows of two vectors are one register too many for AVX2, whose instruction has six."""
    target, group = replace(get("x86-64-v3"), cores=1), packed(168, 256, 96, 16)
    six, seven = (by(group, Choices(rows=r), target) for r in (6, 7))
    assert seven.compute > 1.15 * six.compute
