"""Target zero for nests: runs the loops on numpy and trusts nobody.

Serial loops run in order, parallel ones in shuffled order with every cell watched for races, lanes
as vectors (all values are computed before any is stored, so an unsound Vectorize shows). Fresh
memory holds garbage. An access outside its buffer is an error that names it; under a `select` only
the points that are taken count.

A chain of loops around one store that does not read its own target is evaluated on all its points
at once, in order: the same result, a hundred times faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.ir import dim as D
from tilewright.ir.expr import Load
from tilewright.ir.interpret import Evaluator
from tilewright.ir.types import DType, as_dtype
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.nest import (
    Alloc,
    Loop,
    Nest,
    Prefetch,
    Stmt,
    Store,
    start,
    store_loads,
    transform,
)
from tilewright.kernel.untuple import untuple

# Chains of more points than this are walked one iteration of their outermost loop at a time.
BATCH_LIMIT = 1 << 18


class RunError(TilewrightError):
    """What no nest may do: an access outside its buffer, memory not allocated, a race."""


def run_group(
    group: Group, arrays: Mapping[str, np.ndarray], dims: Mapping[str, int] | None = None
) -> dict[str, np.ndarray]:
    """The outputs of a group, from its naive nest."""
    return run(start(group), arrays, dims)


def run(
    nest: Nest,
    arrays: Mapping[str, np.ndarray],
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The outputs by name. An output among `arrays` starts with those contents (in place)."""
    return execute(Machine(nest, dict(dims or {}), seed), arrays)


