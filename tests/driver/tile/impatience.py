"""Deadlocks that are told sooner."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tilewright.runtime import concurrent_ir, pool

PATIENCE_NS = 300_000_000


@contextmanager
def impatience() -> Iterator[None]:
    """Kernels that are loaded inside take a wait of a third of a second for one without end, not
    one of seconds. They stay so: only kernels that wait in vain belong here."""
    pool.concurrent_symbols()  # those of all others, which come back
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(concurrent_ir, "_PATIENCE_NS", PATIENCE_NS)
        patch.delitem(vars(pool._pool()), "concurrent")
        yield
