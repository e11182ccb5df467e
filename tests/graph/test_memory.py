"""Values live in one arena, never two in the same bytes at the same time."""

import random
from itertools import combinations, pairwise

import numpy as np
import pytest

from tests.graph.build import (
    TARGET,
    arg,
    attention_block,
    build,
    check_run,
    fused,
    graph,
    layer_norm,
    softmax,
    weight,
)
from tests.graph.random_graphs import random_graph
from tests.seeds import drawn
from tilewright.base.events import Log
from tilewright.graph import memory
from tilewright.graph.cluster import Fused
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import (
    Lifetime,
    Plan,
    _place_all,
    _Storage,
    aligned,
    place,
    plan,
)
from tilewright.ir import dim as D
from tilewright.ir.types import f16, f32, i64

x = arg("x", 4, 16, 32)


def planned(*outputs) -> tuple[Fused, Plan]:
    f = fused(*outputs)
    p = plan(f)
    check_run(f, graph(*outputs), p)
    return f, p


# ---- placement


def random_lifetimes(seed: int) -> list[Lifetime]:
    rng = random.Random(seed)
    out = []
    for _ in range(rng.randint(1, 80)):
        first = rng.randrange(60)
        out.append((64 * rng.choice((0, 1, 1, 2, 3, 8, 50)), first, first + rng.randrange(12)))
    return out


def most_alive(items: list[Lifetime]) -> int:
    return max(sum(s for s, f, e in items if f <= t <= e) for t in range(80))


@pytest.mark.parametrize("seed", range(60))
def test_lifetimes_never_overlap(seed: int) -> None:
    items = random_lifetimes(seed)
    at, total = place(items)
    for k, (s, f, e) in enumerate(items):
        assert at[k] + s <= total
        for j, (t, g, h) in enumerate(items[:k]):
            together = f <= h and g <= e
            assert not together or at[k] + s <= at[j] or at[j] + t <= at[k]
    assert total >= most_alive(items)


def test_placement_is_close_to_the_bound(record_property) -> None:
    ratios = []
    for seed in range(60):
        items = random_lifetimes(seed)
        ratios.append(place(items)[1] / max(1, most_alive(items)))
    record_property(
        "arena / lower bound, mean and worst", (float(np.mean(ratios)), float(max(ratios)))
    )
    assert np.mean(ratios) < 1.05 and max(ratios) < 1.3


# ---- plans


def test_results_are_written_where_the_caller_wants_them() -> None:
    f, p = planned(softmax(x))
    assert p.size == 0 and p.outputs == {f.graph.outputs[0]: 0} and not p.copies


def test_attention_reuses_memory() -> None:
    f, p = planned(attention_block(x, 4))
    stored = sum(o.ttype.size * 4 for c in f.clusters for o in c.outputs)
    assert isinstance(stored, int) and p.peak == p.lower_bound < 0.7 * stored


def test_elementwise_work_is_done_in_place() -> None:
    total = build.cumsum(x, 1)
    grown = build.exp(total)
    _, p = planned(build.cumsum(grown, 0))
    assert p.in_place == {grown: total}
    assert p.where(grown) == p.where(total) and p.size == 4 * 16 * 32 * 4


def test_in_place_results_share_the_callers_buffer() -> None:
    total = build.cumsum(x, 1)
    _, p = planned(build.exp(total))
    assert p.size == 0 and p.where(total) == ("output", 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda t: build.add(t, build.flip(t, (2,))),  # reads other elements
        lambda t: build.cast(t, f16),  # other size
        lambda t: build.permute(t, (1, 0, 2)),
        lambda t: build.expand(t, (2, 4, 16, 32)),
        lambda t: softmax(t),  # a row is read more than once
    ],
)
def test_not_in_place(make) -> None:
    total = build.cumsum(x, 1)
    _, p = planned(make(total))
    assert not p.in_place


def test_not_in_place_while_it_is_still_needed() -> None:
    total = build.cumsum(x, 1)
    grown = build.exp(total)
    _, p = planned(build.cumsum(grown, 1), build.cumsum(total, 0))
    assert total not in p.in_place.values()


