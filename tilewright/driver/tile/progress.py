"""A line of progress while configurations are compiled and timed."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

_SHOW_AFTER_S = 2.0  # progress of what takes longer is shown


class Shown:
    """A line of progress, once something takes long."""

    def __init__(self, name: str):
        self.name, self.doing, self.total, self.done = name, "", 0, 0
        self.start = time.perf_counter()
        self.progress: Progress | None = None
        self.task: TaskID | None = None

    def __enter__(self) -> Shown:
        return self

    def begin(self, doing: str, total: int) -> None:
        self.doing, self.total, self.done = doing, total, 0
        self._show()

    def advance(self) -> None:
        self.done += 1
        self._show()

    def _show(self) -> None:
        late = time.perf_counter() - self.start > _SHOW_AFTER_S
        if self.progress is None and late and self.done < self.total:
            columns = (
                TextColumn("autotune {task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self.progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self.task = self.progress.add_task(self.name)
            self.progress.start()
        if self.progress is not None and self.task is not None:
            what = f"{self.name}: {self.doing}"
            self.progress.update(self.task, description=what, completed=self.done, total=self.total)

    def __exit__(self, *_: object) -> None:
        if self.progress is not None:
            self.progress.stop()
