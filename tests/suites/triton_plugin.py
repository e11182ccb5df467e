"""Marks what is known not to pass of Triton's tests; see triton_tests.py."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

EXPECTED = Path(__file__).with_name("triton_expected.json")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    known: dict[str, str] = json.loads(EXPECTED.read_text())
    for item in items:
        name = f"{item.path.name}::{item.name}"
        for pattern, reason in known.items():
            # Brackets are part of the names of cases, not of the pattern.
            if fnmatchcase(name, pattern.replace("[", "[[]")):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
