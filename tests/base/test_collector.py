import gc

import pytest

from tilewright.base import collector
from tilewright.base.collector import garbage_waits


def test_the_collector_is_as_it_was_before() -> None:
    assert gc.isenabled()
    with pytest.raises(ValueError), garbage_waits(), garbage_waits():
        assert not gc.isenabled()
        raise ValueError
    assert gc.isenabled()


def test_who_turned_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with garbage_waits():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def made_inside() -> int:
    """The generation of something that was made while garbage waited."""
    with garbage_waits():
        made = [[k] for k in range(100)]
    return next(g for g in range(3) if any(x is made for x in gc.get_objects(g)))


def test_what_was_made_inside_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # by the tests' settings
    try:
        gc.collect()
        assert made_inside() == 2
        monkeypatch.setattr(collector, "_MOST", 0)  # collections have to visit it
        assert made_inside() < 2
    finally:
        if frozen:
            gc.freeze()


def test_what_the_user_froze_stays_frozen() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    assert made_inside() < 2
    assert 0 < before <= gc.get_freeze_count() + 100


def test_frozen_objects_are_counted_once_until_a_full_collection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted, count = [], gc.get_freeze_count

    def watched() -> int:
        counted.append(count())
        return counted[-1]

    gc.freeze()
    monkeypatch.setattr(gc, "get_freeze_count", watched)
    for times in (1, 2):
        gc.collect()
        for _ in range(3):
            with garbage_waits():
                pass
        assert len(counted) == times
