"""The disk cache: content in, the same content out, and every failure is a miss with a reason."""

import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tilewright.base import knobs
from tilewright.base.cache import Cache, code_version
from tilewright.base.events import Log


def entry_of(cache: Cache) -> Path:
    (path,) = [path for path in cache.directory.rglob("*") if path.is_file()]
    return path


def test_round_trip(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "er")
    assert cache.get("object", "key") is None
    assert cache.last_miss == "absent"
    for payload in (b"", b"x", b"a\nb\n", bytes(range(256)) * 100):
        assert cache.put("object", "key", payload)
        assert cache.get("object", "key") == payload
    assert cache.get("object", b"key") == cache.get("object", "key")
    assert cache.get("other kind", "key") is None


def test_it_can_be_moved(tmp_path: Path) -> None:
    Cache(tmp_path / "a").put("object", "key", b"payload")
    shutil.move(tmp_path / "a", tmp_path / "b")
    assert Cache(tmp_path / "b").get("object", "key") == b"payload"


def test_another_version_is_another_entry(tmp_path: Path) -> None:
    old, new = Cache(tmp_path, version="1"), Cache(tmp_path, version="2")
    old.put("object", "key", b"old")
    assert new.get("object", "key") is None
    assert new.last_miss == "stored by another version"
    new.put("object", "key", b"new")
    assert (old.get("object", "key"), new.get("object", "key")) == (b"old", b"new")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: b"", "header"),
        (lambda data: b"junk", "header"),
        (lambda data: data[:-1], "cut short"),
        (lambda data: data + b"!", "too long"),
        (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "checksum"),
    ],
)
def test_corruption_is_a_miss_and_is_removed(tmp_path: Path, damage, reason: str) -> None:
    log = Log()
    cache = Cache(tmp_path, log=log)
    cache.put("object", "key", b"payload")
    path = entry_of(cache)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get("object", "key") is None
    assert cache.last_miss is not None and "corrupt" in cache.last_miss
    assert reason in cache.last_miss
    assert any(reason in event.message for event in log.of("cache"))
    assert not path.exists()
    assert cache.put("object", "key", b"payload")
    assert cache.get("object", "key") == b"payload"


def test_an_unusable_directory_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    log = Log()
    cache = Cache(tmp_path / "file", log=log)
    for key in ("a", "b"):
        assert cache.get("object", key) is None
        assert not cache.put("object", key, b"payload")
    events = [event for event in log.of("cache") if "cannot be written" in event.message]
    assert len(events) == 1
    assert "TILEWRIGHT_CACHE_DIR" in events[0].message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    cache = Cache(tmp_path)
    assert not cache.put("object", "key", b"payload")
    assert cache.get("object", "key") is None


def test_disabled(tmp_path: Path) -> None:
    cache = Cache(tmp_path, enabled=False)
    assert not cache.put("object", "key", b"payload")
    assert cache.get("object", "key") is None
    assert cache.last_miss == "the cache is disabled"
    assert not list(tmp_path.iterdir())


def test_eviction_removes_what_was_used_longest_ago(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit_bytes=20_000)
    for i in range(10):
        cache.put("object", f"key {i}", b"x" * 1500)
        path = max(tmp_path.rglob("*.*"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(path, (1000 + i, 1000 + i))
    assert cache.get("object", "key 0") is not None  # Used again: now the most recent.
    for i in range(10, 14):
        cache.put("object", f"key {i}", b"x" * 1500)
    assert cache.size() <= 20_000
    assert cache.get("object", "key 0") is not None
    assert cache.get("object", "key 1") is None
    assert cache.get("object", "key 13") is not None
    cache.clear()
    assert cache.size() == 0


def test_a_cleared_directory_counts_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path, limit_bytes=20_000)
    for i in range(10):
        cache.put("object", f"key {i}", b"x" * 1500)
    cache.clear()

    def evict(allowed: int) -> int:
        raise AssertionError("the directory holds less than its limit")

    monkeypatch.setattr(cache, "_evict", evict)
    cache.put("object", "key", b"x" * 9000)


def test_abandoned_temporary_files_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("object", "key", b"payload")
    old, young = tmp_path / ".writing-old", tmp_path / ".writing-young"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (1000, 1000))
    cache.clear()
    assert (old.exists(), young.exists()) == (False, True)


def test_writers_and_readers_together(tmp_path: Path) -> None:
    payloads = {f"key {i}": os.urandom(5000) for i in range(5)}
    wrong: list[str] = []

    def work() -> None:
        cache = Cache(tmp_path)
        for _ in range(40):
            for key, payload in payloads.items():
                cache.put("object", key, payload)
                if cache.get("object", key) != payload:
                    wrong.append(f"{key}: {cache.last_miss}")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_two_processes_share(tmp_path: Path) -> None:
    write = (
        "from pathlib import Path\nfrom tilewright.base.cache import Cache\nimport sys\n"
        "cache = Cache(Path(sys.argv[1]))\n"
        "for i in range(50): assert cache.put('object', f'key {i}', f'payload {i}'.encode())\n"
    )
    command = [sys.executable, "-c", write, str(tmp_path)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    cache = Cache(tmp_path)
    assert all(cache.get("object", f"key {i}") == f"payload {i}".encode() for i in range(50))


def test_from_knobs(tmp_path: Path) -> None:
    with knobs.cache_dir.override(tmp_path), knobs.cache_limit_mb.override(3):
        cache = Cache.from_knobs()
        assert (cache.directory, cache.limit_bytes, cache.enabled) == (tmp_path, 3 << 20, True)
        with knobs.cache.override(False):
            assert not Cache.from_knobs().enabled


def test_the_version_is_of_the_source() -> None:
    assert len(code_version()) == 16
    assert code_version() == code_version()
