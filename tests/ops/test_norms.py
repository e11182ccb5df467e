"""Normalisations and attention against torch, gradients included."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tilewright import ops
from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, input
from tilewright.ir.operator import outputs_of
from tilewright.ir.types import TensorType, b1, f32


def randn(*shape):
    return torch.randn(shape, dtype=torch.float32)


def run(build, *tensors):
    """Outputs of what `build` makes of one input per tensor, and torch's results."""
    kinds = {torch.float32: f32, torch.bool: b1}
    xs = [input(f"x{k}", TensorType(kinds[t.dtype], tuple(t.shape))) for k, t in enumerate(tensors)]
    out = build(*xs)
    nodes = out if isinstance(out, tuple) else outputs_of(out)
    return evaluate(Graph("g", tuple(xs), tuple(nodes)), [t.detach().numpy() for t in tensors])


def close(got, want, tol=2e-5) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=tol, atol=tol)


def test_layer_norm_and_its_gradient() -> None:
    x, w, b, g = randn(3, 4, 5), randn(4, 5), randn(4, 5), randn(3, 4, 5)
    want = torch.native_layer_norm(x, [4, 5], w, b, 1e-5)
    close(run(lambda x, w, b: ops.layer_norm(x, w, b, 2, 1e-5), x, w, b), want)
    grads = torch.ops.aten.native_layer_norm_backward(
        g, x, [4, 5], want[1], want[2], w, b, [True] * 3
    )
    back = lambda g, x, m, r, w: ops.layer_norm_backward(g, x, m, r, w, 2)  # noqa: E731
    close(run(back, g, x, want[1], want[2], w), grads)


def test_group_norm_and_its_gradient() -> None:
    x, w, b, g = randn(2, 6, 3, 3), randn(6), randn(6), randn(2, 6, 3, 3)
    want = torch.native_group_norm(x, w, b, 2, 6, 9, 3, 1e-5)
    close(run(lambda x, w, b: ops.group_norm(x, w, b, 3, 1e-5), x, w, b), want)
    grads = torch.ops.aten.native_group_norm_backward(
        g, x, want[1], want[2], w, 2, 6, 9, 3, [True] * 3
    )
    back = lambda g, x, m, r, w: ops.group_norm_backward(g, x, m, r, w, 3)  # noqa: E731
    close(run(back, g, x, want[1], want[2], w), grads)


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_and_its_gradient(train: bool) -> None:
    x, w, b, g = randn(4, 3, 5), randn(3), randn(3), randn(4, 3, 5)
    rm, rv = randn(3), torch.rand(3) + 0.5
    legit = torch.ops.aten._native_batch_norm_legit_functional
    y, m, r, new_rm, new_rv = legit(x, w, b, rm, rv, train, 0.1, 1e-5)
    if train:
        build = lambda *a: ops.batch_norm_train(*a, 1e-5, 0.1)  # noqa: E731
        close(run(build, x, w, b, rm, rv), (y, m, r, new_rm, new_rv))
    else:
        close(run(lambda *a: ops.batch_norm(*a, 1e-5), x, w, b, rm, rv), (y,))
        m, r = rm, 1 / torch.sqrt(rv + 1e-5)
    grads = torch.ops.aten.native_batch_norm_backward(
        g, x, w, rm, rv, m, r, train, 1e-5, [True] * 3
    )
    close(run(lambda *a: ops.batch_norm_backward(*a, train), g, x, w, m, r), grads)


def test_rms_norm_and_softmax() -> None:
    x, w = randn(4, 7), randn(7)
    close(run(lambda x, w: ops.rms_norm(x, w, 1, 1e-6), x, w), (F.rms_norm(x, [7], w, 1e-6),))
    close(run(lambda x: ops.softmax(x, 0), x), (torch.softmax(x, 0),))
    close(run(lambda x: ops.log_softmax(x), x), (torch.log_softmax(x, -1),))
    close(run(lambda x: ops.softmax(x), torch.tensor(3.0)), (torch.tensor(1.0),))


def test_symbolic_batch() -> None:
    m = D.sym("m", 1)
    x = input("x", TensorType(f32, (m, 6)))
    rm, rv = (input(n, TensorType(f32, (6,))) for n in ("rm", "rv"))
    outs = outputs_of(ops.batch_norm_train(x, None, None, rm, rv))
    a, mean, var = randn(5, 6), randn(6), torch.rand(6)
    got = evaluate(Graph("g", (x, rm, rv), outs), (a.numpy(), mean.numpy(), var.numpy()))
    legit = torch.ops.aten._native_batch_norm_legit_functional
    close(got, legit(a, None, None, mean, var, True, 0.1, 1e-5))


def test_parameters_of_a_wrong_shape_are_named() -> None:
    x = input("x", TensorType(f32, (2, 6, 4)))
    w = input("w", TensorType(f32, (5,)))
    with pytest.raises(Invalid, match=r"the weight is f32\[5\], it should have shape \[4\]"):
        ops.layer_norm(x, w)
    with pytest.raises(Invalid, match="do not split into 4 groups"):
        ops.group_norm(x, groups=4)
    with pytest.raises(Invalid, match="the bias is"):
        ops.batch_norm(x, None, w, w, w)


MASKS = {
    "none": lambda: None,
    "bool": lambda: torch.rand(5, 7) > 0.3,
    "float": lambda: torch.randn(2, 1, 5, 7),
    "hidden": lambda: torch.arange(5)[:, None].expand(5, 7) != 2,
}


@pytest.mark.parametrize("mask", sorted(MASKS))
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
def test_attention_and_its_gradient(mask: str, heads: tuple[int, int]) -> None:
    q = randn(2, heads[0], 5, 8).requires_grad_()
    k, v = (randn(2, heads[1], 7, 8).requires_grad_() for _ in range(2))
    m = MASKS[mask]()
    want = F.scaled_dot_product_attention(q, k, v, m, enable_gqa=heads[0] != heads[1])
    given = () if m is None else (m,)
    close(run(lambda q, k, v, *m: ops.attention(q, k, v, *m), q, k, v, *given), (want,))
    g = randn(*want.shape)
    want.backward(g)
    out, lse = run(lambda q, k, v, *m: ops.attention_forward(q, k, v, *m), q, k, v, *given)
    saved = torch.from_numpy(out), torch.from_numpy(lse)
    grads = run(ops.attention_backward, g, q, k, v, *saved, *given)
    close(grads, (q.grad, k.grad, v.grad))


def test_causal_attention_of_unequal_lengths() -> None:
    q, k, v = randn(1, 2, 3, 4), randn(1, 2, 6, 4), randn(1, 2, 6, 5)
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
    close(run(lambda *a: ops.attention(*a, causal=True, scale=0.3), q, k, v), (want,))


def test_heads_that_do_not_divide() -> None:
    q = input("q", TensorType(f32, (1, 4, 5, 8)))
    k = input("k", TensorType(f32, (1, 3, 5, 8)))
    with pytest.raises(Invalid, match="4 heads of queries do not divide among 3"):
        ops.attention(q, k, k)
