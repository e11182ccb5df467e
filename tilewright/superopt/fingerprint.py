"""Keys of tensors: a random linear function of their elements modulo three primes.

Two tensors with different elements have one key with a chance of about 2^-60. Since the key is
linear, that of a linear operator's result follows from its operands' without the result: one
product of matrices has the keys of all pairs of operands. All is exact: numbers are below 2^21 and
sums below 2^53. Tensors are given by their remainders: [prime, tensor, element of all points].
"""

from __future__ import annotations

import numpy as np

from tilewright.superopt.structure import Structure

# Each is 2 q + 1 with a prime q, as is q (superopt/residues.py says what for).
PRIMES = (2097143, 2096687, 2095943)


def remainder(x: np.ndarray, p: int) -> np.ndarray:
    """Of whole numbers below 2^53 by a prime: what `numpy.mod` says, several times as fast."""
    out = np.asarray(x * (1.0 / p))
    np.floor(out, out=out)
    out *= -p
    out += x
    np.add(out, p, out=out, where=out < 0)
    np.subtract(out, p, out=out, where=out >= p)
    return out


def remainders(x: np.ndarray) -> np.ndarray:
    """By each prime, in front."""
    return np.stack([remainder(x, p) for p in PRIMES])


def packed(parts: list[np.ndarray]) -> np.ndarray:
    """One number of 63 bits of the remainders by three primes."""
    a, b, c = (x.astype(np.uint64) for x in parts)
    a *= np.uint64(PRIMES[1])
    a += b
    a *= np.uint64(PRIMES[2])
    a += c
    return a


class Functionals:
    """The random functions of tensors of each kind, for `points` values of every tensor."""

    def __init__(self, points: int, seed: int) -> None:
        self.points, self.seed = points, seed
        self._weights: dict[object, np.ndarray] = {}
        self._bilinear: dict[tuple[object, Structure], list[np.ndarray]] = {}
        self._linear: dict[tuple[object, Structure], list[np.ndarray]] = {}

    def weights(self, kind: object, size: int) -> np.ndarray:
        """[prime, point, element]"""
        found = self._weights.get(kind)
        if found is None:
            rng = np.random.default_rng([self.seed, *map(ord, repr(kind))])
            found = np.stack([rng.integers(1, p, (self.points, size)) for p in PRIMES])
            self._weights[kind] = found = found.astype(np.float64)
        return found

    def keys(self, kind: object, tensors: np.ndarray) -> np.ndarray:
        w = self.weights(kind, tensors.shape[2] // self.points)
        return packed(_products(tensors, w.reshape(len(PRIMES), -1)))

    # ---- results that are not computed

    def of_linear(
        self, kind: object, s: Structure, operand: int, tensors: np.ndarray
    ) -> list[np.ndarray]:
        """What an operand adds to the key of the result, for each prime."""
        at = kind, s
        if at not in self._linear:
            w = self.weights(kind, s.size)
            self._linear[at] = [
                np.stack(
                    [remainder(remainder(m, p) @ x.T, p).T.reshape(-1) for p, x in zip(PRIMES, w)]
                )
                for m in s.matrices
            ]
        return _products(tensors, self._linear[at][operand])

    def of_pairs(self, kind: object, s: Structure, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Of a bilinear operator on every one of `a` with every one of `b`."""
        out = []
        for p, left, right, g in zip(PRIMES, a, b, self._forms(kind, s)):
            if len(left) < len(right):  # the smaller side is multiplied by the form
                made = [remainder(x @ y, p) for x, y in zip(self._points(left), g)]
                found = np.concatenate(made, axis=1) @ right.T
            else:
                made = [remainder(x @ y.T, p) for x, y in zip(self._points(right), g)]
                found = left @ np.concatenate(made, axis=1).T
            out.append(remainder(found, p))
        return packed(out)

    def of_rows(self, kind: object, s: Structure, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Of a bilinear operator on each of `a` with the one at the same place of `b`."""
        out = []
        for p, left, right, g in zip(PRIMES, a, b, self._forms(kind, s)):
            total = np.zeros(len(left))
            for x, y, z in zip(self._points(left), g, self._points(right)):
                total += remainder(np.einsum("ij,ij->i", remainder(x @ y, p), z), p)
            out.append(remainder(total, p))
        return packed(out)

    def _forms(self, kind: object, s: Structure) -> list[np.ndarray]:
        """For each prime: [point, elements of the first operand, of the second]."""
        at = kind, s
        if at not in self._bilinear:
            w = self.weights(kind, s.size)
            self._bilinear[at] = [np.stack([s.forms(r, p) for r in x]) for p, x in zip(PRIMES, w)]
        return self._bilinear[at]

    def _points(self, rows: np.ndarray) -> list[np.ndarray]:
        return np.split(rows, self.points, axis=1)


def _products(tensors: np.ndarray, by: np.ndarray) -> list[np.ndarray]:
    return [remainder(x @ w, p) for p, x, w in zip(PRIMES, tensors, by, strict=True)]


def added(parts: list[list[np.ndarray]]) -> np.ndarray:
    """Keys of which each operand gives a part, as arrays that broadcast."""
    out = []
    for p, x in zip(PRIMES, zip(*parts, strict=True), strict=True):
        total = sum(x[1:], x[0] * 1.0)
        for _ in x[1:]:
            np.subtract(total, p, out=total, where=total >= p)
        out.append(total)
    return packed(out)
