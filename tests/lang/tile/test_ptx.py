"""Assembly in kernels: instructions of PTX as operations of the language, natively and step by
step, against what the instructions are defined to do."""

import math

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tilewright.base import knobs
from tilewright.lang.tile.front.diagnostics import CompileError

N = 64
R = np.random.default_rng(7)
WORDS = R.integers(0, 2**32, N, dtype=np.uint32)
OTHERS = R.integers(0, 2**32, N, dtype=np.uint32)
WORDS[:4] = OTHERS[2:6] = (0, 1, 2**31, 2**32 - 1)
FLOATS = R.normal(0, 4, N).astype(np.float32)
MORE = R.normal(0, 4, N).astype(np.float32)


@tw.jit
def one(x, out, ASM: tl.constexpr, TO: tl.constexpr, HOW: tl.constexpr, PACK: tl.constexpr):
    i = tl.arange(0, 64)
    found = tl.inline_asm_elementwise(ASM, HOW, [tl.load(x + i)], TO, True, PACK)
    tl.store(out + i, found)


@tw.jit
def two(x, y, out, ASM: tl.constexpr, TO: tl.constexpr, HOW: tl.constexpr, PACK: tl.constexpr):
    i = tl.arange(0, 64)
    given = [tl.load(x + i), tl.load(y + i)]
    tl.store(out + i, tl.inline_asm_elementwise(ASM, HOW, given, TO, True, PACK))


TYPES = {
    np.dtype(np.float32): tl.float32,
    np.dtype(np.float16): tl.float16,
    np.dtype(np.uint32): tl.uint32,
    np.dtype(np.int32): tl.int32,
    np.dtype(np.uint8): tl.uint8,
    np.dtype(np.uint64): tl.uint64,
}


def both_ways(asm, how, args, to, pack=1):
    to = np.dtype(to)
    kernel = one if len(args) == 1 else two
    found = []
    for stepwise in (False, True):
        out = np.zeros(N, to)
        with knobs.interpret.override(stepwise):
            kernel[(1,)](*args, out, asm, TYPES[to], how, pack)
        found.append(out)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6 if to.kind == "f" else 0)
    return found[0]


def bits(x):
    return x.astype(np.float32).view(np.uint32)


@pytest.mark.parametrize(
    ("asm", "wanted"),
    [
        ("tanh.approx.f32 $0, $1;", np.tanh),
        ("cos.approx.f32 $0, $1;", np.cos),
        ("sin.approx.ftz.f32 $0, $1;", np.sin),
        ("ex2.approx.ftz.f32 $0, $1;", np.exp2),
        ("rcp.approx.f32 $0, $1;", lambda x: 1 / x),
        ("{ .reg .f32 t; abs.f32 t, $1; lg2.approx.f32 $0, t; }", lambda x: np.log2(abs(x))),
        ("{ .reg .f32 t; abs.f32 t, $1; rsqrt.approx.f32 $0, t; }", lambda x: abs(x) ** -0.5),
        ("{ .reg .f32 t; abs.f32 t, $1; sqrt.approx.f32 $0, t; }", lambda x: abs(x) ** 0.5),
        ("fma.rn.f32 $0, $1, 0f40000000, 1.5;", lambda x: x * 2 + 1.5),
        ("neg.f32 $0, $1; // the sign", lambda x: -x),
        ("add.sat.f32 $0, $1, 0f00000000;", lambda x: np.clip(x, 0, 1)),
        ("{.reg .pred p; setp.lt.f32 p, $1, 0f00000000; selp.f32 $0, 1.0, $1, p;}",
         lambda x: np.where(x < 0, 1, x)),
        ("{.reg .pred p; setp.ge.f32 p, $1, 1.0; mov.f32 $0, $1; @!p mul.f32 $0, $1, $1;}",
         lambda x: np.where(x >= 1, x, x * x)),
        ("cvt.rni.f32.f32 $0, $1;", np.round),
    ],
)  # fmt: skip
def test_functions_of_floats(asm, wanted):
    found = both_ways(asm, "=f,f", [FLOATS], np.float32)
    np.testing.assert_allclose(found, wanted(FLOATS.astype(np.float64)), rtol=2e-6, atol=2e-6)


def signed(x):
    return x.astype(np.int32).astype(np.int64)


def byte(x, k):
    return (x >> np.uint32(8 * k)) & np.uint32(255)


