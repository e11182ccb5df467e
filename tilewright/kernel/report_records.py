"""Reports of a kernel on a GPU: records in memory, which the host reads after the launch."""

from __future__ import annotations

from tilewright.ir.expr import Value, cast, const, fn, load
from tilewright.ir.types import f64, i64
from tilewright.kernel.group import Buffer, pointer_buffer
from tilewright.kernel.nest import Alloc, Atomic, If, Report, Stmt, Store

REPORTS = "reports"  # memory for the reports of kernels: words used so far, then records
REPORT_WORDS = 1 << 16


def record_of(s: Report, buffers: dict[str, Buffer], number: int) -> Stmt:
    """A record: how many words, which report, its values. Adds the buffers that it takes."""
    buffers.setdefault(REPORTS, pointer_buffer(REPORTS, i64, "out"))
    slot, stage = f"slot{number}", f"told{number}"
    buffers[slot] = Buffer(slot, i64, (), "local")
    words = [const(s.site, i64), const(len(s.values), i64), *map(_word, s.values)]
    count = const(len(words), i64)
    take = Atomic(stage, "add", REPORTS, (0,), count, None, (slot, ()), "relaxed")
    first = load(slot, (), i64)
    places = [first.as_dim() + (k + 1) for k in range(len(words))]
    stores = tuple(Store(stage, REPORTS, (at,), w) for at, w in zip(places, words, strict=True))
    room = fn("lt", first, const(REPORT_WORDS - len(words) - 1, i64))
    told: tuple[Stmt, ...] = (Alloc(slot), take, If(room, stores))
    return If(fn("not", s.condition) if s.condition is not None else _TRUE, told)


_TRUE = fn("eq", const(0, i64), const(0, i64))


def _word(v: Value) -> Value:
    """A value in eight bytes: an integer, or the bits of a double."""
    if not v.dtype.is_float:
        return cast(v, i64)
    return cast(fn("bits_of_f64", cast(v, f64)), i64)
