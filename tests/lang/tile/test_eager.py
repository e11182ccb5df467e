"""Kernels step by step: the Python of a kernel, and its translation, give the same."""

import io
import linecache
import sys

import numpy as np
import pytest

import tilewright.language as tl
from tilewright.base.errors import Invalid
from tilewright.ir.types import b1, bf16, f32, i32
from tilewright.lang.tile.builder import IRBuilder
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import TileFunction
from tilewright.lang.tile.ir import Pointer, TileType
from tilewright.lang.tile.lowering.reports import DeviceAssertion
from tilewright.lang.tile.rules import verify
from tilewright.lang.tile.stepping import computing
from tilewright.lang.tile.stepping.computing import EagerBuilder
from tilewright.lang.tile.stepping.eager import bind_all, interpret, run_eager
from tilewright.lang.tile.stepping.raw_memory import Memory

torch = pytest.importorskip("torch")


def run_both(function, grid, outputs, **arguments):
    """A launch of the Python and one of the translation, from the same memory: they agree."""
    before = {name: arguments[name].clone() for name in outputs}
    run_eager(function, grid, arguments)
    after = {name: arguments[name].clone() for name in outputs}
    for name in outputs:
        arguments[name].copy_(before[name])
    bound = bind_all(function, arguments)
    kernel = translate(function, {name: a for name, (a, _) in bound.items()})
    interpret(kernel, grid, [x for _, leaves in bound.values() for _, x in leaves])
    for name in outputs:
        assert torch.equal(after[name], arguments[name]), name


@TileFunction
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "float64", "uint8"])
def test_addition(dtype):
    kind = getattr(torch, dtype)
    x, y = (torch.randint(-4, 9, (100,)).to(kind) for _ in range(2))
    out = torch.zeros(100, dtype=kind)
    run_both(add, (4,), ["out"], x=x, y=y, out=out, n=100, BLOCK=32)
    assert torch.equal(out, x + y)


def test_numpy_arrays_and_views():
    x = np.arange(40, dtype=np.float32)
    out = np.zeros(20, np.float32)
    run_eager(add, (3,), {"x": x[20:], "y": x[:20], "out": out, "n": 20, "BLOCK": 8})
    assert np.array_equal(out, x[20:] + x[:20])


def test_memory_at_any_address():
    raw = np.zeros(64, np.uint8)
    odd = raw[1:33].view(np.float32)  # no multiple of four
    x = np.arange(8, dtype=np.float32)
    run_eager(add, (1,), {"x": x, "y": x, "out": odd, "n": 8, "BLOCK": 8})
    assert np.array_equal(odd, 2 * x)
    out = np.zeros(8, np.float32)
    run_eager(add, (1,), {"x": odd, "y": odd, "out": out, "n": 8, "BLOCK": 8})
    assert np.array_equal(out, 4 * x)


def test_an_access_outside_names_the_array_and_the_line():
    x = np.zeros(20, np.float32)
    with pytest.raises(Invalid) as error:
        run_eager(add, (3,), {"x": x, "y": x.copy(), "out": x.copy(), "n": 22, "BLOCK": 8})
    text = str(error.value)
    assert "1 element past the end of x (20 elements of f32)" in text
    assert "program (2, 0, 0)" in text and "index (4,)" in text
    assert "test_eager.py" in text


def test_another_argument_is_outside_too():
    """The second half is memory of the launch, but none of what the pointer points to."""
    x = torch.zeros(16)
    y = torch.zeros(16)
    away = (y.data_ptr() - x.data_ptr()) // 4

    @TileFunction
    def beyond(x, y, n):
        tl.store(x + n, 1.0)

    with pytest.raises(Invalid, match=r"a store of program .* touches .* x \(16"):
        run_eager(beyond, (1,), {"x": x, "y": y, "n": away})


@TileFunction
def through_addresses(addresses, out, BLOCK: tl.constexpr):
    x = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * BLOCK + at, tl.load(x + at))


def test_loaded_addresses_reach_arrays_that_are_no_arguments():
    inputs = [torch.randn(8) for _ in range(3)]
    addresses = torch.tensor([x.data_ptr() for x in inputs])
    out = torch.zeros(24)
    run_eager(through_addresses, (3,), {"addresses": addresses, "out": out, "BLOCK": 8})
    assert torch.equal(out, torch.cat(inputs))


def test_a_loaded_address_of_nothing_is_refused():
    with pytest.raises(Invalid, match="address 0x40"):
        args = {"addresses": torch.tensor([64]), "out": torch.zeros(8), "BLOCK": 8}
        run_eager(through_addresses, (1,), args)