def test_inputs_are_never_overwritten() -> None:
    _, p = planned(build.cumsum(build.exp(x), 1))
    assert not p.in_place


def test_several_outputs_are_not_in_place() -> None:
    total = build.cumsum(x, 1)
    _, p = planned(build.sin(total), build.cos(total))
    assert not p.in_place


def test_updates_in_place() -> None:
    rows, ids = arg("rows", 3, 32), arg("ids", 3, dtype=i64)
    base = build.cumsum(arg("base", 8, 32), 0)
    updated = build.index_put(base, rows, (ids,), (0,), False)
    _, p = planned(build.cumsum(updated, 1))
    assert p.in_place[updated] is base
    _, kept = planned(build.cumsum(updated, 1), base)
    assert updated not in kept.in_place
    direct = build.index_put(arg("base", 8, 32), rows, (ids,), (0,), False)
    _, from_input = planned(direct)
    assert not from_input.in_place


def test_reshapes_are_aliases() -> None:
    y = build.cumsum(x, 1)
    flat = build.reshape(y, (64, 32))
    _, p = planned(build.cumsum(flat, 0), y)
    assert p.aliases[flat] is y and p.where(flat) == p.where(y)


def test_results_that_need_a_copy() -> None:
    y = build.exp(x)
    _, p = planned(y, x, y, build.reshape(y, (64, 32)))
    assert p.outputs == {y: 0}
    assert p.copies == ((1, x), (2, y), (3, y))


def test_symbolic_sizes() -> None:
    batch = D.sym("B", 1)
    y = arg("y", batch, 64)
    for k in range(4):
        y = layer_norm(build.matmul(y, weight(f"W{k}", 64, 64)), weight("w", 64), weight("b", 64))
    f = fused(build.matmul(y, weight("V", 64, 3)))
    p = plan(f)
    assert p.size == 2 * 64 * 4 * batch
    for n in (1, 7, 4096):
        spans = [_span(f, p, k, n) for k in range(len(f.clusters))]
        assert all(_disjoint(s) for s in spans)


def test_symbolic_sizes_that_are_not_comparable() -> None:
    a, b = D.sym("A", 1), D.sym("B", 1)
    one = build.cumsum(build.cumsum(arg("y", a, 3), 0), 0)
    other = build.cumsum(build.cumsum(arg("z", b, 5), 0), 0)
    p = plan(fused(one, other))
    assert not isinstance(p.size, int)
    for n, m in ((1, 1), (1, 100), (100, 1)):
        size = D.evaluate(p.size, {"A": n, "B": m})
        assert size % 64 == 0 and size >= max(12 * n, 20 * m)


def test_sizes_whose_order_is_not_known_take_turns() -> None:
    """Images that get half as large, rounded up: nothing proves that one is no larger."""
    h, w = D.sym("H", 0), D.sym("W", 0)
    found = []
    for k in range(8):
        found.append(_Storage([arg(f"i{k}", 1)], aligned(4 * h * w), k, k + 1))
        h, w = (h + 1) // 2, (w + 1) // 2
    total = _place_all(found, {})
    sizes = {"H": 96, "W": 96}
    assert D.evaluate(total, sizes) == sum(D.evaluate(s.size, sizes) for s in found[:2])


