"""Knobs, errors, events, discovery and the machine."""

import logging
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilewright.base import discover, events, knobs, machine
from tilewright.base.errors import (
    Invalid,
    MissingExtra,
    Refused,
    TilewrightError,
    Unsupported,
    require,
)
from tilewright.base.events import Event, Log


# Knobs
def test_every_knob_is_declared_once_and_documented() -> None:
    names = [knob.name for knob in knobs.every()]
    assert len(names) == len(set(names)) > 5
    for knob in knobs.every():
        assert knob.name.startswith("TILEWRIGHT_")
        assert knob.doc


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    for knob in knobs.every():
        monkeypatch.delenv(knob.name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert knobs.cache_dir.get() == Path("/xdg/tilewright")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert knobs.cache_dir.get() == Path.home() / ".cache" / "tilewright"
    assert knobs.cache.get() is True
    assert knobs.threads.get() is None
    assert knobs.dump.get() is None
    assert not knobs.logs.get().shows("fusion")


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", " 3 ")
    monkeypatch.setenv("TILEWRIGHT_CHECK", "yes")
    monkeypatch.setenv("TILEWRIGHT_DUMP", "~/stages")
    monkeypatch.setenv("TILEWRIGHT_TARGET", "")
    assert knobs.threads.get() == 3
    assert knobs.check.get() is True
    assert knobs.dump.get() == Path.home() / "stages"
    assert knobs.target.get() is None
    assert not knobs.target.is_set()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("TILEWRIGHT_THREADS", "many", "a whole number of at least 1"),
        ("TILEWRIGHT_THREADS", "0", "a whole number of at least 1"),
        ("TILEWRIGHT_CACHE", "maybe", "0 or 1"),
        ("TILEWRIGHT_COMPILE_JOBS", "-1", "at least 1"),
        ("TILEWRIGHT_LOGS", "fusion,,", "kinds separated by commas"),
        ("TILEWRIGHT_LOGS", "a b", "kinds separated by commas"),
    ],
)
def test_malformed_values_get_a_sentence(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    knob = next(knob for knob in knobs.every() if knob.name == name)
    with pytest.raises(Invalid, match=expected) as caught:
        knob.get()
    assert name in str(caught.value)
    assert knob.doc in str(caught.value)


def test_override_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", "3")
    with knobs.threads.override(7):
        assert knobs.threads.get() == 7
        with knobs.threads.override(None):
            assert knobs.threads.get() is None
    assert knobs.threads.get() == 3
    monkeypatch.delenv("TILEWRIGHT_CHECK", raising=False)
    with pytest.raises(RuntimeError), knobs.check.override(True):
        assert knobs.check.get()
        raise RuntimeError
    assert not knobs.check.get()


def test_log_levels() -> None:
    levels = knobs.logs.parse("fusion,recompiles,+schedule")
    assert levels.shows("fusion") and not levels.shows("fusion", detail=True)
    assert levels.shows("recompile") and levels.shows("recompiles")
    assert levels.shows("schedule") and levels.shows("schedule", detail=True)
    assert not levels.shows("cache")
    assert knobs.logs.parse(str(levels)) == levels
    everything = knobs.logs.parse("+all")
    assert everything.shows("anything", detail=True)


# Errors
def test_an_error_reads_what_where_hint() -> None:
    error = Unsupported("no such operator", where="model.py:12", hint="use another")
    assert str(error) == "no such operator\n  at model.py:12\n  hint: use another"
    assert str(Refused("only what")) == "only what"


def test_kinds_of_error() -> None:
    assert issubclass(Invalid, ValueError)
    assert issubclass(MissingExtra, ImportError)
    for kind in (Unsupported, Refused, Invalid, MissingExtra):
        assert issubclass(kind, TilewrightError)
    missing = MissingExtra("torch", "capturing a module")
    assert "pip install 'tilewright[torch]'" in str(missing)
    assert "capturing a module" in str(missing)


def test_errors_survive_pickling() -> None:
    for error in (Invalid("what", where="a:1", hint="h"), MissingExtra("onnx", "reading")):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)


def test_require() -> None:
    require([1], "fine")
    with pytest.raises(Invalid, match="4 does not divide i"):
        require(False, "4 does not divide i")
    with pytest.raises(Refused) as caught:
        require(0, "no", error=Refused, where="f:1", hint="do")
    assert str(caught.value) == "no\n  at f:1\n  hint: do"


