"""Whole programs in the cache: what was compiled once is loaded, and nothing else happens.

A record has what running needs (objects, sizes, constants, how values are derived from weights) and
what was told while it was made. It is found by the graph's text with the user's lines, the options
and the target. Weights are inputs of a graph, so what they hold is no part of it. Kernels have
entries of their own (compile.py), for programs that differ elsewhere; programs over symbolic sizes
are put together from those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tilewright.base import knobs
from tilewright.base.events import Event, Log
from tilewright.driver.program.options import Options, default_passes
from tilewright.ir.node import Graph, Literal
from tilewright.ir.target import Target
from tilewright.ir.text import print_graph
from tilewright.ir.types import DTYPES, TensorType
from tilewright.llvm.objects import LLVM_VERSION
from tilewright.runtime import pool
from tilewright.runtime.library import Library
from tilewright.runtime.program import KernelInfo, Program
from tilewright.runtime.shared import Recipe

# RecordingLog anew by whoever looks into the cache, or only of kernels that were scheduled.
_NOT_KEPT = ("cache", "compile", "schedule")


class RecordingLog(Log):
    """Passes events on, and remembers them."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, event: Event) -> Event:
        self.hear(event)
        return self._log.emit(event)


class Details(dict[str, Any]):
    """What is known of a program; what only explanations need is found when it is asked for."""

    def __init__(self, known: Mapping[str, Any], find: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__(known)
        self._find = find

    def __missing__(self, name: str) -> Any:
        found = self._find()
        if name not in found:
            raise KeyError(name)
        self.update(found)
        return found[name]


@dataclass(frozen=True)
class Part:
    """A program, its kernels' objects and that of its entry, which comes last."""

    program: Program
    images: Sequence[bytes]


def key_of(graph: Graph, options: Options, target: Target) -> str | None:
    """What a program is found by; None where making it is itself what is wanted."""
    looks = options.dump or options.resume or knobs.dump.get() or knobs.resume.get()
    if looks or knobs.check.get() or options.profile or options.schedules:
        return None
    if not isinstance(options.choose, str):
        return None
    by_passes = "default" if options.passes is None else _passes_key(options.passes)
    if by_passes is None:
        return None
    apart = ("target", "passes", "dump", "resume", "schedules", "tune_seconds")
    asked = [f"{f.name}={getattr(options, f.name)}" for f in fields(options) if f.name not in apart]
    by = f"{knobs.choose.get()} for {pool.get_threads()} threads"
    head = f"llvm {LLVM_VERSION}\n{target.key()}\n{', '.join(asked)}\n{by_passes}\n{by}"
    return f"{head}\n{print_graph(graph)}"


def _passes_key(given: Any) -> str | None:
    """Of a given list; None where the code of a user's own pass may change without notice."""
    return default_passes().pipeline_of(given).key()


def record(main: Part, prologue: Part | None, told: Log) -> bytes | None:
    """The record of a program; None where sizes are symbolic."""
    parts = [main] if prologue is None else [main, prologue]
    if not all(_is_static(p.program) for p in parts):
        return None
    p = main.program
    events = [
        (e.kind, e.message, e.where, dict(e.data), e.detail)
        for e in told
        if e.kind not in _NOT_KEPT
    ]
    head = {
        "parts": [_part_head(x) for x in parts],
        "weights": p.weights,
        "kept": p.kept,
        "recipes": [(r.text, r.weights) for r in p.recipes],
        "events": events,
    }
    blobs: list[bytes] = []
    for x in parts:
        blobs += [c.array.tobytes() for c in x.program.constants]
        blobs += x.images
    return json.dumps(head, default=str).encode() + b"\n" + b"".join(blobs)


def restored(kept: bytes, log: Log, details: Sequence[Callable[[], Mapping[str, Any]]]) -> Program:
    """The program of a record. `details` find what explanations of it, then of its prologue,
    need."""
    line, _, rest = kept.partition(b"\n")
    head = json.loads(line)
    blobs = _Blobs(rest)
    programs = [_part(h, blobs, find) for h, find in zip(head["parts"], details, strict=False)]
    main = programs[0]
    for kind, message, where, data, detail in head["events"]:
        log.add(kind, message, where=where, detail=detail, **data)
    main.weights, main.kept = tuple(head["weights"]), tuple(head["kept"])
    main.recipes = tuple(Recipe(text, tuple(w)) for text, w in head["recipes"])
    main.prologue = programs[1] if len(programs) > 1 else None
    return main


def _is_static(p: Program) -> bool:
    sizes = [d for t in (*p.inputs, *p.outputs) for d in t.shape]
    return not p.dims and all(isinstance(d, int) for d in (p.arena, *sizes))


def _part_head(x: Part) -> dict[str, Any]:
    p = x.program
    return {
        "entry": p.entry,
        "arena": p.arena,
        "inputs": [(t.dtype.name, t.shape) for t in p.inputs],
        "outputs": [(t.dtype.name, t.shape) for t in p.outputs],
        "constants": [(c.dtype.name, c.array.shape, c.array.nbytes) for c in p.constants],
        "kernels": [(k.name, k.symbol, k.group, k.trace, k.calls, k.places) for k in p.kernels],
        "considered": p.details["considered"],
        "images": [len(image) for image in x.images],
    }


class _Blobs:
    """Bytes, taken from the front."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]


def _part(h: Mapping[str, Any], blobs: _Blobs, find: Callable[[], Mapping[str, Any]]) -> Program:
    constants = tuple(
        Literal(np.frombuffer(blobs.take(size), DTYPES[dtype].numpy).reshape(shape), DTYPES[dtype])
        for dtype, shape, size in h["constants"]
    )
    library = Library([blobs.take(size) for size in h["images"]], {"tw_parallel": pool.address()})
    kernels = tuple(
        KernelInfo(name, symbol, group, trace, calls, True, 0.0, tuple(places))
        for name, symbol, group, trace, calls, places in h["kernels"]
    )
    known = {"considered": h["considered"], "marks": None}
    return Program(
        _types(h["inputs"]),
        _types(h["outputs"]),
        (),
        library,
        h["entry"],
        h["arena"],
        constants,
        kernels,
        details=Details(known, find),
    )


def _types(kept: Sequence[tuple[str, Sequence[int]]]) -> tuple[TensorType, ...]:
    return tuple(TensorType(DTYPES[dtype], tuple(shape)) for dtype, shape in kept)
