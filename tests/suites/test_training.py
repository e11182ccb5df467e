"""Training through the backend: forward and backward compiled, the optimizer torch's own."""

import pytest
import torch
from torch.nn import functional as F

from tests.seeds import crossed
from tests.suites.model_checks import check_training, whole_graph


@pytest.mark.parametrize(
    ("name", "optimizer"), crossed(["conv", "transformer"], ["plain", "fused"], 2)
)
def test_losses_as_in_eager(name: str, optimizer: str) -> None:
    assert check_training(name, optimizer == "fused") == []


def test_dropout_is_dropout() -> None:
    """Zeros at the given rate, the rest scaled, a new mask per call, the same mask backward."""
    rate, count = 0.3, 200_000
    x = torch.ones(count, requires_grad=True)

    def use(dropout) -> list[str]:
        first, second = dropout(x), dropout(x)
        kept = first != 0
        assert torch.allclose(first[kept], torch.tensor(1 / (1 - rate)))
        # Five standard deviations of a binomial share.
        spread = 5 * (rate * (1 - rate) / count) ** 0.5
        assert abs(float((~kept).double().mean()) - rate) < spread
        assert abs(float((first * second != 0).double().mean()) - (1 - rate) ** 2) < spread
        (gradient,) = torch.autograd.grad(first.sum(), x)
        assert torch.equal(gradient, first.detach())
        torch.manual_seed(3)
        again = dropout(x)
        torch.manual_seed(3)
        assert torch.equal(again, dropout(x))
        return []

    assert whole_graph(lambda t: F.dropout(t, rate, training=True), "tilewright", use) == []
