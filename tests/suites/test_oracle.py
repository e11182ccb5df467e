"""The oracle and the check of draws can say no."""

import torch

from tests.suites.draws import is_random, random_disagreements
from tilewright.bench.oracle import disagreements, in_double, ulp


def test_right_within_the_bound() -> None:
    reference = torch.linspace(1.0, 100.0, 50, dtype=torch.float64)
    eager = reference.float()
    near = eager.clone()
    near[-1] += 3 * ulp(100.0, torch.float32)
    assert disagreements(near, eager, reference) == []
    assert disagreements(eager, eager, reference) == []


def test_wrong_beyond_it() -> None:
    reference = torch.linspace(1.0, 100.0, 50, dtype=torch.float64)
    eager = reference.float()
    far = eager.clone()
    far[0] += 10 * ulp(100.0, torch.float32)
    assert "error" in disagreements(far, eager, reference)[0]


def test_places_dtypes_shapes_and_integers() -> None:
    eager = torch.tensor([1.0, float("nan"), float("inf")])
    reference = eager.double()
    assert disagreements(torch.tensor([1.0, 2.0, float("inf")]), eager, reference)
    assert disagreements(torch.tensor([1.0, float("nan"), -float("inf")]), eager, reference)
    assert disagreements(eager.double(), eager, reference)
    assert disagreements(eager[:2], eager, reference)
    assert disagreements((eager, eager), eager, reference)
    assert disagreements(eager, eager, reference) == []
    whole = torch.tensor([1, 2, 3])
    assert disagreements(whole + 1, whole, whole)
    assert disagreements(whole, whole, whole) == []


def test_a_better_answer_than_eager_is_right() -> None:
    reference = torch.tensor([1.0], dtype=torch.float64)
    assert disagreements(reference.float(), torch.tensor([1.1]), reference) == []


def test_doubles_stay_doubles() -> None:
    def normalise(x: torch.Tensor) -> torch.Tensor:
        return (x.float() * x.to(torch.float32).rsqrt()).to(torch.bfloat16) + torch.ones(1)

    result = in_double(normalise, torch.full((4,), 2.0))
    assert result.dtype == torch.float64
    assert torch.allclose(result, torch.tensor(2.0**0.5 + 1, dtype=torch.float64), atol=1e-15)


def test_widened_views_keep_their_strides() -> None:
    base = torch.arange(12.0)
    view = base.as_strided((3, 2), (4, 1), 1)
    seen = in_double(lambda t: t.as_strided((2,), (5,), 0), view)
    assert seen.tolist() == [0.0, 5.0]


def draw_of(make):
    def draw(seed: int):
        generator = torch.Generator().manual_seed(seed)
        return make(generator)

    return draw


def test_draws_tell_distributions_apart() -> None:
    normal = draw_of(lambda g: torch.randn(50, generator=g))
    shifted = draw_of(lambda g: torch.randn(50, generator=g) + 0.2)
    wider = draw_of(lambda g: 1.3 * torch.randn(50, generator=g))
    other = draw_of(lambda g: torch.randn(100, generator=g)[50:])
    constant = draw_of(lambda g: torch.zeros(50))
    coin = draw_of(lambda g: torch.rand(1, generator=g) < 0.5)
    assert is_random(normal) and is_random(coin) and not is_random(constant)
    assert random_disagreements(other, normal) == []
    rare = draw_of(lambda g: torch.rand(1, generator=g) < 0.02)
    another = draw_of(lambda g: torch.rand(2, generator=g)[1:] < 0.02)
    assert random_disagreements(another, rare) == []
    for wrong in (shifted, wider, constant):
        assert random_disagreements(wrong, normal)
