"""Every declared instruction: matched with its own loops, compiled, run where the machine has it;
and what is nearly the instruction is refused.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from tests.kernel.native import Native
from tests.kernel.random_groups import arrays
from tilewright.base.errors import Invalid, Refused, Unsupported
from tilewright.ir import dim as D
from tilewright.ir.expr import extent
from tilewright.ir.target import Target
from tilewright.kernel import intrinsic
from tilewright.kernel.check import verify
from tilewright.kernel.interpret import run
from tilewright.kernel.intrinsic import INTRINSICS, Intrinsic, Match, declare, match, products
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Loop, Nest, start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import Step, apply, parse_trace
from tilewright.kernel.steps.compute_inline import ComputeInline
from tilewright.kernel.steps.relayout import Relayout
from tilewright.kernel.steps.split import Split
from tilewright.kernel.steps.tensorize import Tensorize
from tilewright.kernel.text import nest_text, parse_group, parse_nest
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.targets import default, families, get

families()  # declares them
NAMES = sorted(x for x, i in INTRINSICS.items() if not i.fragments and not i.engine)


def sizes_of(i: Intrinsic, every: bool = False) -> list[dict[str, int]]:
    """Small and larger values of a family's dimensions that it allows: every combination, or so few
    that each value of a dimension still meets each of another where there are more than two."""
    dims = sorted(i.group.dim_symbols(), key=lambda s: s.name)
    choices = []
    for d in dims:
        least, most = D.bounds(D.as_int(d))
        axes = [a for s in i.group.stages for a in (*s.axes, *s.raxes) if extent(a) == D.as_int(d)]
        by = max(i.multiples.get(a.name.split(".")[-1], 1) for a in axes)
        first = -(-least // by) * by
        choices.append([x for x in (first, first + by, first + 6 * by) if x <= most])
    few = [
        c
        for c in itertools.product(*map(enumerate, choices))
        if every or len(c) < 2 or sum(k for k, _ in c) % max(map(len, choices)) == 0
    ]
    return [dict(zip([d.name for d in dims], (x for _, x in c))) for c in few]


def loops_of(i: Intrinsic, sizes: dict[str, int]) -> Nest:
    """The expression of an instruction as a nest of given sizes."""
    text = i.expression
    head, _, rest = text.strip().partition("\n")
    for name, value in sizes.items():
        rest = rest.replace(name, str(value))
    return start(parse_group(f"{head.split(' where ')[0]}\n{rest}\n"))


def tensorized(i: Intrinsic, n: Nest) -> Nest:
    (top,) = n.body
    assert isinstance(top, Loop)
    return Tensorize(top.name, i.name)(n)


def target_for(i: Intrinsic) -> Target:
    """A machine that has the instruction: this one, or a preset with the feature added."""
    here = default()
    (family,) = (f for f in families() if f.name == i.name.split(".")[0])
    if here.arch in family.architectures and all(map(here.has, i.features)):
        return here
    preset = family.presets[-1]
    return replace(preset, features=(*preset.features, *(f"+{f}" for f in i.features)))


EVERY = [pytest.param(False, id="few"), pytest.param(True, id="every", marks=pytest.mark.slow)]


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("name", NAMES)
def test_declared_loops_are_the_instruction(name: str, every: bool) -> None:
    i = INTRINSICS[name]
    for sizes in sizes_of(i, every):
        n = tensorized(i, loops_of(i, sizes))
        verify(n)
        assert parse_nest(nest_text(n)) == n
        compile_object(emit(legalise(n, target_for(i)), target_for(i)), target_for(i))


@pytest.mark.parametrize("name", NAMES)
def test_runs_as_its_loops_do(name: str) -> None:
    i = INTRINSICS[name]
    if target_for(i) != default():
        pytest.skip(f"{default().cpu} has no {name}")
    for k, sizes in enumerate(sizes_of(i)):
        n = loops_of(i, sizes)
        group = parse_group(i.expression)
        given = arrays(group, sizes, k)
        out = group.outputs[0]
        shape = tuple(int(D.evaluate(d, sizes)) for d in out.shape)
        given[out.name] = np.arange(np.prod(shape)).reshape(shape).astype(out.dtype.numpy)
        want = run(n, given)[out.name]
        got = Native(tensorized(i, n))(given)[out.name]
        if i.exact and not out.dtype.is_float:
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


def test_a_machine_without_it_is_an_error() -> None:
    i = INTRINSICS["x86.amx.bf16"]
    n = tensorized(i, loops_of(i, sizes_of(i)[0]))
    with pytest.raises(Unsupported, match="needs amx-tile, amx-bf16"):
        emit(legalise(n, get("x86-64-v4")), get("x86-64-v4"))


SDOT = """
group dot
  in a: {a}[4]
  in b: {b}[{b_shape}]
  out c: i32[8]
  c[c.i0] {op}= {value} for c.i0 in 8, c.r0 in {width}