@pytest.mark.parametrize(
    ("asm", "wanted"),
    [
        ("add.u32 $0, $1, $2;", lambda a, b: a + b),
        ("sub.s32 $0, $1, $2;", lambda a, b: a - b),
        ("mul.lo.u32 $0, $1, $2;", lambda a, b: a * b),
        ("mul.hi.u32 $0, $1, $2;",
         lambda a, b: (a.astype(np.uint64) * b.astype(np.uint64)) >> np.uint64(32)),
        ("mul.hi.s32 $0, $1, $2;", lambda a, b: (signed(a) * signed(b)) >> 32),
        ("mad.lo.u32 $0, $1, 2, $2;", lambda a, b: a * np.uint32(2) + b),
        ("min.s32 $0, $1, $2;", lambda a, b: np.minimum(signed(a), signed(b))),
        ("max.u32 $0, $1, $2;", np.maximum),
        ("and.b32 $0, $1, 0x0F0F;", lambda a, b: a & np.uint32(0x0F0F)),
        ("or.b32 $0, $1, $2;", np.bitwise_or),
        ("xor.b32 $0, $1, $2;", np.bitwise_xor),
        ("not.b32 $0, $1;", lambda a, b: ~a),
        ("shl.b32 $0, $1, 40;", lambda a, b: a * np.uint32(0)),
        ("shr.s32 $0, $1, 3;", lambda a, b: signed(a) >> 3),
        ("shr.u32 $0, $1, 0b11;", lambda a, b: a >> np.uint32(3)),
        ("shf.l.wrap.b32 $0, $1, $2, 17;",
         lambda a, b: (b << np.uint32(17)) | (a >> np.uint32(15))),
        ("prmt.b32 $0, $1, $2, 0x5140;",
         lambda a, b: byte(a, 0) | byte(b, 0) << 8 | byte(a, 1) << 16 | byte(b, 1) << 24),
        ("lop3.b32 $0, $1, 0x80008000, $2, 0xf8;",
         lambda a, b: a | (np.uint32(0x80008000) & b)),
        ("bfe.u32 $0, $1, 5, 9;", lambda a, b: (a >> np.uint32(5)) & np.uint32(511)),
        ("bfe.s32 $0, $1, 5, 9;", lambda a, b: (signed(a) << 50).astype(np.int64) >> 55),
        ("bfi.b32 $0, $1, $2, 4, 8;",
         lambda a, b: (b & ~np.uint32(0xFF0)) | ((a & np.uint32(255)) << np.uint32(4))),
        ("popc.b32 $0, $1;", lambda a, b: [int(x).bit_count() for x in a]),
        ("clz.b32 $0, $1;", lambda a, b: [32 - int(x).bit_length() for x in a]),
        ("brev.b32 $0, $1;", lambda a, b: [int(f"{int(x):032b}"[::-1], 2) for x in a]),
        ("mov.b32 $0, $1;", lambda a, b: a),
        ("{ .reg .b16 l, h; mov.b32 {l, h}, $1; mov.b32 $0, {h, l}; }",
         lambda a, b: (a >> np.uint32(16)) | (a << np.uint32(16))),
        ("cvt.u32.u8 $0, $1;", lambda a, b: a & np.uint32(255)),
        ("cvt.s32.s8 $0, $1;", lambda a, b: a.astype(np.int8).astype(np.int64)),
        ("{.reg .pred p, q; setp.eq.u32 p|q, $1, $2; selp.b32 $0, 1, 0, q;}",
         lambda a, b: a != b),
    ],
)  # fmt: skip
def test_functions_of_bits(asm, wanted):
    found = both_ways(asm, "=r,r,r", [WORDS, OTHERS], np.uint32)
    expected = np.asarray(wanted(WORDS, OTHERS)).astype(np.int64).astype(np.uint32)
    np.testing.assert_array_equal(found, expected)


def test_conversions():
    found = both_ways("cvt.rzi.s32.f32 $0, $1;", "=r,f", [FLOATS * 1e9], np.int32)
    exact = np.clip(np.trunc(FLOATS.astype(np.float32) * np.float32(1e9)), -(2.0**31), 2.0**31 - 1)
    np.testing.assert_array_equal(found, exact.astype(np.int64).astype(np.int32))
    asm = "{ .reg .b16 h; cvt.rn.bf16.f32 h, $1; mov.b32 $0, {0, h}; }"
    with pytest.raises(CompileError, match="no register"):
        both_ways(asm, "=f,f", [FLOATS], np.float32)
    asm = "{ .reg .b16 h, z; mov.b16 z, 0; cvt.rn.bf16.f32 h, $1; mov.b32 $0, {z, h}; }"
    found = both_ways(asm, "=f,f", [FLOATS], np.float32)
    rounded = (bits(FLOATS).astype(np.uint64) + 0x7FFF + ((bits(FLOATS) >> 16) & 1)) >> 16 << 16
    np.testing.assert_array_equal(bits(found), rounded.astype(np.uint32))


def test_floats_of_nineteen_bits():
    """tf32 is a float32 without its last 13 bits; halfway lies 0x1000 below them."""
    x = FLOATS.copy()
    x[:4] = np.array([0x3F801000, 0x3F803000, 0xBF801000, 0x3F800FFF], np.uint32).view(np.float32)
    x[4:7] = np.inf, -np.inf, np.nan
    code = bits(x).astype(np.uint64)
    ways = {"rna": 0x1000, "rn": 0xFFF + ((code >> 13) & 1), "rz": 0}
    for how, more in ways.items():
        found = both_ways(f"cvt.{how}.tf32.f32 $0, $1;", "=r,r", [x], np.float32)
        wanted = np.where(np.isnan(x), 0x7FFFFFFF, (code + more) & 0xFFFFE000)
        np.testing.assert_array_equal(bits(found), wanted)
    with pytest.raises(CompileError, match="tf32"):
        both_ways("cvt.tf32.f32 $0, $1;", "=r,r", [x], np.float32)


