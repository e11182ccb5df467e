"""The operators written in JAX, for XLA: inputs first, then weights in torch's order.

JAX is optional, so its module is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Function = Callable[..., Any]  # of the jax module, inputs and weights


def _rms_norm(jax: Any, x: Any, weight: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight


def _layer_norm(jax: Any, x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    spread = (centred * centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(spread + 1e-5) * weight + bias


def _chain(jax: Any, x: Any, y: Any) -> Any:
    return abs(jax.numpy.tanh(jax.nn.sigmoid(x * y + 0.5) * x - y)) * 2.0


def _gelu(jax: Any, x: Any) -> Any:
    return jax.nn.gelu(x, approximate=False)


def _linear_gelu(jax: Any, x: Any, weight: Any, bias: Any) -> Any:
    return _gelu(jax, x @ weight.T + bias)


def _attention(jax: Any, q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    seen = jax.numpy.tril(jax.numpy.ones(scores.shape[-2:], bool))
    return jax.nn.softmax(jax.numpy.where(seen, scores, -jax.numpy.inf), -1) @ v


def _convolution(jax: Any, x: Any, weight: Any) -> Any:
    groups = x.shape[1] // weight.shape[1]
    return jax.lax.conv_general_dilated(
        x, weight, (1, 1), ((1, 1), (1, 1)), feature_group_count=groups
    )


def _integer_product(jax: Any, a: Any, b: Any) -> Any:
    return jax.numpy.matmul(a, b, preferred_element_type=jax.numpy.int32)


FUNCTIONS: dict[str, Function] = {
    "softmax": lambda jax, x: jax.nn.softmax(x, -1),
    "layernorm": _layer_norm,
    "rmsnorm": _rms_norm,
    "chain": _chain,
    "matmul": lambda jax, a, b: a @ b,
    "matmul_packed": lambda jax, a, b: a @ b,
    "linear_gelu": _linear_gelu,
    "attention": _attention,
    "conv3x3": _convolution,
    "depthwise3x3": _convolution,
    "gemv": lambda jax, x, weight: x @ weight.T,
    "copy": lambda jax, x: jax.numpy.copy(x),
    "relu": lambda jax, x: jax.nn.relu(x),
    "add": lambda jax, x, y: x + y,
    "gelu": _gelu,
    "matmul_int8": _integer_product,
}
