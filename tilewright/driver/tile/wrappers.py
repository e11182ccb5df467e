"""Stand-ins and wrappers of tensors, as launches take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.driver.tile.arguments import BadArguments


class MockTensor:
    """Stands for a tensor of a dtype where a kernel is made and not run."""

    def __init__(self, dtype: Any, shape: Sequence[int] | None = None):
        self.dtype = dtype
        self.shape = [1] if shape is None else list(shape)

    @staticmethod
    def wrap_dtype(arg: Any) -> Any:
        kind = type(arg)
        is_dtype = kind.__name__ == "dtype" and kind.__module__ == "torch"
        return MockTensor(arg) if is_dtype else arg

    def data_ptr(self) -> int:
        return 0

    def stride(self, axis: int | None = None) -> Any:
        steps = [1]
        for size in reversed(self.shape[1:]):
            steps.insert(0, steps[0] * size)
        return tuple(steps) if axis is None else steps[axis]


class TensorWrapper:
    """A tensor whose bytes a kernel sees as another dtype."""

    def __init__(self, base: Any, dtype: Any):
        self.base = base
        self.dtype = dtype
        self.data = base.data
        self.device = base.device
        self.shape = base.shape

    def data_ptr(self) -> int:
        return self.base.data_ptr()

    def element_size(self) -> int:
        return self.base.element_size()

    def stride(self, *axis: int) -> Any:
        return self.base.stride(*axis)

    def numel(self) -> int:
        return self.base.numel()

    def cpu(self) -> TensorWrapper:
        return TensorWrapper(self.base.cpu(), self.dtype)

    def to(self, device: Any) -> TensorWrapper:
        return TensorWrapper(self.base.to(device), self.dtype)

    def clone(self) -> TensorWrapper:
        return TensorWrapper(self.base.clone(), self.dtype)

    def copy_(self, other: TensorWrapper) -> None:
        self.base.copy_(other.base)

    def new_empty(self, sizes: Sequence[int]) -> TensorWrapper:
        return TensorWrapper(self.base.new_empty(sizes), self.dtype)

    def __repr__(self) -> str:
        return f"TensorWrapper[{self.dtype}]({self.base})"


def reinterpret(tensor: Any, dtype: Any) -> Any:
    """A tensor to be seen as another dtype of the same width, without a copy."""
    base = tensor.base if isinstance(tensor, TensorWrapper) else tensor
    if not hasattr(base, "data_ptr"):
        raise BadArguments(
            f"a {type(tensor).__name__} cannot be reinterpreted", hint="a tensor can"
        )
    return base if base.dtype == dtype else TensorWrapper(base, dtype)
