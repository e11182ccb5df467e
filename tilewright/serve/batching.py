"""Requests wait in a queue that is bounded and run on worker threads, several at once where they
can be put together along a dim.

A batch is taken when a worker is free and the oldest request has waited long enough, or as many
rows wait as a batch may have. While all workers are busy requests gather by themselves.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.ir.types import DTYPES

from .metrics import Metrics
from .tensors import Arrays


class Tensor(Protocol):
    """What a package says of an input or output; a dim is a size, a symbol or an expression."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Sequence[int | str]: ...


class Package(Protocol):
    """What is served: `tilewright_runtime.Package`, or anything like it. `dims_of` checks inputs
    and says what the symbols are; it raises ValueError, as `run` does."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> Sequence[Tensor]: ...
    @property
    def outputs(self) -> Sequence[Tensor]: ...
    @property
    def dims(self) -> Mapping[str, tuple[int, int | None]]: ...
    def dims_of(self, inputs: Mapping[str, Any], /) -> Mapping[str, int]: ...
    def run(self, names: Sequence[str] | None, inputs: Mapping[str, Any], /) -> Sequence[Any]: ...


class Full(Exception):
    """The queue has as many requests as it may."""


@dataclass(frozen=True)
class Rows:
    """The dim that requests are put together along: its symbol, and the axis of every input and
    output that has this size."""

    symbol: str
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    most: int | None  # rows that the package takes at once; None: any number


def rows_of(package: Package, symbol: str) -> Rows:
    """Refuses a symbol that is not the size of one axis of everything."""
    if symbol not in package.dims:
        known = ", ".join(package.dims) or "none"
        raise Invalid(f"{package.name} has no dim {symbol!r}", hint=f"its dims are: {known}")
    axes: list[dict[str, int]] = [{}, {}]
    for tensors, found in zip((package.inputs, package.outputs), axes, strict=True):
        for t in tensors:
            places = [k for k, n in enumerate(t.shape) if n == symbol]
            uses = sum(symbol in re.findall(r"\w+", str(n)) for n in t.shape)
            if len(places) != 1 or uses != 1:
                raise Invalid(
                    f"requests cannot be put together along {symbol}: {t.name} does not have it as "
                    f"the size of exactly one axis",
                    hint="serve without --batch-dim",
                )
            found[t.name] = places[0]
    return Rows(symbol, axes[0], axes[1], package.dims[symbol][1])


def usual_rows(package: Package) -> Rows | None:
    """The symbol that is the first dim of every input and output, if there is one."""
    firsts = {t.shape[0] if t.shape else None for t in (*package.inputs, *package.outputs)}
    symbol = next(iter(firsts)) if len(firsts) == 1 else None
    if not isinstance(symbol, str) or symbol not in package.dims:
        return None
    try:
        return rows_of(package, symbol)
    except Invalid:
        return None


_AGREES = 1e-3  # of the largest value: other sizes may be summed in another order


def rows_are_apart(package: Package, rows: Rows) -> bool | None:
    """Whether random requests give together what they give alone; None where the package refuses
    random inputs. A dim such as the length of a text mixes its rows."""
    low = package.dims[rows.symbol][0]
    each = max(1, low)
    random = np.random.default_rng(0)
    if rows.most is not None and 2 * each > rows.most:
        return None
    try:
        parts = [_random_inputs(package, rows, each, random) for _ in range(2)]
        alone = [package.run(None, x) for x in parts]
        together = package.run(None, _joined(parts, rows))
    except (ValueError, KeyError):  # a check of data; a size that is an expression
        return None
    for k, t in enumerate(package.outputs):
        axis = rows.outputs[t.name]
        want = _numbers(np.concatenate([a[k] for a in alone], axis), t.dtype)
        got = _numbers(np.asarray(together[k]), t.dtype)
        largest = float(np.abs(want).max(initial=0.0))
        if got.shape != want.shape or not np.allclose(
            got, want, rtol=0.0, atol=_AGREES * largest, equal_nan=True
        ):
            return False
    return True


def _numbers(x: np.ndarray, dtype: str) -> np.ndarray:
    known = DTYPES[dtype]
    if known.format is not None and x.dtype != known.numpy:
        x = known.format.decode(x)
    return x.astype(np.float64)


def _random_inputs(package: Package, rows: Rows, count: int, random: np.random.Generator) -> Arrays:
    """Of the smallest sizes beyond 1; whole numbers are 0 or 1, which most tables have."""
    values = {s: max(low, min(4, high or 4)) for s, (low, high) in package.dims.items()}
    values[rows.symbol] = count
    made: Arrays = {}
    for t in package.inputs:
        shape = [values[n] if isinstance(n, str) else n for n in t.shape]
        dtype = DTYPES[t.dtype]
        if not dtype.is_float:
            made[t.name] = random.integers(0, 2, shape).astype(dtype.memory)
            continue
        x = random.standard_normal(shape).astype(dtype.numpy)
        plain = dtype.format is None or dtype.numpy == dtype.memory
        made[t.name] = x if plain or dtype.format is None else dtype.format.encode(x)
    return made


def _joined(parts: Sequence[Arrays], rows: Rows) -> Arrays:
    if len(parts) == 1:
        return dict(parts[0])
    return {n: np.concatenate([p[n] for p in parts], axis) for n, axis in rows.inputs.items()}


@dataclass(eq=False)
class Job:
    """A request that waits. `encode` makes a response's bytes of its results, on a worker;
    `answer` takes them, or the error, on the event loop's thread."""

    inputs: Arrays
    encode: Callable[[Mapping[str, np.ndarray]], bytes]
    answer: Callable[[bytes | Exception], None]
    key: tuple[int, ...] = ()
    rows: int = 1
    arrived: float = 0.0
    dropped: bool = False  # nobody waits for the answer


