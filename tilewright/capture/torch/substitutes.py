"""Functions of torch that Dynamo does not go into, and what it goes into in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.functions import SkipFunctionVariable, UserFunctionVariable
from torch._dynamo.variables.tensor import SymNodeVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch.fx.experimental.symbolic_shapes import statically_known_true

from tilewright.base.discover import import_all

# Of what Dynamo knows of the operands, by position and by name.
Takes = Callable[[Sequence[Any], Mapping[str, Any]], bool]
_INSTEAD: dict[Any, tuple[Callable[..., Any], Takes]] = {}
# The classes of Dynamo that call functions, with the attribute that has the function.
_CLASSES: tuple[tuple[Any, str], ...] = (
    (UserFunctionVariable, "fn"),
    (SkipFunctionVariable, "value"),
    (TorchInGraphFunctionVariable, "value"),
)


def substitute(
    function: Any, other: Callable[..., Any], takes: Takes = lambda operands, named: True
) -> None:
    """While programs are captured, calls with operands that it takes go to `other`."""
    _INSTEAD[function] = other, takes


def _instead(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any] | None:
    try:
        other, takes = _INSTEAD.get(function, (None, None))
    except TypeError:  # it cannot be looked up
        return None
    return other if takes is not None and takes(args, kwargs) else None


def _redirected(theirs: Callable[..., Any], attribute: str) -> Callable[..., Any]:
    def call_function(self: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(self, TorchInGraphFunctionVariable):
            args = [_as_known(x) for x in args]
            kwargs = {name: _as_known(x) for name, x in kwargs.items()}
        other = _instead(getattr(self, attribute, None), args, kwargs)
        if other is None:
            return theirs(self, tx, args, kwargs)
        # Inside, numbers are read from data where sizes need them; outside, as the user says.
        with dynamo_config.patch(
            capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
        ):
            return UserFunctionVariable(other).call_function(tx, args, kwargs)

    return call_function


def _as_known(x: Any) -> Any:
    """A comparison of sizes as the constant that it is, where guards decide it. After Python took
    a branch by it they do, and in `n > 1 and causal` it is a result too: operators take bools."""
    if not isinstance(x, SymNodeVariable) or not isinstance(x.sym_num, torch.SymBool):
        return x
    for known, condition in ((True, x.sym_num), (False, torch.sym_not(x.sym_num))):
        if statically_known_true(condition):
            return ConstantVariable.create(known)
    return x


_lock = Lock()
_captures = 0  # under way, of all threads
_before: list[Any] = []


@contextmanager
def substitutes() -> Iterator[None]:
    """Dynamo goes into these while any capture is under way: the first one puts them there, and the
    last one takes them away."""
    global _captures
    import_all("tilewright.capture.torch")
    with _lock:
        _captures += 1
        if _captures == 1:
            _before[:] = [c.call_function for c, _ in _CLASSES]
            for (c, name), theirs in zip(_CLASSES, _before, strict=True):
                c.call_function = _redirected(theirs, name)
    try:
        yield
    finally:
        with _lock:
            _captures -= 1
            if _captures == 0:
                for (c, _), theirs in zip(_CLASSES, _before, strict=True):
                    c.call_function = theirs
