"""All programs of a few operators, one for each value.

Programs are made level by level: those of one operator, of two, and so on, a shared part counted
once. A program whose value is known is not kept: it is an equality, which may be a rule. Only
programs below the last level are evaluated; of the last one the keys suffice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, Unsupported
from tilewright.ir.node import Op
from tilewright.superopt.blocks import Kind, Marks, Sizes
from tilewright.superopt.fingerprint import PRIMES, Functionals, added
from tilewright.superopt.residues import ARITHMETICS
from tilewright.superopt.structure import Shape, Structure
from tilewright.superopt.vocabulary import Instance, Vocabulary, arity, constants, instances

# Pairs of one block of keys, and elements of their results where those are computed.
PAIRS, ELEMENTS = 2_000_000, 1 << 23
# How operators refuse operands. Attributes of samples may be for others than those at hand.
REFUSALS = (Invalid, Unsupported, ValueError, TypeError)


@dataclass
class Found:
    """Programs of one operator on known programs, with the keys of their values."""

    instance: int
    keys: np.ndarray
    first: np.ndarray
    second: np.ndarray | None

    def __post_init__(self) -> None:
        # Four bytes each: there are millions.
        self.first = self.first.astype(np.int32, copy=False)
        if self.second is not None:
            self.second = self.second.astype(np.int32, copy=False)

    def only(self, keep: np.ndarray) -> Found:
        second = None if self.second is None else self.second[keep]
        return Found(self.instance, self.keys[keep], self.first[keep], second)


@dataclass
class Programs:
    """Operators on programs, which are numbers: a column for each of their properties."""

    instance: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    first: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    second: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))  # -1: has one only
    level: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int8))

    def __len__(self) -> int:
        return len(self.instance)

    @staticmethod
    def joined(some: Sequence[Programs]) -> Programs:
        columns = ("instance", "first", "second", "level")
        return Programs(*(np.concatenate([getattr(x, c) for x in some]) for c in columns))

    def only(self, keep: np.ndarray) -> Programs:
        return Programs(self.instance[keep], self.first[keep], self.second[keep], self.level[keep])


@dataclass
class Equalities:
    """Programs of a level whose value is that of another, which is a program by its number."""

    programs: Programs
    equal_to: np.ndarray


@dataclass
class Level:
    operators: int
    candidates: int = 0
    new: int = 0
    equalities: int = 0


class Tensors:
    """The programs of one kind that are evaluated, level by level: their numbers, values, keys."""

    def __init__(self, number: int, size: int, planes: int, points: int) -> None:
        self.number, self.size = number, size
        self.members = np.zeros(0, np.int32)
        self.values = np.zeros((planes, 0, points * size))
        self.remainders = np.zeros((len(PRIMES), 0, points * size))
        self.ends: list[int] = []  # of each level
        self.keys, self.by_key = np.zeros(0, np.uint64), np.zeros(0, np.int32)

    def at(self, level: int) -> slice:
        """The programs of a level."""
        if level >= len(self.ends):
            return slice(0, 0)
        return slice(self.ends[level - 1] if level else 0, self.ends[level])

    def known(self, keys: np.ndarray) -> np.ndarray:
        """The programs with these keys; -1 where there is none."""
        if not len(self.keys):
            return np.full(len(keys), -1, np.int32)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, self.by_key[place], -1)

    def add(
        self, members: np.ndarray, keys: np.ndarray, values: np.ndarray, mod: np.ndarray
    ) -> None:
        self.members = np.concatenate([self.members, members]).astype(np.int32)
        self.values = np.concatenate([self.values, values], axis=1)
        self.remainders = np.concatenate([self.remainders, mod], axis=1)
        keys = np.concatenate([self.keys, keys])
        order = np.argsort(keys)
        self.keys, self.by_key = keys[order], np.concatenate([self.by_key, members])[order]


@dataclass
class Space:
    """The programs of a vocabulary, by number: leaves first."""

    vocabulary: Vocabulary
    seed: int = 0
    instances: list[Instance] = field(default_factory=list)
    programs: Programs = field(default_factory=Programs)
    kinds: list[Kind] = field(default_factory=list)
    kind: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))  # of each program
    equalities: list[Equalities] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)

    def __post_init__(self) -> None:
        v = self.vocabulary
        self.sizes, self.marks = Sizes(v.sizes), Marks(self.seed)
        self.functionals = Functionals(v.points, self.seed)
        self.arithmetic = ARITHMETICS[v.arithmetic]
        self.tensors: dict[Kind, Tensors] = {}
        self.place = np.zeros(0, np.int32)  # of each program among those of its kind
        self.parts: list[frozenset[int]] = []  # operators of each program, by number
        self._numbers: dict[Instance, int] = {}
        self._operators: dict[tuple[int, int, int], int] = {}
        self._structures: dict[tuple[int, tuple[Kind, ...]], Structure] = {}
        self._made: dict[tuple[Op, tuple[Shape, ...]], Structure] = {}
        self._refused: dict[tuple[Op, tuple[int, ...]], str | None] = {}  # why
        self._choices: dict[tuple[Kind, ...], list[tuple[int, Kind]]] = {}
        rng = np.random.default_rng(self.seed)
        rows: dict[Kind, list[np.ndarray]] = defaultdict(list)
        numbers: dict[Kind, list[int]] = defaultdict(list)
        instance = [-1] * len(v.leaves)
        for n, (name, kind) in enumerate(v.leaves):
            row = self.arithmetic.leaf(v.points, self._size(kind), name in v.positive, rng)
            rows[kind].append(row)
            numbers[kind].append(n)
        for n, (number, kind, row) in enumerate(self._of_none(), len(v.leaves)):
            rows[kind].append(row)
            numbers[kind].append(n)
            instance.append(number)
        count = len(instance)
        none = np.full(count, -1, np.int32)
        self.programs = Programs(np.array(instance, np.int32), none, none, np.zeros(count, np.int8))
        self.kind = np.zeros(count, np.int32)
        self.place = np.zeros(count, np.int32)
        self.parts = [frozenset()] * count
        for kind, some in rows.items():
            values = np.stack(some, axis=1)
            mod = self.arithmetic.remainders(values)
            members = np.array(numbers[kind], np.int32)
            t = self._of(kind)
            self.kind[members], self.place[members] = t.number, np.arange(len(members))
            t.add(members, self.functionals.keys(kind, mod), values, mod)
        for t in self.tensors.values():
            t.ends.append(len(t.members))

    def _size(self, kind: Kind) -> int:
        return prod(self.sizes.shape(kind))

    def _of(self, kind: Kind) -> Tensors:
        found = self.tensors.get(kind)
        if found is None:
            sizes = self._size(kind), self.arithmetic.planes, self.vocabulary.points
            found = self.tensors[kind] = Tensors(len(self.kinds), *sizes)
            found.ends = [0] * len(self.levels)
            self.kinds.append(kind)
        return found

    def choices(self, *kinds: Kind) -> list[tuple[int, Kind]]:
        """Operators with attributes that take operands of these kinds, and the result's kind."""
        found = self._choices.get(kinds)
        if found is None:
            found = self._choices[kinds] = list(self._tried(kinds))
        return found

    def _tried(self, kinds: tuple[Kind, ...]) -> Iterator[tuple[int, Kind]]:
        for name in self.vocabulary.tried:
            if len(kinds) not in arity(name):
                continue
            for x in instances(name, kinds):
                try:
                    kind = self.tried(x, kinds)
                except REFUSALS:
                    continue
                number = self._numbers.setdefault(x, len(self.instances))
                if number == len(self.instances):
                    self.instances.append(x)
                yield number, kind

    def _of_none(self) -> Iterator[tuple[int, Kind, np.ndarray]]:
        """Constants: operators without operands, which are programs of no operators as leaves are,
        with their kinds and elements."""
        for name in self.vocabulary.tried:
            for x in instances(name, ()) if 0 in arity(name) and name in constants() else ():
                self._numbers[x] = len(self.instances)
                self.instances.append(x)
                op: Any = x.op(self.sizes, ())
                elements = np.asarray(op.reference(), np.float64).reshape(-1)
                row = self.arithmetic.constant(self.vocabulary.points, elements)
                yield self._numbers[x], x.kind(self.marks, ()), row

    def tried(self, x: Instance, kinds: tuple[Kind, ...]) -> Kind:
        """The kind of an operator's result on operands of these kinds. It raises where they do not
        fit, or where results are too large or cannot be computed."""
        kind = x.kind(self.marks, kinds)
        shape = self.sizes.shape(kind)
        if (
            max(shape, default=0) > self.vocabulary.largest
            or prod(shape) > self.vocabulary.elements
        ):
            raise Invalid("its result is too large")
        s = self._structure(x, kinds)
        if s.shape != shape:
            raise Invalid(f"its result has the sizes {s.shape}, which are {shape} elsewhere")
        at = s.op, tuple(map(len, s.shapes))  # sizes make no difference
        if at not in self._refused:
            rng = np.random.default_rng(0)
            some = (self.arithmetic.leaf(self.vocabulary.points, n, True, rng) for n in s.sizes)
            try:
                self.arithmetic.check(self._computed(s, *(v[:, None] for v in some)))
                self._refused[at] = None if s.form else ""
            except (Invalid, Unsupported, IndexError) as why:
                self._refused[at] = str(why)
        if self._refused[at] is not None:
            raise Unsupported(self._refused[at] or "")
        return kind

    def structure(self, instance: int, kinds: tuple[Kind, ...]) -> Structure:
        at = instance, kinds
        found = self._structures.get(at)
        if found is None:
            found = self._structures[at] = self._structure(self.instances[instance], kinds)
        return found

    def _structure(self, x: Instance, kinds: tuple[Kind, ...]) -> Structure:
        made = x.op(self.sizes, kinds), tuple(map(self.sizes.shape, kinds))
        if made not in self._made:  # what is known of it is the same for other kinds
            self._made[made] = Structure(*made)
        return self._made[made]

    def _computed(self, s: Structure, *values: np.ndarray) -> np.ndarray:
        return self.arithmetic.computed(s, self.vocabulary.points, *values)

    # ---- levels

    def grow(self, last: bool) -> Level:
        """Programs of one operator more. Those of the last level are not evaluated."""
        level = Level(1 + len(self.levels))
        found: dict[Kind, list[Found]] = defaultdict(list)
        ways = self._of_one(level.operators), self._of_two(level.operators)
        for way in (*ways, self._of_shared(level.operators - 1)):
            for kind, x in way:
                if len(x.keys):
                    level.candidates += len(x.keys)
                    found[kind].append(x)
        self.levels.append(level)
        for kind in list(found):
            self._sort_in(kind, found.pop(kind), level, last)
        for t in self.tensors.values():
            t.ends.append(len(t.members))
        return level

    def _of_one(self, operators: int) -> Iterator[tuple[Kind, Found]]:
        for kind, t in list(self.tensors.items()):
            at = t.at(operators - 1)
            if at.start == at.stop:
                continue
            for x, result in self.choices(kind):
                s = self.structure(x, (kind,))
                if s.form == "linear":
                    keys = added([self.functionals.of_linear(result, s, 0, t.remainders[:, at])])
                    yield result, Found(x, keys, t.members[at], None)
                else:
                    keys, valid = self._keys(result, self._computed(s, t.values[:, at]))
                    yield result, Found(x, keys, t.members[at], None).only(valid)

    def _keys(self, kind: Kind, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of values that are computed, and which of them there are."""
        mod = self.arithmetic.remainders(values)
        valid = np.asarray(np.isfinite(mod).all(axis=(0, 2)))
        return self.functionals.keys(kind, np.nan_to_num(mod)), valid

    def _of_two(self, operators: int) -> Iterator[tuple[Kind, Found]]:
        all_ = list(self.tensors.items())
        for ka, a in all_:
            for kb, b in all_:
                for n in range(operators):
                    ia, ib = a.at(n), b.at(operators - 1 - n)
                    if ia.start == ia.stop or ib.start == ib.stop:
                        continue
                    for x, result in self.choices(ka, kb):
                        both = self.instances[x].commutative
                        if both and a.number > b.number:
                            continue
                        yield from self._pairs(result, x, (ka, kb), ia, ib, both)

    def _pairs(
        self, result: Kind, x: int, kinds: tuple[Kind, Kind], ia: slice, ib: slice, both: bool
    ) -> Iterator[tuple[Kind, Found]]:
        """Every program of some with every one of others, a block of them at a time."""
        a, b = (self.tensors[k] for k in kinds)
        s, count = self.structure(x, kinds), ib.stop - ib.start
        step = PAIRS if s.form != "other" else ELEMENTS // (s.size * self.vocabulary.points)
        step = max(1, step // count)
        for k in range(ia.start, ia.stop, step):
            some = slice(k, min(k + step, ia.stop))
            keys, valid = self._pair_keys(result, s, a, some, b, ib)
            first = np.repeat(a.members[some], count)
            second = np.tile(b.members[ib], some.stop - some.start)
            found = Found(x, keys.reshape(-1), first, second)
            if both and kinds[0] == kinds[1]:
                valid = (first <= second) if valid is None else valid & (first <= second)
            yield result, found if valid is None else found.only(valid)

    def _pair_keys(
        self, result: Kind, s: Structure, a: Tensors, ia: slice, b: Tensors, ib: slice
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if s.form != "other":
            left, right = a.remainders[:, ia], b.remainders[:, ib]
            if s.form == "bilinear":
                return self.functionals.of_pairs(result, s, left, right), None
            x = self.functionals.of_linear(result, s, 0, left)
            y = self.functionals.of_linear(result, s, 1, right)
            return added([[z[:, None] for z in x], [z[None] for z in y]]), None
        left, right = a.values[:, ia], b.values[:, ib]
        count = left.shape[1], right.shape[1]
        left = np.repeat(left, count[1], axis=1)
        right = np.tile(right, (1, count[0], 1))
        return self._keys(result, self._computed(s, left, right))

    # ---- programs whose operands share a part

    def _of_shared(self, operators: int) -> Iterator[tuple[Kind, Found]]:
        pairs = np.array(list(self._sharing(operators)), np.int32).reshape(-1, 2)
        both_kinds = self.kind[pairs[:, 0]].astype(np.int64) * len(self.kinds)
        both_kinds += self.kind[pairs[:, 1]]
        order = np.argsort(both_kinds, kind="stable")
        starts = np.unique(both_kinds[order], return_index=True)[1]
        for some in np.split(pairs[order], starts[1:]) if len(pairs) else ():
            ka, kb = (self.kinds[self.kind[n]] for n in some[0])
            a, b = self.tensors[ka], self.tensors[kb]
            for x, result in self.choices(ka, kb):
                these = some
                if self.instances[x].commutative:
                    if a.number > b.number:
                        continue
                    these = some[some[:, 0] <= some[:, 1]] if ka == kb else some
                if len(these):
                    s = self.structure(x, (ka, kb))
                    keys, valid = self._row_keys(result, s, a, b, self.place[these])
                    found = Found(x, keys, these[:, 0], these[:, 1])
                    yield result, found if valid is None else found.only(valid)

    def _row_keys(
        self, result: Kind, s: Structure, a: Tensors, b: Tensors, at: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if s.form == "other":
            values = self._computed(s, a.values[:, at[:, 0]], b.values[:, at[:, 1]])
            return self._keys(result, values)
        rows = a.remainders[:, at[:, 0]], b.remainders[:, at[:, 1]]
        if s.form == "bilinear":
            return self.functionals.of_rows(result, s, *rows), None
        parts = [self.functionals.of_linear(result, s, k, r) for k, r in enumerate(rows)]
        return added(parts), None

    def _sharing(self, operators: int) -> Iterator[tuple[int, int]]:
        """Pairs of programs of so many operators together, some of which are in both."""
        by_parts: dict[frozenset[int], list[int]] = defaultdict(list)
        for n, parts in enumerate(self.parts):
            if parts:
                by_parts[parts].append(n)
        with_part: dict[int, list[frozenset[int]]] = defaultdict(list)
        for parts in by_parts:
            if len(parts) < operators:
                for o in parts:
                    with_part[o].append(parts)
        for parts, mine in by_parts.items():
            if len(parts) == operators:
                for count in range(1, operators + 1):
                    for some in combinations(sorted(parts), count):
                        others = by_parts.get(frozenset(some), ())
                        yield from ((a, b) for a in mine for b in others)
                        if count < operators:
                            yield from ((b, a) for a in mine for b in others)
            elif len(parts) < operators:
                near = {x for o in parts for x in with_part[o] if len(parts | x) == operators}
                for other in sorted(near, key=sorted):
                    if not (parts < other or other < parts):
                        yield from ((a, b) for a in mine for b in by_parts[other])

    # ---- what is new and what is equal

    def _sort_in(self, kind: Kind, all_: list[Found], level: Level, last: bool) -> None:
        t = self._of(kind)
        keys = np.concatenate([x.keys for x in all_])
        found = Programs(
            np.concatenate([np.full(len(x.keys), x.instance, np.int32) for x in all_]),
            np.concatenate([x.first for x in all_]),
            np.concatenate(
                [np.full(len(x.keys), -1, np.int32) if x.second is None else x.second for x in all_]
            ),
            np.full(len(keys), level.operators, np.int8),
        )
        all_.clear()
        constants = self._constants(kind, t.size)
        kept = ~np.isin(keys, constants[t.known(constants) < 0])
        keys, found = keys[kept], found.only(kept)
        distinct, first, which = np.unique(keys, return_index=True, return_inverse=True)
        number = t.known(distinct)
        fresh = np.nonzero(number < 0)[0]
        level.new += len(fresh)
        level.equalities += len(keys) - len(fresh)
        again = np.ones(len(keys), bool)
        again[first[fresh]] = False
        which = which[again]
        if last:  # only what another program equals has a number
            fresh = fresh[np.bincount(which, minlength=len(distinct))[fresh] > 0]
        new = found.only(first[fresh])
        members = len(self.programs) + np.arange(len(new), dtype=np.int32)
        number[fresh] = members
        if not last:
            values = self._values(t, new)
            mod = self.arithmetic.remainders(values)
            self.place = np.concatenate(
                [self.place, len(t.members) + np.arange(len(new), dtype=np.int32)]
            )
            t.add(members, distinct[fresh], values, mod)
            self.parts += (
                self._parts(*x)
                for x in zip(new.instance.tolist(), new.first.tolist(), new.second.tolist())
            )
        self.programs = Programs.joined([self.programs, new])
        self.kind = np.concatenate([self.kind, np.full(len(new), t.number, np.int32)])
        self.equalities.append(Equalities(found.only(again), number[which]))

    def _constants(self, kind: Kind, size: int) -> np.ndarray:
        """The keys of tensors of zeros and of ones: programs of these values are left out where no
        constant is one. Any two of them are equal, and what is made of them is no program of its
        own."""
        rows = np.array([[0.0], [1.0]]) * np.ones(self.vocabulary.points * size)
        return self.functionals.keys(kind, np.stack([rows] * len(PRIMES)))

    def _parts(self, x: int, a: int, b: int) -> frozenset[int]:
        """The operators of a program; both parts that a slice can take are one operator."""
        same = self.instances[x]
        key = (-1 - same.attributes[0][1] if same.name == "slice" else x), a, b
        own = self._operators.setdefault(key, len(self._operators))
        below = self.parts[a] | (self.parts[b] if b >= 0 else frozenset())
        return below | {own}

    def _values(self, t: Tensors, new: Programs) -> np.ndarray:
        """The values of programs of a kind."""
        out = np.zeros((len(t.values), len(new), self.vocabulary.points * t.size))
        kinds = np.stack(
            [self.kind[new.first], np.where(new.second < 0, -1, self.kind[new.second])]
        )
        group = np.stack([new.instance, *kinds])
        distinct, which = np.unique(group, axis=1, return_inverse=True)
        for k, (x, *numbers) in enumerate(distinct.T.tolist()):
            some = np.nonzero(which.reshape(-1) == k)[0]
            of = tuple(self.kinds[n] for n in numbers if n >= 0)
            operands = (new.first, new.second)[: len(of)]
            s = self.structure(x, of)
            values = (self.tensors[j].values[:, self.place[o[some]]] for j, o in zip(of, operands))
            out[:, some] = self._computed(s, *values)
        return out


def enumerated(
    vocabulary: Vocabulary,
    operators: int,
    seed: int = 0,
    told: Callable[[Level], None] = lambda x: None,
) -> Space:
    """All programs of up to so many operators."""
    space = Space(vocabulary, seed)
    for n in range(1, operators + 1):
        told(space.grow(last=n == operators))
    return space
