"""What the generator of random networks draws; `python -m tests.suites.random_models` runs it."""

import re
from typing import Any

import pytest

from tests.driver.random_models import as_code, failure, random_model

SEEDS = range(10, 30)


def test_a_seed_is_a_network() -> None:
    for seed in range(3):
        made = random_model(seed)
        assert str(random_model(seed)) == str(made) and made.grad
        scope: dict[str, Any] = {}
        exec(as_code(made).replace("reproduce(GENERATOR, PROGRAM)", ""), scope)
        assert scope["PROGRAM"] == made


def test_networks_are_of_every_kind() -> None:
    made = [random_model(seed) for seed in SEEDS]
    text = "\n".join(str(p) for p in made)
    words = (
        "nn.Conv2d nn.ConvTranspose nn.Linear nn.BatchNorm pool2d scaled_dot_product nn.Embedding"
    )
    words += " torch.cat .to(torch."
    assert not [word for word in words.split() if word not in text]
    assert any(len(p.results) > 3 for p in made)
    # Weights that two places share.
    called = [re.findall(r"(self\.m\d+)\(", p.source()) for p in made]
    assert any(len(names) > len(set(names)) for names in called)


@pytest.mark.parametrize("seed", [1])
def test_a_network_is_right(seed: int) -> None:
    found = failure(random_model(seed))
    assert found is None or found.skipped, found
