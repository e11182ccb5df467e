"""Chains: two contractions and what is between them, a block of rows at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernel.fuzz import Judge
from tests.seeds import crossed, every_run
from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.graph import chains, key_blocks
from tilewright.graph.decompose import Decompose
from tilewright.graph.fuse import fuse
from tilewright.graph.key_blocks import KeyBlocks
from tilewright.graph.pack import PackOperands
from tilewright.graph.simplify import Simplify
from tilewright.ir import dim as D
from tilewright.ir import passes
from tilewright.ir.check import CheckFailed, verify
from tilewright.ir.node import Graph, input
from tilewright.ir.register_tile import register_tile
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType, f32
from tilewright.kernel.defaults.chains import block_rows, find_chain
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Loop, Store, start, walk
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import print_trace
from tilewright.kernel.text import group_text, parse_group
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.targets import default, get

TARGETS = ("host", "x86-64-v4", "x86-64-v3", "x86-64")


def machine(name: str) -> Target:
    return default() if name == "host" else get(name)


def attention(
    rows: D.Dim,
    keys: D.Dim,
    width: int,
    causal: bool,
    target: Target,
    blocks: int = 0,
    heads: tuple[int, int] = (2, 2),
) -> Group:
    """The one kernel that attention over several heads becomes, perhaps of keys in blocks."""
    q, k, v = (
        input(label, TensorType(f32, (*heads, length, width)))
        for label, length in (("q", rows), ("k", keys), ("v", keys))
    )
    graph = Graph("test", (q, k, v), (ops.attention(q, k, v, causal=causal),))
    table: list[passes.Pass] = [Simplify()]
    if blocks:
        sizes = {"block": blocks, "hidden": blocks}
        scratch = 50 * 4 * key_blocks.TILE_ROWS
        table.append(replace(KeyBlocks.of(target), **sizes, scratch=scratch))
    table += [Decompose(), Simplify(), PackOperands.of(target)]
    found = fuse(passes.run(table, graph, Log()), target, Log()).clusters
    (c,) = (c for c in found if c.kind == "chain")
    return build_group("chain", c.nodes, c.inputs, c.outputs, roles=c.roles)


# Narrower heads have no tiles of whole vectors.
LANES = default().lanes(32)
SIZES = {"even": (24, 24, 2 * LANES), "ragged": (13, 29, 2 * LANES), "tail": (149, 17, LANES)}


# Of many rows, which the interpreter takes long for, one head and fewer prefixes.
EVERY = [("even", 28, (2, 2)), ("ragged", 28, (2, 2)), ("tail", 60, (1, 1))]
ALL = [
    pytest.param((size, 7, (2, 2)), causal, id=f"{size}-all-{causal}", marks=pytest.mark.slow)
    for size in SIZES
    for causal in (False, True)
]


@every_run(1)
@pytest.mark.parametrize(("case", "causal"), [*crossed(EVERY, [False, True], 2), *ALL])
def test_every_prefix_computes_the_same(
    case: tuple[str, int, tuple[int, int]], causal: bool
) -> None:
    size, every, heads = case
    g = attention(*SIZES[size], causal, default(), heads=heads)
    judge = Judge(g, [{}])
    judge.exact = False
    trace, final = default_schedule(g, default())
    n = start(g)
    for k, step in enumerate(trace):
        n = step.apply(n)
        if k % every == every - 1:
            judge.nest(n)
    assert n == final
    judge.nest(n)
    judge.native(n)


BLOCKS = {
    "even": (24, 96, {}),
    "ragged": (13, 53, {}),
    "rows": (D.sym("n"), 53, {"n": 15}),
}
HEADS = [(s, (2, 1) if s in ("even", "ragged") else (1, 1)) for s in BLOCKS]
MORE_HEADS = [
    pytest.param((size, (2, 2)), causal, id=f"{size}-heads-{causal}", marks=pytest.mark.slow)
    for size in BLOCKS
    for causal in (False, True)
]


@every_run(1)
@pytest.mark.parametrize(("case", "causal"), [*crossed(HEADS, [False, True], 2), *MORE_HEADS])
def test_keys_in_blocks(
    case: tuple[str, tuple[int, int]], causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, heads = case
    monkeypatch.setattr(key_blocks, "MANY_KEYS", 50)
    rows, keys, dims = BLOCKS[size]
    g = attention(rows, keys, LANES, causal, default(), 48, heads)
    chain = find_chain(g)
    assert chain is not None and chain.end is not None
    judge = Judge(g, [dims])
    judge.exact = False
    trace, final = default_schedule(g, default())
    text = print_trace(trace)
    # Tiles, and all that leads to them inside the loop over blocks.
    assert "Unroll(" in text and text.count(f"at='{chain.end.name}.r0'") >= 4
    if size == "ragged":
        n = start(g)
        for k, step in enumerate(trace):
            n = step.apply(n)
            if k % 46 == 45:
                judge.nest(n)
    judge.nest(final)
    judge.native(final)


UNKNOWN = [{"n": 75, "k": 53}, {"n": 1, "k": 0}, {"n": 13, "k": 16}]


@every_run(1)
@pytest.mark.parametrize("causal", [False, True])
def test_unknown_numbers_of_rows_and_keys(causal: bool) -> None:
    """One block, of whole vectors of keys: sums over full tiles are in registers, without running
    results, and nothing is added past the last key."""
    g = attention(D.sym("n"), D.sym("k"), LANES, causal, default(), 48, (1, 1))
    chain = find_chain(g)
    assert chain is not None and chain.end is None
    judge = Judge(g, UNKNOWN)
    judge.exact = False
    trace, final = default_schedule(g, default())
    assert "Pad(" in print_trace(trace) and "cases=True" in print_trace(trace)
    # Rows that are left over are code of their own each: narrow panels have no more of them.
    tiles = [b.shape[2] for b in final.buffers if b.scope == "register"]
    assert tiles and all(D.known_le(x, register_tile(default(), f32).rows) for x in tiles)
    judge.nest(final)
    judge.native(final)


@pytest.mark.parametrize("most", [100, 300])
def test_keys_of_a_bounded_number(most: int) -> None:
    """Sums of the second product are in as many parts as a call has keys for, not as there may be,
    and in one where there are never more; both products are tiles as without a bound."""
    g = attention(D.sym("n"), D.sym("k", 0, most), LANES, False, default(), 48, (1, 1))
    chain = find_chain(g)
    assert chain is not None
    judge = Judge(g, [{"n": n, "k": k} for n, k in ((3, 5), (40, 48), (17, 1), (30, 97))])
    judge.exact = False
    trace, final = default_schedule(g, default())
    text = print_trace(trace)
    assert text.count("Tensorize(") == (2 if any(default().instructions) else 0)
    assert ("exact=True" in text) == (most > 128)
    registers = {b.name for b in final.buffers if b.scope == "register"}
    sums = chain.sums.name
    assert {chain.scores.name, f"{sums}b" if most > 128 else sums} <= registers
    judge.nest(final)
    judge.native(final)


def test_parts_of_a_sum_that_are_hidden_are_left_out() -> None:
    """Then the scores that only these would read are left out too."""
    g = attention(D.sym("n"), D.sym("k"), LANES, True, default(), 48, (1, 1))
    chain = find_chain(g)
    assert chain is not None and chain.host is not None
    trace, final = default_schedule(g, default())
    parts = f"{chain.sums.name}.r0.0"
    assert f"Trim(loop='{parts}')" in print_trace(trace)
    # How many keys the scores of a block are computed of depends on where the block is.
    paths = [p for s, p in walk(final.body) if isinstance(s, Store) and s.stage == chain.host]
    blocks = {q.var for p in paths for q in p if q.name.endswith("i2.0") and q.name[0] == "y"}
    panels = [q for p in paths for q in p if q.name == f"{chain.host}.i3.0"]
    assert blocks and any(D.symbols(q.extent) & blocks for q in panels)
    judge = Judge(g, [{"n": 140, "k": 300}, {"n": 33, "k": 150}, {"n": 150, "k": 129}])
    judge.exact = False
    judge.nest(final)
    judge.native(final)


@pytest.mark.parametrize("rows", [24, 149])
def test_products_with_elementwise_work_between(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "BETWEEN_BYTES", 0)
    x, first, second = (
        input(label, TensorType(f32, shape))
        for label, shape in (("x", (rows, 8)), ("a", (8, 29)), ("b", (29, 3 * LANES)))
    )
    hidden = ops.gelu(ops.matmul(x, first))
    graph = Graph("test", (x, first, second), (ops.matmul(hidden, second),))
    table = [Simplify(), Decompose(), Simplify(), PackOperands.of(default())]
    found = fuse(passes.run(table, graph, Log()), default(), Log()).clusters
    (c,) = (c for c in found if c.kind == "chain")
    g = build_group("chain", c.nodes, c.inputs, c.outputs, roles=c.roles)
    trace, final = default_schedule(g, default())
    assert "Unroll(" in print_trace(trace)
    judge = Judge(g, [{}])
    judge.exact = False
    judge.nest(final)
    judge.native(final)


@pytest.mark.parametrize(("target", "length"), crossed(TARGETS, [512, 1024], 2))
def test_scores_stay_in_a_block(target: str, length: int) -> None:
    """The scores are a scratch of one block, both contractions are register tiles (of partial sums
    where there are many keys), and what is masked is left out."""
    there = machine(target)
    g = attention(length, length, 64, True, there)
    chain = find_chain(g)
    assert chain is not None and chain.host is not None
    trace, n = default_schedule(g, there)
    text = print_trace(trace)
    block = n.buffer(chain.host)
    assert D.known_lt(block.shape[2], length) and D.known_le(block.size * 4, there.l2 // 4), block
    registers = [b.name for b in n.buffers if b.scope == "register"]
    sums = chain.sums.name
    assert chain.scores.name in registers and {sums, f"{sums}b"} & set(registers)
    assert text.count("Trim(") >= 4 and "Parallel(" in text
    assert compile_object(emit(legalise(n, there), there), there)


def test_groups_that_are_no_chains() -> None:
    one = """
