"""Rows of words, which sorting works on: the order of an element as an unsigned number, and below
it, in the low 32 bits, its position. No two words of a row are equal, so that any way to sort them
is stable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np

from tilewright.base.errors import require
from tilewright.ir import dim as D
from tilewright.ir import expr
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Tensor, Value, fn, select
from tilewright.ir.node import Node, Op, node
from tilewright.ir.operator import Sample, operator
from tilewright.ir.types import TensorType, f64, i8, i32, i64, u8, u64
from tilewright.ops import elementwise as ew
from tilewright.ops import samples as S
from tilewright.ops.creation import full, iota, number
from tilewright.ops.indexing import gather, scatter
from tilewright.ops.reductions import amin
from tilewright.ops.references import ordered_bits
from tilewright.ops.selection import order_key
from tilewright.ops.shapes import order_of
from tilewright.ops.views import concat, reshape, slice

POSITION = 32  # bits of a word that are a position
DIGIT = 8  # bits that one pass sorts by
LONG = 1 << 15  # elements from which threads share a row
PARTS = 16  # of a long row
GATHERED = 40  # comparisons that take as long as one word that is gathered
BLOCK = 4  # elements of which the first one is found, where few of many are wanted


def _want_words(what: str, x: TensorType) -> None:
    require(x.rank == 2 and x.dtype is u64, f"{what}: {x!r} is not a matrix of words (u64)")


@operator
class SortWords(Op):
    """The words of a matrix's rows: 32 bits of the order of each element, from bit `begin` on, and
    its position. Of the second operand's words, where there is one, the positions are taken: they
    are in the order of lower bits already."""

    exact: ClassVar[bool] = True  # the reference depends on the dtype
    descending: bool
    begin: int = 0

    def infer(self, x: TensorType, *words: TensorType) -> TensorType:
        require(x.rank == 2, f"sort_words: {x!r} is not a matrix")
        for w in words:
            _want_words("sort_words", w)
        return TensorType(u64, x.shape)

    def compute(self, x: Tensor, *words: Tensor) -> Tensor:
        def word(r: Dim, j: Dim) -> Value:
            at = _position(words[0][r, j]) if words else expr.index(j)
            key = expr.cast(order_of(x[r, at.as_dim()], self.descending), u64)
            if self.begin:
                key = fn("shr", key, expr.const(self.begin, u64))
            return fn("shl", key, expr.const(POSITION, u64)) | expr.cast(at, u64)

        return expr.compute(x.shape, word, u64)

    def reference(self, x: np.ndarray, *words: np.ndarray) -> np.ndarray:
        at = [w & np.uint64(0xFFFFFFFF) for w in words] or [
            np.broadcast_to(np.arange(x.shape[1], dtype=np.uint64), x.shape)
        ]
        there = np.take_along_axis(x, at[0].astype(np.int64), 1)
        bits = 8 * x.dtype.itemsize
        raw = ordered_bits(there).astype(object)
        if self.descending:
            raw = raw ^ ((1 << bits) - 1)
        high = ((raw >> self.begin) & 0xFFFFFFFF) << POSITION
        return (high | at[0].astype(object)).astype(np.uint64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for descending in (False, True):
            yield S.case(cls(descending), S.extremes(2, 14))
            yield S.case(cls(descending), S.extremes(1, 19, dtype=i8))
            yield S.case(cls(descending), S.extremes(1, 14, dtype=f64), dtype=f64)
            yield S.case(cls(descending, 32), S.extremes(1, 14, dtype=f64), dtype=f64)
        yield S.case(cls(False, 32), S.integers(3, 5), _some_words(3, 5))
        yield S.case(cls(False), S.booleans(2, 5))
        yield S.case(cls(True), S.integers(2, 9, lo=0, hi=255, dtype=u8))
        yield S.case(cls(True), S.integers(2, 9, dtype=i32))
        yield S.case(cls(False), S.normal(0, 3))


def _position(word: Value) -> Value:
    return expr.cast(word & expr.const((1 << POSITION) - 1, u64), i64)


def _some_words(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Words as sorting has them, in any order of their positions."""
    keys = S.integers(rows, columns, lo=0, hi=2**31, seed=seed).astype(np.uint64)
    at = np.argsort(S.normal(rows, columns, seed=seed), axis=1).astype(np.uint64)
    return (keys * np.uint64(3) << np.uint64(POSITION)) | at


