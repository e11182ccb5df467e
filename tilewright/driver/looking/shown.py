"""What a command tells: tables and sentences for people, or one JSON object for programs.

Results go to standard output, and what is going on to standard error. Both forms are made of the
same rows and facts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tilewright.driver.looking.tables import new_table, rendered

Row = Mapping[str, Any]
# What stands in a cell: the value of that name, or a text made of the row.
Column = str | Callable[[Any], str | Text]


class Shown:
    """Where a command tells its results. With `json` people's words go to standard error."""

    def __init__(self, console: Console | None = None, *, json: bool = False) -> None:
        self.progress = Console(stderr=True)
        self.console = self.progress if json else console or Console()
        self._facts: dict[str, Any] | None = {} if json else None

    @property
    def json(self) -> bool:
        return self._facts is not None

    # ---- for people

    def say(self, text: str, style: str | None = None) -> None:
        """A line as it stands."""
        self.console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def text(self, text: str) -> None:
        """Lines that are a result of their own, such as a schedule. Programs get it by `put`."""
        if not self.json:
            print(text, file=self.console.file)

    def draw(self, table: Table) -> None:
        """A table that is not made of rows: programs get what it shows by `put`."""
        self.text(rendered(table))

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """A line for something that takes a while: a spinner meanwhile, its time afterwards."""
        began, console = perf_counter(), self.progress
        columns = SpinnerColumn(), TextColumn("{task.description} …"), TimeElapsedColumn()
        # Lines that are drawn again and again belong on terminals only.
        with Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        ) as p:
            p.add_task(text)
            yield
        console.print(f"  {text:<28}{perf_counter() - began:8.1f} s", highlight=False)

    # ---- for both

    def table(self, name: str, rows: Sequence[Row], columns: Mapping[str, Column]) -> None:
        """A table of rows; programs get the rows by this name, if there is one."""
        if name:
            self.put(**{name: rows})
        if not self.json:
            made = new_table(*columns)
            for row in rows:
                made.add_row(*(_cell(row, c) for c in columns.values()))
            self.draw(made)

    # ---- for programs

    def put(self, **facts: Any) -> None:
        if self._facts is not None:
            self._facts |= facts

    def end(self) -> None:
        """Writes the JSON object."""
        if self._facts is not None:
            print(json.dumps(plain(self._facts), indent=1, allow_nan=False))


def _cell(row: Row, column: Column) -> Text:
    found = row[column] if isinstance(column, str) else column(row)
    return found if isinstance(found, Text) else Text(str(found))


def plain(value: Any) -> Any:
    """A value as JSON has it; what JSON lacks is text, and null where it is no number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    item = getattr(value, "item", None)  # a number of numpy's
    return plain(item()) if callable(item) and getattr(value, "ndim", 1) == 0 else str(value)
