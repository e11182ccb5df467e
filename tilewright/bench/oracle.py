"""The numerical oracle: ours is wrong only where it is further from float64 than eager is.

A result is right when, for every tensor of it, dtype and shape are eager's, integers and booleans
are equal, NaN and infinities stand in the same places, and the largest error against a float64 run
is at most twice eager's own plus four units in the last place of the largest reference value.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

EAGER_FACTOR = 2.0
ULPS = 4
# Of results that are float64 themselves: eager is the reference then, and its own error unknown.
ULPS_OF_DOUBLES = 64

_WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


def widen(tree: Any) -> Any:
    """A copy of `tree` with every floating tensor and dtype at double precision."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return _widen_tensor(leaf.detach())
        return _WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    return pytree.tree_map(one, tree)


def _widen_tensor(tensor: torch.Tensor) -> torch.Tensor:
    dtype = _WIDER.get(tensor.dtype, tensor.dtype)
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return tensor.clone().to(dtype)
    # The whole storage is widened and viewed again: as_strided sees the strides it was given.
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    storage = tensor.as_strided((count,), (1,), 0).to(dtype, copy=True)
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class InDouble(TorchFunctionMode):
    """Turns every narrower dtype a program names into its double: `x.float()` stays float64.

    Without it a "float64" run of a model that normalises in float32 is a float32 reference.
    """

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            return args[0].double()
        wide_args, wide_kwargs = pytree.tree_map_only(
            torch.dtype, lambda d: _WIDER.get(d, d), (args, kwargs or {})
        )
        return func(*wide_args, **wide_kwargs)


def in_double(function: Callable, *args: Any, **kwargs: Any) -> Any:
    """Run `function` on widened copies of its arguments, everything inside at double precision."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        args, kwargs = widen((args, kwargs))
        with InDouble():
            return function(*args, **kwargs)
    finally:
        torch.set_default_dtype(before)


def ulp(value: float, dtype: torch.dtype) -> float:
    """The distance from |value| to the next larger number of `dtype`."""
    info = torch.finfo(dtype)
    exponent = math.floor(math.log2(value)) if value >= info.smallest_normal else None
    if exponent is None:
        return info.smallest_normal * info.eps
    return info.eps * 2.0**exponent


def disagreements(ours: Any, eager: Any, reference: Any) -> list[str]:
    """What is wrong with `ours`, one sentence per tensor; empty when it is right."""
    (a, spec_a), (b, spec_b) = pytree.tree_flatten(ours), pytree.tree_flatten(eager)
    c = pytree.tree_leaves(reference)
    if len(a) != len(b):
        return [f"{len(a)} results where eager gives {len(b)}: {spec_a} and {spec_b}"]
    found = []
    for index, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
        if problem := _disagreement(x, y, z):
            found.append(f"result {index}: {problem}" if len(a) > 1 else problem)
    return found


def _disagreement(ours: Any, eager: Any, reference: Any) -> str | None:
    if not isinstance(eager, torch.Tensor):
        return None if _same_value(ours, eager) else f"{ours!r} where eager gives {eager!r}"
    if not isinstance(ours, torch.Tensor):
        return f"a {type(ours).__name__} where eager gives a tensor"
    if problem := shape_disagreement(ours, eager):
        return problem
    ours, eager, reference = (t.detach().to_dense() for t in (ours, eager, reference))
    if not (eager.is_floating_point() or eager.is_complex()):
        wrong = int((ours != eager).sum())
        return f"{wrong} of {eager.numel()} {eager.dtype} values differ" if wrong else None
    if eager.is_complex():
        ours, eager = (torch.view_as_real(t.resolve_conj()) for t in (ours, eager))
        reference = torch.view_as_real(reference.to(torch.complex128).resolve_conj())
    return _float_disagreement(ours.resolve_neg(), eager.resolve_neg(), reference.resolve_neg())


def _same_value(ours: Any, eager: Any) -> bool:
    if isinstance(eager, float) and isinstance(ours, float):
        return math.isclose(ours, eager, rel_tol=1e-5) or (math.isnan(ours) and math.isnan(eager))
    return type(ours) is type(eager) and bool(ours == eager)


def shape_disagreement(ours: torch.Tensor, eager: torch.Tensor) -> str | None:
    """Dtype and shape alone: all that can be checked of `empty`."""
    if ours.dtype != eager.dtype:
        return f"dtype {ours.dtype} where eager gives {eager.dtype}"
    if ours.shape != eager.shape:
        return f"shape {tuple(ours.shape)} where eager gives {tuple(eager.shape)}"
    return None


def _float_disagreement(
    ours: torch.Tensor, eager: torch.Tensor, reference: torch.Tensor
) -> str | None:
    if ours.numel() == 0:
        return None
    dtype = ours.dtype
    x, y, z = (t.to(torch.float64) for t in (ours, eager, reference))
    # Float32 may overflow where float64 does not; then eager's own places are the right ones.
    if not (_same_places(x, y) or _same_places(x, z)):
        return (
            f"NaN or infinity in other places: {_places(x)} where eager has {_places(y)} "
            f"and float64 {_places(z)}"
        )
    finite = x.isfinite() & y.isfinite() & z.isfinite()
    if not bool(finite.any()):
        return None
    x, y, z = x[finite], y[finite], z[finite]
    largest = float(z.abs().max())
    error, eager_error = float((x - z).abs().max()), float((y - z).abs().max())
    ulps = ULPS_OF_DOUBLES if dtype is torch.float64 else ULPS
    allowed = EAGER_FACTOR * eager_error + ulps * ulp(largest, dtype)
    if error <= allowed:
        return None
    return (
        f"error {error:.3g} against float64 where {allowed:.3g} is allowed "
        f"(eager's {eager_error:.3g}, largest value {largest:.3g}, {dtype})"
    )


def _same_places(x: torch.Tensor, y: torch.Tensor) -> bool:
    same_nan = bool((x.isnan() == y.isnan()).all())
    return same_nan and bool((x.isinf() == y.isinf()).all()) and bool((x == y)[y.isinf()].all())


def _places(x: torch.Tensor) -> str:
    return f"{int(x.isnan().sum())} NaN, {int(x.isinf().sum())} inf"