@TileFunction
def loops(x, out, n, flag, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    at = tl.arange(0, BLOCK)
    for k in range(n):
        part = tl.load(x + k * BLOCK + at)
        if k % 2 == 0:
            total += part
        else:
            total -= part
    i = 0
    while i < flag:
        total = total * 2
        i += 1
    tl.store(out + at, total)


def test_loops_and_branches():
    x, out = torch.randn(5, 8), torch.zeros(8)
    run_both(loops, (1,), ["out"], x=x, out=out, n=5, flag=3, BLOCK=8)
    signs = torch.tensor([1, -1, 1, -1, 1.0])
    torch.testing.assert_close(out, (x * signs[:, None]).sum(0) * 8)


@TileFunction
def larger(a, b):
    return tl.where(a > b, a, b)


@TileFunction
def branching(a, b):
    if a > b:
        r = a
    else:
        r = b
    return r


@TileFunction
def reductions(x, top, running, M: tl.constexpr, N: tl.constexpr, F: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    t = tl.load(x + at)
    tl.store(top + tl.arange(0, M), tl.reduce(t, 1, F))
    tl.store(running + at, tl.associative_scan(t, 0, F, reverse=True))


@pytest.mark.parametrize("combine", [larger, branching])
def test_reductions_with_functions(combine):
    x, top, running = torch.randn(4, 8), torch.zeros(4), torch.zeros(4, 8)
    args = {"x": x, "top": top, "running": running, "M": 4, "N": 8, "F": combine}
    run_both(reductions, (1,), ["top", "running"], **args)
    assert torch.equal(top, x.amax(1))
    assert torch.equal(running, x.flip(0).cummax(0).values.flip(0))


@TileFunction
def counting(out, where, seen, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    old = tl.atomic_add(out + tl.load(where + at), 1, mask=at < 6)
    tl.store(seen + at, old)
    tl.atomic_max(out + 3 + 0 * at, at * 10)


def test_atomics_take_turns():
    out, seen = torch.zeros(4, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    where = torch.tensor([0, 1, 0, 0, 1, 2, 2, 2], dtype=torch.int32)
    run_eager(counting, (1,), {"out": out, "where": where, "seen": seen, "BLOCK": 8})
    assert out.tolist() == [3, 2, 1, 70]
    assert seen.tolist() == [0, 0, 1, 2, 1, 0, 0, 0]


@TileFunction
def locked(lock, out):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out, tl.load(out) + 1)
    tl.atomic_xchg(lock, 0)


def test_a_lock_and_one_that_stays_shut(monkeypatch):
    lock, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    run_both(locked, (5,), ["out"], lock=lock, out=out)
    assert out.item() == 5
    lock[0] = 1
    monkeypatch.setattr(computing, "PATIENCE", 50)
    with pytest.raises(Invalid, match="waits for a value that no one writes"):
        run_eager(locked, (1,), {"lock": lock, "out": out})


@TileFunction
def tells(x, n):
    at = tl.arange(0, 2)
    tl.device_print("x: ", tl.load(x + at))
    tl.device_assert(at < n, "too many")


def test_print_and_assert():
    output = io.StringIO()
    x = torch.tensor([1.5, -2.0])
    run_eager(tells, (1,), {"x": x, "n": 2}, builder=EagerBuilder(Memory(), (1,), output))
    first, second = output.getvalue().splitlines()
    assert first == "pid (0, 0, 0) idx (0) x: 1.5"
    assert second.endswith("idx (1) x: -2.0")
    with pytest.raises(DeviceAssertion, match=r"index \(1,\): too many"):
        builder = EagerBuilder(Memory(), (1,), io.StringIO())
        run_eager(tells, (1,), {"x": x, "n": 1}, builder=builder)


def test_tensors_show_what_is_inside(capsys):
    @TileFunction
    def shows(n):
        print(repr(tl.arange(0, 4) * n))
        print(tl.arange(0, 4) / 2, n)

    run_eager(shows, (1,), {"n": 3})
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["tensor(int32[4], [0 3 6 9])", "fp32[4] [0.  0.5 1.  1.5] int32 3"]


@TileFunction
def pids(out, X: tl.constexpr, Y: tl.constexpr):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = x + X * (y + Y * z)
    tl.store(out + at, x + 10 * y + 100 * z + 1000 * tl.num_programs(2))


def test_grids_of_three_axes():
    out = torch.zeros(24, dtype=torch.int32)
    run_both(pids, (2, 3, 4), ["out"], out=out, X=2, Y=3)
    assert out[-1].item() == 1 + 20 + 300 + 4000


def test_numbers_are_taken_as_compiled_kernels_take_them():
    seen = {}

    @TileFunction
    def kinds(a, b, c, d, e, f: tl.int64, g, H: tl.constexpr):  # type: ignore
        seen.update(a=a.dtype, b=b.dtype, c=c.dtype, d=d.dtype, e=e.dtype, f=f.dtype)
        seen.update(none=g, constant=H)

    args = {"a": 5, "b": 2**40, "c": 2**63, "d": 1.5, "e": True, "f": 7, "g": None, "H": "relu"}
    run_eager(kinds, (1,), args)
    assert [str(seen[k]) for k in "abcdef"] == ["int32", "int64", "uint64", "fp32", "int1", "int64"]
    assert seen["none"] is None and seen["constant"] == "relu"


def test_tuples():
    @TileFunction
    def first(xs, out):
        tl.store(out, tl.load(xs[0]) * xs[1])

    out = torch.zeros(1)
    run_both(first, (1,), ["out"], xs=(torch.tensor([3.0]), 7), out=out)
    assert out.item() == 21


@TileFunction
def copied(x, out, rows, columns, stride, last, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    shape, strides = [rows, columns], [stride, last]
    from_ = tl.make_tensor_descriptor(x, [rows, columns], [stride, last], [ROWS, COLUMNS])
    assert from_.block_shape == [ROWS, COLUMNS]
    to = tl.make_tensor_descriptor(out, shape, [strides[0], 1], [ROWS, COLUMNS])
    to.store([0, 0], from_.load([0, 0]))


def test_descriptors_and_a_stride_of_one():
    x, out = torch.randn(5, 12), torch.zeros(5, 12)
    sizes = {"rows": 5, "columns": 12, "stride": 12, "last": 1, "ROWS": 8, "COLUMNS": 8}
    run_both(copied, (1,), ["out"], x=x, out=out, **sizes)
    assert torch.equal(out[:, :8], x[:, :8]) and not out[:, 8:].any()


def test_bad_launches():
    x = torch.zeros(4)
    with pytest.raises(Invalid, match="without n"):
        run_eager(add, (1,), {"x": x, "y": x, "out": x, "BLOCK": 4})
    with pytest.raises(Invalid, match="a grid of 4 axes"):
        run_eager(add, (1, 1, 1, 2), {"x": x, "y": x, "out": x, "n": 4, "BLOCK": 4})
    with pytest.raises(Invalid, match="x is a dict"):
        run_eager(add, (1,), {"x": {}, "y": x, "out": x, "n": 4, "BLOCK": 4})
    freed = torch.zeros(4)
    freed.untyped_storage().resize_(0)
    with pytest.raises(Invalid, match="the memory of x was freed"):
        run_eager(add, (1,), {"x": freed, "y": x, "out": x, "n": 4, "BLOCK": 4})
    with pytest.raises(Invalid, match="on meta"):
        given = {"x": torch.zeros(4, device="meta"), "y": x, "out": x, "n": 4, "BLOCK": 4}
        run_eager(add, (1,), given)


def test_an_empty_grid_runs_nothing():
    x = torch.zeros(4)
    run_eager(add, (0,), {"x": x, "y": x, "out": x, "n": 400, "BLOCK": 4})


def test_operations_made_by_hand():
    """Sums of rows in bfloat16, over a carried value, without the front end."""
    b = IRBuilder()
    x, out = (b.fresh(TileType(Pointer(e)), n) for e, n in ((f32, "x"), (bf16, "out")))
    row, scalar = TileType(f32, (4,)), TileType(i32)
    (zero,), (three,), (step,) = (b.emit("const", [], [scalar], {"value": v}) for v in (0, 3, 1))
    (at,) = b.emit("iota", [], [TileType(i32, (4,))], {"start": 0})
    (start,) = b.emit("const", [], [row], {"value": 0.5})
    body = b.opened()
    i, total = body.parameter(scalar), body.parameter(row)
    with b.inside(body):
        (four,) = b.emit("const", [], [scalar], {"value": 4})
        (n,) = b.emit("map", [i, four], [scalar], {"fn": "mul"})
        (p,) = b.emit("offset", [x, n], [x.type])
        (one,) = b.emit("reshape", [p], [p.type.with_shape((1,))])
        (ps,) = b.emit("broadcast", [one], [p.type.with_shape((4,))])
        (ps,) = b.emit("offset", [ps, at], [ps.type])
        (v,) = b.emit("load", [ps], [row])
        body.yields[:] = b.emit("map", [total, v], [row], {"fn": "add"})
    (total,) = b.emit("for", [zero, three, step, start], [row], {}, [body])
    (limit,) = b.emit("const", [], [row], {"value": 3.0})
    (large,) = b.emit("map", [total, limit], [TileType(b1, (4,))], {"fn": "gt"})
    (narrow,) = b.emit("cast", [total], [TileType(bf16, (4,))])
    (one,) = b.emit("reshape", [out], [out.type.with_shape((1,))])
    (ps,) = b.emit("broadcast", [one], [out.type.with_shape((4,))])
    (ps,) = b.emit("offset", [ps, at], [ps.type])
    b.emit("store", [ps, narrow, large], [])
    kernel = b.kernel("sums", (x, out))
    verify(kernel)
    given = torch.arange(12, dtype=torch.float32) / 10
    result = torch.zeros(4, dtype=torch.bfloat16)
    interpret(kernel, (1,), [given, result])
    wanted = (given.view(3, 4).sum(0) + 0.5).bfloat16()
    assert torch.equal(result, torch.where(wanted > 3, wanted, torch.zeros_like(wanted)))


@TileFunction
def half_of(x):
    r = 0.5
    return x * r


@TileFunction
def meanings(x, out, n, BLOCK: tl.constexpr, FLAG: tl.constexpr = False):
    at = tl.arange(0, BLOCK)
    one = 1
    tl.store(out + at, tl.full([BLOCK], value=one, dtype=one.dtype))  # type: ignore
    small = tl.load(x + at)
    wide = small + one  # int8 and int32, for a variable holds a tensor
    tl.store(out + BLOCK + at, wide)
    inside = at < n and at > 0
    tl.store(out + 2 * BLOCK + at, at, mask=inside and not FLAG)
    for i in range(2):
        tl.store(out + 3 * BLOCK + i, i.to(tl.int64) + max(n, 2))  # type: ignore
    tl.store(out + 3 * BLOCK + 2, half_of(tl.load(x + 7).to(tl.float32)).to(tl.int32))
    total = 0
    total += n if n > 3 and n < 9 else -n
    tl.store(out + 3 * BLOCK + 3, total)


def test_python_means_what_the_language_means():
    x = torch.full((8,), 127, dtype=torch.int8)
    out = torch.zeros(32, dtype=torch.int32)
    run_both(meanings, (1,), ["out"], x=x, out=out, n=5, BLOCK=8)
    assert out[:8].tolist() == [1] * 8 and out[8:16].tolist() == [128] * 8
    assert out[16:24].tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    assert out[24:28].tolist() == [5, 6, 63, 5]


def test_lines_of_errors_and_breakpoints_are_those_of_the_file():
    seen = []

    @TileFunction
    def looks(n):
        x = n + 1  # noqa: F841
        seen.append(sys._getframe())

    run_eager(looks, (1,), {"n": 5})
    (frame,) = seen
    assert frame.f_code.co_filename == __file__
    line = linecache.getline(__file__, frame.f_lineno)
    assert "seen.append" in line
    assert repr(frame.f_locals["x"]) == "tensor(int32, 6)"


def test_mistakes_name_the_line():
    @TileFunction
    def wrong(n):
        a = tl.arange(0, 4)
        return a + tl.arange(0, 8)

    with pytest.raises(Invalid) as error:
        run_eager(wrong, (1,), {"n": 5})
    assert error.value.where == f"{__file__}:{wrong.line + 2}"


def test_what_python_and_the_language_share_is_refused_with_its_line():
    @TileFunction
    def wrong(out):
        tl.store(out, max([tl.load(out), 1]))

    with pytest.raises(Invalid, match="list or tuple with a tensor") as error:
        run_eager(wrong, (1,), {"out": np.zeros(1, np.int32)})
    assert error.value.where == f"{__file__}:{wrong.line + 1}"
    assert "tl.maximum" in str(error.value.hint)


@TileFunction
def larger_and_one(a, b):
    one = 1
    return tl.where(a > b and a > b - one, a, b) + 0 * one.to(a.dtype)  # type: ignore


@TileFunction
def with_functions(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(out, tl.reduce(v, 0, larger_and_one))
    tl.store(out + 1 + at, tl.associative_scan(v, 0, larger_and_one))


def test_functions_of_reductions_and_scans_are_the_languages():
    x = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6], dtype=torch.int32)
    out = torch.zeros(9, dtype=torch.int32)
    run_both(with_functions, (1,), ["out"], x=x, out=out, N=8)
    assert out.tolist() == [9, 3, 3, 4, 4, 5, 9, 9, 9]
