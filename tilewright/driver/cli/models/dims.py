"""Sizes that stay symbolic, on the command line: `x.0=batch:1..64`, or `batch=1..64` of a model
that names its dims itself."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tilewright.base.errors import Invalid

DIM = (
    "a size that stays open: x.0=batch:1..64 (axis 0 of input x, with bounds), or of an ONNX model "
    "batch=1..64, batch=8; once for each"
)
_AXIS = re.compile(r"(?P<input>[^=]+)\.(?P<axis>\d+)=(?P<name>[A-Za-z]\w*)(?::(?P<range>.*))?\Z")
_NAMED = re.compile(r"(?P<name>[^=]+)=(?P<range>.+)\Z")
_RANGE = re.compile(r"(\d+)\.\.(\d+)?\Z")


@dataclass(frozen=True)
class OpenDim:
    """A size within bounds; None: there is no upper one. `input` is "" where the model has a name
    for the dim."""

    name: str
    low: int | None = None
    high: int | None = None
    input: str = ""
    axis: int = 0


def parse_dims(texts: Iterable[str]) -> list[OpenDim]:
    found = []
    for text in texts:
        if m := _AXIS.match(text):
            low, high = _bounds(m["range"], text) if m["range"] else (None, None)
            found.append(OpenDim(m["name"], low, high, m["input"], int(m["axis"])))
        elif m := _NAMED.match(text):
            if m["range"].isdigit():
                found.append(OpenDim(m["name"], int(m["range"]), int(m["range"])))
            else:
                found.append(OpenDim(m["name"], *_bounds(m["range"], text)))
        else:
            raise Invalid(f"--dim {text}", hint=DIM)
    return found


def _bounds(text: str, whole: str) -> tuple[int, int | None]:
    m = _RANGE.match(text)
    if m is None:
        raise Invalid(f"--dim {whole}: {text!r} is no range of sizes", hint="such as 1..64, or 1..")
    return int(m[1]), int(m[2]) if m[2] else None