# Events
def test_a_log_collects_in_order() -> None:
    log = Log(limit=3)
    for i in range(5):
        log.add("fusion", f"group {i}", where=("a.py", 1)[0], size=i)
    log.emit(Event("cache", "miss"))
    assert [event.message for event in log] == ["group 3", "group 4", "miss"]
    assert log.counts == {"fusion": 5, "cache": 1}
    assert [event.data["size"] for event in log.of("fusion")] == [3, 4]
    assert str(log.of("fusion")[0]) == "fusion: group 3  (a.py)"
    assert hash(log.of("fusion")[0]) is not None


@pytest.fixture
def heard() -> Iterator[list[logging.LogRecord]]:
    """What an application hears that listens to everything."""
    found: list[logging.LogRecord] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    listener = Listener()
    logging.getLogger().addHandler(listener)
    yield found
    logging.getLogger().removeHandler(listener)


def test_events_reach_logging_on_request(
    monkeypatch: pytest.MonkeyPatch, heard: list[logging.LogRecord]
) -> None:
    log = Log()
    monkeypatch.setenv("TILEWRIGHT_LOGS", "fusion,+schedule")
    log.add("fusion", "shown", where="m.py:3")
    log.add("fusion", "detail hidden", detail=True)
    log.add("schedule", "detail shown", detail=True)
    log.add("cache", "not asked")
    seen = [(record.name, record.getMessage()) for record in heard]
    assert seen == [
        ("tilewright.fusion", "shown  (m.py:3)"),
        ("tilewright.schedule", "detail shown"),
    ]
    monkeypatch.delenv("TILEWRIGHT_LOGS")
    log.add("fusion", "hidden again")
    assert len(heard) == 2


def test_an_application_may_listen_by_itself(heard: list[logging.LogRecord]) -> None:
    package = logging.getLogger("tilewright")
    before = package.level
    package.setLevel(logging.INFO)
    try:
        Log().add("fallback", "ran in eager")
    finally:
        package.setLevel(before)
    assert [record.getMessage() for record in heard] == ["ran in eager"]


def test_shown_on_the_terminal_without_any_setup(capfd: pytest.CaptureFixture[str]) -> None:
    root, package = logging.getLogger(), logging.getLogger("tilewright")
    handlers, root.handlers = root.handlers, []
    try:
        with knobs.logs.override(knobs.logs.parse("fusion")):
            events.Log().add("fusion", "two groups")
            events.Log().add("fusion", "three groups")
    finally:
        root.handlers = handlers
        package.handlers = []
    assert capfd.readouterr().err == (
        "[tilewright.fusion] two groups\n[tilewright.fusion] three groups\n"
    )


# Discovery
def test_import_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "found_by_test"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__", "b", "a", "__main__", "inner/__init__", "inner/deep"):
        (package / f"{name}.py").write_text(f"NAME = {name!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [module.__name__ for module in discover.import_all("found_by_test")]
    assert names == [
        "found_by_test.a",
        "found_by_test.b",
        "found_by_test.inner",
        "found_by_test.inner.deep",
    ]
    assert "found_by_test.__main__" not in sys.modules
    flat = discover.import_all("found_by_test", recursive=False)
    assert [module.NAME for module in flat] == ["a", "b", "inner/__init__"]


# The machine
def test_cache_sizes(tmp_path: Path) -> None:
    entries = [("Data", "1", "48K"), ("Instruction", "1", "32K"), ("Unified", "2", "2M")]
    for number, (kind, level, size) in enumerate([*entries, ("Unified", "3", "rubbish")]):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, value in (("type", kind), ("level", level), ("size", size)):
            (folder / name).write_text(value + "\n")
    assert machine.cache_sizes(tmp_path) == machine.CacheSizes(l1=48 << 10, l2=2 << 20)
    assert machine.cache_sizes(tmp_path / "missing") == machine.CacheSizes()


def test_cores_and_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(machine, "_CGROUP_QUOTA", quota)
    free = machine.usable_cores()
    assert free >= 1
    quota.write_text("max 100000\n")
    assert machine.usable_cores() == free
    quota.write_text("50000 100000\n")
    assert machine.usable_cores() == 1


def test_cpu_flags(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nFeatures\t: fp asimd asimdhp\n\nprocessor\t: 1\n")
    assert machine.cpu_flags(info) == {"fp", "asimd", "asimdhp"}
    assert machine.cpu_flags(tmp_path / "missing") == frozenset()


def test_the_details_of_a_refusal_are_made_on_first_use() -> None:
    made: list[str] = []

    def details() -> str:
        made.append("once")
        return "for i:\n  x"

    why = Refused("no", hint="do", details=details)
    more = why.again("outer: no")
    assert not made
    assert str(why) == "no\n  hint: do\n    for i:\n      x" and why.details and len(made) == 1
    assert pickle.loads(pickle.dumps(more)).details == "for i:\n  x" and more.what == "outer: no"
