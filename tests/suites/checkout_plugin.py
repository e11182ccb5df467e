"""Marks what is known not to pass of others' tests, picks a few of their cases, and writes down how
each ended; see checkouts.py."""

from __future__ import annotations

import json
import math
import os
import sys
import zlib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

SIZES = 3  # how many values of one parameter are looked at, if they are sizes
UNCOLLECTED = "not collected"  # how a file ended whose cases are not known
SOMETIMES = "sometimes: "  # how the reason begins where what else ran decides


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tests from a checkout")
    group.addoption("--known", type=Path, help="what does not pass: reasons by pattern, in JSON")
    group.addoption("--smallest", type=int, help="only so many cases of each test")
    group.addoption("--every", type=int, default=1, help="only one of so many cases")
    group.addoption("--outcomes", type=Path, help="a file for how each case ended, in JSON")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path, most = config.getoption("--known"), config.getoption("--smallest")
    known: dict[str, str] = json.loads(path.read_text()) if path else {}
    every = config.getoption("--every")
    if every > 1:  # the same ones whatever else is collected
        left = [x for x in items if zlib.crc32(_name(x).encode()) % every == 0]
        config.hook.pytest_deselected(items=[x for x in items if x not in left])
        items[:] = left
    for item in items:
        name = _name(item)
        for pattern, reason in known.items():
            # Brackets are part of the names of cases, not of the pattern.
            if fnmatchcase(name, pattern.replace("[", "[[]")):
                strict = not reason.startswith(SOMETIMES)
                item.add_marker(pytest.mark.xfail(reason=reason, strict=strict))
    if most:
        kept = set(smallest(items, most))
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def _name(item: pytest.Item) -> str:
    return f"{item.path.name}::{item.name}"


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(path))


class Outcomes:
    """How each case ended, and the last line that a failed one said; of a file that cannot be
    collected too."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, list[str]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            name = report.nodeid.rpartition("/")[2]
            self.found[name] = [report.outcome, _last_words(report)]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.found[report.nodeid] = [UNCOLLECTED, _last_words(report)]

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.found, indent=1))


def _last_words(report: pytest.TestReport | pytest.CollectReport) -> str:
    if report.outcome != "failed":
        return ""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return crash.message.strip()[:300]
    lines = str(report.longrepr).strip().splitlines()
    errors = [x.removeprefix("E").strip() for x in lines if x.startswith("E ")]
    return "\n".join(errors or lines)[:300]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """Where a case has lost the context of its GPU, a new process goes on with the next one."""
    report = yield
    torch: Any = sys.modules.get("torch")
    if hasattr(item.config, "workerinput") and report.failed and torch is not None:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            try:
                torch.cuda.synchronize()
            except RuntimeError:
                os._exit(1)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Any:
    """Sizes are cut before they are multiplied with each other: some tests have 100,000 cases."""
    if metafunc.config.getoption("--smallest"):
        parametrize: Any = metafunc.parametrize

        def cut(argnames: Any, argvalues: Iterable[Any], *rest: Any, **more: Any) -> None:
            values = list(argvalues)
            ids = more.get("ids")
            if all(map(_is_size, values)):
                order = sorted(range(len(values)), key=lambda k: math.prod(_numbers([values[k]])))
                chosen = sorted(order[:SIZES])
                values = [values[k] for k in chosen]
                if isinstance(ids, (list, tuple)):
                    more["ids"] = [ids[k] for k in chosen]
            parametrize(argnames, values, *rest, **more)

        metafunc.parametrize = cut
    return (yield)


def _is_size(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_is_size, value))
    return isinstance(value, int) and not isinstance(value, bool)


def smallest(items: Iterable[pytest.Item], most: int) -> Iterable[pytest.Item]:
    """The cases of each test whose numbers are smallest: their sizes are meant for GPUs."""
    tests: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        tests.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    for cases in tests.values():
        yield from sorted(cases, key=size)[:most]


def size(item: pytest.Item) -> int:
    case = getattr(item, "callspec", None)
    return 0 if case is None else math.prod(_numbers(case.params.values()))


def _numbers(values: Iterable[Any]) -> Iterable[int]:
    for value in values:
        if isinstance(value, int) and value > 0:
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _numbers(value)
