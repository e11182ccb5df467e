"""What `import tilewright as tw` offers for functions and modules; the torch side is loaded when
it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from tilewright.base.errors import MissingExtra
from tilewright.base.events import Event
from tilewright.runtime.program import Program

_TORCH_API = "tilewright.driver.torch.api"
_TORCH_LOOKUP = "tilewright.driver.torch.lookup"


def compile(
    function: Callable[..., Any], *examples: Any, strict: bool = False, **options: Any
) -> Any:
    """Compile a function or `torch.nn.Module`: now, if examples are given, or at the first call.

    `strict` makes an error of an operator that would run in eager, and of a graph break. Other
    options are those of `torch.compile(…, backend="tilewright", options={…})`.
    """
    return torch_side(_TORCH_API, "tw.compile").compile(
        function, *examples, strict=strict, **options
    )


def refresh(compiled: Any) -> None:
    """Derive everything from the weights again before the next result.

    Needed only after edits that torch does not count: through `.data`, or a numpy view.
    """
    if isinstance(compiled, Program):
        compiled.refresh()
        return
    for session in sessions_of(compiled):
        session.refresh()


def synchronize(compiled: Any) -> None:
    """Wait until the work of all calls is done, and raise what they found in their data: on a GPU
    that is known only then. Without this the next call raises it."""
    for session in sessions_of(compiled):
        session.synchronise()


def sessions_of(compiled: Any) -> list[Any]:
    """What the torch side made of a compiled function; an error if it was not compiled here."""
    return torch_side(_TORCH_LOOKUP, "a compiled function").sessions_of(compiled)


def history_of(compiled: Any) -> tuple[list[Any], list[Event]]:
    """The same, and why parts of it were not given to us."""
    return torch_side(_TORCH_LOOKUP, "a compiled function").history_of(compiled)


def torch_side(module: str, purpose: str) -> Any:
    """A module that imports torch, or a sentence about what to install."""
    if find_spec("torch") is None:
        raise MissingExtra("torch", purpose)
    return import_module(module)
