"""Accesses to each cell of memory since the last barrier, for the executor in kernel/simt.py."""

from __future__ import annotations

import numpy as np

NOBODY, MANY = -1, -2


class Watch:
    """The last writer and reader of each cell, as numbers; MANY: several wrote one value."""

    def __init__(self, size: int) -> None:
        self.writer = np.full(size, NOBODY, np.int64)
        self.reader = np.full(size, NOBODY, np.int64)
        self.sites: list[str] = []
        self.written_at = np.zeros(size, np.int64)
        self.read_at = np.zeros(size, np.int64)
        self.touched: list[np.ndarray] = []

    def clear(self) -> None:
        for c in self.touched:
            self.writer[c] = self.reader[c] = NOBODY
        self.touched = []

    def hand_over(self, cells: np.ndarray) -> None:
        """What was written there is seen by all from now on."""
        self.writer[cells] = NOBODY

    def site(self, what: str) -> int:
        if not self.sites or self.sites[-1] != what:
            self.sites.append(what)
        return len(self.sites) - 1

    def read(self, cells: np.ndarray, who: np.ndarray, what: str) -> tuple[int, int, str] | None:
        """Records a read; (reader, writer, where it wrote) if another one wrote the cell."""
        w = self.writer[cells]
        bad = np.flatnonzero((w != NOBODY) & (w != who))
        if bad.size:
            k = bad[0]
            return int(who[k]), int(w[k]), self.sites[self.written_at[cells[k]]]
        self._note(self.reader, cells, who)
        self.read_at[cells] = self.site(what)
        self.touched.append(cells)
        return None

    def write(
        self, cells: np.ndarray, who: np.ndarray, what: str, harmless: np.ndarray
    ) -> tuple[int, int, str] | None:
        """Records a write; (writer, the other one, what it did) if another one accessed the cell. A
        write is harmless to other writes where it changes nothing."""
        r, w = self.reader[cells], self.writer[cells]
        bad = np.flatnonzero((r != NOBODY) & (r != who))
        if bad.size:
            k = bad[0]
            return int(who[k]), int(r[k]), f"reads {self.sites[self.read_at[cells[k]]]}"
        bad = np.flatnonzero((w != NOBODY) & (w != who) & ~harmless)
        if bad.size:
            k = bad[0]
            return int(who[k]), int(w[k]), f"writes {self.sites[self.written_at[cells[k]]]}"
        self._note(self.writer, cells, who)
        self.written_at[cells] = self.site(what)
        self.touched.append(cells)
        return None

    def _note(self, owner: np.ndarray, cells: np.ndarray, who: np.ndarray) -> None:
        old = owner[cells]
        owner[cells] = who
        many = cells[((old != NOBODY) & (old != who)) | (owner[cells] != who)]
        owner[many] = MANY


def equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """One value, or both no number."""
    return (a == b) | ((a != a) & (b != b))