group one
  in x: f32[8,6]
  in w: f32[6,4]
  out y: f32[8,4]
  local t: f32[8,4]
  t[t.i0,t.i1] add= x[t.i0,t.r0] * w[t.r0,t.i1] for t.i0 in 8, t.i1 in 4, t.r0 in 6 from 0.0
  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in 8, y.i1 in 4
"""
    assert find_chain(parse_group(one)) is None


@pytest.mark.parametrize(
    ("rows", "most", "block"),
    [
        (512, 128, 64),  # a divisor of the rows, and nearly whole tiles
        (384, 128, 48),  # whole tiles
        (128, 400, 64),
        (197, 332, 197),  # a prime number of rows that fits
        (1021, 64, 60),  # one that does not: whole tiles and a tail
        (13, 850, 13),
    ],
)
def test_rows_of_a_block(rows: int, most: int, block: int) -> None:
    assert block_rows(rows, 6, most) == block


@pytest.mark.parametrize(("cores", "heads"), [(1, 1), (2, 1), (4, 1), (4, 2), (4, 8)])
def test_every_thread_has_a_block(cores: int, heads: int) -> None:
    target = replace(get("x86-64-v3"), cores=cores)
    group = attention(64, 32, 16, False, target, heads=(1, heads))
    _, nest = default_schedule(group, target)
    (shared,) = (x for x, _ in walk(nest.body) if isinstance(x, Loop) and x.kind == "parallel")
    assert isinstance(shared.extent, int) and shared.extent >= min(cores, 64 * heads // 8)


def test_what_the_stages_are_is_printed_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_blocks, "MANY_KEYS", 50)
    g = attention(24, 96, LANES, True, default(), 48)
    assert [role for role, _ in g.roles] == ["scores", "weights", "sums", "end"]
    text = group_text(g)
    assert parse_group(text) == g and text.splitlines()[1].startswith("  roles scores t")
    # Without its roles it is scheduled as what it reads like, and a wrong role is refused.
    assert find_chain(replace(g, roles=())) is None
    with pytest.raises(CheckFailed, match=r"roles-known.*y0 cannot be sums"):
        verify(replace(g, roles=(("sums", "y0"),)))
    with pytest.raises(CheckFailed, match=r"roles-known.*2 stages are end"):
        verify(replace(g, roles=(g.roles[3], g.roles[3])))
    with pytest.raises(CheckFailed, match=r"roles-known.*t99 cannot be weights"):
        verify(replace(g, roles=(("weights", "t99"),)))
    with pytest.raises(Invalid, match="line 2: expected roles ROLE STAGE"):
        parse_group(text.replace("roles scores", "roles", 1))
