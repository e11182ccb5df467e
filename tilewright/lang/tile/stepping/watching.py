"""The checking mode: an `EagerBuilder` that knows what memory and values mean.

For each element in memory it records which program wrote it last, which read it, and whether it was
ever written; for each element of a value, whether it has a meaning. Programs that are not ordered
by atomics run at the same time as far as it is concerned, although here they run one after the
other: what program 7 finds written by program 3 is a race unless 3 released it and 7 acquired it
(vector clocks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.lang.tile.ir import Place, Value
from tilewright.lang.tile.stepping.computing import EagerBuilder
from tilewright.lang.tile.stepping.evaluate import bits_of, structural
from tilewright.lang.tile.stepping.findings import OUT_OF_BOUNDS, RACE, UNDEFINED, Finding, Report
from tilewright.lang.tile.stepping.known import EagerValue, known
from tilewright.lang.tile.stepping.raw_memory import Memory

# The access to an element: the program's number from 1 (0: none), its clock, the place's number.
_TOUCH = np.dtype([("program", "i4"), ("clock", "i4"), ("place", "i4"), ("atomic", "?")])


class _Shadow:
    """What is known of one stretch of memory, granule by granule."""

    def __init__(self, low: int, high: int, granule: int):
        self.low, self.high, self.granule = low, high, granule
        n = -(-(high - low) // granule)
        self.wrote = np.zeros(n, _TOUCH)
        # The last reader, and the last one that was another program than that.
        self.read = np.zeros(n, _TOUCH)
        self.read_before = np.zeros(n, _TOUCH)
        self.unset = np.zeros(n, np.int32)  # why it has no value; 0: it has one

    def _by_bytes(self) -> None:
        """Granules of a byte, for accesses that are not what was expected."""
        for name in ("wrote", "read", "read_before", "unset"):
            setattr(self, name, np.repeat(getattr(self, name), self.granule))
        self.granule = 1

    def granules(self, at: np.ndarray, width: int) -> np.ndarray:
        """Of each address, along a second axis."""
        if width < self.granule or np.any((at - self.low) % self.granule):
            self._by_bytes()
        first = (at - self.low) // self.granule
        return first[:, None] + np.arange(max(1, width // self.granule))


class CheckingBuilder(EagerBuilder):
    """`uninitialised` names arguments whose elements have no value until the kernel writes them."""

    of_program = (*EagerBuilder.of_program, "_me", "_clock", "_seen")

    def __init__(
        self,
        memory: Memory,
        grid: Sequence[int] = (1, 1, 1),
        output: TextIO | None = None,
        kernel: str = "",
        uninitialised: Sequence[str] = (),
        raises: bool = True,
    ):
        super().__init__(memory, grid, output)
        self.report = Report(kernel)
        self.uninitialised = frozenset(uninitialised)
        self.raises = raises
        self._shadows: list[_Shadow] = []
        self._covered = 0  # regions that shadows were made for
        self._places: list[Place | None] = [None]
        self._numbers: dict[tuple[str, int], int] = {}
        self._reasons: list[tuple[str, Place | None]] = [("", None)]
        self._reason_numbers: dict[tuple[str, str], int] = {}
        self._me = (0, 0, 0)
        self._clock = 1
        self._seen: dict[int, int] = {}  # of other programs: up to which clock they are before us
        self._released: dict[int, dict[int, int]] = {}

    def finish(self) -> None:
        unknown = self.uninitialised - {r.name for r in self.memory.regions}
        if unknown:
            raise Invalid(f"no argument is called {', '.join(sorted(unknown))}")
        if self.raises:
            self.report.raise_if_any()

    # ---- findings

    def _add(self, kind: str, key: Any, what: str, other: Place | None = None, n: int = 1) -> None:
        self.report.add(key, Finding(kind, what, self.here(), self.program, other, n))

    def _number(self) -> int:
        """Of the program that runs; a new one starts with a clock of its own."""
        if self.program != self._me or self._clock == 0:
            self._me, self._clock, self._seen = self.program, 1, {}
        x, y, z = self.program
        return 1 + x + self.grid[0] * (y + self.grid[1] * z)

    def programs(self) -> Any:
        for program in super().programs():
            self._clock = 0
            self._number()
            yield program

    def _place_number(self) -> int:
        place = self.here()
        key = ("", 0) if place is None else (place.file, place.line)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self._places)
            self._places.append(place)
        return found

    def _reason(self, why: str, place: Place | None = None) -> int:
        key = (why, str(place))
        found = self._reason_numbers.get(key)
        if found is None:
            found = self._reason_numbers[key] = len(self._reasons)
            self._reasons.append((why, place))
        return found

    def _undefined(self, x: EagerValue | None, active: np.ndarray | None, what: str) -> None:
        """An undefined value that has consequences."""
        if x is None or x.undefined is None:
            return
        reasons = x.undefined if active is None else x.undefined[active]
        for r in np.unique(reasons):
            if r:
                why, place = self._reasons[int(r)]
                n = int(np.count_nonzero(reasons == r))
                self._add(UNDEFINED, (what, why), f"{what} {why}", place, n)

    # ---- accesses

    def admit(
        self, what: str, p: EagerValue, width: int, active: np.ndarray, origin: np.ndarray
    ) -> np.ndarray:
        if p.undefined is not None:
            self._undefined(p, active, f"the address of {what} depends on")
            active = active & (p.undefined == 0)
        at = p.array[active]
        bad = self.memory.outside(at, width, origin[active], exact=True)
        if not bad.any():
            return active
        whose, lanes = origin[active][bad], np.argwhere(active)[bad]
        for k in np.unique(whose):
            mine = whose == k
            address, lane = int(at[bad][mine][0]), lanes[mine][0]
            index = f" at index {tuple(int(i) for i in lane)}" if lane.size else ""
            r = self.memory.regions[int(k)] if k >= 0 else self.memory.nearest(address)
            name = r.name if r is not None else ""
            element = f"{r.index(address)}, " if r is not None else ""
            where = r.miss(address, width) if r is not None else f"address {address:#x}"
            sentence = f"{what}{index} touches {element}{where}"
            self._add(OUT_OF_BOUNDS, name, sentence, None, int(np.count_nonzero(mine)))
        allowed = active.copy()
        allowed[active] = ~bad
        return allowed

    def touched(
        self,
        what: str,
        at: np.ndarray,
        origin: np.ndarray,
        width: int,
        values: EagerValue | None,
        active: np.ndarray,
    ) -> np.ndarray | None:
        self._cover()
        if what == "store":
            self._undefined(values, active, "a store writes")
            self._collisions(at, values, active)
        elif values is not None:
            self._undefined(values, active, "an atomic takes")
        me, place = self._number(), self._place_number()
        unset: np.ndarray | None = None
        for shadow in self._shadows:
            mine = (at >= shadow.low) & (at < shadow.high)
            if not mine.any():
                continue
            where = shadow.granules(at[mine], width)
            if what == "load":
                found = shadow.unset[where].max(axis=1)
                if found.any():
                    unset = np.zeros(at.shape, np.int32) if unset is None else unset
                    unset[mine] = found
            self._race(shadow, what, where, me)
            self._note(shadow, what, where, me, place)
        return unset

    def _note(self, shadow: _Shadow, what: str, where: np.ndarray, me: int, place: int) -> None:
        mark = np.zeros((), _TOUCH)
        mark["program"], mark["clock"], mark["place"] = me, self._clock, place
        mark["atomic"] = what != "load" and what != "store"
        if what == "load":
            before = shadow.read[where]
            others = (before["program"] != me) & (before["program"] != 0)
            shadow.read_before[where[others]] = before[others]
            shadow.read[where] = mark
        else:
            shadow.wrote[where] = mark
            shadow.unset[where] = 0

    def _race(self, shadow: _Shadow, what: str, where: np.ndarray, me: int) -> None:
        atomic = what not in ("load", "store")
        self._conflicts(shadow, what, "writes", shadow.wrote[where], where, me, atomic)
        if what != "load":
            for readers in (shadow.read, shadow.read_before):
                self._conflicts(shadow, what, "reads", readers[where], where, me, False)

    def _conflicts(
        self,
        shadow: _Shadow,
        what: str,
        verb: str,
        others: np.ndarray,
        where: np.ndarray,
        me: int,
        atomics_agree: bool,
    ) -> None:
        candidates = (others["program"] != 0) & (others["program"] != me)
        if atomics_agree:
            candidates &= ~others["atomic"]
        if not candidates.any():
            return
        at = where[candidates]
        pairs = others[candidates]
        for pair in np.unique(pairs):
            program, clock = int(pair["program"]), int(pair["clock"])
            if self._seen.get(program, 0) >= clock:
                continue
            hits = at[pairs == pair]
            place = self._places[int(pair["place"])]
            address = shadow.low + int(hits.flat[0]) * shadow.granule
            r = self.memory.nearest(address)
            name = r.index(address) if r is not None else f"{address:#x}"
            how = {"load": "reads", "store": "writes"}.get(what, "atomically changes")
            verb_there = "atomically changes" if pair["atomic"] else verb
            sentence = (
                f"program {self.program} {how} {name}, which program {self._ids(program)} "
                f"{verb_there}, in no order"
            )
            key = (r.name if r is not None else "", how, verb_there)
            self._add(RACE, key, sentence, place, int(hits.size))

    def _ids(self, number: int) -> tuple[int, int, int]:
        rest, x = divmod(number - 1, self.grid[0])
        z, y = divmod(rest, self.grid[1])
        return x, y, z

    def _collisions(self, at: np.ndarray, values: EagerValue | None, active: np.ndarray) -> None:
        """Lanes of one store with one address: which of them stays is open."""
        if values is None or at.size < 2:
            return
        order = np.argsort(at, kind="stable")
        bits = bits_of(values.array[active], values.element)[order]
        ranked = at[order]
        clash = (ranked[1:] == ranked[:-1]) & (bits[1:] != bits[:-1])
        if clash.any():
            address = int(ranked[1:][clash][0])
            r = self.memory.nearest(address)
            name = r.index(address) if r is not None else f"{address:#x}"
            sentence = f"one store writes different values to {name}"
            self._add(RACE, "lanes", sentence, None, int(np.count_nonzero(clash)))

    def _cover(self) -> None:
        """Shadows for memory that has none yet."""
        regions = self.memory.regions
        if self._covered == len(regions):
            return
        self._covered = len(regions)
        for low, high in self.memory.spans():
            inside = [r for r in regions if r.low >= low and r.high <= high]
            known_part = [s for s in self._shadows if s.low < high and low < s.high]
            if any(s.low <= low and high <= s.high for s in known_part):
                continue
            granule = min((r.element.bytes for r in inside), default=1)
            shadow = _Shadow(low, high, granule)
            self._shadows = [s for s in self._shadows if s not in known_part] + [shadow]
            for r in inside:
                if r.name in self.uninitialised:
                    why = self._reason(f"an element of {r.name} that nothing was written to")
                    first, last = r.low - low, r.high - low
                    shadow.unset[first // granule : -(-last // granule)] = why

    # ---- order among programs

    def acquires(self, at: np.ndarray) -> None:
        self._number()
        for clocks in {id(c): c for a in at.tolist() if (c := self._released.get(a))}.values():
            for program, clock in clocks.items():
                if self._seen.get(program, 0) < clock:
                    self._seen[program] = clock

    def releases(self, at: np.ndarray) -> None:
        me = self._number()
        mine = {**self._seen, me: self._clock}
        self._clock += 1
        merged: dict[int, dict[int, int]] = {}  # many addresses share what was released there
        for a in at.tolist():
            before = self._released.get(a)
            key = id(before)
            if key not in merged:
                joined = dict(mine)
                for program, clock in (before or {}).items():
                    joined[program] = max(clock, joined.get(program, 0))
                merged[key] = joined
            self._released[a] = merged[key]

    # ---- values without a meaning

    def decide(self, value: Value, what: str) -> Any:
        self._undefined(known(value), None, f"{what} depends on")
        return super().decide(value, what)

    def loaded(
        self,
        result: EagerValue,
        active: np.ndarray,
        mask: EagerValue | None,
        other: EagerValue | None,
    ) -> None:
        if mask is None:
            return
        self._undefined(mask, None, "the mask of a load depends on")
        off = ~mask.array
        if (other is not None and other.undefined is None) or not off.any():
            return
        reasons = np.zeros(result.array.shape, np.int32)
        if result.undefined is not None:
            reasons[...] = result.undefined
        if other is not None:
            reasons[off] = other.undefined[off]  # type: ignore[index]
        else:
            why = "what a load gives where its mask does not hold, without other="
            reasons[off] = self._reason(why, self.here())
        result.undefined = reasons

    def _never(self, active: np.ndarray) -> np.ndarray | None:
        if active.all():
            return None
        why = self._reason("what an atomic gives where its mask does not hold", self.here())
        return np.where(active, 0, why).astype(np.int32)

    def pure(
        self,
        name: str,
        args: Sequence[EagerValue],
        results: Sequence[EagerValue],
        attrs: Mapping[str, Any],
    ) -> None:
        if all(a.undefined is None for a in args):
            return
        reasons = [
            np.zeros(a.array.shape, np.int32) if a.undefined is None else a.undefined for a in args
        ]
        shapes = [r.array.shape for r in results]
        moved = structural(name, reasons, shapes, attrs)
        if moved is None:
            moved = [_spread(name, args, reasons, attrs, shapes[0])]
        for r, m in zip(results, moved, strict=True):
            r.undefined = m if m.any() else None


def _spread(
    name: str,
    args: Sequence[EagerValue],
    reasons: Sequence[np.ndarray],
    attrs: Mapping[str, Any],
    shape: tuple[int, ...],
) -> np.ndarray:
    """Why elements of a result have no meaning, from those of the arguments."""
    if name == "gather":
        picked = np.take_along_axis(reasons[0], args[1].array.astype(np.int64), attrs["axis"])
        return np.maximum(picked, reasons[1])
    if name == "dot":
        a, b, c = reasons
        return np.maximum(np.maximum(a.max(-1)[..., :, None], b.max(-2)[..., None, :]), c)
    if name == "histogram":
        counted = reasons[0] if len(args) < 2 else np.where(args[1].array, reasons[0], 0)
        worst = max(int(r.max(initial=0)) for r in (counted, *reasons[1:]))
        return np.full(shape, worst, np.int32)
    fn = attrs.get("fn") if name == "map" else ""
    if fn == "select":
        c, a, b = reasons
        return np.maximum(c, np.where(args[0].array, a, b))
    total = reasons[0]
    for r in reasons[1:]:
        total = np.maximum(total, r)
    if fn in ("and", "or"):
        # One side that decides the result is enough: False and anything, True or anything.
        for x, r in zip(args, reasons, strict=True):
            ones = x.array == (
                True if x.array.dtype == bool else np.asarray(-1).astype(x.array.dtype)
            )
            decides = (x.array == 0) if fn == "and" else ones
            total = np.where(decides & (r == 0), 0, total)
    return total
