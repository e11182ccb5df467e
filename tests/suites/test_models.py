"""Hugging Face models: strict, whole graphs, right by the oracle.

The tiny sizes run by default, the full ones with `pytest -m suite tests/suites/test_models.py`.
Models that resemble one of the others run with `pytest -m slow`.
"""

import pytest
import torch

from tests.seeds import drawn
from tests.suites.model_checks import check_decoding, check_model
from tests.suites.models import BUILDERS

SIZES = [
    pytest.param(True, id="tiny"),
    pytest.param(False, id="full", marks=pytest.mark.suite),
]


# Each with what it resembles: its layers, or the way in which they are put together.
ALIKE = {
    "mobilenetv2": "resnet50 and the depthwise layers of convnext",
    "llama": "its decoding into a cache",
    "gpt2": "llama",
    "llama_decode1": "decoding into a cache",
    "clip": "bert and vit",
    "whisper_encoder": "bert behind convolutions",
    "vit": "bert behind a convolution",
    "swin": "vit, with windows that are shifted",
    "t5": "bert and llama, with biases for relative positions",
    "resnet50_b64": "resnet50",
    "bert_b32": "bert",
    "vit_b8": "vit",
    "llama_1b_decode1": "decoding into a cache",
    "llama_1b_512": "llama",
}


@pytest.mark.parametrize("name", [name for name in BUILDERS if name not in ALIKE])
def test_float32(name: str) -> None:
    assert check_model(name, tiny=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ALIKE)
def test_models_like_those(name: str) -> None:
    assert check_model(name, tiny=True) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILDERS)
def test_by_what_a_search_prefers(name: str) -> None:
    assert check_model(name, tiny=True, backend="searched") == []


@pytest.mark.suite
@pytest.mark.parametrize("name", BUILDERS)
def test_full_size(name: str) -> None:
    assert check_model(name, tiny=False) == []


@pytest.mark.parametrize("tiny", SIZES)
@pytest.mark.parametrize("name", drawn(["mlp", "bert", "llama"], 1))
def test_bfloat16(name: str, tiny: bool) -> None:
    assert check_model(name, tiny, torch.bfloat16) == []


@pytest.mark.parametrize("tiny", SIZES)
@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=str
)
def test_decoding_into_a_cache(dtype: torch.dtype, tiny: bool) -> None:
    assert check_decoding(tiny, dtype) == []
