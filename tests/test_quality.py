"""Ruff and pyright find nothing to say about the repository."""

import hashlib
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# What pyright reads, as pyproject.toml tells it.
CHECKED = ("tilewright", "tests", "docs", "examples")

RUFF = {"check": ["check", "."], "format": ["format", "--check", "."]}
# The interpreter is named, or pyright would look for another environment's packages.
PYRIGHT = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable]
CLEAN = "tilewright/pyright"  # in pytest's cache: what was clean


def clean(name: str, command: list[str]) -> None:
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, f"{name} is not clean:\n{run.stdout}\n{run.stderr}"


@pytest.mark.parametrize("name", RUFF)
def test_ruff(name: str) -> None:
    clean(f"ruff {name}", [sys.executable, "-m", "ruff", *RUFF[name]])


def test_pyright(pytestconfig: pytest.Config) -> None:
    """It takes minutes: the very files that were clean before, with the same packages, are not
    looked at again."""
    cache, known = pytestconfig.cache, digest()
    if cache is not None and cache.get(CLEAN, None) == known:
        return
    clean("pyright", PYRIGHT)
    if cache is not None:
        cache.set(CLEAN, known)


def digest() -> str:
    """Of all that pyright's answer depends on."""
    files = [ROOT / "pyproject.toml"]
    files += [p for folder in CHECKED for p in (ROOT / folder).rglob("*.py*")]
    packages = sorted(f"{d.name} {d.version}" for d in distributions())
    found = hashlib.sha256("\n".join([sys.version, *packages]).encode())
    for path in sorted(p for p in files if p.suffix in (".py", ".pyi", ".toml")):
        found.update(f"\n{path.relative_to(ROOT)}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def test_pyright_runs_again_after_a_change(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checked: list[str] = []
    stored: dict[str, object] = {}
    module = sys.modules[__name__]
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "tests").mkdir()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "clean", lambda name, command: checked.append(name))
    monkeypatch.setattr(pytestconfig, "cache", _Cache(stored), raising=False)
    for text, times in (("a = 1", 1), ("a = 1", 1), ("a = 2", 2)):
        (tmp_path / "tests" / "a.py").write_text(text)
        test_pyright(pytestconfig)
        assert len(checked) == times


class _Cache:
    def __init__(self, stored: dict[str, object]) -> None:
        self.stored = stored

    def get(self, key: str, default: object) -> object:
        return self.stored.get(key, default)

    def set(self, key: str, value: object) -> None:
        self.stored[key] = value
