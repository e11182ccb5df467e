"""Additions at places that are read from memory: by atomics, in any order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.gpu import emulate
from tests.kernel.step_examples import SCATTERED
from tests.kernel.test_grids import GPU
from tilewright import targets
from tilewright.base.errors import Refused
from tilewright.kernel import simt
from tilewright.kernel.group import Group
from tilewright.kernel.interpret import RunError
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Stmt, Store, start, transform
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.text import nest_text, parse_group, parse_nest
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.objects import assembly

TABLE = """
group table
  in g: bf16[37,24]
  in at: i64[37]
  in z: f32[9,24]
  out y: f32[9,24]
  y[${max(min(at[y.i0], 8:i64), 0:i64)},y.i1] add= cast<f32>(g[y.i0,y.i1]) for y.i0 in 37, \
y.i1 in 24 in order from z[y.init.i0,y.init.i1]
"""


def given(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    return {
        "g": rng.integers(-4, 5, (37, 24)).astype(np.float32),
        "at": rng.integers(0, rows, 37),
        "z": rng.integers(-4, 5, (9, 24)).astype(np.float32),
    }


@pytest.mark.parametrize("rows", [1, 9])
def test_the_gradient_of_a_table(rows: int) -> None:
    """All indices may be the same one."""
    g = parse_group(TABLE)
    trace, nest = default_schedule(g, GPU)
    assert apply(start(g), parse_trace(print_trace(trace))) == nest
    assert "AddAtomically" in print_trace(trace) and parse_nest(nest_text(nest)) == nest
    made = emit_kernels(legalise(nest, GPU), GPU)
    assert [x.threads for x in made.launches] == [(216, 1, 1), (256, 1, 1)]
    assert "red.relaxed" in (text := assembly(made.text, GPU)) or "atom." in text or "red." in text
    args = given(np.random.default_rng(rows), rows)
    want = args["z"].copy()
    np.add.at(want, args["at"], args["g"])
    np.testing.assert_array_equal(simt.run(nest, args)["y"], want)
    np.testing.assert_array_equal(emulate.run(nest, args, target=GPU)["y"], want)


def test_plain_additions_of_threads_are_a_race() -> None:
    """What the executor says where the atomic is left out."""
    _, nest = default_schedule(parse_group(TABLE), GPU)

    def one(s: Stmt) -> tuple[Stmt, ...]:
        return (replace(s, atomic=False),) if isinstance(s, Store) else (s,)

    with pytest.raises(RunError, match="y"):
        simt.run(replace(nest, body=transform(nest.body, one)), given(np.random.default_rng(0), 2))


ROWS = """
group rows
  in x: f32[6,5,16]
  out y: f32[5,16]
  y[y.i0,y.i1] add= x[y.r0,y.i0,y.i1] for y.i0 in 5, y.i1 in 16, y.r0 in 6 from 0.0
"""


@pytest.mark.parametrize(("wide", "target"), [(4, "90"), (2, "90"), (8, "90"), (4, "80")])
def test_lanes_that_are_neighbours_are_one_instruction(wide: int, target: str) -> None:
    """Where there is one: of two or four, on sm_90a."""
    on = targets.get(f"cuda:{target}")
    lines = f"""
        AddAtomically('y')
        Split('y.i1', {wide})
        Reorder(('y.r0', 'y.i0', 'y.i1.0', 'y.i1.1'))
        Bind('y.r0', 'block.x')
        Bind('y.i0', 'thread.y')
        Bind('y.i1.0', 'thread.x')
        Vectorize('y.i1.1')
        Synchronise()"""
    g = parse_group(ROWS)
    nest = apply(start(g), parse_trace("\n".join(x.strip() for x in lines.splitlines()[1:])))
    together = target == "90" and wide < 8
    text = emit_kernels(legalise(nest, on), on).text
    assert text.count(f"red.relaxed.gpu.global.add.v{wide}.f32") == together
    args = {"x": np.random.default_rng(0).integers(-9, 10, (6, 5, 16)).astype(np.float32)}
    for got in (simt.run(nest, args), emulate.run(nest, args, target=on)):
        np.testing.assert_array_equal(got["y"], args["x"].sum(0))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("add=", "max="), "no addition"),
        (("f32", "f16"), "not added up one by one"),
        (("out y: f32[5]\n", "out y: f32[5]\n  strict\n"), ""),
    ],
)
def test_what_it_refuses(change: tuple[str, str], says: str) -> None:
    if not says:
        g = parse_group(SCATTERED)
        g = Group(g.name, g.buffers, g.stages, "strict")
        says = "order of sums may not change"
    else:
        g = parse_group(SCATTERED.replace(*change))
    with pytest.raises(Refused, match=says):
        apply(start(g), parse_trace("AddAtomically('y')"))
