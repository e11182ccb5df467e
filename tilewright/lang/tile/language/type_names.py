"""Types by the short names that launches and signatures use: `i32`, `*fp32`, `*kbf16`."""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.language import types as t

_SHORT: dict[str, Any] = {
    "i1": t.int1,
    "u1": t.int1,
    **{f"i{n}": t.dtype(f"int{n}") for n in (8, 16, 32, 64)},
    **{f"u{n}": t.dtype(f"uint{n}") for n in (8, 16, 32, 64)},
    **{name: t.dtype(name) for name in ("fp16", "bf16", "fp32", "fp64")},
    **{name: t.dtype(name) for name in ("fp8e4nv", "fp8e5", "fp8e4b8", "fp8e4b15", "fp8e5b16")},
}


def str_to_ty(name: Any, c: Any = None) -> Any:
    """The type of a name; `c` is the value where the name says that it is a constant."""
    if isinstance(name, tuple):
        return tuple(str_to_ty(x, c) for x in name)
    if name == "constexpr":
        return t.constexpr_type(c)
    if name.startswith("*"):
        const = name[1:2] == "k"
        return t.pointer_type(str_to_ty(name[2 if const else 1 :]), const=const)
    found = _SHORT.get(name)
    if found is None:
        raise Invalid(f"there is no type named {name}", hint=f"one of {', '.join(_SHORT)}")
    return found
