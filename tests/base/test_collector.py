import gc

import pytest

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