"""
GOOD = {
    "a": "i8",
    "b": "i8",
    "b_shape": "8,4",
    "op": "add",
    "width": "4",
    "value": "cast<i32>(a[c.r0]) * cast<i32>(b[c.i0,c.r0])",
}
NEAR_MISSES = [
    ({"a": "u8", "b": "u8"}, "is u8 where a is i8"),
    ({"a": "u8"}, "is u8 where a is i8"),
    ({"b": "u8"}, "is u8 where b is i8"),
    ({"op": "max"}, "accumulates by add, c accumulates by max"),
    ({"op": ""}, "accumulates by add, c overwrites"),
    ({"value": "cast<i32>(a[c.r0]) + cast<i32>(b[c.i0,c.r0])"}, "stands where"),
    ({"value": "cast<i32>(a[c.r0] * b[c.i0,c.r0])"}, "stands where"),
    ({"value": "cast<i32>(a[c.r0]) * cast<i32>(a[c.r0])"}, "has stride 4 along j, a has 0"),
    ({"b_shape": "8,5"}, "has stride 4 along j, b has 5"),
    (
        {"b_shape": "4,8", "value": "cast<i32>(a[c.r0]) * cast<i32>(b[c.r0,c.i0])"},
        "has stride 4 along j, b has 1",
    ),
    ({"value": "cast<i32>(a[3-c.r0]) * cast<i32>(b[c.i0,c.r0])"}, "has stride 1 along p"),
    ({"value": "cast<i32>(a[c.r0]) * cast<i32>(b[c.i0//2,c.r0])"}, "not walked through evenly"),
    ({"width": "3"}, "p of arm64.sdot is 4, not 3"),
]


def tensorize(text: str, name: str = "arm64.sdot", before: str = "") -> Nest:
    n = apply(start(parse_group(text)), parse_trace(before))
    return Tensorize("c.i0", name)(n)


def test_operands_may_be_named_in_either_order() -> None:
    tensorize(SDOT.format(**GOOD))
    swapped = "cast<i32>(b[c.i0,c.r0]) * cast<i32>(a[c.r0])"
    n = tensorize(SDOT.format(**{**GOOD, "value": swapped}))
    (loop,) = n.body
    assert isinstance(loop, Loop)
    found = match(INTRINSICS["arm64.sdot"], n, loop)
    assert isinstance(found, Match)
    assert [x.buffer for x in found.operands] == ["a", "b", "c"]


@pytest.mark.parametrize(("change", "says"), NEAR_MISSES, ids=lambda x: str(x)[:50])
def test_near_misses_are_refused(change: dict[str, str], says: str) -> None:
    with pytest.raises(Refused, match=r"this is not arm64.sdot: ") as refusal:
        tensorize(SDOT.format(**{**GOOD, **change}))
    assert says in str(refusal.value)
    assert "it computes c[c.j] add=" in (refusal.value.hint or "")


def test_signs_decide_which_operand_is_which() -> None:
    """vpdpbusd multiplies unsigned by signed: the other way round there is no such instruction."""
    shape = SDOT.replace("8", "16").replace("i16", "i8").replace("u16", "u8")
    mixed = {**GOOD, "a": "u8", "b_shape": "16,4"}
    tensorize(shape.format(**mixed), "x86.vpdpbusd")
    with pytest.raises(Refused, match=r"a of x86.vpdpbusd has stride 0 along j, b has 4"):
        tensorize(shape.format(**{**mixed, "a": "i8", "b": "u8"}), "x86.vpdpbusd")


def test_other_refusals() -> None:
    good = SDOT.format(**GOOD)
    with pytest.raises(Refused, match=r"there is no instruction arm64.dots"):
        tensorize(good, "arm64.dots")
    with pytest.raises(Refused, match="there is no loop"):
        Tensorize("c.i7", "arm64.sdot")(start(parse_group(good)))
    with pytest.raises(Refused, match=r"c.r0 is already unroll"):
        tensorize(good, before="Unroll('c.r0')")
    with pytest.raises(Refused, match="already tensor"):
        Tensorize("c.i0", "arm64.sdot")(tensorize(good))


INLINED = """
group inlined
  in x: i8[4]
  in b: i8[8,4]
  out c: i32[8]
  local a: i8[4]
  a[a.i0] = x[3-a.i0] for a.i0 in 4
  c[c.i0] add= cast<i32>(a[c.r0]) * cast<i32>(b[c.i0,c.r0]) for c.i0 in 8, c.r0 in 4 from 0:i32
