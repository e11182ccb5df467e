"""Numbers rounded to the steps of a quantisation, as training for it needs them: forward, and for
gradients which were inside of the range."""

from __future__ import annotations

import torch
from torch import Tensor

from tilewright.capture.torch.composed import composed

Rounded = tuple[Tensor, Tensor]
Learned = tuple[Tensor, Tensor, Tensor]


def _rounded(x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int) -> Rounded:
    """Eager multiplies by the reciprocal of the scale, which may round to the next step."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    step = zero + torch.round(wide * (1 / scale))
    inside = (step >= low) & (step <= high)
    return ((step.clamp(low, high) - zero) * scale).to(x.dtype), inside


def _numbers(x: Tensor, scale: float, zero: int) -> tuple[Tensor, Tensor]:
    """Eager's are of 32 bits."""
    make = {"dtype": torch.float32, "device": x.device}
    return torch.full((), scale, **make), torch.full((), float(zero), **make)


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    shape = [1] * x.dim()
    shape[axis] = values.shape[0]
    return values.to(torch.float32).reshape(shape)


@composed("fake_quantize_per_tensor_affine_cachemask.default")
def per_tensor(x: Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int) -> Rounded:
    if x.dtype == torch.float64:  # whose result eager rounds to 32 bits
        return NotImplemented
    return _rounded(x, *_numbers(x, scale, zero_point), quant_min, quant_max)


@composed("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default")
def per_tensor_of_tensors(
    x: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, quant_min: int, quant_max: int
) -> Rounded:
    if x.dtype == torch.float64:
        return NotImplemented
    one = scale.reshape(()).to(torch.float32), zero_point.reshape(()).to(torch.float32)
    found, inside = _rounded(x, *one, quant_min, quant_max)
    on = enabled.reshape(()) != 0
    return torch.where(on, found, x), inside | ~on


@composed("fake_quantize_per_channel_affine_cachemask.default")
def per_channel(
    x: Tensor, scale: Tensor, zero_point: Tensor, axis: int, quant_min: int, quant_max: int
) -> Rounded:
    by, zero = _along(scale, x, axis), _along(zero_point, x, axis)
    if not zero_point.is_floating_point():
        return _rounded(x, by, zero, quant_min, quant_max)
    step = torch.round(zero + x.to(torch.promote_types(x.dtype, torch.float32)) * (1 / by))
    inside = (step >= quant_min) & (step <= quant_max)
    return ((step.clamp(quant_min, quant_max) - zero) * by).to(x.dtype), inside


@composed(
    "fake_quantize_per_tensor_affine_cachemask_backward.default",
    "fake_quantize_per_channel_affine_cachemask_backward.default",
)
def backward(grad: Tensor, mask: Tensor) -> Tensor:
    return grad * mask


def _learned(
    grad: Tensor, x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int, factor: float
) -> Learned:
    """Gradients of all elements by the number, the scale and the zero that they have."""
    step = zero + torch.round(x * (1 / scale))
    under, over = step < low, step > high
    inside = ~(under | over)
    edge = torch.where(under, low - zero, high - zero)
    by_scale = torch.where(inside, (step - zero) - x * (1 / scale), edge)
    by_zero = torch.where(inside, 0.0, -scale)
    return grad * inside, grad * by_scale * factor, grad * by_zero * factor


def _nearest(zero: Tensor, low: int, high: int) -> Tensor:
    """The step that a learned zero is at."""
    return torch.round(zero.reshape(())).clamp(low, high)


@composed("_fake_quantize_learnable_per_tensor_affine.default")
def learnable(
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Tensor:
    zero = _nearest(zero_point, quant_min, quant_max)
    return _rounded(x, scale.reshape(()), zero, quant_min, quant_max)[0]


@composed("_fake_quantize_learnable_per_tensor_affine_backward.default")
def learnable_backward(
    grad: Tensor,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    quant_min: int,
    quant_max: int,
    grad_factor: float = 1.0,
) -> Learned:
    zero = _nearest(zero_point, quant_min, quant_max)
    found = _learned(grad, x, scale.reshape(()), zero, quant_min, quant_max, grad_factor)
    return found[0], found[1].sum().reshape(scale.shape), found[2].sum().reshape(zero_point.shape)
