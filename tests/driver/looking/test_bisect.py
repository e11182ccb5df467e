"""`tilewright validate` and `tilewright bisect` of torch programs, graphs and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.driver.program.planted_faults import PLANTED, difference
from tilewright.base import knobs
from tilewright.driver import cli
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.program.validated_kernels import kernel_text
from tilewright.ir.text import print_graph
from tilewright.kernel.step import parse_trace
from tilewright.kernel.text import parse_group

torch = pytest.importorskip("torch")

FILE = """
import torch

def scaled(x, y):
    z = torch.sin(x) - y
    return torch.softmax(z, -1)

scaled_inputs = (torch.randn(3, 4), torch.randn(3, 4))
"""
FAULTS = {p.name: p for p in PLANTED}


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing out of the cache, and reproducers in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    torch._dynamo.reset()
    with knobs.cache.override(False):
        yield


CHANGES = """
import torch

def step(weights, slopes):
    weights.sub_(slopes * 0.1)
    return weights.sum()

inputs = (torch.randn(8, 16), torch.randn(8, 16))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(FILE)
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    status = cli.main([str(a) for a in arguments])
    said = capsys.readouterr()
    assert "error" not in said.err, said.err
    return status, said.out


def reproducer(out: str) -> list[str]:
    """The arguments of the command that shows a fault again."""
    (line,) = (x for x in out.splitlines() if "reproducer: tilewright " in x)
    return line.split("reproducer: tilewright ")[1].split()


def test_a_right_program(capsys: pytest.CaptureFixture[str], program: Path) -> None:
    status, out = call(capsys, "validate", f"{program}:scaled")
    assert status == 0
    for word in ("capture", "Decompose", "proved", "kernel", "program", "right:"):
        assert word in out
    status, out = call(capsys, "bisect", f"{program}:scaled")
    assert status == 0 and "nothing to find" in out


def test_a_program_that_changes_its_arguments(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "changes.py"
    path.write_text(CHANGES)
    status, out = call(capsys, "validate", f"{path}:step")
    assert status == 0 and "right:" in out


def test_a_wrong_rule(
    capsys: pytest.CaptureFixture[str], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS["a - b becomes a + b"].plant(monkeypatch)
    status, out = call(capsys, "bisect", f"{program}:scaled")
    assert status == 1
    assert "pass Simplify #1, rule sub-wrong, operator sub" in out
    assert "program.py:5" in out, "the user's line"
    again = reproducer(out)
    assert "sin" not in Path(again[-1]).read_text(), "only what goes wrong"
    status, out = call(capsys, *again)
    assert status == 1 and "rule sub-wrong" in out


def test_wrong_code(
    capsys: pytest.CaptureFixture[str], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS["a sum for a difference"].plant(monkeypatch)
    status, out = call(capsys, "bisect", f"{program}:scaled", "--out", "small.kernel")
    assert status == 1 and "wrong: emission k_" in out
    assert reproducer(out) == ["validate", "small.kernel"]
    status, out = call(capsys, "validate", "small.kernel")
    assert status == 1 and "emission kernel" in out


def test_a_wrong_translation(
    capsys: pytest.CaptureFixture[str], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tilewright import ops
    from tilewright.capture.torch import registry

    build: Any = ops
    wrong = lambda c, x, y, alpha=1: build.add(x, y)  # noqa: E731
    monkeypatch.setitem(registry._RULES, "aten.sub.Tensor", wrong)
    status, out = call(capsys, "bisect", f"{program}:scaled")
    assert status == 1
    assert "capture" in out and "sub" in out and "program.py:5" in out
    status, again = call(capsys, *reproducer(out))
    assert status == 1 and "capture" in again and "sub" in again


def test_a_kernel_that_is_right(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (made,) = compile_graph(difference()).kernels
    path = tmp_path / "right.kernel"
    path.write_text(kernel_text(parse_group(made.group), parse_trace(made.trace)))
    status, out = call(capsys, "validate", path)
    assert status == 0 and "code" in out


def test_a_graph_and_its_passes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "main.tw"
    path.write_text(print_graph(difference()) + "\n")
    listed = "Simplify, Decompose, EmptyValues"
    status, out = call(capsys, "validate", path, "--passes", listed)
    assert status == 0 and "Winograd" not in out
    FAULTS["a - b becomes a + b"].plant(monkeypatch)
    status, out = call(capsys, "bisect", path, "--passes", listed)
    assert status == 1 and f'--passes "{listed}"' in out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["validate", "missing.kernel"], "missing.kernel cannot be read"),
        (["validate", "bad.kernel"], "bad.kernel"),
        (["bisect", "missing.py:f"], "there is no file missing.py"),
        (["bisect", "wrong.tw", "--out", "no/such/folder"], "cannot be written"),
    ],
)
def test_bad_input_gets_a_sentence(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    says: str,
) -> None:
    (tmp_path / "bad.kernel").write_text("group x\n  nonsense\n")
    (tmp_path / "wrong.tw").write_text(print_graph(difference()) + "\n")
    FAULTS["a - b becomes a + b"].plant(monkeypatch)
    status = cli.main(arguments)
    said = capsys.readouterr()
    assert status == 2 and says in said.err, said.err


def test_tensors_on_a_gpu_are_refused() -> None:
    from tilewright.base.errors import Invalid
    from tilewright.driver.looking.bisect_torch import _Recorder
    from tilewright.driver.torch.options import TorchOptions

    with pytest.raises(Invalid, match="on a GPU"):
        _Recorder(TorchOptions()).compile_graph(difference(), machine=object())


def test_compiling_with_validation(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tilewright as tw

    def f(x: Any, y: Any) -> Any:
        return torch.exp(x - y)

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    fast = tw.compile(f, x, y, validate=True)
    torch.testing.assert_close(fast(x, y), f(x, y))
    torch._dynamo.reset()
    FAULTS["a - b becomes a + b"].plant(monkeypatch)
    with pytest.raises(tw.TilewrightError, match="rule sub-wrong"):
        tw.compile(f, x, y, validate=True)


def test_what_cannot_be_run_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not said to be right."""
    from tilewright.driver.looking import bisect_torch
    from tilewright.driver.looking.compare import Error
    from tilewright.driver.torch.options import TorchOptions

    def refused(*_: object) -> None:
        raise bisect_torch.Invalid("not alone")

    monkeypatch.setattr(bisect_torch, "captured", refused)
    made = torch.fx.symbolic_trace(lambda x: torch.sin(x))
    capture = bisect_torch.Capture([(made, [torch.ones(3)])])
    error = Error(1.0, 0.0, 0.0, "it is wrong")
    found = bisect_torch._capture_fault(capture, error, TorchOptions.parse({}))
    assert found.said.endswith("but for those that cannot be run alone: torch.sin"), found