def execute(machine: Machine, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gives a machine its arguments, runs its nest and takes the outputs."""
    nest = machine.nest
    outs = {}
    for b in nest.buffers:
        if b.scope not in ("in", "out"):
            continue
        given = arrays.get(b.name)
        if given is None and b.scope == "in":
            raise Invalid(f"nest {nest.name} reads {b.name}, which is not given")
        shape = machine.shape(b)
        if given is not None and b.asked is not None:
            given = b.asked.map.pack(given)  # the caller does as asked
        if given is not None and tuple(given.shape) != shape:
            raise Invalid(f"{b.name} has shape {shape}, not {tuple(given.shape)}")
        mem = machine.garbage(b) if given is None else np.array(as_dtype(given, b.dtype))
        machine.memory[b.name] = np.ascontiguousarray(mem).reshape(shape)
        if b.scope == "out":
            outs[b.name] = machine.memory[b.name]
    machine.block(nest.body, {})
    return outs


Env = dict[str, Any]  # loop variables: numbers, or arrays over the points that run at once


class Machine:
    def __init__(self, nest: Nest, sizes: dict[str, int], seed: int) -> None:
        silent = transform(nest.body, lambda s: () if isinstance(s, Prefetch) else (s,))
        self.nest, self.sizes = untuple(replace(nest, body=silent)), sizes
        missing = [s.name for s in nest.dims if s.name not in sizes]
        if missing:
            raise Invalid(f"nest {nest.name} needs a value for {', '.join(missing)}")
        self.random = np.random.default_rng(seed)
        self.memory: dict[str, np.ndarray] = {}
        self.race: _Race | None = None

    def shape(self, b: Buffer) -> tuple[int, ...]:
        return tuple(int(D.evaluate(d, self.sizes)) for d in b.shape)

    def garbage(self, b: Buffer) -> np.ndarray:
        shape, d = self.shape(b), b.dtype
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
            elif isinstance(s, Store):
                self.store(s, env)
            elif isinstance(s, Loop):
                self.loop(s, env)
            # The rest orders threads and copies: one thread has nobody and nothing to wait for.
        for name in fresh:
            del self.memory[name]

    def loop(self, s: Loop, env: Env) -> None:
        if s.name in env:
            raise RunError(f"loop {s.name} is inside another loop of that name")
        if s.kind == "parallel":
            if env:
                raise RunError(f"parallel loop {s.name} is inside {next(iter(env))}")
            self.race = _Race(s.name, set(self.memory))
        if not self._at_once(s, env):
            self._one_by_one(s, env)
        if s.kind == "parallel" and self.race is not None:
            self.race.judge(self.memory)
            self.race = None

    def _one_by_one(self, s: Loop, env: Env) -> None:
        n = self._count(s, env)
        if s.kind == "lane":
            if any(np.ndim(x) for x in env.values()):
                raise RunError(f"lane loop {s.name} is inside another one")
            if n > 0:
                self.block(s.body, {**env, s.name: np.arange(n)})
            return
        order = self.random.permutation(n) if s.kind == "parallel" else range(n)
        for k in order:
            self.block(s.body, {**env, s.name: int(k)})

    def _count(self, s: Loop, env: Env) -> int:
        n = np.asarray(D.evaluate(s.extent, {**self.sizes, **env}))
        if n.size > 1 and (n != n.flat[0]).any():
            raise RunError(f"the extent of {s.name} differs between lanes")
        return max(0, int(n.flat[0]))

    def _at_once(self, s: Loop, env: Env) -> bool:
        """All points of a chain of loops around one store that does not read what it writes."""
        if any(np.ndim(x) for x in env.values()):
            return False
        chain: list[Loop] = []
        x: Stmt = s
        while isinstance(x, Loop):
            chain.append(x)
            if len(x.body) != 1 or (x is not s and x.kind == "parallel"):
                return False
            x = x.body[0]
        if not isinstance(x, Store) or any(r.source == x.buffer for r in store_loads(x)):
            return False
        points: Env = {}
        total = 1
        for q in chain:
            if q.name in env or q.name in points:
                raise RunError(f"loop {q.name} is inside another loop of that name")
            raw = D.evaluate(q.extent, {**self.sizes, **env, **points})
            counts = np.broadcast_to(np.maximum(np.asarray(raw, np.int64), 0), (total,))
            total = int(counts.sum())
            if total > BATCH_LIMIT:
                return False
            ends = np.cumsum(counts)
            points = {name: np.repeat(v, counts) for name, v in points.items()}
            at = np.arange(total) - np.repeat(ends - counts, counts)
            points[q.name] = self.random.permutation(total) if q.kind == "parallel" else at
        if total:
            self.store(x, {**env, **points})
        return True

    def store(self, s: Store, env: Env) -> None:
        n = max((len(x) for x in env.values() if np.ndim(x)), default=1)
        ev = _Reader(self, s, env)
        b = self.nest.buffer(s.buffer)
        a = self.memory.get(s.buffer)
        if a is None:
            raise RunError(f"{s.stage}: {s.buffer} is written where it is not allocated")
        if b.scope == "in":
            raise RunError(f"{s.stage}: the input {s.buffer} is written")
        v = as_dtype(np.broadcast_to(ev(s.value), (n,)), b.dtype)
        index = [np.broadcast_to(ev.dim(i), (n,)) for i in s.index]
        what = f"{s.buffer}[{','.join(map(str, s.index))}]"
        for k, (x, size) in enumerate(zip(index, a.shape, strict=True)):
            bad = (x < 0) | (x >= size)
            if bad.any():
                raise RunError(
                    f"{s.stage}: {what} writes outside axis {k} of {size}{_places(env, bad)}"
                )
        cells = np.ravel_multi_index(tuple(index), a.shape) if index else np.zeros(n, np.int64)
        if self.race is not None:
            self.race.write(s.buffer, what, cells, env)
        flat = a.reshape(-1)
        if s.function is None:
            flat[cells] = v  # in order: the last one wins
        elif b.dtype.memory != b.dtype.numpy:  # what numpy does not round to itself
            f = _combine(s.function, b.dtype)
            for c, x in zip(cells, v, strict=True):
                flat[c] = as_dtype(f(flat[c], x), b.dtype)
        else:
            with np.errstate(all="ignore"):
                _combine(s.function, b.dtype).at(flat, cells, v)


def _places(env: Env, bad: np.ndarray) -> str:
    """` at i=3, j=0`: the first iteration in which something went wrong."""
    at = np.flatnonzero(np.broadcast_to(bad, bad.shape or (1,)))[0]
    shown = [
        f"{k}={int(np.asarray(x).reshape(-1)[at if np.ndim(x) else 0])}" for k, x in env.items()
    ]
    return f" at {', '.join(shown)}" if shown else ""


_UFUNCS = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "maxnum": np.fmax,
    "minnum": np.fmin,
}


def _combine(name: str, d: DType) -> np.ufunc:
    if d.is_bool:
        name = {"add": "or", "max": "or", "mul": "and", "min": "and"}.get(name, name)
    return _UFUNCS[name]


class _Reader(Evaluator):
    """Evaluates what a store reads at the points of `env`; every load is checked and watched."""

    def __init__(self, machine: Machine, store: Store, env: Env) -> None:
        super().__init__(machine.memory, machine.sizes, env)
        self.machine, self.store, self.points = machine, store, env

    def _load(self, v: Load) -> np.ndarray:
        name = str(v.source)
        a = self.mem.get(name)
        if a is None:
            raise RunError(f"{self.store.stage}: {v!r} reads memory that is not allocated")
        if len(v.index) != a.ndim:
            raise RunError(
                f"{self.store.stage}: {v!r} has {len(v.index)} indices, {name} has {a.ndim} axes"
            )
        index = []
        for k, (i, n) in enumerate(zip(v.index, a.shape, strict=True)):
            x = np.asarray(self.dim(i))
            bad = ((x < 0) | (x >= n)) & self.mask
            if np.any(bad):
                where = _places(self.points, np.asarray(bad))
                raise RunError(f"{self.store.stage}: {v!r} reads outside axis {k} of {n}{where}")
            index.append(np.clip(x, 0, max(n - 1, 0)))
        if a.size == 0:
            return np.zeros(np.broadcast_shapes(*(i.shape for i in index)), a.dtype)
        race = self.machine.race
        if race is not None:
            cells = (
                np.ravel_multi_index(tuple(np.broadcast_arrays(*index)), a.shape)
                if index
                else np.int64(0)
            )
            race.read(name, repr(v), cells, self.points, self.mask)
        return np.asarray(a[tuple(index)] if index else a)


class _Race:
    """Which iterations of a parallel loop touch which cells of memory that outlives one."""

    def __init__(self, loop: str, shared: set[str]) -> None:
        self.loop, self.shared = loop, shared
        self.reads: dict[str, list[tuple[str, np.ndarray]]] = {}
        self.writes: dict[str, list[tuple[str, np.ndarray]]] = {}

    def write(self, name: str, what: str, cells: np.ndarray, env: Env) -> None:
        if name in self.shared:
            self.writes.setdefault(name, []).append((what, self._pairs(cells, env, True)))

    def read(self, name: str, what: str, cells: Any, env: Env, mask: Any) -> None:
        if name in self.shared:
            self.reads.setdefault(name, []).append((what, self._pairs(cells, env, mask)))

    def _pairs(self, cells: Any, env: Env, mask: Any) -> np.ndarray:
        c, it, m = np.broadcast_arrays(cells, env[self.loop], mask)
        return np.stack([c[m], it[m]], axis=-1).reshape(-1, 2)

    def judge(self, memory: Mapping[str, np.ndarray]) -> None:
        for name, writes in self.writes.items():
            owner = np.full(memory[name].size, -1, np.int64)
            pairs = np.unique(np.concatenate([p for _, p in writes]), axis=0)
            twice = pairs[1:, 0] == pairs[:-1, 0]
            if twice.any():
                raise RunError(
                    f"two iterations of parallel {self.loop} write one cell: {writes[0][0]}"
                )
            owner[pairs[:, 0]] = pairs[:, 1]
            for what, p in self.reads.get(name, []):
                if ((owner[p[:, 0]] >= 0) & (owner[p[:, 0]] != p[:, 1])).any():
                    who = f"an iteration of parallel {self.loop}"
                    raise RunError(f"{who} reads {what}, which another one writes")
