"""Graphs of ATen's core operators in JAX, for XLA: whole models, as torch captures them.

JAX is optional, so its module is an argument. An operator that is not listed is an error with its
name. Sums of narrow floats are XLA's own affair, as eager's are cuBLAS's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.nn.attention import SDPBackend, sdpa_kernel


class Unspelled(Exception):
    """An operator that has no form in JAX here."""


def captured(module: Any, inputs: Sequence[torch.Tensor]) -> tuple[torch.fx.GraphModule, list[Any]]:
    """A module as one graph, and its arguments: weights among them."""
    found: list[tuple[torch.fx.GraphModule, list[Any]]] = []

    def record(gm: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            found.append((gm, list(args)))
            return gm.forward(*args)

        return make_boxed_func(run)

    backend = aot_autograd(fw_compiler=record, decompositions=core_aten_decompositions())
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        torch.compile(module, backend=backend, fullgraph=True)(*inputs)
    return found[0]


def function_of(jax: Any, gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """The graph as a function of JAX's arrays."""
    spelled, graph = spellings(jax), gm.graph
    missing = {
        str(n.target)
        for n in graph.nodes
        if n.op == "call_function" and str(n.target) not in spelled
    } - {"<built-in function getitem>"}
    if missing:
        raise Unspelled(f"{', '.join(sorted(missing))} is not spelled in JAX")

    def run(*args: Any) -> Any:
        values: dict[torch.fx.Node, Any] = {}
        given = iter(args)
        for n in graph.nodes:
            if n.op == "placeholder":
                values[n] = next(given)
            elif n.op == "get_attr":
                values[n] = jax.numpy.asarray(getattr(gm, str(n.target)).cpu().numpy())
            elif n.op == "output":
                return torch.fx.node.map_arg(n.args[0], values.__getitem__)
            else:
                a, kw = torch.fx.node.map_arg((n.args, n.kwargs), values.__getitem__)
                call = operator.getitem if n.target is operator.getitem else spelled[str(n.target)]
                values[n] = call(*a, **kw)
        raise AssertionError("a graph has an output")

    return run


def dtype_of(jax: Any, dtype: torch.dtype) -> Any:
    name = str(dtype).removeprefix("torch.")
    return getattr(jax.numpy, "bool_" if name == "bool" else name)


