"""Sizes as Python source: what a call computes again and again, without walking polynomials."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.base.errors import Unsupported
from tilewright.ir.atom import Atom, Quo, Sym, terms_text
from tilewright.ir.polynomial import Dim, Int

_BETWEEN = {"floordiv": "//", "mod": "%"}


class SizeCode:
    """Lines of Python that compute sizes from variables, given by the names of symbols. What
    quotients share is computed once: written out, it could grow without bound."""

    def __init__(self, variables: Mapping[str, str], prefix: str = "q") -> None:
        self._variables, self._prefix = variables, prefix
        self.lines: list[str] = []
        self._known: dict[Quo, str] = {}

    def of(self, x: Dim) -> str:
        """An expression, over what `lines` compute."""
        return repr(x) if not isinstance(x, Int) else terms_text(x.terms, self._atom)

    def all(self, sizes: Sequence[Dim]) -> str:
        """A tuple."""
        return f"({''.join(f'{self.of(x)}, ' for x in sizes)})"

    def _atom(self, a: Atom) -> str:
        if isinstance(a, Sym):
            return self._variables[a.name]
        if not isinstance(a, Quo):
            raise Unsupported(f"a size depends on data: {a}")
        found = self._known.get(a)
        if found is None:
            first, second = self.of(a.a), self.of(a.b)
            found = self._known[a] = f"{self._prefix}{len(self._known)}"
            if a.op in _BETWEEN:
                text = f"({first}) {_BETWEEN[a.op]} ({second})"
            else:
                text = f"{a.op}({first}, {second})"
            self.lines.append(f"{found} = {text}")
        return found


def size_function(x: Dim, names: Sequence[str]) -> Callable[[Sequence[int]], int]:
    """A function of the values of symbols, in the order of these names."""
    code = SizeCode({name: f"given[{k}]" for k, name in enumerate(names)})
    result = code.of(x)
    source = "".join(f"    {line}\n" for line in (*code.lines, f"return {result}"))
    scope: dict[str, Callable[[Sequence[int]], int]] = {}
    exec(f"def size(given):\n{source}", scope)
    return scope["size"]
