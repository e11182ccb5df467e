"""All programs of a few operators, one for each value.

Programs are made level by level: those of one operator, of two, and so on, a shared part counted
once. A program whose value is known is not kept: it is an equality, which may be a rule. Only
programs below the last level are evaluated; of the last one the keys suffice.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from math import prod

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.superopt.blocks import Kind, Marks, Sizes
from tilewright.superopt.fingerprint import Functionals, added
from tilewright.superopt.structure import EXACT, Structure
from tilewright.superopt.vocabulary import Instance, Vocabulary, arity, instances

Rows = dict[Kind, np.ndarray]  # programs of a kind, a row of values for each
Places = dict[Kind, dict[int, np.ndarray]]  # rows of programs of so many operators
# Pairs of one block of keys.
PAIRS = 2_000_000
LARGEST_LEAF = 20


@dataclass
class Found:
    """Programs of one operator on known programs, with the keys of their values."""

    kind: Kind
    instance: int
    keys: np.ndarray
    first: np.ndarray
    second: np.ndarray | None


@dataclass
class Equalities:
    """Programs whose value is that of another, which is a program by its number."""

    instance: np.ndarray
    first: np.ndarray
    second: np.ndarray  # -1 where the operator has one operand
    equal_to: np.ndarray


@dataclass
class Level:
    operators: int
    candidates: int = 0
    new: int = 0
    equalities: int = 0


@dataclass
class Space:
    """The programs of a vocabulary, by number: leaves first."""

    vocabulary: Vocabulary
    seed: int = 0
    instances: list[Instance] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=list)
    level: list[int] = field(default_factory=list)
    term: list[tuple[int, int, int]] = field(default_factory=list)  # (instance, first, second)
    parts: list[frozenset[int]] = field(default_factory=list)  # operators of each, by number
    equalities: list[Equalities] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)

    def __post_init__(self) -> None:
        v = self.vocabulary
        self.sizes, self.marks = Sizes(v.sizes), Marks(self.seed)
        self.functionals = Functionals(v.points, self.seed)
        self.rng = np.random.default_rng(self.seed)
        self.rows: dict[Kind, list[np.ndarray]] = defaultdict(list)
        self.members: dict[Kind, list[int]] = defaultdict(list)
        self.place: list[int] = []  # of each program among those of its kind
        self.known: dict[Kind, tuple[np.ndarray, np.ndarray]] = {}
        self._numbers: dict[Instance, int] = {}
        self._operators: dict[tuple[int, int, int], int] = {}
        self._structures: dict[tuple[int, tuple[Kind, ...]], Structure] = {}
        self._choices: dict[tuple[Kind, ...], list[tuple[int, Kind]]] = {}
        for name, kind in v.leaves:
            size = self._size(kind)
            row = self.rng.integers(1, LARGEST_LEAF + 1, v.points * size)
            if name not in v.positive:
                signs = self.rng.choice([-1, 1], row.shape)
                signs[::size] = [(-1) ** k for k in range(v.points)]  # both, of a single number too
                row = row * signs
            self._keep(kind, 0, (-1, -1, -1), frozenset(), row.astype(np.float64))
        for kind, rows in self.rows.items():
            self._remember(kind, self.functionals.keys(kind, np.stack(rows)), self.members[kind])

    # ---- programs

    def _size(self, kind: Kind) -> int:
        return prod(self.sizes.shape(kind))

    def _keep(
        self,
        kind: Kind,
        level: int,
        term: tuple[int, int, int],
        parts: frozenset[int],
        row: np.ndarray | None,
    ) -> int:
        n = len(self.kinds)
        self.kinds.append(kind)
        self.level.append(level)
        self.term.append(term)
        self.parts.append(parts)
        if row is not None:
            self.place.append(len(self.rows[kind]))
            self.rows[kind].append(row)
            self.members[kind].append(n)
        return n

    def _remember(self, kind: Kind, keys: np.ndarray, numbers: list[int] | np.ndarray) -> None:
        old_keys, old_numbers = self.known.get(kind, (np.zeros(0, np.uint64), np.zeros(0, int)))
        keys = np.concatenate([old_keys, keys])
        numbers = np.concatenate([old_numbers, np.asarray(numbers, int)])
        order = np.argsort(keys)
        self.known[kind] = keys[order], numbers[order]

    def choices(self, *kinds: Kind) -> list[tuple[int, Kind]]:
        """Operators with attributes that take operands of these kinds, and the result's kind."""
        found = self._choices.get(kinds)
        if found is None:
            found = self._choices[kinds] = list(self._tried(kinds))
        return found

    def _tried(self, kinds: tuple[Kind, ...]) -> Iterator[tuple[int, Kind]]:
        for name in self.vocabulary.operators:
            if len(kinds) not in arity(name):
                continue
            for x in instances(name, kinds):
                kind = x.kind(self.marks, kinds)
                if kind is None or max(self.sizes.shape(kind), default=0) > self.vocabulary.largest:
                    continue
                number = self._numbers.setdefault(x, len(self.instances))
                if number == len(self.instances):
                    self.instances.append(x)
                yield number, kind

    def structure(self, instance: int, kinds: tuple[Kind, ...]) -> Structure:
        found = self._structures.get((instance, kinds))
        if found is None:
            op = self.instances[instance].op(self.sizes, kinds)
            shapes = tuple(map(self.sizes.shape, kinds))
            found = self._structures[instance, kinds] = Structure(op, shapes)
        return found

    # ---- levels

    def grow(self, last: bool) -> Level:
        """Programs of one operator more. Those of the last level are not evaluated."""
        level = Level(1 + len(self.levels))
        self.levels.append(level)
        stacked = {k: np.stack(r) for k, r in self.rows.items()}
        at = {
            k: {
                n: np.array([j for j, i in enumerate(m) if self.level[i] == n], int)
                for n in range(level.operators)
            }
            for k, m in self.members.items()
        }
        found: dict[Kind, list[Found]] = defaultdict(list)

        def add(x: Found) -> None:
            level.candidates += len(x.keys)
            found[x.kind].append(x)

        for x in self._of_one(stacked, at, level.operators):
            add(x)
        for x in self._of_two(stacked, at, level.operators):
            add(x)
        for x in self._of_shared(stacked, level.operators - 1):
            add(x)
        for kind, all_ in found.items():
            self._sort_in(kind, all_, level, last)
        return level

    def _of_one(self, stacked: Rows, at: Places, operators: int) -> Iterator[Found]:
        for kind, rows in stacked.items():
            mine = at[kind][operators - 1]
            if not len(mine):
                continue
            members = np.array(self.members[kind])[mine]
            for x, result in self.choices(kind):
                s = self.structure(x, (kind,))
                if s.form == "linear":
                    keys = added([self.functionals.of_linear(result, s, 0, rows[mine])])
                else:
                    keys = self.functionals.keys(result, self._computed(s, rows[mine]))
                yield Found(result, x, keys, members, None)

    def _of_two(self, stacked: Rows, at: Places, operators: int) -> Iterator[Found]:
        order = {k: n for n, k in enumerate(stacked)}
        for ka, a in stacked.items():
            for kb, b in stacked.items():
                for x, result in self.choices(ka, kb):
                    both = self.instances[x].commutative
                    if both and order[ka] > order[kb]:
                        continue
                    for n in range(operators):
                        ia, ib = at[ka][n], at[kb][operators - 1 - n]
                        if not len(ia) or not len(ib):
                            continue
                        step = max(1, PAIRS // len(ib))
                        for k in range(0, len(ia), step):
                            some = ia[k : k + step]
                            keys = self._pair_keys(result, x, (ka, kb), a[some], b[ib]).reshape(-1)
                            first = np.repeat(np.array(self.members[ka], np.int32)[some], len(ib))
                            second = np.tile(np.array(self.members[kb], np.int32)[ib], len(some))
                            if both and ka == kb:
                                keep = first <= second
                                keys, first, second = keys[keep], first[keep], second[keep]
                            yield Found(result, x, keys, first, second)

    def _pair_keys(
        self, result: Kind, x: int, kinds: tuple[Kind, Kind], a: np.ndarray, b: np.ndarray
    ) -> np.ndarray:
        s = self.structure(x, kinds)
        if s.form == "bilinear":
            return self.functionals.of_pairs(result, s, a, b)
        if s.form == "linear":
            left = self.functionals.of_linear(result, s, 0, a)
            right = self.functionals.of_linear(result, s, 1, b)
            return added([[y[:, None] for y in left], [y[None] for y in right]])
        rows = self._computed(s, np.repeat(a, len(b), axis=0), np.tile(b, (len(a), 1)))
        return self.functionals.keys(result, rows)

    def _computed(self, s: Structure, *rows: np.ndarray) -> np.ndarray:
        """Results for rows of several points each."""
        points, count = self.vocabulary.points, len(rows[0])
        flat = [r.reshape(count * points, -1) for r in rows]
        return np.ascontiguousarray(s(*flat)).reshape(count, -1)

    # ---- programs whose operands share a part

    def _of_shared(self, stacked: Rows, operators: int) -> Iterator[Found]:
        by_kinds: dict[tuple[Kind, Kind], list[tuple[int, int]]] = defaultdict(list)
        for a, b in self._sharing(operators):
            by_kinds[self.kinds[a], self.kinds[b]].append((a, b))
        for kinds, pairs in by_kinds.items():
            ka, kb = kinds
            both = np.array(pairs, np.int32)
            for x, result in self.choices(ka, kb):
                these = both
                if self.instances[x].commutative:
                    if ka != kb and (kb, ka) in by_kinds and repr(ka) > repr(kb):
                        continue
                    these = both[both[:, 0] <= both[:, 1]] if ka == kb else both
                if not len(these):
                    continue
                place = np.array(self.place)
                a, b = stacked[ka][place[these[:, 0]]], stacked[kb][place[these[:, 1]]]
                keys = self._row_keys(result, x, kinds, a, b)
                yield Found(result, x, keys, these[:, 0], these[:, 1])

    def _row_keys(
        self, result: Kind, x: int, kinds: tuple[Kind, Kind], a: np.ndarray, b: np.ndarray
    ) -> np.ndarray:
        s = self.structure(x, kinds)
        if s.form == "bilinear":
            return self.functionals.of_rows(result, s, a, b)
        if s.form == "linear":
            parts = [self.functionals.of_linear(result, s, k, r) for k, r in enumerate((a, b))]
            return added(parts)
        return self.functionals.keys(result, self._computed(s, a, b))

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
        keys = np.concatenate([x.keys for x in all_])
        distinct, first, which = np.unique(keys, return_index=True, return_inverse=True)
        known_keys, known_numbers = self.known.get(kind, (np.zeros(0, np.uint64), np.zeros(0, int)))
        number = np.full(len(distinct), -1)
        if len(known_keys):
            place = np.minimum(np.searchsorted(known_keys, distinct), len(known_keys) - 1)
            hit = known_keys[place] == distinct
            number[hit] = known_numbers[place[hit]]
        fresh = np.nonzero(number < 0)[0]
        level.new += len(fresh)
        level.equalities += len(keys) - len(fresh)
        again = np.ones(len(keys), bool)
        again[first[fresh]] = False
        instance = np.concatenate([np.full(len(x.keys), x.instance, np.int32) for x in all_])
        a = np.concatenate([x.first for x in all_]).astype(np.int32)
        b = np.concatenate(
            [np.full(len(x.keys), -1, np.int32) if x.second is None else x.second for x in all_]
        ).astype(np.int32)
        # Of the last level only what another program equals has a number.
        wanted = (
            fresh
            if not last
            else fresh[np.bincount(which[again], minlength=len(distinct))[fresh] > 0]
        )
        rows = None if last else self._values(kind, instance, a, b, first[wanted])
        for k, j in enumerate(first[wanted]):
            term = int(instance[j]), int(a[j]), int(b[j])
            row = None if rows is None else rows[k]
            number[wanted[k]] = self._keep(kind, level.operators, term, self._parts(term), row)
        if not last:
            self._remember(kind, distinct[fresh], number[fresh])
        equal_to = number[which[again]]
        self.equalities.append(Equalities(instance[again], a[again], b[again], equal_to))

    def _parts(self, term: tuple[int, int, int]) -> frozenset[int]:
        """The operators of a program; both parts that a slice can take are one operator."""
        x, a, b = term
        same = self.instances[x]
        key = (-1 - same.attributes[0][1] if same.name == "slice" else x), a, b
        own = self._operators.setdefault(key, len(self._operators))
        below = self.parts[a] | (self.parts[b] if b >= 0 else frozenset())
        return below | {own}

    def _values(
        self, kind: Kind, instance: np.ndarray, a: np.ndarray, b: np.ndarray, wanted: np.ndarray
    ) -> np.ndarray:
        """The values of programs, in the order in which they are wanted."""
        out = np.zeros((len(wanted), self.vocabulary.points * self._size(kind)))
        groups: dict[tuple[int, tuple[Kind, ...]], list[int]] = defaultdict(list)
        for k, j in enumerate(wanted):
            operands = (a[j],) if b[j] < 0 else (a[j], b[j])
            groups[int(instance[j]), tuple(self.kinds[i] for i in operands)].append(k)
        for (x, kinds), some in groups.items():
            numbers = [a[wanted[some]], b[wanted[some]]][: len(kinds)]
            rows = [
                np.stack([self.rows[kind][self.place[i]] for i in operand])
                for kind, operand in zip(kinds, numbers, strict=True)
            ]
            out[some] = self._computed(self.structure(x, kinds), *rows)
        if np.abs(out).max(initial=0.0) >= EXACT:
            raise Invalid("values of programs are too large to be exact: use smaller leaves")
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
