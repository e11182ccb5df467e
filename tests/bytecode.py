"""Bytecode that the processes of one test run make for each other."""

from __future__ import annotations

import os
import random
import sys
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

ROOT = Path(__file__).resolve().parent.parent
SOURCES = (ROOT / "tilewright", ROOT / "runtime")


def share(config: pytest.Config, worker: str) -> None:
    """Compiles what the tests that are asked for import, as far as nobody has. Each worker goes
    through the files in an order of its own: importing them in the same order at the same time, all
    would compile all of them. What is not up to date in spite of this is compiled where it is
    imported, as ever."""
    if sys.dont_write_bytecode:
        return
    asked = [Path(path).resolve() for path in config.args]
    whole = ROOT / "tests" in asked
    files = sorted({f for top in (*asked, *SOURCES[: 2 * whole]) for f in top.rglob("*.py")})
    random.Random(worker).shuffle(files)
    for file in files:
        with suppress(SyntaxError):  # whoever imports it says so
            if file.name == "conftest.py" or file.match("test_*.py"):
                _share_test(config, file)
            elif not _is_newer(Path(cache_from_source(str(file))), file):
                SourceFileLoader(file.stem, str(file)).get_code(file.stem)  # writes it, too


def _share_test(config: pytest.Config, file: Path) -> None:
    """As pytest does when it imports a test, whose assertions say what they compared."""
    folder = rewrite.get_cache_dir(file)
    kept = folder / (file.stem + rewrite.PYC_TAIL)
    if not _is_newer(kept, file) and rewrite.try_makedirs(folder):
        state = config.stash[rewrite.assertstate_key]
        stamp, code = rewrite._rewrite_test(file, config)
        rewrite._write_pyc(state, code, stamp, kept)


def _is_newer(kept: Path, file: Path) -> bool:
    try:
        return os.stat(kept).st_mtime >= os.stat(file).st_mtime
    except OSError:
        return False
