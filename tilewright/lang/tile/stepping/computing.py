"""Kernels run step by step on numpy: a builder that computes instead of writing operations.

`EagerBuilder` is one launch: its memory, its grid and the program that runs at the moment. The
functions of the language work on its values as they do on any; `interpret` runs the same operations
from a translated kernel. Programs run one after the other, so that results are deterministic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TextIO

import numpy as np

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.ir.scalar import applied, atomic_extreme
from tilewright.ir.types import DType, f32, f64
from tilewright.lang.tile.builder import Combine
from tilewright.lang.tile.front.functions import TileFunction
from tilewright.lang.tile.ir import Place, Pointer, TileType, Value
from tilewright.lang.tile.lowering.reports import DeviceAssertion
from tilewright.lang.tile.stepping.combining import combined, on_tiles, one_by_one
from tilewright.lang.tile.stepping.evaluate import (
    as_element,
    evaluate,
    is_pure,
    structural,
)
from tilewright.lang.tile.stepping.known import EagerValue, known
from tilewright.lang.tile.stepping.raw_memory import FOREIGN, Memory, to_bits
from tilewright.lang.tile.stepping.stepping import Stepper
from tilewright.lang.tile.stepping.turns import Turns

# A program that reads the same value so often in a row, and does nothing else to memory, waits.
PATIENCE = 100


# Modules whose lines are not the user's.
_OWN = ("tilewright.lang.", "tilewright.ir.")


class EagerBuilder:
    """Computes. `place` is set while translated operations run; otherwise the place is the user's
    line that is running."""

    eager = True
    # What belongs to the program that runs, not to the launch.
    of_program: tuple[str, ...] = ("program", "place", "_last", "_repeated", "_looks")

    def __init__(
        self, memory: Memory, grid: Sequence[int] = (1, 1, 1), output: TextIO | None = None
    ):
        self.memory = memory
        self.grid = grid_of(grid)
        self.program = (0, 0, 0)
        self.output = output
        self.place: Place | None = None
        self.stepper = Stepper()
        self.turns: Turns | None = None
        self.changes = 0
        self._last: tuple[Any, ...] = ()  # the last read of memory
        self._repeated = 0  # how often that was seen in a row
        self._looks = 0  # volatile loads and atomics that changed nothing, in a row
        self._effects: dict[str, Callable[..., Sequence[EagerValue]]] = {
            "program_id": lambda a, t, k: [self.number(t[0], self.program[k["axis"]])],
            "num_programs": lambda a, t, k: [self.number(t[0], self.grid[k["axis"]])],
            "load": self._load,
            "store": self._store,
            "atomic": self._atomic,
            "cas": self._cas,
            "print": self._print,
            "assert": self._assert,
        }

    # ---- the builder's interface

    def emit(
        self,
        name: str,
        args: Sequence[Value],
        types: Sequence[TileType],
        attrs: Mapping[str, Any] | None = None,
    ) -> tuple[Value, ...]:
        given, attrs = [known(a) for a in args], attrs or {}
        effect = self._effects.get(name)
        try:
            if effect is not None:
                return tuple(effect(given, types, attrs))
            if not is_pure(name):
                raise Invalid(f"{name} cannot be run by itself")
            arrays = [a.array for a in given]
            results = evaluate(name, arrays, [a.type for a in given], types, attrs)
        except TilewrightError as error:
            if error.where is None:
                error.where = str(self.here() or "") or None
            raise
        made = [EagerValue(t, r) for t, r in zip(types, results, strict=True)]
        self._trace_origin(name, given, made, attrs)
        self.pure(name, given, made, attrs)
        return tuple(made)

    def combine(
        self,
        name: str,
        args: Sequence[Value],
        types: Sequence[TileType],
        attrs: Mapping[str, Any],
        function: Combine,
    ) -> tuple[Value, ...]:
        """A reduce or a scan. The function sees many lanes at once as tiles, unless it cannot (it
        branches on what it is given): then one element after the other."""
        given = [known(a) for a in args]
        try:
            return combined(name, given, types, attrs, on_tiles(function))
        except Invalid:
            return combined(name, given, types, attrs, one_by_one(function))

    def call(self, f: TileFunction, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A function over tiles that another function calls, such as the one of a reduction."""
        return self.stepper.function(f)(*args, **kwargs)

    # ---- for the callers that run and that check

    def number(self, type: TileType, value: Any) -> EagerValue:
        return EagerValue(type, as_element(value, type.element))

    def pointer(self, to: DType, argument: int) -> EagerValue:
        """The address of an array of the launch."""
        start = self.memory.regions[argument].start
        return EagerValue(TileType(Pointer(to)), np.asarray(start, np.int64), np.asarray(argument))

    def programs(self) -> Iterator[tuple[int, int, int]]:
        """Makes each program the current one, the first axis fastest."""
        gx, gy, gz = self.grid
        for z, y, x in product(range(gz), range(gy), range(gx)):
            self.program = (x, y, z)
            self._changes()
            yield self.program

    def put_aside(self) -> dict[str, Any]:
        """The state of the program that runs, which `take_up` brings back."""
        return {name: getattr(self, name) for name in self.of_program}

    def take_up(self, state: dict[str, Any]) -> None:
        for name, x in state.items():
            setattr(self, name, x)

    def here(self) -> Place | None:
        """The place of what runs: that of the operation, or the innermost line of the user's."""
        if self.place is not None:
            return self.place
        frame = sys._getframe(1)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if not module.startswith(_OWN):
                code = frame.f_code
                return Place(code.co_filename, frame.f_lineno, 0, code.co_name)
            frame = frame.f_back
        return None

    def decide(self, value: Value, what: str) -> Any:
        """The one number that a branch or a loop depends on, as Python's."""
        return known(value).array.item()

    def finish(self) -> None:
        """Called when all programs have run."""

    def pure(
        self,
        name: str,
        args: Sequence[EagerValue],
        results: Sequence[EagerValue],
        attrs: Mapping[str, Any],
    ) -> None:
        """Called after each operation without effects."""

    def admit(
        self, what: str, p: EagerValue, width: int, active: np.ndarray, origin: np.ndarray
    ) -> np.ndarray:
        """Which lanes may touch memory; here all that are active or an error."""
        at = p.array[active]
        bad = self.memory.outside(at, width, origin[active])
        if bad.any():
            lane = np.flatnonzero(bad)[0]
            lanes = np.argwhere(active)[lane]
            index = f" at index {tuple(int(k) for k in lanes)}" if lanes.size else ""
            where = self.memory.describe(int(at[lane]), width, int(origin[active][lane]))
            raise Invalid(
                f"{what}{index} of program {self.program} touches {where}",
                where=self.here(),
                hint="mask what lies outside: tl.load(p, mask=offsets < n, other=0)",
            )
        return active

    def touched(
        self,
        what: str,
        at: np.ndarray,
        origin: np.ndarray,
        width: int,
        values: EagerValue | None,
        active: np.ndarray,
    ) -> np.ndarray | None:
        """Called for each access with the addresses touched; of a load it says why elements are
        undefined (None: none of them is)."""
        return None

    # ---- memory

    def _lanes(
        self, what: str, p: EagerValue, width: int, mask: EagerValue | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Which lanes touch memory, and the origin of each lane's address."""
        active = np.ones(p.array.shape, bool) if mask is None else np.array(mask.array)
        origin = np.asarray(FOREIGN) if p.origin is None else p.origin
        origin = np.broadcast_to(origin, p.array.shape)
        return self.admit(what, p, width, active, origin), origin

    def _load(
        self, args: Sequence[EagerValue], types: Sequence[TileType], attrs: Mapping[str, Any]
    ) -> Sequence[EagerValue]:
        p, mask, other = (*args, None, None)[:3]
        assert p is not None
        self._let_others_run()
        dtype = types[0].dtype
        active, origin = self._lanes("a load", p, dtype.bytes, mask)
        at = p.array[active]
        out = np.zeros(p.array.shape, dtype.numpy) if other is None else np.array(other.array)
        read = self.memory.read(at, dtype)
        out[active] = read
        result = EagerValue(types[0], out)
        bad = self.touched("load", at, origin[active], dtype.bytes, None, active)
        if bad is not None:
            result.undefined = np.zeros(out.shape, np.int32)
            result.undefined[active] = bad
        self.loaded(result, active, mask, other)
        self._looked("load", at, read, bool(attrs.get("volatile")))
        return [result]

    def loaded(
        self,
        result: EagerValue,
        active: np.ndarray,
        mask: EagerValue | None,
        other: EagerValue | None,
    ) -> None:
        """Called with what a load gives."""

    def _store(
        self, args: Sequence[EagerValue], types: Sequence[TileType], attrs: Mapping[str, Any]
    ) -> Sequence[EagerValue]:
        p, x, mask = (*args, None)[:3]
        assert p is not None and x is not None
        dtype = x.type.dtype
        active, origin = self._lanes("a store", p, dtype.bytes, mask)
        at = p.array[active]
        self.memory.write(at, dtype, x.array[active])
        self.touched("store", at, origin[active], dtype.bytes, x, active)
        self._changes()
        return []

    def _atomic(
        self, args: Sequence[EagerValue], types: Sequence[TileType], attrs: Mapping[str, Any]
    ) -> Sequence[EagerValue]:
        p, x, mask = (*args, None)[:3]
        assert p is not None and x is not None
        kind, dtype = attrs["kind"], types[0].dtype

        def new(old: np.ndarray, value: np.ndarray, lanes: np.ndarray) -> np.ndarray:
            if kind == "xchg":
                return value
            if kind in ("max", "min") and dtype in (f32, f64):
                return atomic_extreme(kind, old, value)
            with np.errstate(all="ignore"):
                return applied(kind, (old, value), dtype)

        return [self._changed(kind, p, x, mask, new, attrs)]

    def _cas(
        self, args: Sequence[EagerValue], types: Sequence[TileType], attrs: Mapping[str, Any]
    ) -> Sequence[EagerValue]:
        p, expected, x = args
        bits = to_bits(expected.array, types[0].dtype).reshape(-1)

        def new(old: np.ndarray, value: np.ndarray, lanes: np.ndarray) -> np.ndarray:
            return np.where(to_bits(old, types[0].dtype) == bits[lanes], value, old)

        return [self._changed("cas", p, x, None, new, attrs)]

    def _changed(
        self,
        kind: str,
        p: EagerValue,
        x: EagerValue,
        mask: EagerValue | None,
        new: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray],
        attrs: Mapping[str, Any],
    ) -> EagerValue:
        """An atomic: `new` makes what is written of what was there, of the value and of the lanes'
        numbers. Each element is on its own: lanes that share an address take turns, in order."""
        self._let_others_run()
        dtype = x.type.dtype
        active, origin = self._lanes(f"an atomic {kind}", p, dtype.bytes, mask)
        at, values, numbers = p.array[active], x.array[active], np.flatnonzero(active)
        old = np.empty(at.shape, dtype.numpy)
        changed = False
        for lanes in _turns(at):
            old[lanes] = self.memory.read(at[lanes], dtype)
            written = new(old[lanes], values[lanes], numbers[lanes])
            self.memory.write(at[lanes], dtype, written)
            changed |= to_bits(old[lanes], dtype).tobytes() != to_bits(written, dtype).tobytes()
        out = np.zeros(p.array.shape, dtype.numpy)
        out[active] = old
        self._synchronised("cas" if kind == "cas" else "atomic", p, origin, dtype, x, active, attrs)
        if changed:
            self._changes()
        else:
            self._looked(kind, at, old, True)
        return EagerValue(x.type, out, None, self._never(active))

    def _synchronised(
        self,
        what: str,
        p: EagerValue,
        origin: np.ndarray,
        dtype: DType,
        x: EagerValue,
        active: np.ndarray,
        attrs: Mapping[str, Any],
    ) -> None:
        at = p.array[active]
        order = attrs.get("order") or "acq_rel"
        if order in ("acquire", "acq_rel"):
            self.acquires(at)
        self.touched(what, at, origin[active], dtype.bytes, x, active)
        if order in ("release", "acq_rel"):
            self.releases(at)

    def acquires(self, at: np.ndarray) -> None:
        """Called before an atomic that sees what others released at these addresses."""

    def releases(self, at: np.ndarray) -> None:
        """Called after an atomic that lets others see what was done before it."""

    def _never(self, active: np.ndarray) -> np.ndarray | None:
        """Lanes that did nothing have no result."""
        return None

    def _changes(self) -> None:
        """The program changed memory: it does not wait."""
        self.changes += 1
        self._last, self._repeated, self._looks = (), 0, 0

    def _looked(self, what: str, at: np.ndarray, seen: np.ndarray, waits: bool) -> None:
        """The program read memory; with `waits`, by a read that polls for what others write."""
        now = (what, int(at.flat[0]), seen.tobytes()) if at.size == 1 else ()
        self._repeated = self._repeated + 1 if now and now == self._last else 0
        self._last = now
        self._looks += waits

    def _let_others_run(self) -> None:
        """Before a read of memory: a program that read the same value too often waits for
        others."""
        if max(self._repeated, self._looks) <= PATIENCE or self.turns is None:
            return
        try:
            self.turns.wait()
        except Invalid as problem:
            raise Invalid(
                f"program {self.program} waits for {problem.what}",
                where=self.here(),
                hint="look for the store or the atomic that should have changed it",
            ) from None
        self._repeated = self._looks = 0

    # ---- messages

    def _print(
        self, args: Sequence[EagerValue], types: Sequence[TileType], attrs: Mapping[str, Any]
    ) -> Sequence[EagerValue]:
        output = self.output or sys.stdout
        pid, prefix = ", ".join(map(str, self.program)), attrs.get("prefix") or ""
        # Operands of one shape share lines, element by element.
        alike = all(a.array.shape == args[0].array.shape for a in args)
        for group in [args] if alike else [[a] for a in args]:
            for index in np.ndindex(*(group[0].array.shape if group else ())):
                shown = [_number_text(a.array[index], a, bool(attrs.get("hex"))) for a in group]
                at = ", ".join(map(str, index))
                print(f"pid ({pid}) idx ({at}) {prefix}{', '.join(shown)}", file=output)
        return []

    def _assert(
        self, args: Sequence[EagerValue], types: Sequence[TileType], attrs: Mapping[str, Any]
    ) -> Sequence[EagerValue]:
        holds_not = ~np.asarray(args[0].array)
        if holds_not.any():
            index = tuple(int(k) for k in np.argwhere(holds_not)[0])
            at = f" at index {index}" if index else ""
            message = attrs.get("message") or "it is false"
            text = f"device_assert in program {self.program}{at}: {message}"
            raise DeviceAssertion(text, where=self.here())
        return []

    # ---- origins

    def _trace_origin(
        self,
        name: str,
        args: Sequence[EagerValue],
        results: Sequence[EagerValue],
        attrs: Mapping[str, Any],
    ) -> None:
        """Addresses come from where what they were computed from comes from."""
        if all(a.origin is None for a in args):
            return
        first = next(a.origin for a in args if a.origin is not None)
        if name in ("map", "offset", "bitcast", "gather") or (first.ndim == 0 and len(args) == 1):
            if name == "map" and attrs["fn"] == "select":
                sides = [np.asarray(FOREIGN) if a.origin is None else a.origin for a in args[1:]]
                first = np.where(args[0].array, *sides)
            elif name == "gather" and first.ndim:
                first = np.take_along_axis(first, args[1].array.astype(np.int64), attrs["axis"])
            results[0].origin = first
            for other in results[1:]:
                other.origin = first
            return
        whole = [
            np.broadcast_to(FOREIGN if a.origin is None else a.origin, a.array.shape) for a in args
        ]
        moved = structural(name, whole, [r.array.shape for r in results], attrs)
        for r, o in zip(results, moved or (), strict=False):
            r.origin = o


