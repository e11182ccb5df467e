"""A proof by normal form in words: one element of either side, and what both are multiplied out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tilewright.ir import dim as D
from tilewright.ir.node import Node
from tilewright.rewrites.proofs.element import Elements
from tilewright.rewrites.proofs.form import Forms

_DTYPE = re.compile(r":(?:f|bf|i|u|b)\d+(?=\[)|(?<=\d):(?:f|bf)\d+\b")
_SUM = re.compile(r"^sum<([^>]*)>")
_FUNCTION = re.compile(r"(\w+)<[^<>]*>\w+\(")


def derivation(
    left: Node, right: Node, reading: str, never_negative: frozenset[str] = frozenset()
) -> Iterator[str]:
    """The lines of it; how floats are read is one of `form.READINGS`."""
    names = [f"i{k}" if d != 1 else "0" for k, d in enumerate(left.shape)]
    at = [D.var(name, d) if name != "0" else 0 for name, d in zip(names, left.shape, strict=True)]
    elements, forms = Elements(), Forms(reading, 1, never_negative)
    values = [elements.at(n, at) for n in (left, right)]
    index = f"Element [{', '.join(names)}]" if names else "The only element"
    for side, v in zip(("left", "right"), values, strict=True):
        yield f"{index} of the {side} side is {_plain(str(v))}."
    if never_negative:
        yield f"Never negative: {', '.join(sorted(never_negative))}."
    found = [
        {key: t.number for key, t in forms.collected(forms.terms(v), v.dtype).items()}
        for v in values
    ]
    if found[0] != found[1]:
        yield "Multiplied out they differ as they are. Short sums, parts of axes, remainders of"
        yield "indices and conditions on them are cases: in each of these the difference vanishes."
        return
    yield "Multiplied out, with sums in front and functions of what is multiplied out, both are"
    for k, (key, number) in enumerate(found[0].items()):
        factor = "" if number == 1 else f"{number} · "
        yield f"  {'+ ' if k else '  '}{factor}{_product(key)}"


def _plain(text: str) -> str:
    """Without dtypes: they are the same throughout."""
    return _DTYPE.sub("", text)


def _product(key: str) -> str:
    sizes = _SUM.match(key)
    body = _FUNCTION.sub(r"\1(", key[sizes.end() :] if sizes else key).replace('"', "")
    body = _plain(body).replace("*", " · ") or "1"
    if sizes is None:
        return body
    primes = max(re.findall(r"Σ('*)", body), default="")  # the outermost sum has the most
    over = ", ".join(f"Σ{primes}{k} < {n}" for k, n in enumerate(sizes.group(1).split(",")))
    return f"sum over {over} of {body}"
