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
        x, one, on = torch.randn(4), torch.ones(()), torch.ones(1, dtype=torch.int64)
        op = torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
        torch.compile(
            lambda v: op(v, one, on[0].int(), on, 0, 255),
            backend="tilewright",
            options={"strict": True},
        )(x)