@dataclass
class Batcher:
    package: Package
    rows: Rows | None
    max_batch: int
    max_wait: float  # seconds
    max_queue: int
    workers: int
    metrics: Metrics
    waiting: int = 0
    running: int = 0
    _groups: dict[tuple[int, ...], deque[Job]] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._names = [t.name for t in self.package.outputs]
        self._threads = ThreadPoolExecutor(self.workers, "tilewright-run")
        if self.rows is not None and self.rows.most is not None:
            self.max_batch = min(self.max_batch, self.rows.most)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, job: Job) -> None:
        """Puts a request into the queue. Raises ValueError for inputs that the package refuses,
        and Full."""
        if self.waiting >= self.max_queue:
            raise Full
        dims = self.package.dims_of(job.inputs)
        if self.rows is not None:
            job.rows = dims[self.rows.symbol]
            job.key = tuple(n for s, n in dims.items() if s != self.rows.symbol)
        job.arrived = time.monotonic()
        self._groups.setdefault(job.key, deque()).append(job)
        self.waiting += 1
        self._start()

    def drop(self, job: Job) -> None:
        """Forgets a request whose client has gone; one that runs already runs on."""
        job.dropped = True
        group = self._groups.get(job.key)
        if group is not None and job in group:
            group.remove(job)
            self.waiting -= 1
            if not group:
                del self._groups[job.key]

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._threads.shutdown()

    def _start(self) -> None:
        """Gives batches to workers that are free."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self.running < self.workers and self._groups:
            now = time.monotonic()
            ready = [g for g in self._groups.values() if self._is_ready(g, now)]
            if not ready:
                first = min(g[0].arrived for g in self._groups.values())
                delay = first + self.max_wait - now
                self._timer = self._loop.call_later(max(delay, 0.0), self._start)
                return
            batch = self._take(min(ready, key=lambda g: g[0].arrived))
            self.running += 1
            self._threads.submit(self._work, batch)

    def _is_ready(self, group: deque[Job], now: float) -> bool:
        if self.rows is None or now - group[0].arrived >= self.max_wait:
            return True
        rows = 0
        for job in group:
            rows += job.rows
            if rows >= self.max_batch:
                return True
        return False

    def _take(self, group: deque[Job]) -> list[Job]:
        """The oldest requests of a group that fit into one batch, one at the least."""
        batch = [group.popleft()]
        rows = batch[0].rows
        while self.rows is not None and group and rows + group[0].rows <= self.max_batch:
            rows += group[0].rows
            batch.append(group.popleft())
        if not group:
            del self._groups[batch[0].key]
        self.waiting -= len(batch)
        self.metrics.batch(len(batch), rows, [j.arrived for j in batch])
        return batch

    def _work(self, batch: list[Job]) -> None:
        """On a worker's thread."""
        begun = time.monotonic()
        answers = self._answers(batch)
        seconds = time.monotonic() - begun
        self._loop.call_soon_threadsafe(self._finished, batch, answers, seconds)

    def _answers(self, batch: list[Job]) -> list[bytes | Exception]:
        try:
            parts = self._results(batch)
        except Exception as problem:
            if len(batch) == 1:
                return [problem]
            # One of them is at fault, and the others shall not suffer.
            return [self._answers([job])[0] for job in batch]
        return [_encoded(job, part) for job, part in zip(batch, parts, strict=True)]

    def _results(self, batch: list[Job]) -> list[dict[str, np.ndarray]]:
        """What each request of a batch gets."""
        if self.rows is None or len(batch) == 1:
            outputs = self.package.run(None, batch[0].inputs)
            return [dict(zip(self._names, map(np.asarray, outputs), strict=True))]
        outputs = self.package.run(None, _joined([job.inputs for job in batch], self.rows))
        parts: list[dict[str, np.ndarray]] = [{} for _ in batch]
        ends = np.cumsum([job.rows for job in batch])[:-1]
        for name, x in zip(self._names, outputs, strict=True):
            pieces = np.split(np.asarray(x), ends, self.rows.outputs[name])
            for part, piece in zip(parts, pieces, strict=True):
                part[name] = piece
        return parts

    def _finished(self, batch: list[Job], answers: list[bytes | Exception], seconds: float) -> None:
        self.running -= 1
        self.metrics.run_seconds.add(seconds)
        self._start()
        for job, answer in zip(batch, answers, strict=True):
            if not job.dropped:
                job.answer(answer)


def _encoded(job: Job, results: Mapping[str, np.ndarray]) -> bytes | Exception:
    if job.dropped:
        return b""
    try:
        return job.encode(results)
    except Exception as problem:
        return problem
