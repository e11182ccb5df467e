"""Whole programs in the cache: what was compiled once is loaded, and nothing else happens.

A record has what running needs (objects, sizes, constants, how values are derived from weights) and
the events of its compilation. Its key is the graph's text with the user's lines, the options and
the target. Weights are inputs of a graph, so their content is not part of it. Kernels have
entries of their own (compile.py), for programs that differ elsewhere.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from typing import Any

from tilewright.base import knobs
from tilewright.base.events import Event, Log
from tilewright.driver.program.options import Options, default_passes
from tilewright.ir.node import Graph
from tilewright.ir.target import Target
from tilewright.ir.text import print_graph
from tilewright.llvm.objects import LLVM_VERSION
from tilewright.runtime import pool
from tilewright.runtime.container import packed, unpacked
from tilewright.runtime.program_data import ProgramData
from tilewright.runtime.records import read_record, write_record

# Emitted again at every lookup, or only about kernels that were scheduled.
_NOT_KEPT = ("cache", "compile", "schedule")


class RecordingLog(Log):
    """Passes events on, and records them."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, event: Event) -> Event:
        self.hear(event)
        return self._log.emit(event)


def key_of(graph: Graph, options: Options, target: Target) -> str | None:
    """The key of a program; None where compiling it is itself the purpose."""
    looks = options.dump or options.resume or knobs.dump.get() or knobs.resume.get()
    if looks or knobs.check.get() or options.profile or options.schedules:
        return None
    if not isinstance(options.choose, str):
        return None
    by_passes = "default" if options.passes is None else _passes_key(options.passes)
    if by_passes is None:
        return None
    apart = ("target", "passes", "dump", "resume", "schedules", "tune_seconds", "validate")
    values = [
        f"{f.name}={getattr(options, f.name)}" for f in fields(options) if f.name not in apart
    ]
    by = f"{knobs.choose.get()} for {pool.get_threads()} threads, {knobs.overlap.get()}"
    by += f", {knobs.records_stamp()}"  # reading them would take longer than loading a program
    head = f"llvm {LLVM_VERSION}\n{target.key()}\n{', '.join(values)}\n{by_passes}\n{by}"
    return f"{head}\n{print_graph(graph)}"


def _passes_key(given: Any) -> str | None:
    """Of a given list; None where the code of a user's own pass may change without notice."""
    return default_passes().pipeline_of(given).key()


@dataclass(frozen=True)
class _Entry:
    """An entry of the cache: a program, and the events of its compilation."""

    program: ProgramData
    events: Any  # kind, message, where, data, detail: there are many, so they are plain lists


def record(program: ProgramData, log: Log) -> bytes:
    """The cache's entry of a program."""
    events = [
        [e.kind, e.message, e.where, json.loads(json.dumps(dict(e.data), default=str)), e.detail]
        for e in log
        if e.kind not in _NOT_KEPT
    ]
    made = write_record(_Entry, _Entry(program, events))
    return b"".join(packed(made.head, made.blobs))


def restored(hit: bytes, log: Log) -> ProgramData:
    """The program of an entry; the events of its compilation are emitted again."""
    found = read_record(_Entry, *unpacked(hit))
    for kind, message, where, data, detail in found.events:
        log.add(kind, message, where=where, detail=detail, **data)
    kernels = tuple(replace(k, cached=True, seconds=0.0) for k in found.program.kernels)
    before = found.program.prologue
    if before is not None:
        once = tuple(replace(k, cached=True, seconds=0.0) for k in before.kernels)
        before = replace(before, kernels=once)
    return replace(found.program, kernels=kernels, prologue=before)
