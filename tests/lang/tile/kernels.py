"""Kernels in the tile language with what they have to compute, in numpy.

Tests of the front end translate them, tests of the interpreter run them step by step, and tests of
the native back end run them compiled: `CASES` names them all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright.language as tl
from tilewright.ir.types import DTYPES, DType, f32, i32, i64
from tilewright.lang.tile.functions import Argument, TileFunction, function

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
        return Argument.scalar(i64 if wide else i32, 16 if x % 16 == 0 else 1, x > 0)
    return Argument.constant(x)


def f32s(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# ---- rows of numbers


@function
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out + offsets, tl.load(x + offsets, mask=mask) + tl.load(y + offsets, mask=mask), mask)


@function
def softmax_kernel(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + at, e / tl.sum(e, axis=0), mask=at < columns)


@function
def online_softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    largest = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
        new = tl.maximum(largest, tl.max(values, axis=0))
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(values - new), axis=0)
        largest = new
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
        tl.store(out + row * columns + at, tl.exp(values - largest) / total, mask=at < columns)


@function
def dropout_kernel(x, keep, out, n, p, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    values = tl.load(x + offsets, mask=mask)
    kept = tl.load(keep + offsets, mask=mask)
    tl.store(out + offsets, tl.where(kept != 0, values / (1 - p), 0.0), mask=mask)


@function
def seeded_dropout_kernel(x, out, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    values = tl.load(x + offsets, mask=mask)
    kept = tl.rand(seed, offsets) > p
    tl.store(out + offsets, tl.where(kept, values / (1 - p), 0.0), mask=mask)


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


@function
def scan_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.cumsum(tl.load(x + at), axis=0))


@function
def argmax_kernel(x, largest, where, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    tl.store(largest + row, tl.max(values, axis=0))
    tl.store(where + row, tl.argmax(values, axis=0))


@function
def sort_kernel(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    tl.store(out + at, tl.sort(tl.load(x + at)))


# ---- normalisation


@function
def layernorm_kernel(x, y, w, b, mean, rstd, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * columns
    y += row * columns
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        sums += tl.load(x + at, mask=at < columns, other=0.0)
    m = tl.sum(sums, axis=0) / columns
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        a = tl.load(x + at, mask=at < columns, other=0.0)
        a = tl.where(at < columns, a - m, 0.0)
        squares += a * a
    r = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    tl.store(mean + row, m)
    tl.store(rstd + row, r)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside = at < columns
        a = tl.load(x + at, mask=inside, other=0.0)
        scaled = (a - m) * r * tl.load(w + at, mask=inside) + tl.load(b + at, mask=inside)
        tl.store(y + at, scaled, mask=inside)


@function
def layernorm_backward_kernel(dy, x, w, mean, rstd, dx, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    normal = (tl.load(x + row * columns + at, mask=inside, other=0.0) - tl.load(mean + row)) * (
        tl.load(rstd + row)
    )
    wdy = tl.load(w + at, mask=inside, other=0.0) * tl.load(
        dy + row * columns + at, mask=inside, other=0.0
    )
    normal = tl.where(inside, normal, 0.0)
    c1 = tl.sum(normal * wdy, axis=0) / columns
    c2 = tl.sum(wdy, axis=0) / columns
    tl.store(dx + row * columns + at, (wdy - (normal * c1 + c2)) * tl.load(rstd + row), mask=inside)


@function
def layernorm_weights_kernel(
    dy, x, mean, rstd, dw, db, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    dw_sum = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    db_sum = tl.zeros((ROWS, BLOCK), dtype=tl.float32)
    for start in range(0, rows, ROWS):
        r = start + tl.arange(0, ROWS)
        mask = (r[:, None] < rows) & (cols[None, :] < columns)
        at = r[:, None] * columns + cols[None, :]
        g = tl.load(dy + at, mask=mask, other=0.0)
        m = tl.load(mean + r, mask=r < rows, other=0.0)
        s = tl.load(rstd + r, mask=r < rows, other=0.0)
        dw_sum += g * (tl.load(x + at, mask=mask, other=0.0) - m[:, None]) * s[:, None]
        db_sum += g
    tl.store(dw + cols, tl.sum(dw_sum, axis=0), mask=cols < columns)
    tl.store(db + cols, tl.sum(db_sum, axis=0), mask=cols < columns)


# ---- products


@function
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@function
def matmul_kernel(
    a, b, c, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(axis=0)
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    in_group = GROUP * columns
    group = pid // in_group
    first = group * GROUP
    size = min(rows - first, GROUP)
    pid_m = first + ((pid % in_group) % size)
    pid_n = (pid % in_group) // size
    at_m = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    at_n = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    at_k = tl.arange(0, BLOCK_K)
    a_at = a + (at_m[:, None] * stride_am + at_k[None, :] * stride_ak)
    b_at = b + (at_k[:, None] * stride_bk + at_n[None, :] * stride_bn)
    sums = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        left = tl.load(a_at, mask=at_k[None, :] < K - k * BLOCK_K, other=0.0)
        right = tl.load(b_at, mask=at_k[:, None] < K - k * BLOCK_K, other=0.0)
        sums = tl.dot(left, right, sums)
        a_at += BLOCK_K * stride_ak
        b_at += BLOCK_K * stride_bk
    if ACTIVATION == "leaky_relu":
        sums = leaky_relu(sums)
    out_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    out_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (out_m[:, None] < M) & (out_n[None, :] < N)
    c_at = c + stride_cm * out_m[:, None] + stride_cn * out_n[None, :]
    tl.store(c_at, sums.to(c.dtype.element_ty), mask=mask)


@function
def _attention_inner(
    acc, l_i, m_i, q, k, v, start_m, low, high, scale, n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    rows = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM)
    for start in range(low, high, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        columns = start + tl.arange(0, BLOCK_N)
        keys = tl.load(
            k + columns[None, :] * DIM + dims[:, None], mask=columns[None, :] < n, other=0.0
        )
        scores = tl.dot(q, keys) * scale
        if DIAGONAL:
            scores = tl.where(rows[:, None] >= columns[None, :], scores, -1.0e6)
        else:
            scores = tl.where(columns[None, :] < n, scores, -1.0e6)
        m_new = tl.maximum(m_i, tl.max(scores, 1))
        p = tl.math.exp2(scores - m_new[:, None])
        alpha = tl.math.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        values = tl.load(
            v + columns[:, None] * DIM + dims[None, :], mask=columns[:, None] < n, other=0.0
        )
        acc = tl.dot(p.to(values.dtype), values, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@function
def attention_kernel(
    q, k, v, out, n, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, DIM: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BLOCK_M % BLOCK_N == 0)
    start_m = tl.program_id(0)
    head = tl.program_id(1)
    base = head.to(tl.int64) * n * DIM
    rows = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM)
    at = base + rows[:, None] * DIM + dims[None, :]
    queries = tl.load(q + at, mask=rows[:, None] < n, other=0.0)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    acc = tl.zeros([BLOCK_M, DIM], dtype=tl.float32)
    high = start_m * BLOCK_M if CAUSAL else n
    scale *= 1.44269504
    l_i = l_i * 0.0
    acc, l_i, m_i = _attention_inner(
        acc, l_i, m_i, queries, k + base, v + base, start_m, 0, high, scale, n,
        BLOCK_M, BLOCK_N, DIM, False,
    )  # fmt: skip
    if CAUSAL:
        acc, l_i, m_i = _attention_inner(
            acc, l_i, m_i, queries, k + base, v + base, start_m, high, high + BLOCK_M, scale, n,
            BLOCK_M, BLOCK_N, DIM, True,
        )  # fmt: skip
    tl.store(out + at, acc / l_i[:, None], mask=rows[:, None] < n)


@function
def int8_dot_kernel(a, b, c, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    at = i[:, None] * SIZE + i[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@function
def block_pointer_kernel(x, out, rows, columns, BLOCK: tl.constexpr):
    source = tl.make_block_ptr(
        x, (rows, columns), (columns, 1), (0, 0), (BLOCK, BLOCK), order=(1, 0)
    )
    target = tl.make_block_ptr(
        out, (rows, columns), (columns, 1), (0, 0), (BLOCK, BLOCK), order=(1, 0)
    )
    for _ in range(0, columns, BLOCK):
        values = tl.load(source, boundary_check=(0, 1), padding_option="zero")
        tl.store(target, values * 2, boundary_check=(0, 1))
        source = tl.advance(source, (0, BLOCK))
        target = tl.advance(target, (0, BLOCK))


# ---- control flow


@function
def gcd(a, b):
    while b != 0:
        a, b = b, a % b
    return a


@function
def gcd_kernel(x, y, out):
    pid = tl.program_id(0)
    tl.store(out + pid, gcd(tl.load(x + pid), tl.load(y + pid)))


@function
def collatz_kernel(x, out):
    pid = tl.program_id(0)
    n = tl.load(x + pid)
    steps = 0
    while n > 1 and steps < 1000:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    tl.store(out + pid, steps)


@function
def early_return_kernel(x, out, n):
    pid = tl.program_id(0)
    if pid >= n:
        return
    value = tl.load(x + pid)
    if value < 0:
        if value < -1:
            tl.store(out + pid, -2.0)
            return
        value = -value
    elif value > 1:
        tl.store(out + pid, 2.0)
        return
    tl.store(out + pid, value)


@function
def sign_of(x):
    if x > 0:
        return 1
    if x < 0:
        return -1
    return 0


@function
def nested_kernel(x, out, SCALE: tl.constexpr = 3):
    pid = tl.program_id(0)
    tl.store(out + pid, sign_of(tl.load(x + pid)) * SCALE)


@function
def polynomial(x, *coefficients):
    value = coefficients[0] + tl.zeros_like(x)
    for c in coefficients[1:]:
        value = value * x + c
    return value


@function
def sum_and_difference(a, b):
    return a + b, a - b


@function
def tuples_kernel(x, out, weights, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + at)
    total, difference = sum_and_difference(polynomial(values, *weights), values)
    pair = (total, difference)
    for k in tl.static_range(len(pair)):
        tl.store(out + k * BLOCK + at, pair[k])


@function
def backwards_kernel(x, out, n):
    """Runs through rows from the end, and keeps its variables where there are none."""
    total = 0.0
    last = -1
    for i in range(n - 1, -1, -1):
        total = total * 0.5 + tl.load(x + i)
        last = i
    tl.store(out, total)
    tl.store(out + 1, last)
    for i in range(5, 2):
        last = i
    tl.store(out + 2, last)


@function
def stencil_kernel(x, out, n, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in tl.static_range(-WIDTH, WIDTH + 1):
        weight: tl.constexpr = 1.0 / (1 + k * k)
        near = at + k
        total += weight * tl.load(x + near, mask=(near >= 0) & (near < n), other=0.0)
    tl.store(out + at, total, mask=at < n)


@function
def scalar_choice_kernel(x, out, n, LIMIT: tl.constexpr):
    pid = tl.program_id(0)
    value = tl.load(x + pid)
    limited = value if value < LIMIT else LIMIT
    sign = 1.0 if pid % 2 == 0 else -1.0
    tl.store(out + pid, limited * sign)


# ---- memory


@function
def embedding_kernel(table, index, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    which = tl.load(index + row)
    values = tl.load(table + which * width + at, mask=(at < width) & (which >= 0), other=0.0)
    tl.store(out + row * width + at, values, mask=at < width)


@function
def transpose_kernel(x, out, rows, columns, BLOCK: tl.constexpr):
    r = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (r[:, None] < rows) & (c[None, :] < columns)
    tile = tl.load(x + r[:, None] * columns + c[None, :], mask=inside)
    back = (c[:, None] < columns) & (r[None, :] < rows)
    tl.store(out + c[:, None] * rows + r[None, :], tile.T, mask=back)


@function
def count_kernel(x, counts, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = tl.load(x + at, mask=at < n, other=0) % BINS
    tl.atomic_add(counts + which, 1, mask=at < n)


@function
def atomic_max_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + at, mask=at < n, other=-float("inf"))
    tl.atomic_max(out, tl.max(values, axis=0))


@function
def lock_kernel(x, lock, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0) * BLOCK + at)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out + at, tl.load(out + at) + values)
    tl.atomic_xchg(lock, 0)


@function
def merge_moments(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    delta = mean_b - mean_a
    share = tl.where(n == 0, 0.0, n_b / tl.where(n == 0, 1.0, n))
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@function
def moments_kernel(x, mean, variance, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    counts = tl.where(at < columns, 1.0, 0.0)
    m, m2, n = tl.reduce((values, tl.zeros_like(values), counts), 0, merge_moments)
    tl.store(mean + row, m)
    tl.store(variance + row, m2 / n)


@function
def cross_entropy_kernel(logits, target, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(logits + row * columns + at, mask=at < columns, other=-float("inf"))
    largest = tl.max(values, axis=0)
    total = tl.log(tl.sum(tl.exp(values - largest), axis=0)) + largest
    tl.store(out + row, total - tl.load(logits + row * columns + tl.load(target + row)))


# ---- what they compute


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
        return dict(
            a=f32s(rng, m, k).astype(dtype), b=f32s(rng, k, n).astype(dtype),
            c=np.zeros((m, n), np.float32), M=m, N=n, K=k,
            stride_am=k, stride_ak=1, stride_bk=n, stride_bn=1, stride_cm=n, stride_cn=1,
            BLOCK_M=32, BLOCK_N=32, BLOCK_K=16, GROUP=2, ACTIVATION=activation,
        )  # fmt: skip

    return values


def _attention_values(n: int, causal: bool) -> Callable[[np.random.Generator], Values]:
    def values(rng: np.random.Generator) -> Values:
        q, k, v = (f32s(rng, 2, n, 16) for _ in range(3))
        return dict(
            q=q, k=k, v=v, out=np.zeros_like(q), n=n, scale=0.25,
            BLOCK_M=32, BLOCK_N=16, DIM=16, CAUSAL=causal,
        )  # fmt: skip

    return values


def _moments_of(x: np.ndarray) -> Values:
    return {"mean": x.mean(1).astype(np.float32), "rstd": (1 / x.std(1)).astype(np.float32)}


def _layernorm_values(rng: np.random.Generator) -> Values:
    return dict(
        x=f32s(rng, 5, 100), y=np.zeros((5, 100), np.float32), w=f32s(rng, 100), b=f32s(rng, 100),
        mean=np.zeros(5, np.float32), rstd=np.zeros(5, np.float32),
        columns=100, eps=1e-5, BLOCK=32,
    )  # fmt: skip


def _layernorm_dx_values(rng: np.random.Generator) -> Values:
    x = f32s(rng, 5, 100)
    return dict(
        dy=f32s(rng, 5, 100), x=x, w=f32s(rng, 100), **_moments_of(x),
        dx=np.zeros((5, 100), np.float32), columns=100, BLOCK=128,
    )  # fmt: skip


def _layernorm_dw_values(rng: np.random.Generator) -> Values:
    x = f32s(rng, 11, 50)
    return dict(
        dy=f32s(rng, 11, 50), x=x, **_moments_of(x), dw=np.zeros(50, np.float32),
        db=np.zeros(50, np.float32), rows=11, columns=50, ROWS=4, BLOCK=32,
    )  # fmt: skip


def _rows(rows: int, columns: int, block: int, **more: Any) -> Callable[..., Values]:
    def values(rng: np.random.Generator) -> Values:
        x = f32s(rng, rows, columns)
        return dict(x=x, out=np.zeros_like(x), columns=columns, BLOCK=block, **more)

    return values


def _zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


CASES: dict[str, Case] = {
    c.name: c
    for c in (
        Case(
            "add", add_kernel, (4,),
            lambda r: dict(x=f32s(r, 250), y=f32s(r, 250), out=_zeros(250), n=250, BLOCK=64),
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
            lambda r: dict(
                x=f32s(r, 100), keep=r.integers(0, 2, 100, dtype=np.int32), out=_zeros(100),
                n=100, p=0.25, BLOCK=64,
            ),
            lambda v: {"out": np.where(v["keep"], v["x"] / np.float32(0.75), 0)},
        ),
        Case(
            "seeded_dropout", seeded_dropout_kernel, (2,),
            lambda r: dict(x=f32s(r, 100), out=_zeros(100), n=100, p=0.5, seed=123, BLOCK=64),
            _seeded_dropout,
        ),
        Case(
            "scan", scan_kernel, (1,), lambda r: dict(x=f32s(r, 64), out=_zeros(64), BLOCK=64),
            lambda v: {"out": np.cumsum(v["x"], dtype=np.float64)}, atol=1e-5,
        ),
        Case(
            "argmax", argmax_kernel, (4,),
            lambda r: dict(
                x=f32s(r, 4, 50), largest=_zeros(4), where=_zeros(4, dtype=np.int32), columns=50,
                BLOCK=64,
            ),
            lambda v: {"largest": v["x"].max(1), "where": v["x"].argmax(1)},
        ),
        Case(
            "sort", sort_kernel, (1,),
            lambda r: dict(x=f32s(r, 4, 16), out=_zeros(4, 16), ROWS=4, COLUMNS=16),
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
            "matmul_relu", matmul_kernel, (4,), _matmul_values(64, 64, 48, np.float16, "leaky_relu"),
            _matmul, 1e-2, 1e-2,
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
            lambda r: dict(
                a=r.integers(-128, 128, (32, 32)).astype(np.int8),
                b=r.integers(-128, 128, (32, 32)).astype(np.int8),
                c=_zeros(32, 32, dtype=np.int32), SIZE=32,
            ),
            lambda v: {"c": v["a"].astype(np.int32) @ v["b"].astype(np.int32)},
        ),
        Case(
            "block_pointer", block_pointer_kernel, (1,),
            lambda r: dict(x=f32s(r, 13, 50), out=_zeros(13, 50), rows=13, columns=50, BLOCK=16),
            lambda v: {"out": v["x"] * 2},
        ),
        Case(
            "gcd", gcd_kernel, (8,),
            lambda r: dict(
                x=r.integers(1, 1000, 8, dtype=np.int32), y=r.integers(0, 1000, 8, dtype=np.int32),
                out=_zeros(8, dtype=np.int32),
            ),
            lambda v: {"out": np.gcd(v["x"], v["y"])},
        ),
        Case(
            "collatz", collatz_kernel, (8,),
            lambda r: dict(
                x=r.integers(1, 100, 8, dtype=np.int32), out=_zeros(8, dtype=np.int32)
            ),
            lambda v: {"out": np.array([_collatz(int(n)) for n in v["x"]])},
        ),
        Case(
            "early_return", early_return_kernel, (20,),
            lambda r: dict(x=2 * f32s(r, 16), out=_zeros(20) - 7, n=16), _early,
        ),
        Case(
            "nested", nested_kernel, (9,),
            lambda r: dict(
                x=np.sign(f32s(r, 9)) * (np.arange(9) % 3), out=_zeros(9, dtype=np.int32), SCALE=3
            ),
            lambda v: {"out": 3 * np.sign(v["x"])},
        ),
        Case(
            "tuples", tuples_kernel, (1,),
            lambda r: dict(x=f32s(r, 32), out=_zeros(2, 32), weights=(2.0, -1.0, 0.5), BLOCK=32),
            _tuples,
        ),
        Case(
            "backwards", backwards_kernel, (1,),
            lambda r: dict(x=f32s(r, 20), out=_zeros(3), n=17), _backwards,
        ),
        Case(
            "backwards_empty", backwards_kernel, (1,),
            lambda r: dict(x=f32s(r, 20), out=_zeros(3), n=0), _backwards,
        ),
        Case(
            "stencil", stencil_kernel, (3,),
            lambda r: dict(x=f32s(r, 90), out=_zeros(90), n=90, WIDTH=2, BLOCK=32), _stencil,
        ),
        Case(
            "scalar_choice", scalar_choice_kernel, (12,),
            lambda r: dict(x=f32s(r, 12), out=_zeros(12), n=12, LIMIT=0.5), _choice,
        ),
        Case(
            "embedding", embedding_kernel, (6,),
            lambda r: dict(
                table=f32s(r, 10, 20), index=np.array([3, 0, -1, 9, 9, 1], np.int64),
                out=_zeros(6, 20), width=20, BLOCK=32,
            ),
            _embedding,
        ),
        Case(
            "transpose", transpose_kernel, (3, 2),
            lambda r: dict(x=f32s(r, 45, 20), out=_zeros(20, 45), rows=45, columns=20, BLOCK=16),
            lambda v: {"out": v["x"].T},
        ),
        Case(
            "count", count_kernel, (4,),
            lambda r: dict(
                x=r.integers(0, 1000, 100, dtype=np.int32), counts=_zeros(8, dtype=np.int32),
                n=100, BINS=8, BLOCK=32,
            ),
            lambda v: {"counts": np.bincount(v["x"] % 8, minlength=8)},
        ),
        Case(
            "atomic_max", atomic_max_kernel, (4,),
            lambda r: dict(x=f32s(r, 100), out=np.full(1, -np.inf, np.float32), n=100, BLOCK=32),
            lambda v: {"out": v["x"].max(keepdims=True)},
        ),
        Case(
            "lock", lock_kernel, (5,),
            lambda r: dict(
                x=f32s(r, 5, 16), lock=_zeros(1, dtype=np.int32), out=_zeros(16), BLOCK=16
            ),
            lambda v: {"out": v["x"].sum(0), "lock": v["lock"]},
        ),
        Case(
            "moments", moments_kernel, (4,),
            lambda r: dict(
                x=f32s(r, 4, 100), mean=_zeros(4), variance=_zeros(4), columns=100, BLOCK=128
            ),
            lambda v: {"mean": v["x"].mean(1), "variance": v["x"].var(1)}, 1e-4, 1e-5,
        ),
        Case(
            "cross_entropy", cross_entropy_kernel, (5,),
            lambda r: dict(
                logits=f32s(r, 5, 30), target=r.integers(0, 30, 5, dtype=np.int64), out=_zeros(5),
                columns=30, BLOCK=32,
            ),
            _cross_entropy,
        ),
    )
}  # fmt: skip
