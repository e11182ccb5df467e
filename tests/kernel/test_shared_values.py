"""Results of one shape that share costly values: these are computed once, in vectors."""

from __future__ import annotations

import random
from math import prod

import pytest

from tests.kernel.fuzz import Judge
from tests.seeds import drawn, every_run
from tilewright.ir.expr import Fn
from tilewright.ir.expr import walk as walk_value
from tilewright.kernel.group import Group
from tilewright.kernel.nest import Nest, Path, Store, start, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import parse_group
from tilewright.targets import default


def gradient(shape: tuple[int | str, ...], turned: bool = False, where: str = "") -> Group:
    """A tanh of which two results are made, one of them with what lies in another order."""
    dims = ",".join(map(str, shape))

    def index(x: str) -> str:
        return ",".join(f"{x}.i{k}" for k in range(len(shape)))

    def loops(x: str) -> str:
        return ", ".join(f"{x}.i{k} in {d}" for k, d in enumerate(shape))

    other = ",".join(map(str, reversed(shape))) if turned else dims
    read = ",".join(reversed(index("z").split(","))) if turned else index("z")
    return parse_group(f"""
group gradient{where}
  in a: f32[{dims}]
  in b: f32[{other}]
  out y: f32[{dims}]
  out z: f32[{dims}]
  local t: f32[{dims}]
  local u: f32[{dims}]
  t[{index("t")}] = tanh(a[{index("t")}] * 0.5) for {loops("t")}
  u[{index("u")}] = exp(t[{index("u")}]) for {loops("u")}
  y[{index("y")}] = (1.0 - t[{index("y")}] * t[{index("y")}]) * u[{index("y")}] for {loops("y")}
  z[{index("z")}] = b[{read}] * t[{index("z")}] + u[{index("z")}] for {loops("z")}
""")


def computed(n: Nest, function: str) -> list[Path]:
    """The loops around each place where a function is computed."""
    return [
        path
        for x, path in walk(n.body)
        if isinstance(x, Store)
        for v in walk_value(x.value)
        if isinstance(v, Fn) and v.name == function
    ]


def judged(g: Group, dims: list[dict[str, int]], seed: int = 0, steps: bool = True) -> Nest:
    """The default schedule's nest, right after each of its steps, or where it is complete."""
    judge = Judge(g, dims, seed)
    judge.exact = False
    trace, final = default_schedule(g, default())
    n = start(g)
    for k, step in enumerate(trace):
        n = step.apply(n)
        if steps:
            judge.nest(n, k % len(dims))
    for k in range(len(dims)):
        judge.nest(n, k)
    judge.native(n)
    return final


def once_in_vectors(n: Nest) -> bool:
    paths = [computed(n, f) for f in ("tanh", "exp")]
    lanes = all(any(q.kind == "lane" for q in p) for found in paths for p in found)
    return lanes and all(len(found) <= 2 for found in paths)  # what is left over has copies


@every_run(1, 3, 4)
@pytest.mark.parametrize("shape", [(3, 5, 64), (300,), (7, 33), (4, 96, 1, 1), (3, 7)])
def test_costly_values_are_computed_once_in_vectors(shape: tuple[int, ...]) -> None:
    n = judged(gradient(shape), [{}])
    assert once_in_vectors(n)
    assert all(b.size != n.buffer("a").size for b in n.buffers if b.name in "tu"), "stored whole"


def test_any_number_of_rows() -> None:
    n = judged(gradient(("S", 48), where=" where S: 1.."), [{"S": 1}, {"S": 37}])
    assert once_in_vectors(n)


def test_any_length_of_rows() -> None:
    n = judged(gradient((3, "S"), where=" where S: 1.."), [{"S": 1}, {"S": 37}])
    assert all(any(q.kind == "lane" for q in p) for p in computed(n, "tanh"))


def drawn_shape(r: random.Random) -> tuple[int, ...]:
    return tuple(r.choice((1, 2, 3, 8, 17, 40)) for _ in range(r.randint(1, 4)))


@pytest.mark.parametrize("seed", drawn(range(24), quick=3))
def test_random_shapes(seed: int) -> None:
    r = random.Random(seed)
    shape = drawn_shape(r)
    while prod(shape) > 1 << 11:  # steps are judged element by element
        shape = drawn_shape(r)
    print(f"seed {seed}: {shape}")
    judged(gradient(shape, turned=r.random() < 0.5), [{}], seed)


def product(rows: int | str, columns: int, deep: int, where: str = "") -> Group:
    """A product, of whose tanh two results are made."""
    return parse_group(f"""
group product{where}
  in a: f32[{rows},{deep}]
  in b: f32[{deep},{columns}]
  in g: f32[{rows},{columns}]
  out y: f32[{rows},{columns}]
  out z: f32[{rows},{columns}]
  local s: f32[{rows},{columns}]
  local t: f32[{rows},{columns}]
  s[s.i0,s.i1] add= a[s.i0,s.r0] * b[s.r0,s.i1] \
for s.i0 in {rows}, s.i1 in {columns}, s.r0 in {deep} from 0.0
  t[t.i0,t.i1] = tanh(s[t.i0,t.i1]) for t.i0 in {rows}, t.i1 in {columns}
  y[y.i0,y.i1] = g[y.i0,y.i1] * (1.0 - t[y.i0,y.i1] * t[y.i0,y.i1]) \
for y.i0 in {rows}, y.i1 in {columns}
  z[z.i0,z.i1] = t[z.i0,z.i1] + 1.0 for z.i0 in {rows}, z.i1 in {columns}
""")


@every_run(0, 2)
@pytest.mark.parametrize("sizes", [(17, 48, 20), (4, 100, 7), (14, 48, 600)])
def test_products_whose_results_share_costly_values_have_tiles(sizes: tuple[int, int, int]) -> None:
    n = judged(product(*sizes), [{}], steps=sizes[-1] < 100)  # long sums are interpreted for long
    assert all(any(q.kind == "lane" for q in p) for p in computed(n, "tanh"))
    assert n.buffer("s").size != n.buffer("y").size
    sums = [p for x, p in walk(n.body) if isinstance(x, Store) and x.combine == "add"]
    assert any(q.kind == "tensor" or q.name.startswith("s.i1") for p in sums for q in p)


def test_products_of_any_number_of_rows_share_costly_values() -> None:
    n = judged(product("S", 48, 20, " where S: 1.."), [{"S": 1}, {"S": 19}])
    assert all(any(q.kind == "lane" for q in p) for p in computed(n, "tanh"))
