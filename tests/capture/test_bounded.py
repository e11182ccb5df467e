"""Results whose size only data decides, under `strict`: nothing runs in eager."""

import pytest
import torch

import tilewright as tw


def _selected(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    mask, rows = x > 0, x[:, 0] > 0
    few = int(rows.sum().item())
    return (
        torch.nonzero(mask),
        x[rows] @ torch.ones(x.shape[1], 3),
        x[:, x[0] > 0],
        torch.masked_select(x, rows[:, None]) + 1,
        x.index_put((mask,), x[mask] ** 2),
        torch.repeat_interleave(x, rows.long() * 2, dim=0),
        x[:few],
    )


def _different(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    whole = (x * 2).to(torch.int8)
    some = torch.where(x > 1, torch.nan, whole.half())
    return (
        *torch.unique(whole, return_inverse=True, return_counts=True),
        torch.unique(some),
        *torch.unique(x > 0, dim=0, return_counts=True),
        *torch.unique_consecutive(whole, return_inverse=True, return_counts=True),
        torch.unique_consecutive(x[:, :2] > 0, dim=0),
    )


@pytest.mark.parametrize("function", [_selected, _different])
def test_sizes_that_data_decides(function) -> None:
    torch.manual_seed(0)
    fast = tw.compile(function, strict=True)
    for x in (torch.randn(6, 5), torch.randn(6, 5), torch.ones(6, 5), -torch.ones(6, 5)):
        for k, (a, b) in enumerate(zip(fast(x), function(x), strict=True)):
            torch.testing.assert_close(a, b, equal_nan=True, msg=lambda m, k=k: f"{k}: {m}")
            assert a.stride() == b.stride(), k
    assert tw.explain(fast).fallbacks == ()


def test_gradients_of_what_a_mask_selects() -> None:
    def loss(x: torch.Tensor) -> torch.Tensor:
        first, last = x[x > 0] ** 2, x[:, x[0] > 0] ** 3
        rows = torch.repeat_interleave(x, (x[:, 0] > 0).long() * 2, dim=0)
        return first.sum() + last.sum() + torch.masked_select(x, x < 0.5).sin().sum() + rows.sum()

    fast = tw.compile(loss, strict=True)
    for x in (torch.randn(6, 5), -torch.rand(6, 5)):
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        fast(a).backward()
        loss(b).backward()
        torch.testing.assert_close(a.grad, b.grad)


def test_a_size_that_is_wrong_is_told_in_words() -> None:
    fast = tw.compile(lambda x: torch.repeat_interleave(x), strict=True)
    assert fast(torch.tensor([2, 0, 1])).tolist() == [0, 0, 2]
    with pytest.raises(RuntimeError, match="repeats can not be negative"):
        fast(torch.tensor([2, -1, 1]))
