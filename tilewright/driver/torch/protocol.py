"""What the call path needs of programs and of the session that they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tilewright.runtime.program import Entry
from tilewright.runtime.shared import Derived, Weight


class Program(Protocol):
    """A compiled graph over addresses of contiguous memory."""

    @property
    def dims(self) -> tuple[str, ...]: ...

    @property
    def weights(self) -> tuple[int, ...]:
        """Inputs from which values are derived that outlive a call."""
        ...

    @property
    def kept(self) -> tuple[int, ...]:
        """Weights that calls read themselves."""
        ...

    @property
    def updated(self) -> tuple[tuple[int, int], ...]:
        """Results, and inputs at whose address they may be written."""
        ...

    @property
    def spent(self) -> tuple[int, ...]:
        """Inputs that a call writes over."""
        ...

    def run(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        dims: Sequence[int] = (),
        weights: Sequence[Weight] | None = None,
    ) -> list[int] | None: ...

    @property
    def tells_later(self) -> bool:
        """Does a call return what an earlier one found?"""
        ...

    def check(self) -> list[int] | None:
        """What calls found and have not returned yet, once all work is done."""
        ...

    def watch(self, count: int) -> None:
        """A call returns the last `count` outputs where the first of them is not 0."""
        ...

    def change(self, inputs: Sequence[int]) -> bool:
        """Does it write the last outputs before the watched ones to these inputs itself?"""
        ...

    def refresh(self) -> None:
        """Derive them again before the next result."""
        ...

    @property
    def derived(self) -> Derived | None:
        """What is derived now."""
        ...

    def bind(self, addresses: Sequence[int], weights: Sequence[Weight] | None = None) -> Any:
        """With the first inputs at these addresses."""
        ...

    def entry(self) -> Entry | None:
        """Where its code is; None where only the program may call it."""
        ...

    def run_bound(
        self,
        bound: Any,
        others: Sequence[int],
        outputs: Sequence[int],
        dims: Sequence[int] = (),
    ) -> list[int] | None:
        """With the other inputs at these."""
        ...


class Dry(Protocol):
    """Says whether a call must leave its inputs as they are."""

    dry: bool
