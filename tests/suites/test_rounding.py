"""What rounding explains, and what it does not."""

import torch

from tests.suites.rounding import Nudged, nudged, within_rounding


def test_a_sum_that_cancels() -> None:
    """Its error is as large as a unit in the last place of its terms, not of itself."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 100

    def total(given: torch.Tensor) -> torch.Tensor:
        return (given - given.flip(0) * 0.999).sum()

    right = total(x)

    def near(off: float) -> bool:
        return within_rounding(right + off, right, lambda drawn: total(nudged(x, drawn)))

    assert near(1e-4) and not near(1e-1)


def test_other_shapes_places_and_whole_numbers_are_not_rounding() -> None:
    right = (torch.tensor([1.5, 2.5]), torch.tensor([3]))

    def near(*ours: torch.Tensor) -> bool:
        return within_rounding(ours, right, lambda drawn: [nudged(x, drawn) for x in right])

    assert near(torch.tensor([1.5, 2.5000002]), torch.tensor([3]))
    assert not near(torch.tensor([1.5, float("nan")]), torch.tensor([3]))
    assert not near(torch.tensor([1.5, 2.5]), torch.tensor([4]))
    assert not near(torch.tensor([1.5]), torch.tensor([3]))


def test_complex_numbers_move_too() -> None:
    x = torch.tensor([1.1 + 2.2j])
    drawn = torch.Generator().manual_seed(0)
    others = {nudged(x, drawn).item() for _ in range(20)}
    assert len(others) > 1 and all(abs(other - x.item()) < 1e-6 for other in others)


def test_a_minimum_is_found_again() -> None:
    """Its gradient compares it with all elements, where a nudged one would be found nowhere."""
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def gradient(given: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(torch.tanh(given).amin(1).sum(), given)[0]

    right = gradient(x)
    with Nudged(torch.Generator().manual_seed(0)):
        assert torch.equal(gradient(x) != 0, right != 0)
    assert within_rounding(right * (1 + 1e-7), right, lambda drawn: gradient(nudged(x, drawn)))
    assert not within_rounding(right * 1.01, right, lambda drawn: gradient(nudged(x, drawn)))
