"""Tests that are written for Triton, on ours: `python -m tilewright.triton -m pytest …`.

Fixtures that its tests expect of their conftest stand in for those where there is none. In worker
processes of pytest the plugin installs ours itself.
"""

from __future__ import annotations

import importlib

import pytest

from tilewright.base import knobs
from tilewright.triton import install, installed

if not installed():
    install(knobs.triton_device.get(), knobs.triton_checkout.get())


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interpreter: runs on the interpreter too")


@pytest.fixture
def device() -> str:
    return "cpu"


@pytest.fixture
def fresh_knobs():
    """Triton's switches as they are by default, for one test."""
    helpers = importlib.import_module("triton._internal_testing")
    fresh, reset = helpers._fresh_knobs_impl()
    try:
        yield fresh()
    finally:
        reset()


@pytest.fixture
def fresh_triton_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(knobs.cache_dir.name, str(tmp_path))
    return str(tmp_path)


@pytest.fixture
def with_allocator():
    """Kernels on a CPU need no allocator of the caller."""
