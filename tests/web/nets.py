"""Small models that tests put on pages."""

from __future__ import annotations

import torch
from torch import nn

from tilewright.driver.export.api import Exported, export

KINDS = 10


class Mixed(nn.Module):
    """Rows of numbers and of kinds, as many as wanted; a kind that there is not is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(KINDS, 24)
        self.first = nn.Linear(24, 48)
        self.last = nn.Linear(48, 3)

    def forward(self, x: torch.Tensor, kind: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.relu(self.first(x + self.embed(kind)))
        return {"y": self.last(hidden), "hidden": hidden}


def mixed() -> Mixed:
    torch.manual_seed(0)
    return Mixed().eval()


def drawn(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 24, generator=made)
    return x, torch.randint(KINDS, (rows,), generator=made)


def export_mixed(path: str, targets: tuple[str, ...], weights: str = "same") -> Exported:
    rows = torch.export.Dim("rows", min=1, max=64)
    dynamic = {"x": {0: rows}, "kind": {0: rows}}
    options = {"target": list(targets), "dynamic": dynamic, "weights": weights}
    return export(mixed(), *drawn(4), path=path, **options)


class Image(nn.Module):
    """Classes of an image of 24 by 24 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
        )
        self.last = nn.Linear(16, 4)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(pixels).mean((2, 3)))
