"""Ours in Triton's place for whole scripts, modules and checkouts, by the command line."""

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import tilewright as tw
import tilewright.triton as compat
from tilewright.triton.__main__ import main as command_line

pytest.importorskip("torch")

SCRIPT = """
import sys

import torch
import triton
import triton.language as tl

DEVICE = triton.runtime.driver.active.get_active_torch_device()


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=4) for b in (64, 256)], key=["n"])
@triton.jit
def negate(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, -tl.load(x + i, mask=i < n), mask=i < n)


x = torch.rand(1000, device="cuda" if "gpu" in sys.argv else DEVICE)
out = torch.empty_like(x)
negate[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, out, 1000)
assert torch.equal(out, -x)
print("right", sys.argv[1:], __name__)
"""
PLAIN = """
import sys

import triton

print("right", triton.cdiv(7, 2), sys.argv[1:], __name__)
"""


def test_a_checkout_that_is_none(tmp_path):
    with pytest.raises(tw.Invalid, match="holds no sources of Triton"):
        compat.install(checkout=tmp_path)


@pytest.fixture
def checkout(tmp_path):
    """A folder like a checkout of Triton, with helpers of its own."""
    package = tmp_path / "python" / "triton"
    (package / "tools").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('the checkout itself')\n")
    (package / "_internal_testing.py").write_text("import triton\nfound = triton.cdiv(7, 2)\n")
    (package / "tools" / "extra.py").write_text("value = 5\n")
    return tmp_path


def test_helpers_of_a_checkout(checkout):
    try:
        compat.install(checkout=checkout)
        assert importlib.import_module("triton._internal_testing").found == 4
        assert importlib.import_module("triton.tools.extra").value == 5
        with pytest.raises(ImportError):
            importlib.import_module("triton.missing")
    finally:
        compat.uninstall()


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "tilewright.triton", *words]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


def test_scripts_run_unchanged(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = run(tmp_path, "--device", "cpu", "script.py", "gpu", "--size=3")
    assert done.stdout.strip() == "right ['gpu', '--size=3'] __main__", done.stderr
    (tmp_path / "plain.py").write_text(PLAIN)  # needs no torch, which takes seconds to import
    done = run(tmp_path, "plain.py")
    assert done.stdout.strip() == "right 4 [] __main__", done.stderr


def test_modules_and_tests_run(tmp_path, checkout):
    (checkout / "python" / "test_it.py").write_text(
        textwrap.dedent("""
        import pytest, torch, triton
        from triton._internal_testing import found

        @pytest.mark.interpreter
        def test_it(device):
            assert found == 4 and torch.ones(2, device="cuda").is_cpu and device == "cpu"
        """)
    )
    done = run(tmp_path, "--device=cpu", "-m", "pytest", "-q", "python/test_it.py")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which script?"),
        (("nowhere.py",), "there is no file nowhere.py"),
        (("-m",), "needs the name of a module"),
        (("--device", "tpu", "x.py"), "invalid choice: 'tpu'"),
        (("--checkout", ".", "-m", "this"), "holds no sources of Triton"),
    ],
)
def test_a_command_line_that_is_wrong(tmp_path, words, said, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        os, "environ", dict(os.environ)
    )  # a checkout is passed on to other processes
    try:
        with pytest.raises(SystemExit, match="2"):
            command_line(list(words))
    finally:
        compat.uninstall()
    assert said in capsys.readouterr().err
