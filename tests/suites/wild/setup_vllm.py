"""vLLM's platform is the one GPU that there seems to be; NVIDIA's driver is not queried.

It is also the plugin with the few fixtures that tests of kernels ask for: vLLM's own `conftest.py`
starts its engine, its servers and its network.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import vllm.platforms
from vllm.platforms.cuda import NonNvmlCudaPlatform

vllm.platforms._current_platform = NonNvmlCudaPlatform()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--subtests", default=None)


@pytest.fixture(autouse=True)
def default_device() -> Iterator[None]:
    yield
    torch.set_default_device(None)


@pytest.fixture
def default_vllm_config() -> Iterator[Any]:
    from vllm.config import VllmConfig, set_current_vllm_config

    config = VllmConfig()
    with set_current_vllm_config(config):
        yield config


@pytest.fixture
def workspace_init() -> Iterator[None]:
    from vllm.v1.worker import workspace

    workspace.init_workspace_manager(torch.device(0))
    yield
    workspace.reset_workspace_manager()


@pytest.fixture
def kv_cache_factory() -> Any:
    from vllm.utils.torch_utils import create_kv_caches_with_random

    return create_kv_caches_with_random


@pytest.fixture
def kv_cache_factory_flashinfer() -> Any:
    from vllm.utils.torch_utils import create_kv_caches_with_random_flash

    return create_kv_caches_with_random_flash


@pytest.fixture
def reset_default_device() -> Iterator[None]:
    yield
    torch.set_default_device(None)
