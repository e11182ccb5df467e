"""Launches of kernels: what arguments are taken as, which kernels are made, what is refused."""

from collections import namedtuple

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tilewright.base import knobs
from tilewright.driver.tile.arguments import element_of, handlers
from tilewright.driver.tile.jit import DEFAULTS, MockTensor
from tilewright.lang.tile.ir import Pointer

torch = pytest.importorskip("torch")


@tw.jit
def add(x, y, out, n, BLOCK: tl.constexpr = 64):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)


@tw.jit
def fill(out, value, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), value)


@tw.jit(do_not_specialize=["value"])
def fill_any(out, value, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), value)


@tw.jit(do_not_specialize_on_alignment=[0, "value"])
def fill_unaligned(out, value, BLOCK: tl.constexpr):
    tl.store(out + tl.arange(0, BLOCK), value)


def grid(n, block=64):
    return (tw.cdiv(n, block),)


def test_adds_torch_tensors():
    x, y = torch.randn(1000), torch.randn(1000)
    out = torch.full((1000,), 7.0)
    add[grid(1000)](x, y, out, 1000)
    assert torch.equal(out, x + y)


def test_adds_numpy_arrays():
    x, y = np.arange(100, dtype=np.int32), np.ones(100, np.int32)
    out = np.zeros(100, np.int32)
    add[grid(100)](x, y, out, 100)
    np.testing.assert_array_equal(out, x + 1)


