"""The user's file and line for an fx node."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch.fx

from tilewright.ir.node import Place

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in \S+\n\s*(?P<text>[^\n]*)')
_LIBRARY = ("/torch/", "/transformers/")
_OURS = str(Path(__file__).parents[2])


def place_of(n: torch.fx.Node) -> Place | None:
    """The innermost line of the user's own program; a library's line where there is no other."""
    trace = n.meta.get("stack_trace")
    return place_in(trace) if trace else None


def place_in(trace: str) -> Place | None:
    frames = [
        Place(m["file"], int(m["line"]), m["text"].strip()) for m in _FRAME.finditer(str(trace))
    ]
    return _innermost(frames)


def place_in_frames(frames: Iterable[Any]) -> Place | None:
    """The same for a list of traceback.FrameSummary, outermost first."""
    return _innermost([Place(f.filename, f.lineno or 0, f.line or "") for f in frames])


def _innermost(frames: list[Place]) -> Place | None:
    frames = [f for f in frames if not f.file.startswith(_OURS)]
    if not frames:
        return None
    own = [f for f in frames if not any(part in f.file for part in _LIBRARY)]
    return (own or frames)[-1]
