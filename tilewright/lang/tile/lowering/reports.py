"""What running kernels report: printed values, assertions that do not hold, endless waits."""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from tilewright.base.errors import Invalid, TilewrightError
from tilewright.ir.types import DType
from tilewright.lang.tile.ir import Place
from tilewright.lang.tile.lowering.state import Site


class DeviceAssertion(TilewrightError):
    """A device_assert of a kernel did not hold."""


@dataclass
class Reports:
    kernel: str
    sites: Sequence[Site]
    broken: list[tuple[Site, tuple[int, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = Lock()

    def take(self, number: int, count: int, values: Any) -> None:
        """Called by the running kernel, from any of its threads."""
        site = self.sites[number]
        numbers = [values[k] for k in range(count)]
        with self._lock:
            if site.kind != "print":
                self.broken.append((site, tuple(numbers[:3])))
            else:
                print(_line(site, numbers), file=sys.stdout, flush=True)

    def finish(self) -> None:
        """After a launch: an error for the first assertion that did not hold. Launches from several
        threads share what was reported: the first that ends raises it."""
        with self._lock:
            broken = self.broken[:]
            self.broken.clear()
        if not broken:
            return
        (site, program), more = broken[0], len(broken) - 1
        if site.kind == "wait":
            raise Invalid(
                f"program {program} of {self.kernel} waits for a value that no one writes: all "
                "programs have ended or wait",
                where=_where(site.place),
                hint="look for the store or the atomic that should have changed it",
            )
        text = f"device_assert in {self.kernel}, program {program}: {site.message or 'it is false'}"
        rest = f" (and {more} more)" if more else ""
        raise DeviceAssertion(text + rest, where=_where(site.place))


def _where(place: Place | None) -> str:
    return str(place) if place is not None else ""


def _line(site: Site, numbers: list[int]) -> str:
    """`pid (0, 0, 0) idx (3) x: 1.5`, one element."""
    rank = len(site.types[0].shape) if site.types else 0
    program, at, values = numbers[:3], numbers[3 : 3 + rank], numbers[3 + rank :]
    shown = [_number(v, t.element) for v, t in zip(values, site.types, strict=False)]
    where = f"pid ({', '.join(map(str, program))}) idx ({', '.join(map(str, at))})"
    return f"{where} {site.message}{', '.join(shown)}"


def _number(bits: int, element: Any) -> str:
    if isinstance(element, DType) and element.is_float:
        return repr(struct.unpack("<d", struct.pack("<q", bits))[0])
    if isinstance(element, DType) and element.is_bool:
        return str(bool(bits))
    if isinstance(element, DType):
        return str(bits & ((1 << element.bits) - 1)) if element.kind == "u" else str(bits)
    return hex(bits & ((1 << 64) - 1))
