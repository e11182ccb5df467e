import sys

import pytest

from tilewright.base.turns import quick_turns


def test_the_interval_is_as_it_was_when_the_last_user_leaves() -> None:
    before = sys.getswitchinterval()
    first, second = quick_turns(), quick_turns()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() < before
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == before


def test_a_shorter_interval_stays() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with pytest.raises(ValueError), quick_turns():
            assert sys.getswitchinterval() == pytest.approx(1e-5)
            raise ValueError
        assert sys.getswitchinterval() == pytest.approx(1e-5)
    finally:
        sys.setswitchinterval(before)
