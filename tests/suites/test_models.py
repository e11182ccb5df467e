"""Hugging Face models: strict, whole graphs, right by the oracle.

The tiny sizes run by default, the full ones with `pytest -m suite tests/suites/test_models.py`.
"""

import pytest
import torch

from tests.suites.model_checks import check_decoding, check_model
from tests.suites.models import BUILDERS

SIZES = [
    pytest.param(True, id="tiny"),
    pytest.param(False, id="full", marks=pytest.mark.suite),
]


@pytest.mark.parametrize("tiny", SIZES)
@pytest.mark.parametrize("name", BUILDERS)
def test_float32(name: str, tiny: bool) -> None:
    assert check_model(name, tiny) == []


@pytest.mark.parametrize("tiny", SIZES)
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_bfloat16(name: str, tiny: bool) -> None:
    assert check_model(name, tiny, torch.bfloat16) == []


@pytest.mark.parametrize("tiny", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_decoding_into_a_cache(dtype: torch.dtype, tiny: bool) -> None:
    assert check_decoding(tiny, dtype) == []
