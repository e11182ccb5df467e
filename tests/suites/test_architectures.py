"""Tiny models of many architectures; all of them: `python -m tests.suites.architectures`."""

from dataclasses import dataclass

import pytest

from tests.seeds import drawn
from tests.suites import architectures, commands
from tests.suites.architecture_builds import ARCHITECTURES, small_config
from tests.suites.models import BUILDERS
from tests.suites.opinfo_runs import STATUSES, Settings


@dataclass
class Inner:
    hidden_size: int = 768
    num_attention_heads: int = 12


@dataclass
class Config:
    sub_configs = {"vision_config": Inner}  # noqa: RUF012 (as transformers writes it)
    vision_config: object = None
    num_hidden_layers: int = 24
    num_key_value_heads: int = 1
    attention_dropout: float = 0.1
    depths: tuple[int, ...] = (3, 3, 9, 3)
    num_heads: tuple[int, ...] = (1, 2, 5, 8)
    eos_token_id: int = 50256
    layer_norm_eps: float = 1e-5
    use_cache: bool = True


def test_rules_make_configs_small() -> None:
    config = small_config(Config, {"layer_norm_eps": 0.1, "vision_config": {"hidden_size": 48}})
    small = Config(Inner(48, 4), 2, 1, 0.0, (1, 1, 1, 1), (1, 2, 2, 2), 1, 0.1, False)
    assert config == small


def test_there_are_many_and_others_than_before() -> None:
    assert len(ARCHITECTURES) >= 120
    assert not set(ARCHITECTURES) & set(BUILDERS)


def as_expected(name: str, training: bool) -> None:
    settings = Settings(strict=True, gradients=training)
    outcome = architectures.check(settings)(name)
    assert commands.surprises([outcome], architectures.expected(settings), STATUSES) == []


@pytest.mark.parametrize("name", drawn(["distilbert", *list(ARCHITECTURES)[::9]], 1))
def test_inference(name: str) -> None:
    as_expected(name, training=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ARCHITECTURES)[::17])
def test_training(name: str) -> None:
    as_expected(name, training=True)
