"""Small packages for tests, made once for each process."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tilewright as tw
from tilewright.driver.export.package import write_package
from tilewright_runtime.files import Files

ROOT = Path(__file__).resolve().parent.parent.parent


class Network(torch.nn.Module):
    """Large enough for its loops to be shared by threads."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 512), torch.nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x)))


@cache
def network() -> Network:
    torch.manual_seed(0)
    return Network().eval()


def expected(x: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return network()(torch.from_numpy(x)).numpy()


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 64), np.float32)


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="tilewright-tests-"))


def package(suffix: str = ".twp") -> Path:
    """A network of f32[batch, 64], with up to 64 rows; as one file, or with "" as a folder."""
    return _package(suffix)


@cache
def _package(suffix: str) -> Path:
    path = _folder() / f"network{suffix}"
    if suffix:
        files = {name: package("") / name for name in Files(package("")).names()}
        write_package(path, files)
        return path
    batch = torch.export.Dim("batch", min=1, max=64)
    tw.export(network(), torch.ones(4, 64), path=path, dynamic={"x": {0: batch}}, name="network")
    return path


@cache
def narrow() -> Path:
    """The network with weights in 16 bits."""
    path = _folder() / "narrow.twp"
    tw.export(network(), torch.ones(4, 64), path=path, weights="bf16")
    return path


@cache
def table() -> Path:
    """Rows of a table of 10 by their numbers, which are checked; and the numbers plus one."""

    class Table(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.arange(40.0).reshape(10, 4))

        def forward(self, which: torch.Tensor, more: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"found": self.rows[which], "next": which + more.to(torch.int64)}

    path = _folder() / "table.twp"
    n = torch.export.Dim("n", min=1, max=1000)
    which, more = torch.tensor([1, 2, 3]), torch.tensor([True, False, True])
    tw.export(Table().eval(), which, more, path=path, dynamic=({0: n}, {0: n}), name="table")
    return path


def altered(to: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of the network's folder with another manifest."""
    shutil.copytree(package(""), to)
    manifest = json.loads((to / "manifest.json").read_text())
    change(manifest)
    (to / "manifest.json").write_text(json.dumps(manifest))
    return to
