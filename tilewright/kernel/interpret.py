"""Target zero for nests: runs the loops on numpy and checks every access.

Serial loops run in order, parallel ones in shuffled order with every cell watched for races, lanes
as vectors (all values are computed before any is stored, so an unsound Vectorize shows). Fresh
memory holds garbage. An access outside its buffer is an error that names it; under a `select` only
the points that are taken count.

A chain of loops around one store that does not read its own target is evaluated on all its points
at once, in order: the same result, a hundred times faster. So are iterations that have nothing to
do with each other (kernel/lockstep.py), one statement after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.expr import Fn, Load, Value
from tilewright.ir.interpret import COMBINE, Evaluator
from tilewright.ir.scalar import applied, atomic_extreme
from tilewright.ir.types import DType, as_dtype, to_memory
from tilewright.kernel.cells import MANY, beyond, flat_cells, outside
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.lockstep import Lockstep, lockstep
from tilewright.kernel.nest import (
    ANY_ORDER,
    LANES,
    RAGGED,
    Alloc,
    Atomic,
    If,
    Loop,
    Nest,
    Prefetch,
    Report,
    Stmt,
    Store,
    While,
    start,
    store_loads,
    transform,
)
from tilewright.kernel.regions import Everything, Region
from tilewright.kernel.untuple import untuple

# Chains of more points than this are walked one iteration of their outermost loop at a time.
BATCH_LIMIT = 1 << 18
_SMALL = 1 << 12  # points whose places are kept
# A loop that has polled so often for what another iteration is to write waits forever.
PATIENCE = 10_000


class RunError(TilewrightError):
    """What no nest may do: an access outside its buffer, memory not allocated, a race."""


def run_group(
    group: Group, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """The outputs of a group, from its naive nest."""
    return run(start(group), arrays, dims)


def run(
    nest: Nest,
    arrays: Mapping[str, Any],
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    tell: Tell | None = None,
) -> dict[str, np.ndarray]:
    """The outputs by name. An output among `arrays` starts with those contents; behind a pointer
    (kernel/regions.py) the caller's array itself is written. Reports are passed to `tell`."""
    machine = Machine(nest, dict(dims or {}), seed)
    machine.tell = tell or machine.tell
    return execute(machine, arrays)


