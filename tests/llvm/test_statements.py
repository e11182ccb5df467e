"""Branches, masks, pointers, atomics and reports: native code does what the interpreter does, and
touches nothing that was not chosen."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.kernel.beside import Argument, Call, fatal_side
from tests.seeds import crossed, every_run
from tilewright.ir.target import Target
from tilewright.ir.types import DTYPES, from_memory, to_memory
from tilewright.kernel.check import verify
from tilewright.kernel.interpret import run
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.runtime.native import callback_address
from tilewright.runtime.nests import NestKernel
from tilewright.targets import default, get

MACHINES = ("x86-64", "x86-64-v3", "x86-64-v4")
REPORT = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))


class Compiled:
    """A nest as native code; arguments are arrays in memory, or (array, element)."""

    def __init__(self, nest: Nest, target: Target | None = None) -> None:
        target = target or default()
        self.nest = nest
        self.told: list[tuple[int, list[int]]] = []
        self._tell = REPORT(lambda site, n, at: self.told.append((site, [at[k] for k in range(n)])))
        self.text = emit(legalise(nest, target), target)
        self.code = compile_object(self.text, target)
        told = {"tw_report": callback_address(self._tell)}
        self.kernel = NestKernel(nest, target, told, self.code)

    def __call__(self, arrays: Mapping[str, Any], dims: Mapping[str, int] | None = None) -> None:
        addresses: list[int] = []
        for b in self.nest.buffers:
            if b.scope in ("in", "out"):
                given = arrays[b.name]
                array, at = given if isinstance(given, tuple) else (given, 0)
                assert array.dtype == b.dtype.memory
                addresses.append(array.ctypes.data + at * array.itemsize)
        self.at(addresses, dims)

    def at(self, addresses: list[int], dims: Mapping[str, int] | None = None) -> None:
        self.kernel(addresses, self.kernel.sizes(dims or {}))


def nest(text: str) -> Nest:
    found = parse_nest(text.strip("\n"))
    assert parse_nest(nest_text(found)) == found
    verify(found)
    return found


def same(
    text: str, arrays: Mapping[str, Any], dims: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """What a nest leaves in its arguments: the interpreter (of the nest, and of its legal form) and
    native code agree on it."""
    n = nest(text)
    legal = nest(nest_text(legalise(n, default())))
    ways = []
    runs = (
        lambda a: run(n, a, dims),
        lambda a: run(legal, a, dims),
        lambda a: Compiled(n)(a, dims),
    )
    for way in runs:
        own = {
            k: (x[0].copy(), x[1]) if isinstance(x, tuple) else x.copy() for k, x in arrays.items()
        }
        ways.append({**own, **(way(own) or {})})
    for name in arrays:
        one, *others = (x[name][0] if isinstance(x[name], tuple) else x[name] for x in ways)
        for other in others:
            np.testing.assert_array_equal(one, other, err_msg=name)
    return ways[-1]


def strays(n: Nest, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int]) -> str | None:
    """What becomes of a process in which touching memory beside the arguments is fatal."""
    compiled = Compiled(n)
    given = [arrays[b.name] for b in n.buffers if b.name in arrays]
    memory = [Argument(x.nbytes, x.tobytes()) for x in given]
    kernel = compiled.kernel
    return fatal_side(Call(compiled.code, kernel.name, memory, kernel.sizes(dims)))


# ---- masks

MASKED = """
nest k where n: 1..
  in p: *{d}
  out q: *{d}
  for b in ((n+7)//8):
    lane i in 8:
      if #(8*b+i) < #(n):
        q: q[8*b+i] = select(#(8*b+i) < #(n-1), p[8*b+i+1], 3{t}:{d})
"""


@pytest.mark.parametrize(
    ("d", "n"), crossed(("f32", "f64", "f16", "bf16", "i8", "i32", "u16"), (1, 7, 8, 9, 21), 3)
)
def test_only_lanes_that_are_chosen_are_read_and_written(d: str, n: int) -> None:
    text = MASKED.format(d=d, t=".0" if "f" in d else "")
    dtype = DTYPES[d]
    p, q = (to_memory(np.arange(n) * k, dtype) for k in (1, 0))
    got = same(text, {"p": p, "q": q}, {"n": n})
    wanted = np.append(np.arange(n)[1:], 3)
    np.testing.assert_array_equal(from_memory(got["q"], dtype), wanted)
    assert strays(nest(text), {"p": p, "q": q}, {"n": n}) is None


def test_a_read_outside_the_mask_is_seen() -> None:
    """The test of strays can fail: here the mask is one too wide."""
    text = MASKED.format(d="f32", t=".0").replace("#(8*b+i) < #(n-1)", "#(8*b+i) < #(n)")
    p = np.zeros(21, np.float32)
    assert strays(nest(text), {"p": p, "q": p.copy()}, {"n": 21}) is not None


GATHERED = """
nest k where n: 1..
  in at: i32[n]
  in m: bool[n]
  in p: *f32
  out q: *f32
  for b in (n//4):
    lane i in 4:
      q: q[4*b+i] = select(m[4*b+i] & (at[4*b+i] >= 0:i32), p[${{at[4*b+i]}}{more}] * 2.0, -1.0)
"""


@pytest.mark.parametrize("more", ("", "*2", "-1"))
def test_gathers_touch_what_is_chosen(more: str) -> None:
    rng = np.random.default_rng(0)
    at = rng.integers(-3, 10, 64).astype(np.int32)
    m = rng.integers(0, 2, 64).astype(bool)
    m[:8] = True
    at[:8] = np.abs(at[:8])
    at[at == 0] = 1
    p = rng.normal(size=20).astype(np.float32)
    text = GATHERED.format(more=more).replace("${at[4*b+i]}*2", "2*${at[4*b+i]}")
    arrays = {"at": at, "m": m, "p": p, "q": np.zeros(64, np.float32)}
    got = same(text, arrays, {"n": 64})
    index = at.astype(int) * 2 if more == "*2" else at.astype(int) + int(more or 0)
    taken = m & (at >= 0)
    wanted = np.where(taken, p[np.where(taken, index, 0)] * np.float32(2), np.float32(-1))
    np.testing.assert_array_equal(got["q"], wanted)
    far = np.where(taken, at, np.int32(1 << 28)).astype(np.int32)
    m = m & taken
    assert strays(nest(text), {**arrays, "at": far, "m": m}, {"n": 64}) is None


STRIDED = """
nest k where n: 1.., s: 1..
  in at: i32[n]
  in p: *{d}
  out q: *{d}
  for b in (n//8):
    lane i in 8:
      x: q[8*b*s+i*s] = p[${{at[8*b+i]}}]
  for c in (n//8):
    lane j in 8:
      if at[8*c+j] != 3:i32:
        y: q[8*c*s+j*s+n*s] = select(at[8*c+j] < 12:i32, p[8*c*s+j*s], p[${{at[8*c+j]}}])
"""


@pytest.mark.parametrize("d", ("f32", "bf16", "i64"))
@pytest.mark.parametrize("stride", (1, 3))
@pytest.mark.parametrize("mixed", (False, True))
def test_lanes_that_turn_out_to_be_neighbours(d: str, stride: int, mixed: bool) -> None:
    """Where lanes lie is known when they run: as one vector, or one by one."""
    dtype, n = DTYPES[d], 16
    at = np.arange(n, dtype=np.int32)
    if mixed:
        at = np.random.default_rng(4).permutation(at)
    p = to_memory(np.arange(n * stride) + 1, dtype)
    q = to_memory(np.zeros(2 * n * stride), dtype)
    text = STRIDED.format(d=d)
    sizes = {"n": n, "s": stride}
    got = from_memory(same(text, {"at": at, "p": p, "q": q}, sizes)["q"], dtype)
    np.testing.assert_array_equal(got[: n * stride : stride], at + 1)
    chosen = np.where(at < 12, np.arange(n) * stride + 1, at + 1)
    np.testing.assert_array_equal(got[n * stride :: stride], np.where(at != 3, chosen, 0))
    assert strays(nest(text), {"at": at, "p": p, "q": q}, sizes) is None


def test_the_arms_of_choices_inside_choices() -> None:
    text = """
nest k where n: 1..
  in p: *f32
  in w: *i32
  out q: *f32
  for b in ((n+7)//8):
    lane i in 8:
      if #(8*b+i) < #(n):
        q: q[8*b+i] = select(w[8*b+i] > 0:i32, select(w[8*b+i] > 5:i32, p[${w[8*b+i]}], p[0]), 7.0)
"""
    w = np.array([9, 6, 3, -1, 0, 7, 1000000 - 999995, 1, 8, 9, -5], np.int32)
    p = np.arange(10, dtype=np.float32) + 100
    arrays = {"p": p, "w": w, "q": np.zeros(11, np.float32)}
    got = same(text, arrays, {"n": 11})
    wanted = [p[x] if x > 5 else p[0] if x > 0 else 7 for x in w]
    np.testing.assert_array_equal(got["q"], wanted)
    assert strays(nest(text), arrays, {"n": 11}) is None


def test_pointers_to_pointers_and_negative_offsets() -> None:
    """`next` is read where the mask holds only, though it is part of an address."""
    text = """
nest k where n: 1..
  in p: *f32
  in next: *i32
  out q: *f32
  for i in n+2:
    if #(i) >= 2:
      q: q[i-2] = select(#(i) < #(n), p[${next[i]}-5], 0.5)
"""
    n = 9
    p, after = np.arange(20, dtype=np.float32), np.arange(5, 14).astype(np.int32)
    arrays = {"p": (p, 5), "next": after, "q": np.zeros(n, np.float32)}
    got = same(text, arrays, {"n": n})
    np.testing.assert_array_equal(got["q"], [*(p[after[2:]]), 0.5, 0.5])


def test_a_masked_read_stays_under_its_mask_though_loops_do_not_change_it() -> None:
    text = """
nest k where n: 1.., c: 0..1
  in p: *f32
  out q: *f32
  for i in n:
    q: q[i] = select(#(c) == 1, p[1], 2.0)
"""
    p = np.array([5], np.float32)  # p[1] is not there
    arrays = {"p": p, "q": np.zeros(4, np.float32)}
    got = same(text, arrays, {"n": 4, "c": 0})
    np.testing.assert_array_equal(got["q"], 2)
    assert strays(nest(text), arrays, {"n": 4, "c": 0}) is None


def test_pointers_into_the_same_memory_see_each_other() -> None:
    text = """
nest k
  in p: *f32
  out q: *f32
  local t: f32[2]
  alloc t
  t: t[0] = p[0]
  q: q[0] = t[0] + 1.0
  t: t[1] = p[0]
  q: q[1] = t[1]
"""
    a = np.array([1, 0], np.float32)
    run(nest(text), {"p": a, "q": a})
    np.testing.assert_array_equal(a, [2, 2])
    a[:] = [1, 0]
    Compiled(nest(text))({"p": a, "q": a})
    np.testing.assert_array_equal(a, [2, 2])


@pytest.mark.parametrize("d", ("f32", "bf16", "i8", "f64"))
def test_absolute_addresses(d: str) -> None:
    text = f"""
nest k where n: 1..
  in where: i64[2]
  memory m: *{d}
  for b in ((n+3)//4):
    lane i in 4:
      if #(4*b+i) < #(n):
        m: m[${{where[1]}}+{DTYPES[d].bytes}*(4*b+i)] = m[${{where[0]}}-{DTYPES[d].bytes}*(4*b+i)]
"""
    dtype, n = DTYPES[d], 11
    size = dtype.bytes
    text = text.replace(f"{size}*(4*b+i)", f"{4 * size}*b+{size}*i" if size > 1 else "4*b+i")
    text = text.replace(f"-{4 * size}*b+{size}*i", f"-{4 * size}*b-{size}*i")
    text = text.replace("-4*b+i", "-4*b-i")
    source, target = to_memory(np.arange(n), dtype), to_memory(np.zeros(n), dtype)
    where = np.array([source.ctypes.data + (n - 1) * size, target.ctypes.data], np.int64)
    found = nest(text)
    for way in (
        lambda: run(found, {"where": where, "m": [source, target]}, {"n": n}),
        lambda: Compiled(found)({"where": where}, {"n": n}),
    ):
        target[:] = 0
        way()
        np.testing.assert_array_equal(from_memory(target, dtype), np.arange(n)[::-1])


# ---- control


def test_branches_in_lanes() -> None:
    """The condition is read once, though the branch changes what it reads; stores of all kinds."""
    text = """
nest k where n: 1..
  in x: i32[n]
  out y: i32[n]
  out z: i32[2*n]
  out s: i32[2]
  local t: i32[8]
  alloc t
  for b in (n//8):
    lane i in 8:
      t: t[i] = x[8*b+i]
    lane j in 8:
      if t[j] > 2:i32:
        t: t[j] = 0:i32
        y: y[8*b+j] = t[j] + 5:i32
        z: z[16*b+2*j] add= 1:i32
        if t[j] < x[8*b+j]:
          s: s[0] add= x[8*b+j]
        s: s[1] = x[8*b+j]
      else:
        y: y[8*b+j] add= t[j]
        z: z[16*b+2*j+1] = #I
"""
    text = text.replace("#I", "cast<i32>(#(j))")
    rng = np.random.default_rng(1)
    x = rng.integers(0, 6, 32).astype(np.int32)
    x[8:16] = 5
    x[16:24] = 0
    arrays = {
        "x": x,
        "y": np.ones(32, np.int32),
        "z": np.zeros(64, np.int32),
        "s": np.zeros(2, np.int32),
    }
    n = nest(text)
    native = {k: v.copy() for k, v in arrays.items()}
    Compiled(n)(native, {"n": 32})
    interpreted = run(n, arrays, {"n": 32})
    for name, got in interpreted.items():
        np.testing.assert_array_equal(got, native[name], err_msg=name)
    np.testing.assert_array_equal(native["y"], np.where(x > 2, 5, x + 1))
    assert native["s"][0] == x[x > 2].sum()
    assert native["s"][1] == x[x > 2][-1]


def test_while_reads_its_condition_anew() -> None:
    text = """
nest k where n: 1..
  in x: i64[n]
  out y: i64[n]
  local t: i64[2]
  parallel b in n grain 1:
    alloc t
    t: t[0] = x[b]
    t: t[1] = 0
    while w on t[0] > 1:
      if mod(t[0], 2) == 0:
        t: t[0] = floordiv(t[0], 2)
      else:
        t: t[0] = 3 * t[0] + 1
      t: t[1] add= 1
    y: y[b] = t[1]
"""
    x = np.array([1, 2, 3, 27, 97, 0], np.int64)
    n = nest(text)
    native = {"x": x, "y": np.zeros_like(x)}
    Compiled(n)(native, {"n": 6})
    np.testing.assert_array_equal(native["y"], [0, 1, 7, 111, 118, 0])
    np.testing.assert_array_equal(run(n, {"x": x}, {"n": 6})["y"], native["y"])


def test_loops_over_extents_in_memory() -> None:
    """A segmented sum: the bounds of every row are data; rows may be empty."""
    text = """
nest k where n: 1..
  in row: i32[n+1]
  in p: *f32
  out y: f32[n]
  for i in n:
    y: y[i] = 0.0
    for j in ${row[i+1]}-${row[i]}:
      y: y[i] add= p[${row[i]}+j]
"""
    text = text.replace("${row[i+1]}-${row[i]}", "-${row[i]}+${row[i+1]}")
    row = np.array([0, 3, 3, 4, 9], np.int32)
    p = np.arange(9, dtype=np.float32)
    got = same(text, {"row": row, "p": p, "y": np.zeros(4, np.float32)}, {"n": 4})
    np.testing.assert_array_equal(got["y"], [3, 0, 3, 30])


# ---- atomics

ATOMIC = """
nest k where n: 1..
  in x: {d}[n]
  out p: *{d}
  out old: {d}[n]
  local t: {d}[1]
  parallel i in n grain 2:
    alloc t
    a: {kind} {order} p[(i%3)] with x[i]{more} into t[0]
    o: old[i] = t[0]
"""
INTEGERS = ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")


FLOATS = ("f16", "bf16", "f32", "f64")
DONE = [(d, k) for d in INTEGERS for k in ("add", "and", "or", "xor", "max", "min")]
DONE += [(d, k) for d in FLOATS for k in ("add", "max", "min")]


@pytest.mark.parametrize(("d", "kind"), DONE)
def test_atomics_lose_nothing(d: str, kind: str) -> None:
    dtype, n = DTYPES[d], 64
    rng = np.random.default_rng(2)
    x = rng.integers(-3 if dtype.kind != "u" else 0, 4, n)
    if dtype.kind == "u":
        x[5] = -1  # the largest
    start = np.array([1, 2, 3])
    n_ = nest(ATOMIC.format(d=d, kind=kind, order="relaxed", more=""))
    x = to_memory(x, dtype) if not dtype.is_int else x.astype(dtype.numpy)
    p = to_memory(start, dtype)
    interpreted = {"x": from_memory(x, dtype), "p": p.copy()}
    run(n_, interpreted, {"n": n})
    Compiled(n_)({"x": x, "p": p, "old": np.zeros(n, x.dtype)}, {"n": n})
    np.testing.assert_array_equal(p, interpreted["p"])
    f = {"add": np.add, "max": np.maximum, "min": np.minimum}.get(kind) or getattr(
        np, f"bitwise_{kind}"
    )
    values = from_memory(x, dtype)
    for k in range(3):
        wanted = f.reduce([start[k].astype(values.dtype), *values[k::3]], dtype=values.dtype)
        assert from_memory(p, dtype)[k] == wanted


@pytest.mark.parametrize(
    ("d", "order"),
    crossed(
        ("i32", "f32", "bf16", "u64", "f8e4m3"), ("relaxed", "acquire", "release", "acq_rel"), 2
    ),
)
def test_exchange_and_compare(d: str, order: str) -> None:
    dtype, n = DTYPES[d], 3
    x = to_memory(np.array([5, 6, 7]), dtype)
    exchanged = nest(ATOMIC.format(d=d, kind="xchg", order=order, more=""))
    p, old = to_memory(np.array([1, 2, 3]), dtype), np.zeros(3, x.dtype)
    Compiled(exchanged)({"x": x, "p": p, "old": old}, {"n": n})
    np.testing.assert_array_equal(from_memory(p, dtype), [5, 6, 7])
    np.testing.assert_array_equal(from_memory(old, dtype), [1, 2, 3])
    two = f"2{'.0' if 'f' in d else ''}:{d}"
    compared = nest(ATOMIC.format(d=d, kind="cas", order=order, more=f" where {two}"))
    p, old = to_memory(np.array([1, 2, 3]), dtype), np.zeros(3, x.dtype)
    Compiled(compared)({"x": x, "p": p, "old": old}, {"n": n})
    np.testing.assert_array_equal(from_memory(p, dtype), [1, 6, 3])
    np.testing.assert_array_equal(from_memory(old, dtype), [1, 2, 3])
    mine = to_memory(np.array([1, 2, 3]), dtype)
    run(compared, {"x": from_memory(x, dtype), "p": mine}, {"n": n})
    np.testing.assert_array_equal(mine, p)


def test_many_threads_count_together() -> None:
    n = nest(ATOMIC.format(d="i32", kind="add", order="relaxed", more=""))
    size = 30000
    p, old = np.zeros(3, np.int32), np.zeros(size, np.int32)
    Compiled(n)({"x": np.ones(size, np.int32), "p": p, "old": old}, {"n": size})
    np.testing.assert_array_equal(p, size // 3)
    for k in range(3):  # every intermediate count was seen by somebody
        np.testing.assert_array_equal(np.sort(old[k::3]), np.arange(size // 3))


def test_atomics_in_lanes() -> None:
    text = """
nest k where n: 1..
  in x: i32[n]
  out p: *i32
  out old: i32[n]
  for b in (n//4):
    lane i in 4:
      if x[4*b+i] != 2:i32:
        a: add acq_rel p[${x[4*b+i]}] with 1:i32 into old[4*b+i]
"""
    x = np.array([0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3], np.int32)
    arrays = {"x": x, "p": np.zeros(4, np.int32), "old": np.full(12, -1, np.int32)}
    native = {k: v.copy() for k, v in arrays.items()}
    n = parse_nest(text.strip("\n"))
    Compiled(n)(native, {"n": 12})
    np.testing.assert_array_equal(native["p"], [1, 2, 0, 4])
    np.testing.assert_array_equal(native["old"], [0, 0, 1, -1, -1, -1, -1, -1, 0, 1, 2, 3])
    run(n, arrays, {"n": 12})
    np.testing.assert_array_equal(native["p"], arrays["p"])


# ---- reports


def test_reports() -> None:
    text = """
nest k where n: 1..
  in x: f32[n]
  for b in (n//4):
    lane i in 4:
      assert 7 on x[4*b+i] > 0.0 of #(4*b+i); x[4*b+i]
  print 8 of cast<u8>(x[0]); x[1] < 0.0
  print 9
"""
    x = np.array([255, -1.5, 2, 3, 4, 5, 6, 0], np.float32)
    n = nest(text)
    told: list[tuple[int, list[Any]]] = []
    run(n, {"x": x}, {"n": 8}, tell=lambda site, values: told.append((site, values)))
    assert told == [(7, [1, -1.5]), (7, [7, 0.0]), (8, [255, True]), (9, [])]
    native = Compiled(n)
    native({"x": x}, {"n": 8})

    def double(bits: int) -> float:
        return float(np.array(bits, np.int64).view(np.float64))

    got = [(s, [v[0], double(v[1])] if s == 7 else v) for s, v in native.told]
    assert got == told


OTHERS = {
    "masks": MASKED.format(d="f32", t=".0"),
    "masks of bf16": MASKED.format(d="bf16", t=".0"),
    "gathers": GATHERED.format(more=""),
    "strides of i8": STRIDED.format(d="i8"),
    **{
        f"{kind} of {d}": ATOMIC.format(d=d, kind=kind, order="acq_rel", more="")
        for d, kind in DONE
    },
    "cas": ATOMIC.format(d="bf16", kind="cas", order="release", more=" where 2.0:bf16"),
}


@every_run(1)
@pytest.mark.parametrize("machine", MACHINES)
def test_objects_for_other_machines(machine: str) -> None:
    target = get(machine)
    for name, text in OTHERS.items():
        assert (
            compile_object(emit(legalise(nest(text), target), target), target)[:4] == b"\x7fELF"
        ), name


@pytest.mark.parametrize("loop", ("for", "lane"))
def test_tuples_in_branches(loop: str) -> None:
    text = f"""
nest k
  in x: f32[5,8]
  out y: i64[8]
  local t: (i64,f32)[8]
  combine argmax: select(l1[] >= r1[], l0[], r0[]); max(l1[], r1[]) from -1; -inf
  alloc t
  for z in 8:
    t: t[z] = tuple(-1, -inf)
  for r in 5:
    {loop} i in 8:
      if x[r,i] < 2.0:
        t: t[i] argmax= tuple(#(r), x[r,i])
  for j in 8:
    if item(t[j], 1) > 0.0:
      y: y[j] = item(t[j], 0)
"""
    x = np.random.default_rng(5).normal(size=(5, 8)).astype(np.float32) * 2
    y = np.full(8, -7, np.int64)
    got = same(text, {"x": x, "y": y})["y"]
    least = np.where(x < 2, x, -np.inf)
    np.testing.assert_array_equal(got, np.where(least.max(0) > 0, least.argmax(0), -7))