class Capsule:
    """Something that gives its memory by DLPack only."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_adds_dlpack():
    x, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    add[(1,)](Capsule(x), Capsule(x), Capsule(out), 64)
    np.testing.assert_array_equal(out, 2 * x)


def test_arguments_by_name_by_default_and_in_any_order():
    x = torch.randn(64)
    out = torch.zeros(64)
    add[(1,)](n=64, out=out, y=x, x=x, num_warps=2, num_stages=1)
    assert torch.equal(out, x + x)
    assert add.run(x, x, out, 64, grid=(1,), warmup=False) is not None


def test_a_grid_is_a_function_of_the_arguments():
    seen = {}

    def over(meta):
        seen.update(meta)
        return (tw.cdiv(meta["n"], meta["BLOCK"]),)

    x, out = torch.randn(1000), torch.zeros(1000)
    add[over](x, x, out, 1000, BLOCK=32)
    assert torch.equal(out, x + x)
    assert seen["BLOCK"] == 32 and seen["x"] is x


def test_a_grid_of_zero_launches_nothing():
    out = torch.zeros(64)
    add[(0,)](out, out, out, 64)
    add[(2, 0, 3)](out + 1, out + 1, out, 64)
    assert torch.equal(out, torch.zeros(64))


@pytest.mark.parametrize(
    "bad",
    [(-1,), (-1, -1), (2**31,), (2**16, 2**15, 1), (1.5,), (), (1, 1, 1, 2), ("a",), None],
)
def test_grids_that_are_refused(bad):
    out = torch.zeros(64)
    with pytest.raises(tw.Invalid, match="add launched over"):
        add[bad](out, out, out, 64)


def test_a_grid_may_be_a_number_or_a_list():
    x, out = torch.randn(100), torch.zeros(100)
    add[2](x, x, out, 100)
    assert torch.equal(out, x + x)
    add[[2, 1]](x, x, out, 100)


# ---- specialisation


def kinds(f, *args, **kwargs):
    return f.warmup(*args, grid=(1,), **kwargs).signature


def test_one_is_a_constant_unless_declared_otherwise():
    out = torch.zeros(8, dtype=torch.int32)
    assert fill[(1,)](out, 1, 8).constants == {"value": 1, "BLOCK": 8}
    assert out.tolist() == [1] * 8
    assert fill_any[(1,)](out, 1, 8).constants == {"BLOCK": 8}
    assert fill_unaligned.warmup(out, 1, 8, grid=(1,)).constants["value"] == 1


@pytest.mark.parametrize(
    ("value", "element"),
    [(5, "i32"), (-7, "i32"), (2**31, "i64"), (-(2**40), "i64"), (2**63, "u64"), (2.5, "fp32")],
)
def test_numbers_have_the_width_that_holds_them(value, element):
    out = torch.zeros(8, dtype=torch.float64)
    assert kinds(fill, out, value, 8)["value"] == element
    fill[(1,)](out, value, 8)
    assert out.tolist() == [float(value)] * 8


def test_bools_and_numpy_scalars():
    out = torch.zeros(8, dtype=torch.int32)
    assert kinds(fill, out, True, 8)["value"] == "u1"
    assert kinds(fill, out, np.int64(3), 8)["value"] == "i32"
    assert kinds(fill, out, np.float64(3), 8)["value"] == "fp32"


def count(f):
    return len(f.kernels)


def test_the_key_of_a_kernel():
    out = torch.zeros(64, dtype=torch.int32)
    f = tw.jit(fill.fn)
    f[(1,)](out, 16, 8)
    f[(1,)](out, 32, 8)
    f[(2,)](torch.zeros(16, dtype=torch.int32), 48, 8)
    assert count(f) == 1
    f[(1,)](out, 17, 8)  # no multiple of 16
    assert count(f) == 2
    f[(1,)](out, -17, 8)  # not positive
    assert count(f) == 3
    f[(1,)](out[1:], 17, 8)  # another alignment
    assert count(f) == 4
    f[(1,)](out.float(), 17, 8)  # another dtype
    assert count(f) == 5
    f[(1,)](out, 17, 16)  # another constant
    assert count(f) == 6
    f[(1,)](out, 17, 16, num_warps=8)
    assert count(f) == 6


def test_do_not_specialize():
    out = torch.zeros(64, dtype=torch.int32)
    f = tw.jit(fill.fn, do_not_specialize=[1])
    for value in (1, 16, 17, -3):
        f[(1,)](out, value, 8)
        assert out[:8].tolist() == [value] * 8
    assert count(f) == 1
    g = tw.jit(fill.fn, do_not_specialize_on_alignment=["out", "value"])
    for view, value in ((out, 16), (out[1:], 17)):
        g[(1,)](view, value, 8)
    assert count(g) == 1


def test_constants_of_another_type_are_others():
    @tw.jit
    def pick(out, C: tl.constexpr):
        tl.store(out, C)

    out = torch.zeros(1)
    for value in (0.0, -0.0, 0, False):
        pick[(1,)](out, value)
        assert out.item() == 0 and torch.signbit(out).item() == (str(value) == "-0.0")
    assert count(pick) == 4
    pick[(1,)](out, tl.constexpr(0))
    assert count(pick) == 4


@tw.jit
def declared(out, a: tl.int64, b: "u8", c: tl.float64, d: int):  # type: ignore # noqa: F821
    tl.store(out, a + b + c + d)


def test_annotations_name_the_type():
    out = torch.zeros(1, dtype=torch.float64)
    names = kinds(declared, out, 5, 6, 7, 8)
    assert [names[n] for n in "abcd"] == ["i64", "u8", "fp64", "i32"]
    declared[(1,)](out, 2**40, 200, 0.1, 3)
    assert out.item() == 2**40 + 200 + 0.1 + 3
    with pytest.raises(tw.Invalid, match="argument b of declared: 300 does not fit into u8"):
        declared[(1,)](out, 5, 300, 7, 8)


Pair = namedtuple("Pair", "out value")


@tw.jit
def store_pairs(pairs, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(pairs[0] + i, pairs[1])
    tl.store(pairs[2][0] + i, pairs[2][1])


@tw.jit
def store_named(pair, BLOCK: tl.constexpr):
    tl.store(pair.out + tl.arange(0, BLOCK), pair.value)


def test_tuples():
    a, b = torch.zeros(8), torch.zeros(8, dtype=torch.int32)
    store_pairs[(1,)]((a, 2.5, (b, 1)), BLOCK=8)
    assert a.tolist() == [2.5] * 8 and b.tolist() == [1] * 8
    store_pairs[(1,)]((a, 3.5, (b, 7)), BLOCK=8)
    assert a.tolist() == [3.5] * 8 and b.tolist() == [7] * 8


def test_named_tuples():
    a = torch.zeros(8)
    store_named[(1,)](Pair(a, 4), BLOCK=8)
    assert a.tolist() == [4.0] * 8


@tw.jit
def maybe(out, bias, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = i.to(tl.float32)
    if bias is not None:
        x += tl.load(bias + i)
    tl.store(out + i, x)


def test_none_is_a_constant():
    out = torch.zeros(8)
    maybe[(1,)](out, None, BLOCK=8)
    assert out.tolist() == list(range(8))
    maybe[(1,)](out, torch.ones(8), BLOCK=8)
    assert out.tolist() == list(range(1, 9))


@tw.jit
def twice(x):
    return x * 2


@tw.jit
def thrice(x):
    return x * 3


@tw.jit
def apply(out, f: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, f(i))


def test_functions_as_constants():
    out = torch.zeros(8, dtype=torch.int32)
    apply[(1,)](out, twice, BLOCK=8)
    assert out.tolist() == [2 * k for k in range(8)]
    apply[(1,)](out, thrice, BLOCK=8)
    assert out.tolist() == [3 * k for k in range(8)]


@tw.jit
def copy_block(source, target, M: tl.constexpr, N: tl.constexpr):
    m, n = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([m, n], source.load([m, n]))


def test_tensor_descriptors():
    a = torch.arange(32 * 40, dtype=torch.float32).reshape(32, 40)
    b = torch.zeros_like(a)
    source = tw.TensorDescriptor.from_tensor(a, [8, 16])
    target = tw.TensorDescriptor.from_tensor(b, [8, 16])
    copy_block[(4, 3)](source, target, 8, 16)
    assert torch.equal(a, b)
    assert count(copy_block) == 1


def test_reinterpreted_tensors():
    out = torch.zeros(8, dtype=torch.int32)
    fill[(1,)](tw.reinterpret(out, tl.uint32), 2**32 - 1, 8)
    assert out.tolist() == [-1] * 8
    assert tw.reinterpret(tw.reinterpret(out, tl.uint32), torch.int32) is out


def test_hooks_see_each_launch():
    f = tw.jit(fill.fn)
    seen = []
    out = torch.zeros(8)
    f[(1,)](out, 3, 8)
    f.add_pre_run_hook(lambda **given: seen.append(given["value"]))
    f[(1,)](out, 4, 8)
    f[(1,)](out, 5, BLOCK=8)
    assert seen == [4, 5]


@tw.jit
def checked(x, BLOCK: tl.constexpr):
    v = tl.load(x + tl.arange(0, BLOCK))
    tl.device_assert(v > 0, "positive")


def test_asserts_hold_while_debugging_only(monkeypatch):
    bad = torch.zeros(8)
    checked[(1,)](bad, BLOCK=8)
    with pytest.raises(tw.TilewrightError, match="positive"):
        checked[(1,)](bad, BLOCK=8, debug=True)
    monkeypatch.setattr(DEFAULTS, "debug", True)
    with pytest.raises(tw.TilewrightError, match="positive"):
        checked[(1,)](bad, BLOCK=8)


def test_a_launch_overrules_its_kernel_and_the_process_both(monkeypatch):
    bad = np.full(64, -1, np.int32)
    always = tw.jit(checked.fn, debug=True)
    with pytest.raises(tw.TilewrightError, match="device_assert"):
        always[(1,)](bad, BLOCK=64)
    always[(1,)](bad, BLOCK=64, debug=False)
    with pytest.raises(tw.TilewrightError, match="device_assert"):
        checked[(1,)](bad, BLOCK=64, debug=True)
    monkeypatch.setattr(DEFAULTS, "debug", True)
    with pytest.raises(tw.TilewrightError, match="device_assert"):
        always[(1,)](bad, BLOCK=64, debug=False)


@tw.jit
def computed(x, y, out, how: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a, b = tl.load(x + i), tl.load(y + i)
    if how == "add":
        r = a + b
    elif how == "sub":
        r = a - b
    elif how == "mul":
        r = a * b
    else:
        r = tl.mul(a, b, sanitize_overflow=False)
    for _ in range(2):
        r = r + 0
    tl.store(out + i, r)


@pytest.mark.parametrize(
    ("how", "a", "b"), [("add", 2**31 - 1, 1), ("sub", -(2**31), 1), ("mul", 2**16, 2**15)]
)
def test_overflow_is_found_while_debugging(how, a, b):
    x, y, out = np.zeros(64, np.int32), np.zeros(64, np.int32), np.zeros(64, np.int32)
    f = tw.jit(computed.fn)
    f[(1,)](x, y, out, how, BLOCK=64, debug=True)
    x[7], y[7] = a, b
    f[(1,)](x, y, out, how, BLOCK=64)
    with pytest.raises(tw.TilewrightError) as found:
        f[(1,)](x, y, out, how, BLOCK=64, debug=True)
    assert f"int32 overflow detected for operation {how}" in str(found.value)
    assert "test_jit.py:" in str(found.value)
    f[(1,)](x, y, out, how, BLOCK=64, debug=True, sanitize_overflow=False)
    x[7] = abs(a) // 2 - 1
    f[(1,)](x, y, out, how, BLOCK=64, debug=True)


def test_what_is_meant_to_wrap_does():
    x, out = np.full(64, 2**30, np.int32), np.zeros(64, np.int32)
    tw.jit(computed.fn)[(1,)](x, x, out, "wrapped", BLOCK=64, debug=True)

    @tw.jit
    def noise(out, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, tl.rand(12345, i))

    drawn = np.zeros(64, np.float32)
    noise[(1,)](drawn, BLOCK=64, debug=True)
    assert len(set(drawn)) > 32


def test_interpreted_step_by_step():
    x, out = torch.randn(100), torch.zeros(100)
    f = tw.jit(add.fn)
    with knobs.interpret.override(True):
        kernel = f[grid(100)](x, x, out, 100)
        assert kernel.wants_given
    assert torch.equal(out, x + x)


# ---- without a launch


def test_a_name_of_ones_own():
    def named(about):
        return f"{about.fn.name}_{about.signature['value']}_{about.constants['BLOCK']}"

    f = tw.jit(fill.fn, repr=named)
    assert f.warmup(torch.zeros(8), 2**31, 8, grid=(1,)).name == "fill_i64_8"


def test_warmup_makes_and_runs_nothing():
    out = torch.zeros(8)
    kernel = fill.warmup(out, 3, 8, grid=(1,))
    assert out.tolist() == [0] * 8
    assert kernel.n_regs > 0 and kernel.metadata.shared > 0
    assert "store" in kernel.asm["ttir"]
    assert "ptx" not in kernel.asm
    with pytest.raises(KeyError, match="ptx"):
        kernel.asm["ptx"]
    kernel[(1,)](out, 3, 8)
    assert out.tolist() == [3] * 8


def test_warmup_takes_dtypes_for_tensors():
    kernel = fill.warmup(torch.float16, 3, 8, grid=(1,))
    assert kernel.signature["out"] == "*fp16"
    assert MockTensor(torch.float16, [2, 3, 4]).stride() == (12, 4, 1)


# ---- refused


def refused(call):
    with pytest.raises(tw.Invalid) as found:
        call()
    return str(found.value)


def test_what_is_wrong_with_arguments_is_said_with_the_name_and_the_place():
    x = torch.zeros(64)
    meta = torch.zeros(64, device="meta")
    text = refused(lambda: add[(1,)](x, meta, x, 64))
    assert "argument y of add: a tensor on meta" in text and "test_jit.py:" in text
    assert "x.cpu()" in text
    text = refused(lambda: add[(1,)](x, x, "x", 64))
    assert "argument out of add: a builtins.str cannot be an argument of a kernel" in text
    text = refused(lambda: add[(1,)](x, x, x.to(torch.complex64), 64))
    assert "argument out of add" in text and "complex64" in text
    text = refused(lambda: add[(1,)](x, x, x, 2**64))
    assert "argument n of add" in text and "64 bits" in text
    swapped = np.zeros(8, ">f4") if np.little_endian else np.zeros(8, "<f4")
    assert "order of bytes" in refused(lambda: fill[(1,)](swapped, 3, 8))


def test_a_freed_tensor_is_refused():
    x = torch.zeros(64)
    gone = torch.zeros(64)
    gone.untyped_storage().resize_(0)
    assert "argument y of add: a tensor whose memory is freed" in refused(
        lambda: add[(1,)](x, gone, x, 64)
    )


def test_an_empty_tensor_is_none_that_was_freed():
    x = torch.zeros(0)
    add[(1,)](x, x, x, 0)


def test_missing_and_unknown_arguments():
    x = torch.zeros(64)
    text = refused(lambda: fill[(1,)](x, 3))
    assert "fill is launched without the constant BLOCK" in text and "BLOCK=…" in text
    text = refused(lambda: fill[(1,)](x, 3, BLOK=8))
    assert "no parameter BLOK" in text and "did you mean BLOCK?" in text
    assert "takes 3" in refused(lambda: fill[(1,)](x, 3, 8, 9))
    assert "num_warps=3" in refused(lambda: fill.warmup(x, 3, 8, grid=(1,), num_warps=3))
    with pytest.raises(TypeError):
        fill[(1,)](x)
    with pytest.raises(KeyError):
        fill[(1,)](x, 3, 8, unheard_of=1)


def test_a_constant_without_a_hash_is_refused():
    out = torch.zeros(8)
    text = refused(lambda: fill[(1,)](out, 3, {1, 2}))
    assert "argument BLOCK of fill: a set is no constant" in text


def test_a_kernel_is_not_called_like_a_function():
    with pytest.raises(tw.Invalid, match="cannot be called like a Python function"):
        add(1, 2, 3, 4)


def test_replaced_source():
    f = tw.jit(fill.fn)
    out = torch.zeros(8)
    f[(1,)](out, 3, 8)
    f._unsafe_update_src(f.src.replace("value)", "value + 1)"))
    f[(1,)](out, 3, 8)
    assert out.tolist() == [4] * 8


# ---- small parts


def test_cdiv_and_powers():
    assert [tw.cdiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [tw.next_power_of_2(n) for n in (0, 1, 2, 3, 1000, 1024)] == [0, 1, 2, 4, 1024, 1024]


def test_elements_by_any_name():
    assert element_of(torch.bfloat16).name == "bf16"
    assert element_of(np.dtype("uint16")).name == "u16"
    assert element_of(torch.float8_e5m2).name == "f8e5m2"
    assert element_of("fp8e4nv").name == "f8e4m3"
    with pytest.raises(tw.Unsupported, match="complex64"):
        element_of(torch.complex64)


def test_pointers_declared_by_an_annotation():
    bound = handlers(True, True, Pointer(element_of("fp16")))
    kind, _ = bound[torch.Tensor](torch.zeros(8, dtype=torch.int16))
    assert kind.argument.element == Pointer(element_of("fp16"))
