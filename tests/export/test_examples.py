"""The examples in C, C++ and Rust, built where there is a compiler, and their results."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.make_package import classifier
from examples.make_package import main as make
from tests.export.harness import QUICK, built, compiler, header_folder
from tests.seeds import every_run

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("examples") / "classifier.twp"
    make(str(path))
    return path


def in_c() -> Path:
    return built(EXAMPLES / "c/classify.c", "classify-c", "-std=c99", *QUICK)


def in_cpp() -> Path:
    return built(EXAMPLES / "cpp/classify.cpp", "classify-cpp", "-std=c++11", *QUICK, by="c++")


def in_rust() -> Path:
    rustc, folder = compiler("rustc"), header_folder()
    define = ("-xc", "-DTILEWRIGHT_IMPLEMENTATION", "-c")
    made = built(folder / "tilewright.h", "tilewright.o", *define, "-O1")
    subprocess.run(["ar", "rcs", str(folder / "libtilewright.a"), str(made)], check=True)
    out = folder / "classify-rust"
    command = [rustc, "-L", str(folder), "-l", "static=tilewright", "-o", str(out)]
    done = subprocess.run(
        [*command, str(EXAMPLES / "rust/classify.rs")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


@every_run(0)
@pytest.mark.parametrize("program", [in_c, in_cpp, pytest.param(in_rust, marks=pytest.mark.slow)])
def test_right(program, package: Path) -> None:
    done = subprocess.run([program(), package, "3"], capture_output=True, text=True, check=True)
    numbers = [line for line in done.stdout.splitlines() if ":" not in line]
    found = np.array([list(map(float, line.split())) for line in numbers])
    with torch.no_grad():
        x = (torch.arange(3 * 16) % 7 - 3.0).reshape(3, 16)
        np.testing.assert_allclose(found, classifier()(x).numpy(), atol=2e-6)
    many = subprocess.run([program(), package, "5000"], capture_output=True, text=True)
    assert many.returncode == 1
    assert many.stderr == "the dim batch is 5000, and the package is for 1 to 4096\n"
