"""Dense factorisations are calls of LAPACK that programs name, also under strict."""

from __future__ import annotations

import pytest
import torch

import tilewright as tw
from tilewright.capture.torch.lapack import ROUTINES, routines
from tilewright.driver.torch.backend import FallbackError


def test_every_operator_of_the_list_exists() -> None:
    found = {name: getattr(torch.ops.aten, name).default for name in ROUTINES}
    assert all(routines(op) == f"LAPACK {ROUTINES[name]}" for name, op in found.items())
    assert routines(torch.ops.aten.mm.default) == "" == routines(torch.add)


def test_a_call_is_told_by_its_name() -> None:
    a = torch.randn(12, 12)
    fast = tw.compile(lambda x: torch.linalg.qr(x + 1).R * 2, strict=True)
    torch.testing.assert_close(fast(a), torch.linalg.qr(a + 1).R * 2)
    report = tw.explain(fast)
    assert not report.fallbacks and report.kernels
    (call,) = report.library_calls
    assert call.data["library"] == "LAPACK geqrf and orgqr"
    assert report.summary.whole and report.summary.library == 1
    assert "and 1 library call of" in next(iter(report.summary.lines()))
    assert "LAPACK geqrf and orgqr is called for aten.linalg_qr.default" in str(report)


def test_a_singular_matrix_is_an_error_as_in_eager() -> None:
    fast = tw.compile(lambda x: torch.linalg.inv(x), strict=True)
    fast(torch.eye(12))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        fast(torch.zeros(12, 12))


def test_what_is_on_no_list_is_still_refused() -> None:
    with pytest.raises(FallbackError, match=r"aten\._fake_quantize.* would run in eager"):
        x, one = torch.randn(4), torch.ones(4)
        op = torch.ops.aten._fake_quantize_learnable_per_channel_affine.default
        torch.compile(
            lambda v: op(v, one, one, 0, 0, 255),
            backend="tilewright",
            options={"strict": True},
        )(x)


def test_columns_that_a_library_stores_are_read_where_they_lie() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, r = torch.linalg.qr(a + 1)
        x = torch.linalg.solve(a, b)
        return x.relu(), q * 2, (r + r.mT).sum(-1), x, q @ x

    a, b = torch.randn(2, 6, 6) + 8 * torch.eye(6), torch.randn(2, 6, 3)
    for dynamic in (False, True):
        fast = tw.compile(f, a, b, dynamic=dynamic)
        laid = [s for u in fast.units for segment in u.captured.segments for s in segment.laid]
        assert bool(laid) is not dynamic
        for got, right in zip(fast(a, b), f(a, b), strict=True):
            torch.testing.assert_close(got, right)
            assert got.stride() == right.stride()


def test_a_host_call_that_gives_other_strides_than_announced() -> None:
    made = torch.library.custom_op(
        "tilewright_tests::columns", lambda x: x * 2, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    made.register_fake(lambda x: torch.empty_like(x).t().contiguous().t())
    x = torch.randn(5, 3)
    fast = tw.compile(lambda x: made(x + 1).relu(), x)
    assert any(segment.laid for u in fast.units for segment in u.captured.segments)
    torch.testing.assert_close(fast(x), ((x + 1) * 2).relu())
