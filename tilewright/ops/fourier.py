"""Fourier transforms as passes of mixed radix.

A transform of n = r * m elements is r-point transforms of elements that lie m apart, a turn of
each result, and m-point transforms of those: a pass does the first two. Results of one pass lie as
the next one reads them, so that after the last all are in order and nothing is ever reversed:

    pass    […, r * m, q]  ->  […, m, r, q]      the next one sees […, m, r * q]

Axes after the transformed one are part of q. A complex tensor is its two parts; a pass gives both
as one tensor. Lengths with a large prime factor are transformed through a convolution of a length
that has none (Bluestein), short ones by a product with the matrix of all turns.

An even number n of real elements, or the half of a spectrum that stands for real results, takes one
transform of n / 2: neighbours are the two parts of one complex number, and `FourierHalves` comes
after it, or before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value
from tilewright.ir.node import Node, Op, constant, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.positions import product
from tilewright.ir.types import DType, TensorType, f64
from tilewright.ops.creation import full
from tilewright.ops.elementwise import add, mul, sub
from tilewright.ops.linear import matmul
from tilewright.ops.samples import case, normal
from tilewright.ops.views import concat, reshape, slice, unsqueeze

# Other prime factors than two that passes take apart.
ODD = (3, 5, 7)
# Lengths with a larger one are one product with a matrix up to this length.
SHORT = 128
# Elements that make whole vectors. The first pass of shorter rows takes as many apart, so that all
# later ones have them.
WIDE = 16
Part = Value | None  # None is zero
Pair = tuple[Part, Part]
Complex = tuple[Node, Node | None]


def _plus(a: Part, b: Part) -> Part:
    return b if a is None else a if b is None else a + b


def _minus(a: Part, b: Part) -> Part:
    return a if b is None else -b if a is None else a - b


def _times(a: Part, k: float) -> Part:
    if a is None or abs(k) < 1e-15:
        return None
    if abs(abs(k) - 1) < 1e-15:
        return a if k > 0 else -a
    return a * E.const(k, a.dtype)


def _turned(x: Pair, angle: float) -> Pair:
    """x times exp(i angle), as few products as that takes."""
    c, s = math.cos(angle), math.sin(angle)
    if abs(abs(c) - abs(s)) < 1e-15:  # an odd number of eighths of a turn
        (re, im), k = x, abs(c)
        a, b = (re if c > 0 else _minus(None, re)), (im if c > 0 else _minus(None, im))
        u, v = (re if s > 0 else _minus(None, re)), (im if s > 0 else _minus(None, im))
        return _times(_minus(a, v), k), _times(_plus(u, b), k)
    re = _minus(_times(x[0], c), _times(x[1], s))
    return re, _plus(_times(x[0], s), _times(x[1], c))


def _sums(a: Pair, b: Pair) -> tuple[Pair, Pair]:
    plus = _plus(a[0], b[0]), _plus(a[1], b[1])
    return plus, (_minus(a[0], b[0]), _minus(a[1], b[1]))


def _transformed(xs: list[Pair], turn: float) -> list[Pair]:
    """The sums over j of xs[j] * exp(i turn j k), for each k; `turn` is ±2π over their number."""
    r = len(xs)
    if r == 1:
        return xs
    if r % 2 == 0:
        even, odd = (_transformed(xs[k::2], 2 * turn) for k in (0, 1))
        both = [_sums(a, _turned(b, turn * k)) for k, (a, b) in enumerate(zip(even, odd))]
        return [a for a, _ in both] + [b for _, b in both]
    # Elements j and -j turn in opposite directions: what is even in j is a cosine's, the rest a
    # sine's.
    pairs = [_sums(xs[j], xs[r - j]) for j in range(1, (r + 1) // 2)]
    out: list[Pair] = [xs[0]] * r
    for a, _ in pairs:
        out[0] = _sums(out[0], a)[0]
    for k in range(1, (r + 1) // 2):
        u, v = xs[0], (None, None)
        for j, (a, b) in enumerate(pairs, 1):
            c, s = math.cos(turn * j * k), math.sin(turn * j * k)
            u = _plus(u[0], _times(a[0], c)), _plus(u[1], _times(a[1], c))
            v = _plus(v[0], _times(b[0], s)), _plus(v[1], _times(b[1], s))
        out[k], out[r - k] = _sums(u, (_minus(None, v[1]), v[0]))
    return out


@operator
class FourierPass(Op):
    """Transforms of `radix` elements that lie `inner` apart: […, radix * inner, q] becomes
    […, parts, inner, rows, q].

    Operands are the real part, the imaginary one if `paired`, and how results are turned if there
    is more than one transform: [2, radix, inner], cosines and sines. Elements that are missing at
    the end of the axis are zeros. Of the results the first `rows` are computed; of `parts`, the
    real one, or both.
    """

    radix: int
    inner: int
    forward: bool
    paired: bool
    parts: int
    rows: int

    def infer(self, *given: TensorType) -> TensorType:
        x = given[0]
        count = 1 + self.paired + (self.inner > 1)
        require(len(given) == count, f"fourier_pass: {count} operands, not {len(given)}")
        have = x.shape[-2] if x.rank >= 2 else 0
        require(
            x.dtype.is_float and isinstance(have, int) and 0 < have <= self.radix * self.inner,
            f"fourier_pass: {x!r} is not […, at most {self.radix * self.inner} elements, q]",
        )
        require(not self.paired or given[1] == x, "fourier_pass: the two parts differ in type")
        require(1 <= self.rows <= self.radix and self.parts in (1, 2), "fourier_pass: no results")
        return TensorType(x.dtype, self._shape(x.shape))

    def _shape(self, x: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return (*x[:-2], self.parts, self.inner, self.rows, x[-1])

    def compute(self, *given: Tensor) -> Tensor:
        x = given[0]
        have = x.shape[-2]
        assert isinstance(have, int)

        def body(*i: Dim) -> Value:
            *lead, part, p, k, q = i

            def element(t: Tensor, j: int) -> Part:
                first, rest = j * self.inner, have - j * self.inner
                if rest >= self.inner:
                    return t[(*lead, first + p, q)]
                if rest <= 0:
                    return None
                at = first if rest == 1 else first + p
                return E.select(E.index(p) < rest, t[(*lead, at, q)], E.const(0, t.dtype))

            xs = [
                (element(x, j), element(given[1], j) if self.paired else None)
                for j in range(self.radix)
            ]
            turn = (-2 if self.forward else 2) * math.pi / self.radix
            ys = [self._after(y, given[-1], j, p) for j, y in enumerate(_transformed(xs, turn))]
            zero = E.const(0, x.dtype)

            def results(c: int) -> Value:
                kept = (y[c] for y in ys[: self.rows])
                return _cases(k, [zero if v is None else v for v in kept])

            return _cases(part, [results(c) for c in range(self.parts)])

        return E.compute(self._shape(x.shape), body, x.dtype)

    def _after(self, y: Pair, turns: Tensor, k: int, p: Dim) -> Pair:
        """A result as the next pass takes it."""
        if self.inner == 1 or k == 0:
            return y
        c, s = turns[0, k, p], turns[1, k, p]
        re, im = y
        a, b = (None if re is None else re * c), (None if im is None else im * s)
        u, v = (None if re is None else re * s), (None if im is None else im * c)
        return _minus(a, b), _plus(u, v)

    def reference(self, *given: np.ndarray) -> np.ndarray:
        x = given[0].astype(np.float64)
        z = x + 1j * given[1] if self.paired else x + 0j
        lead, (have, q) = x.shape[:-2], x.shape[-2:]
        whole = np.zeros((*lead, self.radix * self.inner, q), complex)
        whole[..., :have, :] = z
        apart = whole.reshape(*lead, self.radix, self.inner, q)
        if self.forward:
            y = np.fft.fft(apart, axis=-3)
        else:
            y = np.fft.ifft(apart, axis=-3, norm="forward")
        if self.inner > 1:
            turns = given[-1].astype(np.float64)
            y = y * (turns[0] + 1j * turns[1])[:, :, None]
        y = np.swapaxes(y, -3, -2)[..., : self.rows, :]
        both = np.stack([y.real, y.imag], -4)[..., : self.parts, :, :, :]
        return np.ascontiguousarray(both.astype(given[0].dtype))

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        def turns(radix: int, inner: int, forward: bool) -> np.ndarray:
            return _turns(radix, inner, forward).astype(np.float32)

        x, y = normal(3, 24, 5), normal(3, 24, 5, seed=1)
        yield case(cls(8, 3, True, True, 2, 8), x, y, turns(8, 3, True))
        yield case(cls(3, 8, False, True, 2, 3), x, y, turns(3, 8, False), dtype=f64)
        yield case(cls(4, 4, True, False, 2, 4), normal(2, 3, 16, 1), turns(4, 4, True))
        yield case(cls(2, 4, False, True, 1, 2), *(v[:, :5] for v in (x, y)), turns(2, 4, False))
        yield case(cls(7, 1, True, True, 2, 4), *(v[:, :7] for v in (x, y)))
        yield case(cls(5, 2, True, False, 2, 3), x[:, :7], turns(5, 2, True))


@operator
class FourierHalves(Op):
    """What element k of a spectrum and element m - k have to do with each other, where they belong
    to one of twice the length: […, m, q] or […, m + 1, q], both parts, becomes […, 2, count, q].

    The third operand, [5, count], has what the sums and differences of the two elements a and b are
    multiplied by:

        re[k] = t[0] * (a.re + b.re) + t[1] * (a.im + b.im) + t[2] * (a.re - b.re)
        im[k] = t[3] * (a.im - b.im) + t[2] * (a.im + b.im) + t[4] * (a.re - b.re)
    """

    period: int
    count: int

    def infer(self, re: TensorType, im: TensorType, table: TensorType) -> TensorType:
        require(
            re == im and re.rank >= 2 and re.shape[-2] in (self.period, self.period + 1),
            f"fourier_halves: {re!r} and {im!r} are not parts of {self.period} elements",
        )
        require(
            0 < self.count <= self.period + 1 and table == TensorType(re.dtype, (5, self.count)),
            f"fourier_halves: {table!r} is not [5, {self.count}]",
        )
        return TensorType(re.dtype, (*re.shape[:-2], 2, self.count, re.shape[-1]))

    def compute(self, re: Tensor, im: Tensor, table: Tensor) -> Tensor:
        m = self.period
        again = D.known_eq(re.shape[-2], m)  # element m is element 0

        def body(*i: Dim) -> Value:
            *lead, part, k, q = i

            def pair(x: Tensor) -> tuple[Value, Value]:
                a, b, first = x[(*lead, k, q)], x[(*lead, m - k, q)], x[(*lead, 0, q)]
                if again and self.count > m:
                    a = E.select(E.index(k) < m, a, first)
                return a, E.select(E.index(k) > 0, b, first) if again else b

            (ar, br), (ai, bi) = pair(re), pair(im)
            t = [table[j, k] for j in range(5)]
            real = t[0] * (ar + br) + t[1] * (ai + bi) + t[2] * (ar - br)
            other = t[3] * (ai - bi) + t[2] * (ai + bi) + t[4] * (ar - br)
            return _cases(part, [real, other])

        return E.compute((*re.shape[:-2], 2, self.count, re.shape[-1]), body, re.dtype)

    def reference(self, re: np.ndarray, im: np.ndarray, table: np.ndarray) -> np.ndarray:
        z = re.astype(np.float64) + 1j * im
        at = np.arange(self.count)
        a, b = (np.take(z, k % re.shape[-2], axis=-2) for k in (at, self.period - at))
        plus, minus, t = a + b.conj(), a - b.conj(), table.astype(np.float64)[:, :, None]
        real = t[0] * plus.real + t[1] * minus.imag + t[2] * minus.real
        other = t[3] * plus.imag + t[2] * minus.imag + t[4] * minus.real
        return np.stack([real, other], -3).astype(re.dtype)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield case(cls(6, 7), normal(2, 6, 3), normal(2, 6, 3, seed=1), normal(5, 7, seed=2))
        yield case(cls(40, 40), normal(41, 1), normal(41, 1, seed=1), normal(5, 40), dtype=f64)
        yield case(cls(40, 41), normal(3, 40, 1), normal(3, 40, 1, seed=1), normal(5, 41))
        yield case(cls(1, 2), normal(1, 2), normal(1, 2, seed=1), normal(5, 2, seed=2))


def _cases(at: Dim, values: list[Value]) -> Value:
    """The k-th value where the index is k: a schedule that unrolls the axis leaves one of them."""
    out = values[-1]
    for k in range(len(values) - 2, -1, -1):
        out = E.select(E.index(at).eq(k), values[k], out)
    return out


def _turns(radix: int, inner: int, forward: bool) -> np.ndarray:
    """cos and sin of the turn of result k of transform p: [2, radix, inner]."""
    n = radix * inner
    steps = np.outer(np.arange(radix), np.arange(inner)) % n
    angle = steps * ((-2 if forward else 2) * np.pi / n)
    return np.stack([np.cos(angle), np.sin(angle)])


def _radices(n: int, trail: Dim = WIDE) -> tuple[int, ...] | None:
    """What the passes of a transform take apart, the first pass first: as few as there can be, and
    powers of two before others, so that all later passes have whole vectors, of `trail` elements to
    begin with. None where a prime factor is too large."""
    twos = (n & -n).bit_length() - 1
    rest, odd = n >> twos, []
    for r in reversed(ODD):
        while rest % r == 0:
            rest //= r
            odd.append(r)
    if rest != 1:
        return None
    first: tuple[int, ...] = ()
    if twos >= 6 and D.bounds(trail)[1] < WIDE:
        twos, first = twos - 4, (WIDE,)
    return (*first, *_of_twos(twos), *odd)


def _of_twos(twos: int) -> tuple[int, ...]:
    eights, left = divmod(twos, 3)
    if left == 1 and eights:  # 4 * 4 instead of 8 * 2
        return (4, 4, *[8] * (eights - 1))
    return (*([1 << left] if left else []), *[8] * eights)


def fourier(
    re: Node,
    im: Node | None,
    axis: int,
    n: int,
    forward: bool = True,
    keep: int | None = None,
    real: bool = False,
) -> tuple[Node, Node]:
    """The transform of n elements along an axis, without a factor: both parts of the first `keep`
    results; with `real`, the real part twice. `im` None: a real tensor. Elements after those that
    are given are zeros.
    """
    keep = n if keep is None else keep
    before, after = re.shape[:axis], re.shape[axis + 1 :]
    trail = product(after)
    given = [reshape(x, (*before, x.shape[axis], trail)) for x in (re, im) if x is not None]
    if _is_halved(given, n, forward, keep, real):
        out = _of_real(given[0], n, keep) if len(given) == 1 else _to_real(given, n)
    elif _radices(n) is not None:
        out = _by_passes(given, n, forward, keep, real)
    elif n <= SHORT:
        out = _by_product(given, n, forward, keep, real)
    else:
        out = _by_convolution(given, n, forward, keep, real)
    whole = [reshape(x, (*before, keep, *after)) for x in out]
    return whole[0], whole[-1]


def fourier_pass(
    given: list[Node], radix: int, inner: int, forward: bool, parts: int, rows: int
) -> Node:
    """`given` is the real part, and the imaginary one if there is one."""
    turns = [constant(_turns(radix, inner, forward), given[0].dtype)] if inner > 1 else []
    return node(FourierPass(radix, inner, forward, len(given) == 2, parts, rows), *given, *turns)


def _by_passes(given: list[Node], n: int, forward: bool, keep: int, real: bool) -> list[Node]:
    *lead, _, trail = given[0].shape
    axis, passes = len(lead), _radices(n, trail)
    assert passes is not None
    if n == 1:
        return given[:1] if real else [given[0], given[1] if len(given) == 2 else _zeros(given[0])]
    inner, done = n, 1
    for r in passes:
        inner //= r
        rows = r if inner > 1 else (keep - 1) // done + 1
        parts = 1 if real and inner == 1 else 2
        both = fourier_pass(given, r, inner, forward, parts, rows)
        done *= r
        ends = (inner, done * trail) if inner > 1 else (rows * (n // r), trail)
        given = [reshape(slice(both, axis, c, c + 1), (*lead, *ends)) for c in range(parts)]
    return [slice(x, axis, 0, keep) for x in given]


def _is_halved(given: list[Node], n: int, forward: bool, keep: int, real: bool) -> bool:
    """Is it a transform of real elements to half of their spectrum, or back?"""
    if n % 2 or n < 4 or _radices(n // 2) is None:
        return False
    if len(given) == 1:
        return forward and not real and keep <= n // 2 + 1 and given[0].shape[-2] == n
    return not forward and real and keep == n and given[0].shape[-2] == n // 2 + 1


def _of_real(x: Node, n: int, keep: int) -> list[Node]:
    """Half of the spectrum of n real elements: neighbours are parts of one complex number."""
    *lead, _, trail = x.shape
    m, axis = n // 2, len(lead)
    apart = reshape(x, (*lead, m, 2, trail))
    pair = [reshape(slice(apart, axis + 1, c, c + 1), (*lead, m, trail)) for c in range(2)]
    z = _by_passes(pair, m, True, m, False)
    angle = np.arange(keep) * (-2 * np.pi / n)
    cos, sin, half = np.cos(angle) / 2, np.sin(angle) / 2, np.full(keep, 0.5)
    return _halves(z, m, np.stack([half, cos, sin, half, -cos]))


def _to_real(y: list[Node], n: int) -> list[Node]:
    """The real part of the transform of the first n / 2 + 1 elements of a spectrum, back."""
    *lead, _, trail = y[0].shape
    m, axis = n // 2, len(lead)
    angle = np.arange(m) * (2 * np.pi / n)
    cos, sin, half = np.cos(angle) / 2, np.sin(angle) / 2, np.full(m, 0.5)
    table = np.stack([half, -cos, -sin, half, cos])
    table[:, 0] = (1, 0, 0, 0, 1)  # of the first element and the one in the middle, the real parts
    z = _by_passes(_halves(y, m, table), m, False, m, False)
    return [reshape(concat([unsqueeze(x, axis + 1) for x in z], axis + 1), (*lead, n, trail))]


def _halves(z: list[Node], m: int, table: np.ndarray) -> list[Node]:
    re, im = z
    both = fourier_halves(re, im, constant(table, re.dtype), m, table.shape[1])
    *lead, _, trail = z[0].shape
    axis = len(lead)
    ends = (*lead, table.shape[1], trail)
    return [reshape(slice(both, axis, c, c + 1), ends) for c in range(2)]


def _zeros(x: Node) -> Node:
    return full(x.shape, 0, x.dtype)


def _column(values: np.ndarray, dtype: DType) -> tuple[Node, Node]:
    """Complex numbers along the transformed axis."""
    re, im = (constant(np.ascontiguousarray(v)[:, None], dtype) for v in (values.real, values.imag))
    return re, im


def _by_product(given: list[Node], n: int, forward: bool, keep: int, real: bool) -> list[Node]:
    have = given[0].shape[-2]
    assert isinstance(have, int)
    steps = np.outer(np.arange(keep), np.arange(have)) % n
    angle = steps * ((-2 if forward else 2) * np.pi / n)
    cos, sin = (constant(v, given[0].dtype) for v in (np.cos(angle), np.sin(angle)))
    out = [matmul(cos, given[0])] if real else [matmul(m, given[0]) for m in (cos, sin)]
    if len(given) == 2:
        out[0] = sub(out[0], matmul(sin, given[1]))
        out[1:] = [] if real else [add(out[1], matmul(cos, given[1]))]
    return out


def _by_convolution(given: list[Node], n: int, forward: bool, keep: int, real: bool) -> list[Node]:
    """j k is (j² + k² - (k - j)²) / 2: a transform is a convolution with turned squares."""
    have, dtype = given[0].shape[-2], given[0].dtype
    assert isinstance(have, int)
    size = next(m for m in range(-(-(2 * n - 1) // 64) * 64, 4 * n + 64, 64) if _radices(m))
    squares = np.arange(n, dtype=np.int64) ** 2 % (2 * n)
    chirp = np.exp((-1j if forward else 1j) * np.pi * squares / n)
    back = np.zeros(size, complex)
    back[:n] = chirp.conj()
    back[size - n + 1 :] = chirp[:0:-1].conj()
    kernel = _column(np.fft.fft(back) / size, dtype)
    turned = _product(given, _column(chirp[:have], dtype))
    x = _by_passes(turned, size, True, size, False)
    y = _by_passes(_product(x, kernel), size, False, keep, False)
    out = _product(y, _column(chirp[:keep], dtype))
    return out[:1] if real else out


def _product(x: list[Node], k: tuple[Node, Node]) -> list[Node]:
    re = mul(x[0], k[0])
    if len(x) == 1:
        return [re, mul(x[0], k[1])]
    return [sub(re, mul(x[1], k[1])), add(mul(x[0], k[1]), mul(x[1], k[0]))]


def fourier_halves(re: Node, im: Node, table: Node, period: int, count: int) -> Node:
    """Elements k and `period` - k of a spectrum of half the length, put together."""
    return node(FourierHalves(period, count), re, im, table)