def test_four_bits():
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    x = np.resize(np.concatenate([values, -values, [0.25, 0.75, 2.5, 5, 100, -0.3]]), N)
    asm = "{.reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, $2, $1; cvt.u32.u8 $0, t;}"
    found = both_ways(
        asm, "=r,f,f", [x.astype(np.float32), np.roll(x, 1).astype(np.float32)], np.uint32
    )

    def code(v):
        distance = abs(abs(v) - values)
        best = [k for k in range(8) if distance[k] == distance.min()]
        return (best[0] if len(best) == 1 or best[0] % 2 == 0 else best[1]) | (
            math.copysign(1, v) < 0
        ) << 3

    expected = [code(a) | code(b) << 4 for a, b in zip(x, np.roll(x, 1), strict=True)]
    np.testing.assert_array_equal(found, expected)


def test_packed_elements():
    x = R.integers(0, 256, N, dtype=np.uint8)
    asm = "and.b32 $0, $1, 0x1F1F1F1F; shl.b32 $0, $0, 3;"
    np.testing.assert_array_equal(both_ways(asm, "=r,r", [x], np.uint8, 4), x << 3)
    halves, others = FLOATS.astype(np.float16), MORE.astype(np.float16)
    found = both_ways("add.f16x2 $0, $1, $2;", "=r,r,r", [halves, others], np.float16, 2)
    np.testing.assert_array_equal(found, halves + others)
    found = both_ways("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [FLOATS], np.float16, 2)
    np.testing.assert_array_equal(found, FLOATS.astype(np.float16))
    wide = both_ways("mul.wide.u32 $0, $1, 3;", "=l,r", [WORDS], np.uint64)
    np.testing.assert_array_equal(wide, WORDS.astype(np.uint64) * np.uint64(3))


@tw.jit
def apart(x, y, out, SUM: tl.constexpr):
    i = tl.arange(0, 64)
    a, b = tl.load(x + i), tl.load(y + i)
    if SUM:
        found = tl.inline_asm_elementwise(
            "add.rn.f32 $0, $1, $2;", "=f,f,f", [a * b, a], tl.float32, True, 1
        )
    else:
        product = tl.inline_asm_elementwise(
            "mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], tl.float32, True, 1
        )
        found = product + a
    tl.store(out + i, found)


@pytest.mark.parametrize("total", [False, True])
def test_what_says_how_it_rounds_is_rounded_alone(total):
    out = np.zeros(N, np.float32)
    apart[(1,)](FLOATS, MORE, out, total)
    np.testing.assert_array_equal(out, FLOATS * MORE + FLOATS)


@tw.jit
def several(x, y, out, other):
    i = tl.arange(0, 64)
    a, b = tl.inline_asm_elementwise(
        """
        sub.u32 $0, $2, $3;  // one
        sub.u32 $1, $3, $2;  /* and the other */
        """,
        constraints="=r,=r,r,r",
        args=[tl.load(x + i), tl.load(y + i)],
        dtype=(tl.uint32, tl.uint32),
        is_pure=True,
        pack=1,
    )
    tl.store(out + i, a)
    tl.store(other + i, b)


def test_several_results():
    found, other = np.zeros((2, N), np.uint32)
    several[(1,)](WORDS, OTHERS, found, other)
    np.testing.assert_array_equal(found, WORDS - OTHERS)
    np.testing.assert_array_equal(other, OTHERS - WORDS)


@pytest.mark.parametrize(
    ("asm", "how", "said"),
    [
        ("wgmma.fence.sync;", "=f,f", r"`wgmma.fence.sync` is not among the instructions"),
        ("add.rz.f32 $0, $1, $1;", "=f,f", r"has .rz"),
        ("mov.u32 $0, %smid;", "=f,f", "%smid queries the state of a GPU"),
        ("add.f32 $0, t, $1;", "=f,f", "t is no register"),
        ("add.f32 $0, $1;", "=f,f", "has 2 operands and takes 3"),
        ("mov.f32 $0, $1;", "=f,f,f", "2 for arguments"),
        ("mov.f32 $0, $1;", "=q,f", "constraint '=q'"),
        ("ld.global.f32 $0, [$1];", "=f,f", "ld.global.f32"),
        ("v_exp_f32 $0, $1", "=v,v", "constraint '=v'"),
    ],
)  # fmt: skip
def test_what_is_not_known_is_named(asm, how, said):
    with pytest.raises(CompileError, match=said):
        one[(1,)](FLOATS, np.zeros(N, np.float32), asm, tl.float32, how, 1)