"""


@pytest.mark.parametrize("step", [ComputeInline("a")], ids=str)
def test_a_step_that_would_break_the_match_is_refused(step: Step) -> None:
    n = tensorize(INLINED)
    with pytest.raises(Refused, match=r"is not arm64.sdot: a of arm64.sdot has stride 1"):
        step(n)


def several(count: int) -> Nest:
    """So many products that are instructions, and a buffer that none of them touches."""
    lines = ["group several", "  in x: f32[4,8]", "  out y: f32[4,8]"]
    lines += [f"  in {s}{k}: i8[{n}]" for k in range(count) for s, n in (("a", "4"), ("b", "8,4"))]
    lines += [f"  out c{k}: i32[8]" for k in range(count)]
    lines += ["  local t: f32[4,8]", "  t[t.i0,t.i1] = x[t.i0,t.i1] for t.i0 in 4, t.i1 in 8"]
    lines += ["  y[y.i0,y.i1] = t[y.i0,y.i1] for y.i0 in 4, y.i1 in 8"]
    for k in range(count):
        value = f"cast<i32>(a{k}[c{k}.r0]) * cast<i32>(b{k}[c{k}.i0,c{k}.r0])"
        lines.append(f"  c{k}[c{k}.i0] add= {value} for c{k}.i0 in 8, c{k}.r0 in 4 from 0:i32")
    n = start(parse_group("\n".join(lines) + "\n"))
    return apply(n, [Tensorize(f"c{k}.i0", "arm64.sdot") for k in range(count)])


def test_a_step_looks_at_the_instructions_that_it_changed() -> None:
    n, turned = several(3), "i, j -> j, i"
    with patch.object(intrinsic, "match", wraps=intrinsic.match) as matched:
        after = Split("y.i1", 4)(Relayout("t", turned)(n))
        assert not matched.called
        Relayout("a1", "i -> i")(after)
        assert matched.call_count == 1
    assert not list(intrinsic.tensor_faults(after))
    with pytest.raises(Refused, match=r"is not arm64.sdot: b of arm64.sdot has stride"):
        Relayout("b1", turned)(after)


def test_loops_of_an_instruction_that_is_gone_are_found() -> None:
    before = several(2)
    *others, last = before.body
    assert isinstance(last, Loop) and last.instruction
    bare = replace(before, body=(*others, *last.body))
    found = [what for what, _ in intrinsic.tensor_faults(bare, before)]
    assert found == [what for what, _ in intrinsic.tensor_faults(bare)]
    assert found and "belongs to no instruction" in found[0]


def test_strict_precision_takes_exact_instructions_only() -> None:
    exact, fused, rounds = (INTRINSICS[f"arm64.{x}"] for x in ("sdot", "fma", "bfdot"))
    for i in (exact, fused, rounds):
        n = replace(loops_of(i, sizes_of(i)[0]), precision="strict")
        if i is exact:
            tensorized(i, n)
            continue
        with pytest.raises(Refused, match="rounds differently from its loops"):
            tensorized(i, n)


def _use(i: Intrinsic) -> tuple[Nest, Loop]:
    n = loops_of(i, sizes_of(i)[0])
    (loop,) = n.body
    assert isinstance(loop, Loop)
    return n, loop


def test_declarations_are_checked() -> None:
    i = INTRINSICS["arm64.sdot"]
    with pytest.raises(Invalid, match=r"there is an instruction arm64.sdot already"):
        declare(i)
    with pytest.raises(Invalid, match="no map for a"):
        match(replace(i, maps={**i.maps, "a": ()}), *_use(i))


AMX = replace(
    get("x86-64-v4"),
    name="tiles",
    cpu="sapphirerapids",
    features=(*get("x86-64-v4").features, "+amx-tile", "+amx-bf16"),
    products=products("x86.amx.bf16", "x86.avx512.fma"),
)


def _half_product(rows: int, depth: int, columns: int) -> str:
    product = "cast<f32>(A[t.i0,t.r0]) * cast<f32>(P[t.i1//32,t.r0//2,t.i1%32,t.r0%2])"
    loops = f"t.i0 in {rows}, t.i1 in {columns}, t.r0 in {depth}"
    return f"""
group half
  in A: bf16[{rows},{depth}]
  in P: bf16[{-(-columns // 32)},{depth // 2},32,2] laid out by k, j -> j//32, k//2, j%32, k%2
  out y: bf16[{rows},{columns}]
  local t: f32[{rows},{columns}]
  t[t.i0,t.i1] add= {product} for {loops} from 0.0
  y[y.i0,y.i1] = cast<bf16>(t[y.i0,y.i1]) for y.i0 in {rows}, y.i1 in {columns}
"""


@pytest.mark.parametrize("size", [(128, 96, 64), (45, 64, 96), (13, 32, 32), (64, 64, 50)])
def test_default_schedules_multiply_halves_in_tiles(size: tuple[int, int, int]) -> None:
    trace, nest = default_schedule(parse_group(_half_product(*size)), AMX)
    assert any(isinstance(s, Tensorize) and s.instruction == "x86.amx.bf16" for s in trace)
    text = emit(legalise(nest, AMX), AMX)
    assert "llvm.x86.tdpbf16ps" in text and compile_object(text, AMX)
