"""Writes the package that the examples in C, C++ and Rust call: `python -m examples.make_package`.

A small classifier of rows with 16 numbers; any number of rows, since the batch is symbolic.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import tilewright as tw


def classifier() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4), nn.Softmax(-1)).eval()


def main(path: str = "classifier.twp") -> None:
    batch = torch.export.Dim("batch", min=1, max=4096)
    made = tw.export(
        classifier(), torch.randn(2, 16), path=Path(path), dynamic=({0: batch},), name="classifier"
    )
    print(f"{made.path}: {len(made.levels[0].code)} bytes of code")


if __name__ == "__main__":
    main(*sys.argv[1:])
