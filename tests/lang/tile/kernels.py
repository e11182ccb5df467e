"""Kernels in the tile language with what they have to compute, in numpy.

Tests of the front end translate them, tests of the interpreter run them step by step, and tests of
the native back end run them compiled: `CASES` names them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.lang.tile.programs import (
    add_kernel,
    argmax_kernel,
    atomic_max_kernel,
    attention_kernel,
    backwards_kernel,
    block_pointer_kernel,
    collatz_kernel,
    count_kernel,
    cross_entropy_kernel,
    dropout_kernel,
    early_return_kernel,
    embedding_kernel,
    gcd_kernel,
    int8_dot_kernel,
    layernorm_backward_kernel,
    layernorm_kernel,
    layernorm_weights_kernel,
    lock_kernel,
    matmul_kernel,
    moments_kernel,
    nested_kernel,
    online_softmax_kernel,
    scalar_choice_kernel,
    scan_kernel,
    seeded_dropout_kernel,
    softmax_kernel,
    sort_kernel,
    stencil_kernel,
    transpose_kernel,
    tuples_kernel,
)
from tilewright.ir.types import DTYPES, DType, f32, i32, i64
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.front.functions import Argument, TileFunction
from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.rules import verify
from tilewright.lang.tile.stepping.eager import interpret
from tilewright.lang.tile.text import kernel_text, parse_kernel

Values = dict[str, Any]


@dataclass(frozen=True)
class Case:
    name: str
    function: TileFunction
    grid: tuple[int, ...]
    # Arrays, numbers and constants by parameter.
    values: Callable[[np.random.Generator], Values]
    # The arrays that the kernel writes, from the values before.
    expected: Callable[[Values], Values]
    rtol: float = 1e-5
    atol: float = 1e-6

    def arguments(self, values: Values) -> dict[str, Argument]:
        return {p.name: argument_of(values[p.name], p) for p in self.function.parameters}


def element_of(a: np.ndarray) -> DType:
    names = {"float": "f", "int": "i", "uint": "u"}
    kind = a.dtype.name.rstrip("0123456789")
    return DTYPES["bool" if kind == "bool" else f"{names[kind]}{a.dtype.itemsize * 8}"]


def argument_of(x: Any, parameter: Any = None) -> Argument:
    """What a launch would specialise on."""
    if parameter is not None and parameter.is_constexpr:
        return Argument.constant(x)
    if isinstance(x, np.ndarray):
        aligned = 16 if x.ctypes.data % 16 == 0 else 1
        return Argument.pointer(element_of(x), aligned)
    if isinstance(x, tuple):
        return Argument.group(argument_of(v) for v in x)
    if isinstance(x, float):
        return Argument.scalar(f32)
    if isinstance(x, (int, np.integer)):
        wide = not -(2**31) <= x < 2**31
        return Argument.scalar(i64 if wide else i32, 16 if x % 16 == 0 else 1, bool(x > 0))
    return Argument.constant(x)


def given(**values: Any) -> Values:
    return values


def f32s(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# ---- what they compute


def philox_uniform(seed: int, offsets: np.ndarray) -> np.ndarray:
    """Philox 4x32 of ten rounds, its first word as a number in [0, 1)."""
    mask = np.uint64(0xFFFFFFFF)
    c = [offsets.astype(np.uint64), *(np.zeros(offsets.shape, np.uint64) for _ in range(3))]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        high, low = (lambda v: v >> np.uint64(32)), (lambda v: v & mask)
        c = [high(b) ^ c[1] ^ np.uint64(key[0]), low(b), high(a) ^ c[3] ^ np.uint64(key[1]), low(a)]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    word = c[0].astype(np.uint32).view(np.int32)
    word = np.where(word < 0, -word - 1, word)
    return word.astype(np.float32) * np.float32(4.6566127342e-10)


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _normal(v: Values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x = v["x"].astype(np.float64)
    m = x.mean(1)
    r = 1 / np.sqrt(x.var(1) + v.get("eps", 1e-5))
    return m, r, (x - m[:, None]) * r[:, None]


def _layernorm(v: Values) -> Values:
    m, r, normal = _normal(v)
    return {"y": normal * v["w"] + v["b"], "mean": m, "rstd": r}


def _layernorm_dx(v: Values) -> Values:
    x, r = v["x"].astype(np.float64), v["rstd"][:, None]
    normal, wdy = (x - v["mean"][:, None]) * r, v["w"] * v["dy"]
    c1, c2 = ((normal * wdy).mean(1, keepdims=True), wdy.mean(1, keepdims=True))
    return {"dx": (wdy - (normal * c1 + c2)) * r}


def _layernorm_dw(v: Values) -> Values:
    normal = (v["x"].astype(np.float64) - v["mean"][:, None]) * v["rstd"][:, None]
    return {"dw": (v["dy"] * normal).sum(0), "db": v["dy"].sum(0)}


def _matmul(v: Values) -> Values:
    c = v["a"].astype(np.float64) @ v["b"].astype(np.float64)
    return {"c": np.where(c >= 0, c, 0.01 * c) if v["ACTIVATION"] == "leaky_relu" else c}


def _attention(v: Values) -> Values:
    q, k, w = (v[n].astype(np.float64) for n in "qkv")
    scores = q @ k.transpose(0, 2, 1) * v["scale"]
    if v["CAUSAL"]:
        scores = np.where(np.tri(q.shape[1], dtype=bool), scores, -np.inf)
    return {"out": _softmax(scores) @ w}


def _collatz(n: int) -> int:
    steps = 0
    while n > 1 and steps < 1000:
        n, steps = (n // 2 if n % 2 == 0 else 3 * n + 1), steps + 1
    return steps


def _early(v: Values) -> Values:
    out, x = v["out"].copy(), v["x"][: v["n"]]
    out[: v["n"]] = np.where(x < -1, -2, np.where(x > 1, 2, np.abs(x)))
    return {"out": out}


def _tuples(v: Values) -> Values:
    x = v["x"]
    p = np.polyval(v["weights"], x.astype(np.float64))
    return {"out": np.stack([p + x, p - x])}


def _backwards(v: Values) -> Values:
    total = 0.0
    for value in v["x"][: v["n"]][::-1]:
        total = total * 0.5 + float(value)
    return {"out": np.array([total, 0 if v["n"] else -1, 0 if v["n"] else -1], np.float32)}


def _stencil(v: Values) -> Values:
    n, width = v["n"], v["WIDTH"]
    padded = np.pad(v["x"].astype(np.float64), width)
    taps = range(-width, width + 1)
    return {"out": sum(padded[width + k : width + k + n] / (1 + k * k) for k in taps)}


def _choice(v: Values) -> Values:
    sign = np.where(np.arange(len(v["x"])) % 2 == 0, 1, -1)
    return {"out": np.minimum(v["x"], v["LIMIT"]) * sign}


def _embedding(v: Values) -> Values:
    rows = v["table"][np.maximum(v["index"], 0)]
    return {"out": np.where(v["index"][:, None] >= 0, rows, 0)}


def _cross_entropy(v: Values) -> Values:
    x = v["logits"].astype(np.float64)
    top = x.max(1)
    total = np.log(np.exp(x - top[:, None]).sum(1)) + top
    return {"out": total - x[np.arange(len(x)), v["target"]]}


def _seeded_dropout(v: Values) -> Values:
    kept = philox_uniform(v["seed"], np.arange(v["n"])) > np.float32(v["p"])
    return {"out": np.where(kept, v["x"] / np.float32(1 - v["p"]), 0)}


def _matmul_values(
    m: int, n: int, k: int, dtype: Any = np.float32, activation: str = ""
) -> Callable[[np.random.Generator], Values]:
    def values(rng: np.random.Generator) -> Values:
        return given(
            a=f32s(rng, m, k).astype(dtype), b=f32s(rng, k, n).astype(dtype),
            c=np.zeros((m, n), np.float32), M=m, N=n, K=k,
            stride_am=k, stride_ak=1, stride_bk=n, stride_bn=1, stride_cm=n, stride_cn=1,
            BLOCK_M=32, BLOCK_N=32, BLOCK_K=16, GROUP=2, ACTIVATION=activation,
        )  # fmt: skip

    return values


def _attention_values(n: int, causal: bool) -> Callable[[np.random.Generator], Values]:
    def values(rng: np.random.Generator) -> Values:
        q, k, v = (f32s(rng, 2, n, 16) for _ in range(3))
        return given(
            q=q, k=k, v=v, out=np.zeros_like(q), n=n, scale=0.25,
            BLOCK_M=32, BLOCK_N=16, DIM=16, CAUSAL=causal,
        )  # fmt: skip

    return values


def _moments_of(x: np.ndarray) -> Values:
    return {"mean": x.mean(1).astype(np.float32), "rstd": (1 / x.std(1)).astype(np.float32)}


def _layernorm_values(rng: np.random.Generator) -> Values:
    return given(
        x=f32s(rng, 5, 100), y=np.zeros((5, 100), np.float32), w=f32s(rng, 100), b=f32s(rng, 100),
        mean=np.zeros(5, np.float32), rstd=np.zeros(5, np.float32),
        columns=100, eps=1e-5, BLOCK=32,
    )  # fmt: skip


def _layernorm_dx_values(rng: np.random.Generator) -> Values:
    x = f32s(rng, 5, 100)
    return given(
        dy=f32s(rng, 5, 100), x=x, w=f32s(rng, 100), **_moments_of(x),
        dx=np.zeros((5, 100), np.float32), columns=100, BLOCK=128,
    )  # fmt: skip


def _layernorm_dw_values(rng: np.random.Generator) -> Values:
    x = f32s(rng, 11, 50)
    return given(
        dy=f32s(rng, 11, 50), x=x, **_moments_of(x), dw=np.zeros(50, np.float32),
        db=np.zeros(50, np.float32), rows=11, columns=50, ROWS=4, BLOCK=32,
    )  # fmt: skip


def _rows(rows: int, columns: int, block: int, **more: Any) -> Callable[..., Values]:
    def values(rng: np.random.Generator) -> Values:
        x = f32s(rng, rows, columns)
        return given(x=x, out=np.zeros_like(x), columns=columns, BLOCK=block, **more)

    return values


def _zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


CASES: dict[str, Case] = {
    c.name: c
    for c in (
        Case(
            "add", add_kernel, (4,),
            lambda r: given(x=f32s(r, 250), y=f32s(r, 250), out=_zeros(250), n=250, BLOCK=64),
            lambda v: {"out": v["x"] + v["y"]},
        ),
        Case(
            "softmax", softmax_kernel, (6,), _rows(6, 100, 128, stride=100),
            lambda v: {"out": _softmax(v["x"])},
        ),
        Case(
            "online_softmax", online_softmax_kernel, (6,), _rows(6, 100, 32),
            lambda v: {"out": _softmax(v["x"])},
        ),
        Case(
            "dropout", dropout_kernel, (2,),
            lambda r: given(
                x=f32s(r, 100), keep=r.integers(0, 2, 100, dtype=np.int32), out=_zeros(100),
                n=100, p=0.25, BLOCK=64,
            ),
            lambda v: {"out": np.where(v["keep"], v["x"] / np.float32(0.75), 0)},
        ),
        Case(
            "seeded_dropout", seeded_dropout_kernel, (2,),
            lambda r: given(x=f32s(r, 100), out=_zeros(100), n=100, p=0.5, seed=123, BLOCK=64),
            _seeded_dropout,
        ),
        Case(
            "scan", scan_kernel, (1,), lambda r: given(x=f32s(r, 64), out=_zeros(64), BLOCK=64),
            lambda v: {"out": np.cumsum(v["x"], dtype=np.float64)}, atol=1e-5,
        ),
        Case(
            "argmax", argmax_kernel, (4,),
            lambda r: given(
                x=f32s(r, 4, 50), largest=_zeros(4), where=_zeros(4, dtype=np.int32), columns=50,
                BLOCK=64,
            ),
            lambda v: {"largest": v["x"].max(1), "where": v["x"].argmax(1)},
        ),
        Case(
            "sort", sort_kernel, (1,),
            lambda r: given(x=f32s(r, 4, 16), out=_zeros(4, 16), ROWS=4, COLUMNS=16),
            lambda v: {"out": np.sort(v["x"], 1)},
        ),
        Case("layernorm", layernorm_kernel, (5,), _layernorm_values, _layernorm, 1e-4, 1e-5),
        Case(
            "layernorm_backward", layernorm_backward_kernel, (5,), _layernorm_dx_values,
            _layernorm_dx, 1e-4, 1e-5,
        ),
        Case(
            "layernorm_weights", layernorm_weights_kernel, (2,), _layernorm_dw_values,
            _layernorm_dw, 1e-4, 1e-4,
        ),
        Case(
            "matmul", matmul_kernel, (6,), _matmul_values(70, 50, 40), _matmul, 1e-4, 1e-4
        ),
        Case(
            "matmul_relu", matmul_kernel, (4,),
            _matmul_values(64, 64, 48, np.float16, "leaky_relu"), _matmul, 1e-2, 1e-2,
        ),
        Case(
            "attention", attention_kernel, (3, 2), _attention_values(80, False), _attention,
            1e-4, 1e-5,
        ),
        Case(
            "causal_attention", attention_kernel, (2, 2), _attention_values(64, True), _attention,
            1e-4, 1e-5,
        ),
        Case(
            "int8_dot", int8_dot_kernel, (1,),
            lambda r: given(
                a=r.integers(-128, 128, (32, 32)).astype(np.int8),
                b=r.integers(-128, 128, (32, 32)).astype(np.int8),
                c=_zeros(32, 32, dtype=np.int32), SIZE=32,
            ),
            lambda v: {"c": v["a"].astype(np.int32) @ v["b"].astype(np.int32)},
        ),
        Case(
            "block_pointer", block_pointer_kernel, (1,),
            lambda r: given(x=f32s(r, 13, 50), out=_zeros(13, 50), rows=13, columns=50, BLOCK=16),
            lambda v: {"out": v["x"] * 2},
        ),
        Case(
            "gcd", gcd_kernel, (8,),
            lambda r: given(
                x=r.integers(1, 1000, 8, dtype=np.int32), y=r.integers(0, 1000, 8, dtype=np.int32),
                out=_zeros(8, dtype=np.int32),
            ),
            lambda v: {"out": np.gcd(v["x"], v["y"])},
        ),
        Case(
            "collatz", collatz_kernel, (8,),
            lambda r: given(
                x=r.integers(1, 100, 8, dtype=np.int32), out=_zeros(8, dtype=np.int32)
            ),
            lambda v: {"out": np.array([_collatz(int(n)) for n in v["x"]])},
        ),
        Case(
            "early_return", early_return_kernel, (20,),
            lambda r: given(x=2 * f32s(r, 16), out=_zeros(20) - 7, n=16), _early,
        ),
        Case(
            "nested", nested_kernel, (9,),
            lambda r: given(
                x=np.sign(f32s(r, 9)) * (np.arange(9) % 3), out=_zeros(9, dtype=np.int32), SCALE=3
            ),
            lambda v: {"out": 3 * np.sign(v["x"])},
        ),
        Case(
            "tuples", tuples_kernel, (1,),
            lambda r: given(x=f32s(r, 32), out=_zeros(2, 32), weights=(2.0, -1.0, 0.5), BLOCK=32),
            _tuples,
        ),
        Case(
            "backwards", backwards_kernel, (1,),
            lambda r: given(x=f32s(r, 20), out=_zeros(3), n=17), _backwards,
        ),
        Case(
            "backwards_empty", backwards_kernel, (1,),
            lambda r: given(x=f32s(r, 20), out=_zeros(3), n=0), _backwards,
        ),
        Case(
            "stencil", stencil_kernel, (3,),
            lambda r: given(x=f32s(r, 90), out=_zeros(90), n=90, WIDTH=2, BLOCK=32), _stencil,
        ),
        Case(
            "scalar_choice", scalar_choice_kernel, (12,),
            lambda r: given(x=f32s(r, 12), out=_zeros(12), n=12, LIMIT=0.5), _choice,
        ),
        Case(
            "embedding", embedding_kernel, (6,),
            lambda r: given(
                table=f32s(r, 10, 20), index=np.array([3, 0, -1, 9, 9, 1], np.int64),
                out=_zeros(6, 20), width=20, BLOCK=32,
            ),
            _embedding,
        ),
        Case(
            "transpose", transpose_kernel, (3, 2),
            lambda r: given(x=f32s(r, 45, 20), out=_zeros(20, 45), rows=45, columns=20, BLOCK=16),
            lambda v: {"out": v["x"].T},
        ),
        Case(
            "count", count_kernel, (4,),
            lambda r: given(
                x=r.integers(0, 1000, 100, dtype=np.int32), counts=_zeros(8, dtype=np.int32),
                n=100, BINS=8, BLOCK=32,
            ),
            lambda v: {"counts": np.bincount(v["x"] % 8, minlength=8)},
        ),
        Case(
            "atomic_max", atomic_max_kernel, (4,),
            lambda r: given(x=f32s(r, 100), out=np.full(1, -np.inf, np.float32), n=100, BLOCK=32),
            lambda v: {"out": v["x"].max(keepdims=True)},
        ),
        Case(
            "lock", lock_kernel, (5,),
            lambda r: given(
                x=f32s(r, 5, 16), lock=_zeros(1, dtype=np.int32), out=_zeros(16), BLOCK=16
            ),
            lambda v: {"out": v["x"].sum(0), "lock": v["lock"]},
        ),
        Case(
            "moments", moments_kernel, (4,),
            lambda r: given(
                x=f32s(r, 4, 100), mean=_zeros(4), variance=_zeros(4), columns=100, BLOCK=128
            ),
            lambda v: {"mean": v["x"].mean(1), "variance": v["x"].var(1)}, 1e-4, 1e-5,
        ),
        Case(
            "cross_entropy", cross_entropy_kernel, (5,),
            lambda r: given(
                logits=f32s(r, 5, 30), target=r.integers(0, 30, 5, dtype=np.int64), out=_zeros(5),
                columns=30, BLOCK=32,
            ),
            _cross_entropy,
        ),
    )
}  # fmt: skip


# ---- running them


def launched(function: TileFunction, values: Values, arguments: dict[str, Argument]) -> list[Any]:
    """What a launch gives, in the order of the translated kernel's arguments."""
    found: list[Any] = []

    def leaves(x: Any, a: Argument) -> None:
        if a.parts is not None:
            for part, inner in zip(x, a.parts, strict=True):
                leaves(part, inner)
        elif a.element is not None:
            found.append(x)

    for p in function.parameters:
        if p.name in arguments:
            leaves(values[p.name], arguments[p.name])
    return found


def run(function: TileFunction, grid: tuple[int, ...] = (1,), /, **values: Any) -> Kernel:
    """Translate a kernel for these values and interpret it. Parameters left out have defaults."""
    parameters = {p.name: p for p in function.parameters}
    arguments = {name: argument_of(x, parameters.get(name)) for name, x in values.items()}
    kernel = translate(function, arguments)
    verify(kernel)
    assert parse_kernel(kernel_text(kernel)) == kernel
    interpret(kernel, grid, launched(function, values, arguments))
    return kernel
