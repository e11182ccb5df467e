"""Packages for other machines, called through the C header under qemu-user."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import tilewright as tw
from tests.export.foreign import command
from tests.export.harness import called, judge, results, written
from tests.export.test_counted import CASES as SIZES
from tests.export.test_counted import ROWS, Chosen

LEVELS = ("x86-64", "x86-64-v3", "x86-64-v4", "riscv64", "riscv64-v", "armv7", "arm64")
# The processor, and the level that is taken there. The emulator has no AVX-512.
CASES: dict[tuple[str, str | None], str] = {
    ("x86_64", None): "x86-64-v3",
    ("x86_64", "qemu64"): "x86-64",
    ("riscv64", None): "riscv64-v",
    ("riscv64", "rv64,v=false"): "riscv64",
    ("armv7", None): "armv7",
    ("aarch64", "cortex-a72"): "arm64",
}


class Net(nn.Module):
    """A convolution, a product for threads, and weights stored in 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16 * 64, 80)
        for p in self.parameters():
            p.data = p.half().float()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.conv(x).relu().flatten(1)).tanh()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> tuple[Net, Path]:
    torch.manual_seed(0)
    net, path = Net().eval(), tmp_path_factory.mktemp("foreign") / "net.twp"
    dynamic = {"x": {0: Dim("batch", min=1, max=9)}}
    tw.export(
        net,
        torch.randn(2, 3, 8, 8),
        path=path,
        target=LEVELS,
        dynamic=dynamic,
        weights="f16",
        winograd=False,
    )
    return net, path


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_right(case: tuple[str, str | None], package: tuple[Net, Path], tmp_path: Path) -> None:
    by = command(*case)
    if isinstance(by, str):
        pytest.skip(by)
    net, path = package
    for batch, threads in ((1, 1), (9, 3)):
        x = torch.randn(batch, 3, 8, 8)
        files = written([x.numpy()], tmp_path)
        said = called("run", path, tmp_path / "out", threads, *files, by=by)
        assert said.split()[0] == CASES[case]
        judge(net, [x], results(tmp_path / "out"))


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign") / "chosen.twp"
    tw.export(Chosen(), SIZES[0], path=path, target=LEVELS, dynamic=ROWS)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_sizes_that_data_decides(
    case: tuple[str, str | None], counted: Path, tmp_path: Path
) -> None:
    """Also where nothing is found."""
    by = command(*case)
    if isinstance(by, str):
        pytest.skip(by)
    for x in SIZES:
        files = written([x.numpy()], tmp_path)
        said = called("run", counted, tmp_path / "out", 0, *files, by=by)
        assert said.split()[0] == CASES[case]
        judge(Chosen(), [x], results(tmp_path / "out"))
