"""Long sums of columns: pieces by vectors, threads that combine what they have; what follows the
sums is in the second launch."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.gpu import emulate
from tests.gpu.assembler import assemble
from tests.gpu.programs import groups, inputs
from tests.graph.build import arg, build, graph
from tests.kernel.test_grids import GPU, judge, scheduled
from tests.seeds import drawn
from tilewright.base.errors import Invalid
from tilewright.ir.node import Graph
from tilewright.ir.types import DType, bf16, f32
from tilewright.kernel import simt
from tilewright.kernel.defaults.choices import Choices
from tilewright.kernel.defaults.grid_columns import schedule_columns
from tilewright.kernel.defaults.scheduler import Scheduler
from tilewright.kernel.group import Group
from tilewright.kernel.interpret import RunError, run_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly


def spread(d: DType, rows: int, columns: int) -> Graph:
    """The variance of columns around given means, and one over its root."""
    x, m = arg("x", rows, columns, dtype=d), arg("m", columns)
    centred = build.sub(build.cast(x, f32), m)
    var = build.mul(build.sum(build.square(centred), (0,), False), 1.0 / rows)
    return graph(var, build.rsqrt(build.add(var, 1e-5)))


def summed(d: DType, rows: int, columns: int) -> Graph:
    """Sums as they are, which are results themselves."""
    return graph(build.sum(build.cast(arg("x", rows, columns, dtype=d), f32), (0,), False))


def test_statistics_are_one_launch() -> None:
    (g,) = groups(spread(bf16, 384, 64))
    nest = scheduled(g)
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert [(x.blocks, x.threads) for x in made.launches] == [((1, 3, 1), (8, 32, 1))]
    judge(g, nest, {}, bf16)
    args = inputs(g, {})
    want, got = run_group(g, args, {}), emulate.run(nest, args, target=GPU)
    for name, x in got.items():
        np.testing.assert_allclose(x, want[name], rtol=1e-5, atol=1e-6)
    text = assembly(made.text, GPU)
    assert "ld.global.nc.v4" in text or "ld.global.v4" in text
    assert all(x.spilled == 0 for x in assemble(text, GPU.cpu))


def two(d: DType, rows: int, columns: int) -> Graph:
    """Two sums that read the same rows, as gradients of a norm do."""
    x, m = arg("x", rows, columns, dtype=d), arg("m", columns)
    g = build.cast(arg("g", rows, columns, dtype=d), f32)
    dot = build.sum(build.mul(g, build.sub(build.cast(x, f32), m)), (0,), False)
    total = build.sum(g, (0,), False)
    return graph(build.mul(dot, 2.0), build.cast(total, bf16), build.mul(total, 0.5))


def once(d: DType, rows: int, columns: int) -> Graph:
    """Mean and variance by sums that read all rows once, relative to the first of them."""
    x = arg("x", rows, columns, dtype=d)
    wide, first = build.cast(x, f32), build.cast(build.slice(x, 0, 0, 1), f32)
    mean = build.mul(build.sum(wide, (0,), False), 1.0 / rows)
    squares = build.mul(build.sum(build.square(build.sub(wide, first)), (0,), False), 1.0 / rows)
    apart = build.sub(mean, build.reshape(first, (columns,)))
    return graph(mean, build.sub(squares, build.square(apart)))


def random_sums(seed: int) -> tuple[Group, DType]:
    rng = random.Random(seed)
    d, make = rng.choice([f32, bf16]), rng.choice([spread, summed, two, once])
    rows, columns = rng.randint(1100, 2500), 4 * rng.randint(2, 20)
    (g,) = groups(make(d, rows, columns))
    return g, d


@pytest.mark.parametrize("seed", drawn([1, 0, *range(2, 40)], 1))
def test_random_sizes(seed: int) -> None:
    g, d = random_sums(seed)
    nest = scheduled(g)
    assert len(emit_kernels(legalise(nest, GPU), GPU).launches) == 1, seed
    judge(g, nest, {}, d)


def test_a_store_by_all_threads_is_noticed() -> None:
    """One thread of a column stores its result: the others would race with it."""
    (g,) = groups(spread(f32, 600, 16))
    nest = scheduled(g)
    text = nest_text(nest)
    once = [x.strip() for x in text.splitlines() if x.strip().startswith("thread.y y0")]
    assert len(once) == 1
    wrong = text.replace(once[0], once[0].replace("thread.y", "for").replace(" in 1", " in 2"))
    with pytest.raises((RunError, Invalid)):
        simt.run(parse_nest(wrong), inputs(g, {}))


def test_few_rows_and_rows_themselves_are_left_to_others() -> None:
    for g in (*groups(summed(f32, 64, 64)), *groups(graph(build.sum(arg("x", 8, 512), (1,))))):
        assert not schedule_columns(Scheduler(g, GPU, Choices()))


def test_a_block_for_each_vector_of_a_few_columns() -> None:
    """Sums of 2048 rows or fewer are one launch, in which a block shares each of them."""
    (g,) = groups(
        graph(build.cast(build.sum(build.cast(arg("x", 1024, 16, dtype=bf16), f32), (0,)), bf16))
    )
    nest = scheduled(g)
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert [(x.blocks, x.threads) for x in made.launches] == [((2, 1, 1), (128, 1, 1))]
    judge(g, nest, {}, bf16)
    args = inputs(g, {})
    want, got = run_group(g, args, {}), emulate.run(nest, args, target=GPU)
    for name, x in got.items():
        np.testing.assert_allclose(x, want[name], rtol=1e-2, atol=1e-2)
    assert all(x.spilled == 0 for x in assemble(assembly(made.text, GPU), GPU.cpu))
