"""A nest as native code of this machine: emitted, compiled, loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from tilewright.ir.target import Target
from tilewright.kernel.group import Buffer
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import compile_object
from tilewright.runtime.native import NativeKernel, address_array, size_array


class NestKernel(NativeKernel):
    """The compiled code of a nest. Arguments are in the order of `arguments`. `code` is what
    `nest_object` made of it before, perhaps on another machine."""

    def __init__(
        self,
        nest: Nest,
        target: Target,
        symbols: Mapping[str, int] | None = None,
        code: bytes = b"",
    ) -> None:
        self.nest, self.text = nest, "" if code else emit(legalise(nest, target), target)
        self.arguments: list[Buffer] = [b for b in nest.buffers if b.scope in ("in", "out")]
        super().__init__([code or compile_object(self.text, target)], nest.name, symbols)

    def prepared(
        self, addresses: Sequence[int], sizes: Mapping[str, int], stream: int = 0
    ) -> Callable[[], None]:
        """A call with these arguments. It is over when it returns: there are no streams."""
        return partial(self.function, address_array(addresses), size_array(self.sizes(sizes)))

    def sizes(self, known: Mapping[str, int]) -> list[int]:
        """The sizes that a call takes, by name."""
        return [known[s.name] for s in self.nest.dims]


def nest_object(nest: Nest, target: Target) -> bytes:
    """The object code of a nest. It is made on any machine, for any target."""
    return compile_object(emit(legalise(nest, target), target), target)
