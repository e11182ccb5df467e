"""How reports look: tables, places and sizes for reading."""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # a command line starts without it
    from tilewright.ir.dim import Dim

PLAIN_WIDTH = 120  # of tables where there is no terminal
_NUMBERS = {"#", "calls", "seconds", "count"}


def new_table(*columns: str) -> Table:
    made = Table(show_edge=False, pad_edge=False, header_style="bold")
    for name in columns:
        made.add_column(name, justify="right" if name in _NUMBERS else "left", overflow="fold")
    return made


def rendered(report: Any) -> str:
    """What rich shows of a report, as text."""
    out = io.StringIO()
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else PLAIN_WIDTH
    console = Console(file=out, force_terminal=terminal, width=width, highlight=False)
    console.print(report, crop=False)
    # Rich pads lines to the width of a table; plain text should not end in blanks.
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).rstrip()


def short_place(place: str | None) -> str:
    """A place below the current directory as seen from there, others by their last two names."""
    if not place:
        return ""
    file, _, line = place.rpartition(":")
    path = Path(file)
    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    elif len(path.parts) > 3:
        path = Path("…", *path.parts[-2:])
    return f"{path}:{line}"


def bytes_text(size: Dim) -> str:
    if not isinstance(size, int):
        return f"{size} bytes"
    amount = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"


def count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