def execute(machine: Machine, arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Gives a machine its arguments, runs its nest and takes the outputs."""
    nest = machine.nest
    outs = {}
    for b in nest.buffers:
        if b.scope not in ("in", "out"):
            continue
        given = arrays.get(b.name)
        if given is None and (b.scope == "in" or b.pointer):
            raise Invalid(f"nest {nest.name} reads {b.name}, which is not given")
        if b.pointer:
            region = machine.regions[b.name] = Region(b, given)
            machine.memory[b.name] = region.array
            if b.scope == "out":
                assert given is not None
                outs[b.name] = given[0] if isinstance(given, tuple) else given
            continue
        shape = machine.shape(b)
        if given is not None and b.packed_as is not None:
            given = b.packed_as.map.pack(given)  # laid out as the kernel takes it
        if given is not None and tuple(given.shape) != shape:
            raise Invalid(f"{b.name} has shape {shape}, not {tuple(given.shape)}")
        mem = machine.garbage(b) if given is None else np.array(as_dtype(given, b.dtype))
        machine.memory[b.name] = np.ascontiguousarray(mem).reshape(shape)
        if b.scope == "out":
            outs[b.name] = machine.memory[b.name]
    for b in nest.buffers:
        if b.scope == "memory":
            known = [x.array for x in machine.regions.values() if isinstance(x, Region)]
            machine.regions[b.name] = Everything(b.dtype, [*known, *arrays.get(b.name, ())])
            machine.memory[b.name] = np.zeros(0, b.dtype.numpy)
    with np.errstate(all="ignore"):
        machine.block(nest.body, {})
    return outs


Env = dict[str, Any]  # loop variables: numbers, or arrays over the points that run at once
Tell = Callable[[int, list[Any]], None]  # which report, and its values


class Machine:
    def __init__(self, nest: Nest, sizes: dict[str, int], seed: int) -> None:
        silent = transform(nest.body, lambda s: () if isinstance(s, Prefetch) else (s,))
        self.nest, self.sizes = untuple(replace(nest, body=silent)), sizes
        missing = [s.name for s in nest.dims if s.name not in sizes]
        if missing:
            raise Invalid(f"nest {nest.name} needs a value for {', '.join(missing)}")
        self.random = np.random.default_rng(seed)
        self.memory: dict[str, np.ndarray] = {}
        self.regions: dict[str, Region | Everything] = {}
        self.race: _Race | None = None
        # By the loop's identity: loops inside others come again and again.
        self.chains: dict[int, tuple[Loop, tuple[list[Loop], Store] | None]] = {}
        self.together: dict[int, tuple[Loop, Lockstep | None]] = {}
        self.points = 0  # that run together
        self.apart: set[str] = set()  # memory that each of them has for itself
        self.reports: list[tuple[int, list[Any]]] = []
        self.tell: Tell = lambda site, values: self.reports.append((site, values))

    def shape(self, b: Buffer) -> tuple[int, ...]:
        return tuple(int(D.evaluate(d, self.sizes)) for d in b.shape)

    def garbage(self, b: Buffer) -> np.ndarray:
        shape, d = self.shape(b), b.dtype
        if b.scope == "counter":
            return np.zeros(shape, d.numpy)
        shape = (self.points, *shape) if self.points else shape
        if d.is_float:
            return np.full(shape, np.nan, d.numpy)
        if d.is_bool:
            return self.random.integers(0, 2, shape).astype(np.bool_)
        info = np.iinfo(d.numpy)
        return self.random.integers(info.min, info.max, shape, dtype=d.numpy, endpoint=True)

    # ---- statements

    def block(self, body: tuple[Stmt, ...], env: Env) -> None:
        fresh: list[str] = []
        for s in body:
            if isinstance(s, Alloc):
                if s.buffer in self.memory:
                    raise RunError(f"{s.buffer} is allocated while it is live")
                self.memory[s.buffer] = self.garbage(self.nest.buffer(s.buffer))
                fresh.append(s.buffer)
                if self.points:
                    self.apart.add(s.buffer)
            elif isinstance(s, Store):
                self.store(s, env)
            elif isinstance(s, Loop):
                self.loop(s, env)
            elif isinstance(s, If):
                self.choose(s, env)
            elif isinstance(s, While):
                self.repeat(s, env)
            elif isinstance(s, Atomic):
                self.atomic(s, env)
            elif isinstance(s, Report):
                self.report(s, env)
            # The rest orders threads and copies: one thread has nothing to wait for.
        for name in fresh:
            self.counted(name)
            del self.memory[name]
            self.apart.discard(name)

    def counted(self, name: str) -> None:
        """Counters are zero again when all is done: the next call counts from there."""
        left = self.memory[name] if self.nest.buffer(name).scope == "counter" else np.zeros(0)
        if left.any():
            at = ",".join(map(str, np.argwhere(left)[0]))
            raise RunError(f"the counter {name}[{at}] is left at {left[left != 0][0]}, not at 0")

    def _points(self, env: Env) -> int:
        lengths = [len(x) for x in env.values() if isinstance(x, np.ndarray)]
        return max(lengths) if lengths else 1

    def _bit(self, where: str, condition: Value, env: Env) -> bool:
        found = np.unique(np.asarray(_Reader(self, where, env)(condition)))
        if found.size != 1:
            raise RunError(f"{where}: {condition!r} differs between lanes")
        return bool(found[0])

    def repeat(self, s: While, env: Env) -> None:
        turns = 0
        while self._bit(f"while {s.name}", s.condition, env):
            self.block(s.body, env)
            turns += 1
            if s.waits and turns > PATIENCE:
                raise RunError(
                    f"while {s.name} waits for another iteration of its parallel loop, and here "
                    "these run one after the other"
                )

    def choose(self, s: If, env: Env) -> None:
        """Lanes that take different branches run one body after the other."""
        bits = np.asarray(_Reader(self, "if", env)(s.condition))
        for body, taken in ((s.then, bits), (s.other, ~bits)):
            if not np.ndim(taken):
                part = env if taken else None
            else:
                part = {k: x[taken] if np.ndim(x) else x for k, x in env.items()}
                part = part if taken.any() else None
            if part is not None and body:
                self.block(body, part)

    def atomic(self, s: Atomic, env: Env) -> None:
        """One point after the other. Atomics of several threads on one cell do not race."""
        b, n = self.nest.buffer(s.buffer), self._points(env)
        ev = _Reader(self, s.stage, env)
        value = np.broadcast_to(as_dtype(ev(s.value), b.dtype), (n,))
        expected = None if s.compare is None else as_dtype(ev(s.compare), b.dtype)
        compare = None if expected is None else np.broadcast_to(expected, (n,))
        cells = self._cells(s.stage, s.buffer, s.index, ev, n)
        old = np.zeros(n, b.dtype.numpy)
        for k in range(n):
            old[k : k + 1] = self.get(s.buffer, cells[k : k + 1])
            new = _atomically(
                s.kind, b.dtype, old[k], value[k], None if compare is None else compare[k]
            )
            self.put(s.buffer, cells[k : k + 1], as_dtype(np.asarray([new]), b.dtype))
        if s.result is not None:
            name, index = s.result
            at = self._cells(s.stage, name, index, ev, n)
            if self.race is not None:
                self.race.write(name, lambda: f"the result of {s.stage}", at, env)
            self.put(name, at, old)

    def report(self, s: Report, env: Env) -> None:
        n = self._points(env)
        ev = _Reader(self, f"{s.kind} {s.site}", env)
        bits = True if s.condition is None else ~np.asarray(ev(s.condition))
        values = [np.broadcast_to(np.asarray(ev(v)), (n,)) for v in s.values]
        for k in np.flatnonzero(np.broadcast_to(bits, (n,))):
            self.tell(s.site, [x[k].item() for x in values])

    # ---- cells: places in the flat memory of a buffer

    def get(self, name: str, cells: np.ndarray) -> np.ndarray:
        region = self.regions.get(name)
        return self.memory[name].reshape(-1)[cells] if region is None else region.get(cells)

    def put(self, name: str, cells: np.ndarray, values: np.ndarray) -> None:
        region = self.regions.get(name)
        if region is None:
            self.memory[name].reshape(-1)[cells] = values
        else:
            region.put(cells, values)

    def _cells(self, stage: str, name: str, at: tuple[Dim, ...], ev: _Reader, n: int) -> np.ndarray:
        """Where n points write."""
        a = self.memory.get(name)
        if a is None:
            raise RunError(f"{stage}: {name} is written where it is not allocated")
        if self.nest.buffer(name).scope == "in":
            raise RunError(f"{stage}: the input {name} is written")
        index = [ev.dim(i) for i in at]
        own = int(name in self.apart)
        index = [np.arange(n)] * own + index
        region = self.regions.get(name)
        if region is not None:
            cells = region.find(np.broadcast_to(index[0], (n,)))
            if (cells < 0).any():
                what, where = _cell_text(name, at), _places(ev.points, cells < 0)
                raise RunError(f"{stage}: {what} writes outside what {name} points to{where}")
            return cells
        for k, (x, size) in enumerate(zip(index, a.shape, strict=True)):
            if type(x) is int and 0 <= x < size:
                continue
            x = index[k] = np.asarray(x)
            if beyond(x, size):
                bad = np.broadcast_to(outside(x, size), (n,))
                what, where = _cell_text(name, at), _places(ev.points, bad)
                raise RunError(f"{stage}: {what} writes outside axis {k - own} of {size}{where}")
        cells = flat_cells(index, a.shape)
        return cells if cells.shape == (n,) else np.full(n, cells)

    def loop(self, s: Loop, env: Env) -> None:
        if s.name in env:
            raise RunError(f"loop {s.name} is inside another loop of that name")
        if s.kind == "parallel":
            if env:
                raise RunError(f"parallel loop {s.name} is inside {next(iter(env))}")
            anywhere = {x for x, r in self.regions.items() if isinstance(r, Everything)}
            self.race = _Race(s.name, set(self.memory) - anywhere)
        if not self._at_once(s, env) and not self._in_step(s, env):
            self._one_by_one(s, env)
        if s.kind == "parallel" and self.race is not None:
            self.race.judge(self.memory)
            self.race = None

    def _one_by_one(self, s: Loop, env: Env) -> None:
        n = self._count(s, env)
        if s.kind == "lane":
            if any(isinstance(x, np.ndarray) for x in env.values()):
                raise RunError(f"lane loop {s.name} is inside another one")
            pragmas = dict(s.pragmas)
            lanes = pragmas.get(LANES, n)
            if n != lanes and not (RAGGED in pragmas and 1 <= n < lanes):
                raise RunError(f"lane loop {s.name} has {n} iterations, and says {lanes}")
            if n > 0:
                self.block(s.body, {**env, s.name: np.arange(n)})
            return
        order = self.random.permutation(n) if s.kind in ANY_ORDER else range(n)
        for k in order:
            self.block(s.body, {**env, s.name: int(k)})

    def _count(self, s: Loop, env: Env) -> int:
        n = np.asarray(_Reader(self, s.name, env).dim(s.extent))
        if n.size > 1 and (n != n.flat[0]).any():
            raise RunError(f"the extent of {s.name} differs between lanes")
        return max(0, int(n.flat[0]))

    def _at_once(self, s: Loop, env: Env) -> bool:
        """All points of a chain of loops around one store that does not read what it writes."""
        if any(isinstance(x, np.ndarray) for x in env.values()):
            return False
        if id(s) not in self.chains:
            self.chains[id(s)] = s, self._chain(s)
        found = self.chains[id(s)][1]
        if found is None:
            return False
        chain, x = found
        points = self._all_points(chain, env)
        if points is None:
            return False
        if len(points[s.name]):
            self.store(x, {**env, **points})
        return True

    def _chain(self, s: Loop) -> tuple[list[Loop], Store] | None:
        """Such loops, with the store."""
        chain: list[Loop] = []
        x: Stmt = s
        while isinstance(x, Loop):
            chain.append(x)
            if len(x.body) != 1 or (x is not s and x.kind == "parallel"):
                return None
            x = x.body[0]
        if not isinstance(x, Store) or any(self._meet(x.buffer, r) for r in store_loads(x)):
            return None
        if any(D.data_values(q.extent) or LANES in dict(q.pragmas) for q in chain):
            return None
        return chain, x

    def _in_step(self, s: Loop, env: Env) -> bool:
        """All iterations of loops that may run together, store by store."""
        if self.points or any(isinstance(x, np.ndarray) for x in env.values()):
            return False
        if id(s) not in self.together:
            self.together[id(s)] = s, lockstep(s)
        found = self.together[id(s)][1]
        if found is None or found.writes & self.regions.keys():
            return False
        points = self._all_points(found.together, env)
        if points is None:
            return False
        self.points = len(points[found.together[0].name])
        if self.points:
            self.block(found.body, {**env, **points})
        self.points = 0
        return True

    def _all_points(self, chain: Sequence[Loop], env: Env) -> Env | None:
        """The iterations of loops inside each other, in order; none where there are too many."""
        points: Env = {}
        total = 1
        names = [q.name for q in chain]
        for k, name in enumerate(names):
            if name in env or name in names[:k]:
                raise RunError(f"loop {name} is inside another loop of that name")
        extents = tuple(max(0, q.extent) for q in chain if isinstance(q.extent, int))
        if len(extents) == len(chain) and all(q.kind != "parallel" for q in chain):
            total = prod(extents)
            box = _box if total <= _SMALL else _box.__wrapped__
            return dict(zip(names, box(extents), strict=True)) if total <= BATCH_LIMIT else None
        for q in chain:
            raw = D.evaluate(q.extent, {**self.sizes, **env, **points})
            counts = np.broadcast_to(np.maximum(np.asarray(raw, np.int64), 0), (total,))
            total = int(counts.sum())
            if total > BATCH_LIMIT:
                return None
            ends = np.cumsum(counts)
            points = {name: np.repeat(v, counts) for name, v in points.items()}
            at = np.arange(total) - np.repeat(ends - counts, counts)
            points[q.name] = self.random.permutation(total) if q.kind == "parallel" else at
        return points

    def _meet(self, written: str, read: Load) -> bool:
        """May a store change what is read?"""
        a, b = self.regions.get(written), self.regions.get(str(read.source))
        return read.source == written or (a is not None and b is not None and a.overlaps(b))

    def store(self, s: Store, env: Env) -> None:
        n = self._points(env)
        ev = _Reader(self, s.stage, env)
        b = self.nest.buffer(s.buffer)
        v = as_dtype(ev(s.value), b.dtype)
        if v.shape != (n,):
            v = np.full(n, v)
        cells = self._cells(s.stage, s.buffer, s.index, ev, n)
        if self.race is not None:
            self.race.write(s.buffer, lambda: _cell_text(s.buffer, s.index), cells, env)
        flat = self.memory[s.buffer].reshape(-1)
        if s.function is None:
            self.put(s.buffer, cells, v)  # in order: the last one wins
        elif s.buffer in self.regions:
            f = _combine(s.function, b.dtype)
            for k in range(n):
                one = cells[k : k + 1]
                self.put(s.buffer, one, as_dtype(f(self.get(s.buffer, one), v[k]), b.dtype))
        elif b.dtype.memory != b.dtype.numpy:  # what numpy does not round to itself
            f = _combine(s.function, b.dtype)
            for c, x in zip(cells, v, strict=True):
                flat[c] = as_dtype(f(flat[c], x), b.dtype)
        else:
            _combine(s.function, b.dtype).at(flat, cells, v)


@lru_cache(256)
def _box(extents: tuple[int, ...]) -> list[np.ndarray]:
    """The points of a box in order, axis by axis: loops inside others come here again and again."""
    axes = [x.reshape(-1) for x in np.indices(extents)]
    for x in axes:
        x.flags.writeable = False
    return axes


def _cell_text(name: str, index: tuple[Dim, ...]) -> str:
    return f"{name}[{','.join(map(str, index))}]"


def _places(env: Env, bad: np.ndarray) -> str:
    """` at i=3, j=0`: the first iteration in which something went wrong."""
    at = np.flatnonzero(np.broadcast_to(bad, bad.shape or (1,)))[0]
    shown = [
        f"{k}={int(np.asarray(x).reshape(-1)[at if np.ndim(x) else 0])}" for k, x in env.items()
    ]
    return f" at {', '.join(shown)}" if shown else ""


def _combine(name: str, d: DType) -> np.ufunc:
    if d.is_bool:
        name = {"add": "or", "max": "or", "mul": "and", "min": "and"}.get(name, name)
    return COMBINE[name]


def _atomically(kind: str, d: DType, old: Any, value: Any, compare: Any) -> Any:
    """What an atomic leaves in its cell."""
    if kind == "cas":
        same = (
            to_memory(np.asarray(old), d).tobytes() == to_memory(np.asarray(compare), d).tobytes()
        )
        return value if same else old
    if kind == "xchg":
        return value
    if kind == "load":
        return old
    if d.is_float and kind in ("max", "min"):
        if d.format is None and d.bytes >= 4:
            return atomic_extreme(kind, np.asarray(old, d.numpy), value)
        kind = f"{kind}num"
    with np.errstate(all="ignore"):
        return _combine(kind, d)(old, value)


class _Reader(Evaluator):
    """Evaluates what a statement reads at the points of `env`; every load is checked and
    watched."""

    def __init__(self, machine: Machine, stage: str, env: Env) -> None:
        super().__init__(machine.memory, machine.sizes, env)
        self.machine, self.stage, self.points = machine, stage, env

    def function(self, v: Fn, args: Sequence[Any], dtype: DType) -> Any:
        if v.name == "cast":
            return super().function(v, args, dtype)
        return applied(v.name, args, dtype)  # `execute` has said that errors of floats are none

    def _behind(self, v: Load, region: Region | Everything) -> np.ndarray:
        """What a pointer points to."""
        cells = np.asarray(region.find(np.asarray(self.dim(v.index[0]))))
        bad = (cells < 0) & self.mask
        if np.any(bad):
            where = _places(self.points, np.asarray(bad))
            raise RunError(f"{self.stage}: {v!r} reads outside what {v.source} points to{where}")
        if self.machine.race is not None:
            self.machine.race.read(str(v.source), v, cells, self.points, self.mask)
        return region.get(cells)

    def _load(self, v: Load) -> np.ndarray:
        name = str(v.source)
        region = self.machine.regions.get(name)
        if region is not None:
            return self._behind(v, region)
        a = self.mem.get(name)
        if a is None:
            raise RunError(f"{self.stage}: {v!r} reads memory that is not allocated")
        index: list[Any] = [np.arange(a.shape[0])] if name in self.machine.apart else []
        shape = a.shape[len(index) :]
        if len(v.index) != len(shape):
            raise RunError(
                f"{self.stage}: {v!r} has {len(v.index)} indices, {name} has {len(shape)} axes"
            )
        for k, (i, n) in enumerate(zip(v.index, shape, strict=True)):
            x = self.dim(i)
            if type(x) is int and 0 <= x < n:
                index.append(x)
                continue
            x = np.asarray(x)
            if beyond(x, n):
                bad = outside(x, n) & self.mask
                if np.any(bad):
                    where = _places(self.points, np.asarray(bad))
                    raise RunError(f"{self.stage}: {v!r} reads outside axis {k} of {n}{where}")
                x = np.clip(x, 0, max(n - 1, 0))
            index.append(x)
        if a.size == 0:
            return np.zeros(np.broadcast_shapes(*map(np.shape, index)), a.dtype)
        race = self.machine.race
        watched = race is not None and name in race.shared
        many = len(index) > 1 and any(type(x) is not int and x.size >= MANY for x in index)
        if not watched and not many:
            return np.asarray(a[tuple(index)] if index else a)
        cells = flat_cells(index, a.shape)
        if race is not None and watched:
            race.read(name, v, cells, self.points, self.mask)
        return np.asarray(a.reshape(-1)[cells])


class _Race:
    """Which iterations of a parallel loop touch which cells of memory that outlives one."""

    def __init__(self, loop: str, shared: set[str]) -> None:
        self.loop, self.shared = loop, shared
        # The message is formatted only when it is raised: that takes longer than the rest.
        self.reads: dict[str, list[tuple[Load, np.ndarray]]] = {}
        self.writes: dict[str, list[tuple[Callable[[], str], np.ndarray]]] = {}

    def write(self, name: str, what: Callable[[], str], cells: np.ndarray, env: Env) -> None:
        if name in self.shared:
            self.writes.setdefault(name, []).append((what, self._pairs(cells, env, True)))

    def read(self, name: str, what: Load, cells: Any, env: Env, mask: Any) -> None:
        if name in self.shared:
            self.reads.setdefault(name, []).append((what, self._pairs(cells, env, mask)))

    def _pairs(self, cells: Any, env: Env, mask: Any) -> np.ndarray:
        if mask is True and not isinstance(env[self.loop], np.ndarray):
            out = np.empty((np.size(cells), 2), np.int64)
            out[:, 0], out[:, 1] = np.ravel(cells), env[self.loop]
            return out
        c, it, m = np.broadcast_arrays(cells, env[self.loop], mask)
        return np.stack([c[m], it[m]], axis=-1).reshape(-1, 2)

    def judge(self, memory: Mapping[str, np.ndarray]) -> None:
        for name, writes in self.writes.items():
            owner = np.full(memory[name].size, -1, np.int64)
            pairs = np.concatenate([p for _, p in writes])
            owner[pairs[:, 0]] = pairs[:, 1]
            if (owner[pairs[:, 0]] != pairs[:, 1]).any():
                raise RunError(
                    f"two iterations of parallel {self.loop} write one cell: {writes[0][0]()}"
                )
            for what, p in self.reads.get(name, []):
                if ((owner[p[:, 0]] >= 0) & (owner[p[:, 0]] != p[:, 1])).any():
                    who = f"an iteration of parallel {self.loop}"
                    raise RunError(f"{who} reads {what!r}, which another one writes")
