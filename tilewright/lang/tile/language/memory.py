"""Reading and writing memory: loads, stores and atomic operations through pointers.

Masks and values take the shape of the pointers; values take the type of what is pointed to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.builder import current
from tilewright.lang.tile.ir import Pointer, Value
from tilewright.lang.tile.language import promote
from tilewright.lang.tile.language import types as t
from tilewright.lang.tile.language.promote import broadcast, broadcast_to, described
from tilewright.lang.tile.language.tensor import builtin, member, tensor, value, wrap
from tilewright.lang.tile.language.types import dtype, dtype_of, unwrap

_LOAD_CACHES = ("", ".ca", ".cg", ".cs", ".cv")
_STORE_CACHES = ("", ".wb", ".cg", ".cs", ".wt")
_EVICTIONS = ("", "evict_last", "evict_first")
_ORDERS = ("acquire", "release", "acq_rel", "relaxed")
_SCOPES = ("gpu", "cta", "sys")


def _one_of(what: str, x: Any, allowed: tuple[str, ...]) -> str:
    x = unwrap(x) or ""
    if x not in allowed:
        raise Invalid(f"{what}={x!r}", hint=f"one of {', '.join(map(repr, allowed))}")
    return x


def _pointers(what: str, pointer: Any) -> Value:
    p = value(pointer)
    if not isinstance(p.element, Pointer):
        hint = "it takes a pointer, or a tile of pointers: p + tl.arange(0, N)"
        raise Invalid(f"{what} through {described(p)}, which is no pointer", hint=hint)
    return p


def pointed_to(p: Value) -> dtype:
    assert isinstance(p.element, Pointer)
    return dtype_of(p.element.to)


def _mask(what: str, mask: Any) -> Value | None:
    """None where nothing is masked off."""
    mask = unwrap(mask)
    if mask is None or mask is True:
        return None
    v = value(mask)
    if not dtype_of(v.element).is_bool():
        hint = "a mask is a comparison, or x != 0"
        raise Invalid(f"{what}: the mask is {described(v)}, not int1", hint=hint)
    return v


def _scalars_only(what: str, p: Value, *others: Value | None) -> None:
    for v in others:
        if not p.shape and v is not None and v.shape:
            hint = "add the offsets of the elements to the pointer: p + tl.arange(0, N)"
            raise Invalid(f"{what}: {described(v)} goes with a single pointer", hint=hint)


@builtin
def load(
    pointer: Any,
    mask: Any = None,
    other: Any = None,
    boundary_check: Any = (),
    padding_option: Any = "",
    cache_modifier: Any = "",
    eviction_policy: Any = "",
    volatile: Any = False,
) -> tensor:
    """What is at these addresses. Where the mask does not hold nothing is read and the result is
    `other`, or anything if there is none. Block pointers are checked against their bounds along
    the axes of `boundary_check` and take `padding_option` ("zero" or "nan") outside."""
    hints = {
        "cache": _one_of("cache_modifier", cache_modifier, _LOAD_CACHES),
        "eviction": _one_of("eviction_policy", eviction_policy, _EVICTIONS),
        "volatile": bool(unwrap(volatile)),
    }
    if hasattr(pointer, "expand"):
        if unwrap(mask) is not None or unwrap(other) is not None:
            hint = "block pointers are masked with boundary_check and padding_option"
            raise Invalid("load: a mask or other with a block pointer", hint=hint)
        address, inside, outside = pointer.expand(boundary_check, padding_option)
        return wrap(load_values(address, inside, outside, hints))
    p = _pointers("load", pointer)
    if unwrap(mask) is None and unwrap(other) is not None:
        raise Invalid("load: other without a mask", hint="give the mask where other is not taken")
    if tuple(unwrap(boundary_check)) or unwrap(padding_option):
        hint = "boundary_check and padding_option are for tl.make_block_ptr"
        raise Invalid(f"load: boundary_check with {described(p)}", hint=hint)
    m = _mask("load", mask)
    o = value(other) if m is not None and unwrap(other) is not None else None
    _scalars_only("load", p, m, o)
    return wrap(load_values(p, m, o, hints))


def load_values(p: Value, mask: Value | None, other: Value | None, hints: dict[str, Any]) -> Value:
    args = [p]
    if mask is not None:
        p, mask = broadcast(p, mask)
        args = [p, mask]
        if other is not None:
            p, mask, other = broadcast(p, mask, other)
            args = [p, mask, promote.cast(other, pointed_to(p))]
    return promote.emit("load", args, p.type.with_element(pointed_to(p).ir), hints)


@member
@builtin
def store(
    pointer: Any,
    value: Any,
    mask: Any = None,
    boundary_check: Any = (),
    cache_modifier: Any = "",
    eviction_policy: Any = "",
) -> None:
    """Writes a value where the mask holds, converted to what is pointed to."""
    hints = {
        "cache": _one_of("cache_modifier", cache_modifier, _STORE_CACHES),
        "eviction": _one_of("eviction_policy", eviction_policy, _EVICTIONS),
    }
    v = _value(value)
    if hasattr(pointer, "expand"):
        if unwrap(mask) is not None:
            hint = "block pointers are masked with boundary_check"
            raise Invalid("store: a mask with a block pointer", hint=hint)
        address, inside, _ = pointer.expand(boundary_check, "")
        store_values(address, v, inside, hints)
        return
    p = _writable("store", pointer)
    m = _mask("store", mask)
    _scalars_only("store", p, v, m)
    store_values(p, v, m, hints)


_value = value  # `store` has a parameter of that name


def _writable(what: str, pointer: Any) -> Value:
    p = _pointers(what, pointer)
    if isinstance(pointer, tensor) and pointer.dtype.is_const():
        raise Invalid(f"Cannot {what} to a constant pointer", hint="drop tl.const from it")
    return p


def _over(what: str, p: Value, v: Value, mask: Value | None) -> tuple[Value, Value | None]:
    """The value and the mask with the shape and the type that the pointers require."""
    given = [v, *([mask] if mask is not None else [])]
    shape = promote.common_shape(p.shape, *(x.shape for x in given))
    if shape != p.shape:
        wide = next(x for x in given if len(x.shape) > len(p.shape) or x.shape == shape)
        hint = f"tl.broadcast_to(p, {list(shape)}) if every element goes to the same address"
        raise Invalid(f"{what}: {described(wide)} through {described(p)}", hint=hint)
    v = _stretched(promote.cast(v, pointed_to(p)), p.shape)
    return v, None if mask is None else _stretched(mask, p.shape)


def _stretched(v: Value, shape: tuple[int, ...]) -> Value:
    if v.shape and len(v.shape) < len(shape):
        v = promote.reshape(v, (1,) * (len(shape) - len(v.shape)) + v.shape)
    return broadcast_to(v, shape)


def store_values(p: Value, v: Value, mask: Value | None, hints: dict[str, Any]) -> None:
    v, mask = _over("store", p, v, mask)
    current().emit("store", (p, v) if mask is None else (p, v, mask), (), hints)


# ---- atomics


def _hints(sem: Any, scope: Any) -> dict[str, str]:
    order = _one_of("sem", sem or "acq_rel", _ORDERS)
    return {"order": order, "scope": _one_of("scope", scope or "gpu", _SCOPES)}


def atomic_values(
    kind: str,
    p: Value,
    v: Value,
    mask: Value | None,
    hints: dict[str, Any],
    small: bool = False,
) -> Value:
    """`small`: are 16-bit floats allowed everything, as descriptors allow it?"""
    what, to = f"atomic_{kind}", pointed_to(p)
    if to.primitive_bitwidth < 16 or to in (t.int16, t.uint16):
        hint = "atomics work on int32, int64, float32, float64 and add on float16 and bfloat16"
        raise Invalid(f"{what} on {to}", hint=hint)
    if to in (t.float16, t.bfloat16) and kind != "add" and not small:
        raise Invalid(f"{what} on {to}", hint="16-bit floats have atomic_add only")
    if to.is_floating() and kind in ("and", "or", "xor"):
        raise Invalid(f"{what} on {to}", hint="bits are combined on integers only")
    v, mask = _over(what, p, v, mask)
    args = (p, v) if mask is None else (p, v, mask)
    return promote.emit("atomic", args, v.type, {"kind": kind, **hints})


def _atomic(kind: str, pointer: Any, val: Any, mask: Any, sem: Any, scope: Any) -> tensor:
    what = f"atomic_{kind}"
    p, v, m = _writable(what, pointer), value(val), _mask(what, mask)
    _scalars_only(what, p, v, m)
    return wrap(atomic_values(kind, p, v, m, _hints(unwrap(sem), unwrap(scope))))


def _named(kind: str, does: str) -> Callable[..., tensor]:
    def apply(
        pointer: Any, val: Any, mask: Any = None, sem: Any = None, scope: Any = None
    ) -> tensor:
        return _atomic(kind, pointer, val, mask, sem, scope)

    apply.__name__ = apply.__qualname__ = f"atomic_{kind}"
    apply.__doc__ = f"{does}; what was there before."
    return member(builtin(apply))


atomic_add = _named("add", "Adds to memory so that no addition is lost")
atomic_max = _named("max", "Leaves the larger of memory and value")
atomic_min = _named("min", "Leaves the smaller of memory and value")
atomic_and = _named("and", "Leaves the bits that both have")
atomic_or = _named("or", "Leaves the bits that one of them has")
atomic_xor = _named("xor", "Leaves the bits in which they differ")
atomic_xchg = _named("xchg", "Leaves the value")


@member
@builtin
def atomic_cas(pointer: Any, cmp: Any, val: Any, sem: Any = None, scope: Any = None) -> tensor:
    """Leaves the value where memory is as expected (`cmp`); what was there before."""
    p = _writable("atomic_cas", pointer)
    to = pointed_to(p)
    if to.primitive_bitwidth not in (16, 32, 64):
        raise Invalid(f"atomic_cas on {to}", hint="elements have 16, 32 or 64 bits")
    expected, new = value(cmp), value(val)
    _scalars_only("atomic_cas", p, expected, new)
    (expected, _), (new, _) = (
        _over("atomic_cas", p, expected, None),
        _over("atomic_cas", p, new, None),
    )
    hints = _hints(unwrap(sem), unwrap(scope))
    return wrap(promote.emit("cas", (p, expected, new), new.type, hints))
