"""Keys of tensors: a random linear function of their elements modulo three primes.

Two tensors with different elements have one key with a chance of about 2^-60. Since the key is
linear, that of a linear operator's result follows from its operands' without the result: one
product of matrices has the keys of all pairs of operands. All is exact: numbers are below 2^21 and
sums below 2^53.
"""

from __future__ import annotations

import numpy as np

from tilewright.superopt.structure import Structure

PRIMES = (2097143, 2097131, 2097091)


def remainder(x: np.ndarray, p: int) -> np.ndarray:
    """Of whole numbers below 2^53 by a prime: what `numpy.mod` says, several times as fast."""
    out = x - p * np.floor(x * (1.0 / p))
    out += p * (out < 0)
    out -= p * (out >= p)
    return out


def packed(parts: list[np.ndarray]) -> np.ndarray:
    """One number of 63 bits of the remainders by three primes."""
    a, b, c = (x.astype(np.uint64) for x in parts)
    return (a * np.uint64(PRIMES[1]) + b) * np.uint64(PRIMES[2]) + c


class Functionals:
    """The random functions of tensors of each size, for `points` values of every tensor."""

    def __init__(self, points: int, seed: int) -> None:
        self.points, self.seed = points, seed
        self._weights: dict[object, np.ndarray] = {}
        self._bilinear: dict[tuple[object, Structure], list[np.ndarray]] = {}
        self._linear: dict[tuple[object, Structure], list[list[np.ndarray]]] = {}

    def weights(self, kind: object, size: int) -> np.ndarray:
        """[prime, point, element]"""
        found = self._weights.get(kind)
        if found is None:
            rng = np.random.default_rng([self.seed, *map(ord, repr(kind))])
            found = np.stack([rng.integers(1, p, (self.points, size)) for p in PRIMES])
            self._weights[kind] = found = found.astype(np.float64)
        return found

    def keys(self, kind: object, rows: np.ndarray) -> np.ndarray:
        """Of tensors, each a row of [point, element]."""
        w = self.weights(kind, rows.shape[1] // self.points)
        return packed([_product(remainder(rows, p), x.reshape(-1), p) for p, x in zip(PRIMES, w)])

    # ---- results that are not computed

    def of_linear(
        self, kind: object, s: Structure, operand: int, rows: np.ndarray
    ) -> list[np.ndarray]:
        """What an operand adds to the key of the result, for each prime."""
        at = kind, s
        if at not in self._linear:
            w = self.weights(kind, s.size)
            self._linear[at] = [
                [remainder(remainder(m, p) @ x.T, p).T.reshape(-1) for p, x in zip(PRIMES, w)]
                for m in s.matrices
            ]
        by = self._linear[at][operand]
        return [_product(remainder(rows, p), x, p) for p, x in zip(PRIMES, by)]

    def of_pairs(self, kind: object, s: Structure, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Of a bilinear operator on every row of `a` with every row of `b`."""
        out = []
        for p, g in zip(PRIMES, self._forms(kind, s)):
            right = [remainder(x @ remainder(y, p).T, p) for x, y in zip(g, self._points(b))]
            left = np.concatenate([remainder(x, p) for x in self._points(a)], axis=1)
            out.append(remainder(left @ np.concatenate(right), p))
        return packed(out)

    def of_rows(self, kind: object, s: Structure, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Of a bilinear operator on each row of `a` with the same row of `b`."""
        out = []
        for p, g in zip(PRIMES, self._forms(kind, s)):
            total = np.zeros(len(a))
            for x, y, z in zip(self._points(a), g, self._points(b)):
                left = remainder(remainder(x, p) @ y, p)
                total += remainder(np.einsum("ij,ij->i", left, remainder(z, p)), p)
            out.append(remainder(total, p))
        return packed(out)

    def _forms(self, kind: object, s: Structure) -> list[np.ndarray]:
        """For each prime: [point, elements of the first operand, of the second]."""
        at = kind, s
        if at not in self._bilinear:
            w = self.weights(kind, s.size)
            self._bilinear[at] = [
                np.stack([remainder(remainder(s.products, p) @ r, p) for r in x])
                for p, x in zip(PRIMES, w)
            ]
        return self._bilinear[at]

    def _points(self, rows: np.ndarray) -> list[np.ndarray]:
        return np.split(rows, self.points, axis=1)


def _product(rows: np.ndarray, w: np.ndarray, p: int) -> np.ndarray:
    return remainder(rows @ w, p)


def added(parts: list[list[np.ndarray]]) -> np.ndarray:
    """Keys of which each operand gives a part, as arrays that broadcast."""
    by_prime = zip(*parts, strict=True)
    return packed([remainder(sum(x[1:], x[0]), p) for p, x in zip(PRIMES, by_prime, strict=True)])