@pytest.mark.parametrize("seed", range(30))
def test_symbolic_lifetimes_never_overlap(seed: int) -> None:
    rng = random.Random(seed)
    a, b = D.sym("A", 0), D.sym("B", 0)
    sizes = (64 * a, 64 * b, 64 * a * b, aligned((a + 1) // 2 * b), aligned(5 * (b + 3) // 4), 192)
    found = []
    for k in range(rng.randint(1, 30)):
        first = rng.randrange(20)
        node = arg(f"s{k}", 1)
        found.append(_Storage([node], rng.choice(sizes), first, first + rng.randrange(6)))
    total = _place_all(found, at := {})
    for _ in range(20):
        env = {"A": rng.randint(0, 99), "B": rng.randint(0, 99)}
        spans = [(D.evaluate(at[s.nodes[0]], env), D.evaluate(s.size, env)) for s in found]
        assert all(start % 64 == 0 and start + n <= D.evaluate(total, env) for start, n in spans)
        for (s, (x, n)), (t, (y, m)) in combinations(zip(found, spans, strict=True), 2):
            apart = x + n <= y or y + m <= x or not (n and m)
            assert apart or s.last < t.first or t.last < s.first


def _span(f: Fused, p: Plan, k: int, batch: int) -> list[tuple[int, int]]:
    """The bytes of the arena that cluster k reads and writes, less what it overwrites in place."""
    c = f.clusters[k]
    used = {f.aliases.get(v, v) for v in (*c.inputs, *c.outputs)} - set(p.in_place.values())
    out = []
    for v in used & set(p.offsets):
        at = D.evaluate(p.offsets[v], {"B": batch})
        out.append((at, at + D.evaluate(v.ttype.size, {"B": batch}) * 4))
    return sorted(out)


def _disjoint(spans: list[tuple[int, int]]) -> bool:
    return all(a[1] <= b[0] for a, b in pairwise(spans))


def test_random_plans_are_close_to_the_bound(record_property) -> None:
    ratios = []
    for seed in range(40):
        p = plan(fuse(random_graph(seed, 40), TARGET, Log()))
        if p.lower_bound:
            ratios.append(p.peak / p.lower_bound)
    record_property(
        "arena / lower bound, mean and worst", (float(np.mean(ratios)), float(max(ratios)))
    )
    assert np.mean(ratios) < 1.05


@pytest.mark.parametrize("first", drawn((0, 20), quick=1))
def test_values_lie_over_inputs_that_were_read(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LENT", 64)
    over = in_place = 0
    for seed in range(first, first + 20):
        g = random_graph(seed, 30)
        f = fuse(g, TARGET, Log())
        p = plan(f, spent=g.inputs)
        check_run(f, g, p, seed)
        assert p.peak <= plan(f).peak
        over += len(p.over)
        in_place += sum(p.over.get(o, (None, 1)) == (x, 0) for o, x in p.in_place.items())
    assert over > 20 and in_place


@pytest.mark.parametrize("first", drawn((0, 30), quick=1))
def test_values_lie_in_results_before_these_are_written(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "LENT", 64)
    before = less = 0
    for seed in range(first, first + 30):
        g = random_graph(seed, 30)
        f = fuse(g, TARGET, Log())
        p, alone = plan(f, fresh=True), plan(f)
        check_run(f, g, p, seed)
        before += sum(isinstance(owner, int) for owner, _ in p.over.values())
        assert p.lower_bound <= alone.lower_bound
        less += p.lower_bound < alone.lower_bound
        both = plan(f, spent=g.inputs, fresh=True)
        check_run(f, g, both, seed)
    assert before > 10 and less > 5


def test_new_values_of_inputs_have_nothing_before_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller has the old value there."""
    monkeypatch.setattr(memory, "LENT", 64)
    y = arg("y", 4, 16, 32)
    small = build.cumsum(build.cumsum(x, 0), 1)
    total = build.cumsum(build.mul(y, build.cumsum(small, 2)), 0)
    f = fused(total)
    assert any(owner == 0 for owner, _ in plan(f, fresh=True).over.values())
    assert not plan(f, None, {0: y}, fresh=True).over


def test_an_input_that_is_a_result_is_not_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LENT", 64)
    y = build.cumsum(build.exp(x), 2)
    f = fused(build.cumsum(y, 1), build.reshape(x, (64, 32)))
    assert not plan(f, spent=[x]).over
    assert plan(fused(build.cumsum(y, 1)), spent=[x]).over


def test_dtypes_of_all_sizes_are_aligned() -> None:
    y = build.cumsum(build.cast(arg("y", 3, 5), f16), 0)
    _, p = planned(build.cumsum(build.cast(y, f32), 1), build.cumsum(y, 1))
    assert all(isinstance(o, int) and o % 64 == 0 for o in p.offsets.values())