@operator
class WordRanks(Op):
    """How many words of its row each word has before it in order."""

    def infer(self, words: TensorType) -> TensorType:
        _want_words(self.name, words)
        return TensorType(i64, words.shape)

    def compute(self, words: Tensor) -> Tensor:
        def rank(r: Dim, p: Dim) -> Value:
            before = lambda q: expr.cast(words[r, q] < words[r, p], i64)  # noqa: E731
            return expr.reduce("add", (words.shape[1],), before)

        return expr.compute(words.shape, rank)

    def reference(self, words: np.ndarray) -> np.ndarray:
        return np.argsort(np.argsort(words, axis=1), axis=1).astype(np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((3, 7), (1, 1), (2, 40), (0, 3), (2, 0)):
            yield S.case(cls(), _some_words(*shape))


@operator
class KeyRanks(Op):
    """How many elements of its row come before each one, of unsigned numbers; equal ones stay in
    order."""

    def infer(self, keys: TensorType) -> TensorType:
        require(keys.rank == 2 and keys.dtype.kind == "u", f"{self.name}: {keys!r} has no keys")
        return TensorType(i64, keys.shape)

    def compute(self, keys: Tensor) -> Tensor:
        def rank(r: Dim, p: Dim) -> Value:
            def before(q: Dim) -> Value:
                equal = keys[r, q].eq(keys[r, p]) & (expr.index(q) < p)
                return expr.cast((keys[r, q] < keys[r, p]) | equal, i64)

            return expr.reduce("add", (keys.shape[1],), before)

        return expr.compute(keys.shape, rank)

    def reference(self, keys: np.ndarray) -> np.ndarray:
        return np.argsort(np.argsort(keys, axis=1, kind="stable"), axis=1).astype(np.int64)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((3, 7), (1, 1), (2, 40), (0, 3), (2, 0)):
            yield S.case(cls(), S.integers(*shape, lo=0, hi=9).astype(np.uint64))
        yield S.case(cls(), S.integers(2, 20, lo=0, hi=9, dtype=u8))


@operator
class RadixPass(Op):
    """Rows of words in the order of the DIGIT bits from `begin` on; words that agree in these stay
    in their order. A row's words are counted by their bits, which says where each kind begins, and
    then put there one after the other. Of long rows, parts are counted and placed at once."""

    begin: int

    def infer(self, words: TensorType) -> TensorType:
        _want_words(self.name, words)
        return words

    def program(self, words: Tensor) -> Tensor:
        rows, n = words.shape
        long = isinstance(n, int) and n >= LONG
        # The size of a part is a power of two, so that a position is in a part by its bits.
        size: Dim = 1 << (-(-n // PARTS) - 1).bit_length() if isinstance(n, int) and long else n
        parts = -(-n // size) if isinstance(n, int) and isinstance(size, int) and long else 1
        kinds = 1 << DIGIT
        whole = parts == 1 or (isinstance(n, int) and n == parts * size)
        counters = kinds if whole else kinds + 1  # the last one counts what is beyond the row
        each = (rows * parts, size)

        def digit(q: Dim, j: Dim) -> Value:
            r, at = D.floordiv(q, parts), D.mod(q, parts) * size + j
            inside = at if whole else D.minimum(at, n - 1)
            bits = fn("shr", words[r, inside], expr.const(self.begin, u64))
            kind = expr.cast(bits & expr.const(kinds - 1, u64), i64)
            return kind if whole else select(expr.index(at) < n, kind, expr.const(kinds, i64))

        none = expr.compute((rows * parts, counters), lambda *i: expr.const(0, i32))
        one = lambda *i: expr.const(1, i32)  # noqa: E731
        counts = expr.update(none, each, lambda q, j: (q, digit(q, j)), one, "add", "counts")

        def begins(own: Tensor, r: Dim, p: Dim) -> Value:
            before = (
                own[r, p - 1] + counts[r * parts + D.mod(p - 1, parts), D.floordiv(p - 1, parts)]
            )
            return select(expr.index(p) > 0, before, expr.const(0, i32))

        first = expr.scan((rows, kinds * parts), 1, begins, i32, "first")

        def start(q: Dim, k: Dim) -> Value:
            kind = D.minimum(k, kinds - 1)
            at = first[D.floordiv(q, parts), kind * parts + D.mod(q, parts)]
            return select(expr.index(k) < kinds, at, expr.const(0, i32))

        # In front, where the next word of each kind goes; behind, where each word goes.
        next_of = expr.compute((rows * parts, counters + size), start, i32, "next")

        def where(q: Dim, j: Dim, t: Dim) -> tuple[Dim | Value, ...]:
            return q, select(expr.index(t).eq(0), expr.index(counters + j), digit(q, j))

        def body(own: Tensor, q: Dim, j: Dim, t: Dim) -> Value:
            there = own[q, digit(q, j).as_dim()]
            return select(expr.index(t).eq(0), there, there + 1)

        ranks = expr.revise(next_of, (*each, 2), where, body, "ranks")

        def target(r: Dim, j: Dim) -> tuple[Dim | Value, ...]:
            q = r * parts + D.floordiv(j, size) if parts > 1 else r
            at = D.mod(j, size) if parts > 1 else j
            return r, expr.cast(ranks[q, counters + at], i64)

        empty = expr.compute((rows, n), lambda *i: expr.const(0, u64))
        return expr.update(empty, (rows, n), target, lambda r, j: words[r, j], None, "sorted")

    def reference(self, words: np.ndarray) -> np.ndarray:
        bits = (words >> np.uint64(self.begin)) & np.uint64((1 << DIGIT) - 1)
        return np.take_along_axis(words, np.argsort(bits, axis=1, kind="stable"), 1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        for shape in ((3, 7), (1, 1), (2, 40), (0, 3), (2, 0)):
            yield S.case(cls(32), _some_words(*shape))
        yield S.case(cls(56), _some_words(2, 30))


@operator
class PadWords(Op):
    """Rows of words up to so many columns: those that are added come after all others."""

    columns: Dim

    def infer(self, words: TensorType) -> TensorType:
        _want_words(self.name, words)
        return TensorType(u64, (words.shape[0], self.columns))

    def compute(self, words: Tensor) -> Tensor:
        n = words.shape[1]

        def word(r: Dim, j: Dim) -> Value:
            there = words[r, D.minimum(j, n - 1)]
            return select(expr.index(j) < n, there, ~expr.cast(expr.index(j), u64))

        return expr.compute((words.shape[0], self.columns), word, u64)

    def reference(self, words: np.ndarray) -> np.ndarray:
        assert isinstance(self.columns, int)
        more = ~np.arange(words.shape[1], self.columns, dtype=np.uint64)
        return np.concatenate([words, np.tile(more, (len(words), 1))], 1)

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        yield S.case(cls(12), _some_words(2, 9))
        yield S.case(cls(9), _some_words(2, 9))


def sort_words(x: Node, descending: bool, begin: int = 0, words: Node | None = None) -> Node:
    """Words of the rows of a matrix; of elements in the order that `words` have, where given."""
    return node(SortWords(descending, begin), x, *(() if words is None else (words,)))


def pad_words(words: Node, columns: Dim) -> Node:
    """Rows of words up to so many columns."""
    return node(PadWords(columns), words)


def word_ranks(words: Node) -> Node:
    """How many words of its row each word has before it in order."""
    return node(WordRanks(), words)


def key_ranks(keys: Node) -> Node:
    """How many elements of its row come before each one; equal ones stay in order."""
    return node(KeyRanks(), keys)


def radix_pass(words: Node, begin: int) -> Node:
    """Rows of words in the order of the bits from `begin` on."""
    return node(RadixPass(begin), words)


def radix_sort(words: Node, bits: int = 32, below: int = 0) -> Node:
    """Rows of words by so many bits of their order. Words of the same order stay as they are, or
    come in that of their positions, which have `below` bits then."""
    for begin in (*range(0, below, DIGIT), *range(POSITION, POSITION + bits, DIGIT)):
        words = radix_pass(words, begin)
    return words


def word_positions(words: Node) -> Node:
    return ew.cast(ew.bitwise_and(words, number((1 << POSITION) - 1, u64)), i64)


def sorted_words(x: Node, descending: bool) -> Node:
    """The rows of a matrix as words in their order."""
    n, bits = x.shape[1], x.dtype.bits
    if not isinstance(n, int):
        return _of_any_length(x, descending)
    words = sort_words(x, descending)
    if bits <= POSITION and _by_counting(n, bits):
        return counting_sort(words)
    if bits > POSITION and 2 * n * n <= _of_passes(n, bits):
        return _by_keys(x, words, descending)
    return _by_passes(x, words, descending)


def _of_any_length(x: Node, descending: bool) -> Node:
    """The call's length says how: either all rows are counted, or none of them."""
    (rows, n), bits = x.shape, x.dtype.bits
    most = longest_counted(bits)
    low, high = D.bounds(n)
    few = (
        1 if high <= most else 0 if low > most else D.minimum(D.floordiv(most, D.maximum(n, 1)), 1)
    )

    def counted(part: Node) -> Node:
        words = sort_words(part, descending)
        return counting_sort(words) if bits <= POSITION else _by_keys(part, words, descending)

    def passed(part: Node) -> Node:
        return _by_passes(part, sort_words(part, descending), descending)

    if isinstance(few, int):
        return counted(x) if few else passed(x)
    at = rows * few
    return concat((counted(slice(x, 0, 0, at)), passed(slice(x, 0, at, rows))), 0)


def _by_keys(x: Node, words: Node, descending: bool) -> Node:
    """Words in their order by counting; they have half of an element each."""
    key = order_key(x)
    ranks = key_ranks(ew.bitwise_not(key) if descending else key)
    return scatter(full(words.shape, 0, u64), ranks, words, 1, None, "within")


def _by_passes(x: Node, words: Node, descending: bool) -> Node:
    bits = x.dtype.bits
    words = radix_sort(words, min(bits, 32))
    return radix_sort(sort_words(x, descending, 32, words)) if bits > 32 else words


def counting_sort(words: Node) -> Node:
    """Rows of a few words in their order: each goes where its rank is."""
    ranks = word_ranks(words)
    return scatter(full(words.shape, 0, u64), ranks, words, 1, None, "within")


def first_words(words: Node, k: int, bits: int, among: Sequence[int] = ()) -> Node:
    """The first k words of each row in their order, which has so many bits. The column of a word is
    its position modulo each of the numbers `among`, one after the other.

    They are in the k blocks whose first words come first, since each of these has one at least.
    The columns of a block are as far apart as there are blocks.
    """
    rows, n = words.shape
    assert isinstance(n, int)
    blocks = -(-n // BLOCK)
    below = (BLOCK * among[0]).bit_length() if among else 0
    if not _in_blocks(n, k, bits, below):
        return slice(_in_order(words, bits, below), 1, 0, k)
    if blocks * BLOCK > n:
        words = pad_words(words, blocks * BLOCK)
    least = amin(reshape(words, (rows, BLOCK, blocks)), (1,), False)
    which = word_positions(first_words(least, k, bits, (*among, blocks)))
    for count in (*among, blocks):
        which = ew.mod(which, number(count, i64))
    first = reshape(ew.mul(iota(BLOCK), number(blocks, i64)), (1, BLOCK, 1))
    at = reshape(ew.add(first, reshape(which, (rows, 1, k))), (rows, k * BLOCK))
    found = gather(words, at, 1, "within")
    return slice(_in_order(found, bits, below or n.bit_length()), 1, 0, k)


def _in_blocks(n: int, k: int, bits: int, below: int) -> bool:
    """Is it less work to find the blocks of the first k of n words than to sort all of them?"""
    return 0 < k * BLOCK < n and _work_in_blocks(n, k, bits) < _work(n, bits + below)


def _work_in_blocks(n: int, k: int, bits: int) -> int:
    blocks, below = -(-n // BLOCK), n.bit_length()
    if _in_blocks(blocks, k, bits, below):
        which = _work_in_blocks(blocks, k, bits)
    else:
        which = _work(blocks, bits + below)
    return n + which + GATHERED * k * BLOCK + _work(k * BLOCK, bits + below)


# Work in comparisons of one pair, many of which are lanes; measured with vectors of 512 bits, where
# those of 128 bits compare at about the same rate, in more instructions at a time.


def _work(n: int, bits: int) -> int:
    """Of sorting n words by so many bits."""
    return n * n if _by_counting(n, bits) else _of_passes(n, bits)


def _of_passes(n: int, bits: int) -> int:
    return 5 * bits * (n + 100)  # as many as 100 words for the counters of a pass


def _by_counting(n: int, bits: int) -> bool:
    """Is the rank of each of n words found sooner by comparing it with all others?"""
    return n * n <= _of_passes(n, bits)


def longest_counted(bits: int) -> int:
    """The most elements of so many bits that are sorted by counting."""
    each = 1 if bits <= POSITION else 2
    return max(n for n in range(1, 1 << 10) if each * n * n <= _of_passes(n, bits))


def _in_order(words: Node, bits: int, below: int) -> Node:
    n = words.shape[1]
    if isinstance(n, int) and _by_counting(n, bits + below):
        return counting_sort(words)
    return radix_sort(words, bits, below)
