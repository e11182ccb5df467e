"""What every test may rely on: a cache of its own and a fixed seed."""

import os
import tempfile
from collections.abc import Iterator

import pytest

# Before any test module imports tilewright: neither read nor leave anything in the user's cache.
_cache = tempfile.TemporaryDirectory(prefix="tilewright-tests-")
os.environ["TILEWRIGHT_CACHE_DIR"] = _cache.name


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """Seed numpy and torch alike, so that a failing test fails again."""
    import numpy as np

    np.random.seed(0)
    try:
        import torch
    except ImportError:
        yield
        return
    torch.manual_seed(0)
    yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write golden files instead of comparing"
    )
