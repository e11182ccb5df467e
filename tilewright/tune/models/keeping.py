"""What was learned on this machine, for the next run: rows of features and times, for each family
of targets one file in the cache folder. It is data and not trees, so that old groups can leave."""

from __future__ import annotations

import io
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Schedules that are kept, the latest groups first: training takes part of a second.
MOST = 800
Rows = tuple[np.ndarray, np.ndarray]


@dataclass
class Kept:
    """A file of one family; `columns` names the features: others are of another version."""

    path: Path
    columns: str
    tell: Callable[[str], object] = lambda what: None

    def load(self) -> dict[str, Rows]:
        """By the text of groups; nothing, and a word about it, where the file is no good."""
        if not self.path.exists():
            return {}
        try:
            with np.load(self.path, allow_pickle=False) as found:
                if str(found["columns"]) != self.columns:
                    self.tell(f"{self.path.name} is of another version's features: passed over")
                    return {}
                names = [str(k) for k in found["names"]]
                rows = [(found[f"rows{k}"], found[f"times{k}"]) for k in range(len(names))]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as why:
            self.tell(f"what was learned before cannot be read from {self.path.name}: {why}")
            return {}
        widths = {r.shape[1] if r.ndim == 2 else -1 for r, _ in rows}
        if len(widths) > 1 or any(r.shape[:1] != t.shape for r, t in rows):
            self.tell(f"{self.path.name} is damaged: passed over")
            return {}
        return dict(zip(names, rows, strict=True))

    def save(self, queries: Mapping[str, Rows]) -> None:
        """The latest, at once or not at all."""
        left, kept = MOST, dict[str, Rows]()
        for name, (rows, times) in reversed(list(queries.items())):
            left -= len(times)
            if left < 0 and kept:
                break
            kept[name] = rows, times
        arrays = {f"rows{k}": r for k, (r, _) in enumerate(reversed(kept.values()))}
        arrays |= {f"times{k}": t for k, (_, t) in enumerate(reversed(kept.values()))}
        data = io.BytesIO()
        arrays |= {"columns": np.array(self.columns), "names": np.array(list(reversed(kept)))}
        np.savez(data, allow_pickle=False, **arrays)  # to compress it would take longer than a race
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data.getvalue())
        os.replace(name, self.path)