def spellings(jax: Any) -> dict[str, Callable[..., Any]]:
    """By the name of an operator: what computes it."""
    np, lax = jax.numpy, jax.lax
    table: dict[str, Callable[..., Any]] = {}

    def put(names: str, function: Callable[..., Any]) -> None:
        for name in names.split():
            table[f"aten.{name}"] = function

    def kind(dtype: torch.dtype | None, x: Any = None) -> Any:
        return x if dtype is None else dtype_of(jax, dtype)

    def scaled(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, y, *, alpha=1: f(x, y if alpha == 1 else y * alpha)

    unary = "abs cos erf exp log logical_not neg relu rsqrt sigmoid sign sin sqrt tanh reciprocal"
    own = {"neg": np.negative, "relu": lambda x: np.maximum(x, 0), "erf": lax.erf}
    own |= {"rsqrt": lax.rsqrt, "sigmoid": jax.nn.sigmoid, "reciprocal": lambda x: 1 / x}
    for name in unary.split():
        put(f"{name}.default", own.get(name) or getattr(np, name))
    binary = {"mul": np.multiply, "eq": np.equal, "ne": np.not_equal, "lt": np.less}
    binary |= {"le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "pow": np.power}
    binary |= {"bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or}
    for name, f in binary.items():
        put(f"{name}.Tensor {name}.Scalar {name}.Tensor_Tensor {name}.Tensor_Scalar", f)
    put("add.Tensor add.Scalar", scaled(np.add))
    put("sub.Tensor sub.Scalar", scaled(np.subtract))
    put("div.Tensor div.Scalar", np.true_divide)
    for name in ("logical_and", "logical_or", "maximum", "minimum"):
        put(f"{name}.default", getattr(np, name))
    put("where.self", np.where)
    put("clamp.default", lambda x, low=None, high=None: np.clip(x, low, high))
    put(
        "gelu.default",
        lambda x, *, approximate="none": jax.nn.gelu(x, approximate=approximate == "tanh"),
    )

    # ---- shapes

    put("view.default _unsafe_view.default reshape.default", lambda x, s: np.reshape(x, s))
    put("permute.default", lambda x, axes: np.transpose(x, axes))
    put("unsqueeze.default", np.expand_dims)
    put("squeeze.dims squeeze.dim", lambda x, axes: _squeezed(np, x, axes))
    put("cat.default", lambda xs, axis=0: np.concatenate(xs, axis))
    put("expand.default", lambda x, s: _expanded(np, x, s))
    put("repeat.default", lambda x, times: np.tile(x, times))
    put("slice.Tensor", _sliced)
    put("select.int", lambda x, axis, k: x[(slice(None),) * (axis % x.ndim) + (k,)])
    put("split_with_sizes.default", lambda x, sizes, axis=0: _split(np, x, sizes, axis))
    put("clone.default alias.default detach.default lift_fresh_copy.default", lambda x, **_: x)
    put(
        "_to_copy.default",
        lambda x, *, dtype=None, **_: x if dtype is None else x.astype(kind(dtype)),
    )
    put("flip.default", lambda x, axes: np.flip(x, axes))
    put("index.Tensor", lambda x, at: x[tuple(slice(None) if k is None else k for k in at)])
    put("embedding.default", lambda table, at, *_: np.take(table, at, 0))
    put("gather.default", lambda x, axis, at: np.take_along_axis(x, at, axis))

    # ---- new values

    put("full.default", lambda s, v, *, dtype=None, **_: np.full(s, v, kind(dtype)))
    put(
        "full_like.default",
        lambda x, v, *, dtype=None, **_: np.full(x.shape, v, kind(dtype, x.dtype)),
    )
    put("scalar_tensor.default", lambda v, *, dtype=None, **_: np.asarray(v, kind(dtype)))
    put(
        "arange.start_step",
        lambda first, end, step=1, *, dtype=None, **_: np.arange(first, end, step, kind(dtype)),
    )

    # ---- sums and products

    def reduced(f: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Any, axes: Any = None, keep: bool = False, *, dtype: Any = None) -> Any:
            x = x if dtype is None else x.astype(kind(dtype))
            axes = tuple(axes) if isinstance(axes, (list, tuple)) and axes else axes or None
            return f(x, axis=axes, keepdims=keep)

        return run

    put("sum.dim_IntList sum.default", reduced(np.sum))
    put("mean.dim mean.default", reduced(np.mean))
    put("amax.default", reduced(np.max))
    put("amin.default", reduced(np.min))
    put("any.dim any.default any.dims", reduced(np.any))
    put("argmax.default", lambda x, axis=None, keep=False: np.argmax(x, axis, keepdims=keep))
    put("cumsum.default", lambda x, axis, *, dtype=None: np.cumsum(x, axis, kind(dtype)))
    put(
        "var.correction",
        lambda x, axes=None, *, correction=1, keepdim=False: np.var(
            x, axis=tuple(axes), ddof=correction, keepdims=keepdim
        ),
    )
    put("_softmax.default", lambda x, axis, _: jax.nn.softmax(x, axis))
    put("_log_softmax.default", lambda x, axis, _: jax.nn.log_softmax(x, axis))
    put("mm.default bmm.default", np.matmul)
    put("addmm.default", lambda c, a, b, *, beta=1, alpha=1: beta * c + alpha * np.matmul(a, b))
    put("native_layer_norm.default", lambda x, s, w, b, e: _layer_norm(np, lax, x, s, w, b, e))
    put(
        "_native_batch_norm_legit_no_training.default",
        lambda x, w, b, m, v, _, e: _batch_norm(np, lax, x, w, b, m, v, e),
    )
    put("convolution.default", lambda *a: _convolution(lax, *a))
    put("max_pool2d_with_indices.default", lambda *a: _max_pool(np, lax, *a))
    put("_adaptive_avg_pool2d.default", lambda x, size: _average(np, x, size))
    return table


def _expanded(np: Any, x: Any, shape: Sequence[int]) -> Any:
    own = (1,) * (len(shape) - x.ndim) + x.shape
    return np.broadcast_to(x, [b if n == -1 else n for n, b in zip(shape, own, strict=True)])


def _squeezed(np: Any, x: Any, axes: int | Sequence[int]) -> Any:
    listed = [axes] if isinstance(axes, int) else axes
    return np.squeeze(x, tuple(a % x.ndim for a in listed if x.shape[a] == 1))


def _sliced(x: Any, axis: int = 0, first: Any = None, end: Any = None, step: int = 1) -> Any:
    return x[(slice(None),) * (axis % x.ndim) + (slice(first, end, step),)]


def _split(np: Any, x: Any, sizes: Sequence[int], axis: int) -> Any:
    ends = [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]
    return np.split(x, ends, axis)


def _layer_norm(np: Any, lax: Any, x: Any, shape: Any, w: Any, b: Any, eps: float) -> Any:
    axes = tuple(range(x.ndim - len(shape), x.ndim))
    wide = x.astype(np.float32)
    mean = wide.mean(axes, keepdims=True)
    scale = lax.rsqrt(((wide - mean) ** 2).mean(axes, keepdims=True) + eps)
    y = (wide - mean) * scale
    y = y if w is None else y * w
    y = y if b is None else y + b
    return y.astype(x.dtype), mean, scale


def _batch_norm(np: Any, lax: Any, x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
    def along(v: Any) -> Any:
        return v.astype(np.float32).reshape(1, -1, *[1] * (x.ndim - 2))

    y = (x - along(mean)) * lax.rsqrt(along(var) + eps)
    y = y if w is None else y * along(w)
    y = y if b is None else y + along(b)
    return y.astype(x.dtype), mean, var


def _convolution(lax: Any, *given: Any) -> Any:
    x, w, b, stride, padding, dilation, turned, _, groups = given
    if turned:
        raise Unspelled("a transposed convolution is not spelled in JAX")
    y = lax.conv_general_dilated(
        x,
        w,
        tuple(stride),
        tuple((p, p) for p in padding),
        rhs_dilation=tuple(dilation),
        feature_group_count=groups,
    )
    return y if b is None else y + b.reshape(1, -1, *[1] * (x.ndim - 2))


def _max_pool(
    np: Any, lax: Any, x: Any, size: Any, stride: Any = (), padding: Any = 0, *_: Any
) -> Any:
    size, stride, padding = (
        tuple(v) if isinstance(v, (list, tuple)) else (v, v) for v in (size, stride, padding)
    )
    room = ((0, 0), (0, 0), *((p, p) for p in padding * (2 // len(padding))))
    steps = (1, 1, *(stride or size))
    return (lax.reduce_window(x, -math.inf, lax.max, (1, 1, *size), steps, room),)


def _average(np: Any, x: Any, size: Sequence[int]) -> Any:
    if tuple(size) != (1, 1):
        raise Unspelled("an average to more than one place is not spelled in JAX")
    return np.mean(x, axis=(-2, -1), keepdims=True)