def _turns(at: np.ndarray) -> Iterator[np.ndarray]:
    """Lanes in rounds, such that no two of a round have one address."""
    if not at.size:
        return
    order = np.argsort(at, kind="stable")
    ranked = at[order]
    new = np.r_[True, ranked[1:] != ranked[:-1]]
    first = np.maximum.accumulate(np.where(new, np.arange(len(at)), 0))
    turn = np.arange(len(at)) - first
    for k in range(int(turn.max()) + 1):
        yield np.sort(order[turn == k])


def _number_text(x: Any, value: EagerValue, in_hex: bool) -> str:
    element = value.element
    if isinstance(element, Pointer):
        return hex(int(x))
    if in_hex:
        return hex(int(to_bits(np.asarray(x), element)))
    if element.is_bool:
        return str(bool(x))
    return repr(float(x)) if element.is_float else str(int(x))


def grid_of(grid: Sequence[int]) -> tuple[int, int, int]:
    """A grid of one to three axes, as three."""
    sizes = [int(n) for n in grid]
    if not 1 <= len(sizes) <= 3:
        raise Invalid(f"a grid of {len(sizes)} axes", hint="a grid has one to three: f[(n,)](…)")
    if any(n < 0 or n >= 1 << 31 for n in sizes):
        raise Invalid(f"a grid of {tuple(sizes)}", hint="each axis has 0 to 2147483647 programs")
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
