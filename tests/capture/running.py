"""Runs a small torch function through capture and compares it with eager."""

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
from torch.utils import _pytree as pytree

from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.options import TorchOptions


def session(**options: Any) -> Session:
    return Session(TorchOptions.parse({"executor": "interpreter", "strict": True, **options}))


def captured(
    function: Callable,
    *args: Any,
    using: Session | None = None,
    dynamic: bool | None = None,
    fullgraph: bool = True,
) -> Any:
    """The result of the compiled function; the interpreter evaluates its definitions."""
    torch._dynamo.reset()
    backend: Any = (using or session()).backend
    return torch.compile(function, backend=backend, fullgraph=fullgraph, dynamic=dynamic)(*args)


def assert_same(ours: Any, eager: Any, tolerance: float | None = None) -> None:
    """Values close, dtypes, shapes and strides equal, containers alike."""
    ours_leaves, ours_tree = pytree.tree_flatten(ours)
    eager_leaves, eager_tree = pytree.tree_flatten(eager)
    assert ours_tree == eager_tree
    for a, b in zip(ours_leaves, eager_leaves, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b and type(a) is type(b)
            continue
        torch.testing.assert_close(
            a, b, rtol=tolerance, atol=tolerance, equal_nan=True, check_stride=b.numel() > 0
        )


def check(function: Callable, *args: Any, tolerance: float | None = None, **how: Any) -> Session:
    """Compare compiled and eager on copies of the arguments, which must end up alike too."""
    ours_args, eager_args = copy.deepcopy(args), copy.deepcopy(args)
    using = how.pop("using", None) or session()
    with torch.no_grad():
        eager = function(*eager_args)
        ours = captured(function, *ours_args, using=using, **how)
    assert_same(ours, eager, tolerance)
    assert_same(ours_args, eager_args, tolerance)
    return using
