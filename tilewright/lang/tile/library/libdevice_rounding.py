"""libdevice's arithmetic and conversions with a direction of rounding: rn (to nearest), rz (to
zero), rd (down), ru (up).

There is no switch for the direction here. The result to nearest is computed first, then what was
lost, exactly; where the loss points the other way the neighbour is the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.front.functions import constexpr_function, function
from tilewright.lang.tile.language import core
from tilewright.lang.tile.library.libdevice_map import floats, mapped

if TYPE_CHECKING:
    from typing import Any as constexpr  # a constant may be any value of Python's
else:
    from tilewright.lang.tile.language.types import constexpr

_nextafter = mapped("nextafter")
_trunc = mapped("trunc")
_round = mapped("round")


@function
def _settled(nearest, lost, mode: constexpr):
    """The neighbour of the nearest number where the exact one, nearest + lost, rounds to it."""
    if mode == "rn":
        return nearest
    else:
        zero = core.full(nearest.shape, 0, nearest.dtype)
        if mode == "ru":
            away = lost > 0
            toward = zero + float("inf")
        elif mode == "rd":
            away = lost < 0
            toward = zero - float("inf")
        else:
            away = ((nearest > 0) & (lost < 0)) | ((nearest < 0) & (lost > 0))
            toward = zero
        return core.where(away, _nextafter(nearest, toward), nearest)


@function
def _sum_lost(a, b, s):
    """What a + b = s has lost (Knuth)."""
    t = s - a
    return (a - (s - t)) + (b - t)


@function
def _add(a, b, mode: constexpr):
    s = a + b
    if a.dtype == core.float32:
        # Wide enough for what is lost to overflow too.
        c = a.to(core.float64)
        d = b.to(core.float64)
        lost = (c + d - s.to(core.float64)) + _sum_lost(c, d, c + d)
    else:
        lost = _sum_lost(a, b, s)
    return _settled(s, lost, mode)


@function
def _sub(a, b, mode: constexpr):
    return _add(a, -b, mode)


@function
def _mul(a, b, mode: constexpr):
    p = a * b
    if a.dtype == core.float32:
        lost = a.to(core.float64) * b.to(core.float64) - p.to(core.float64)
    else:
        lost = core.fma(a, b, -p)
    return _settled(p, lost, mode)


@function
def _div(a, b, mode: constexpr):
    q = core.fdiv(a, b, True)
    if a.dtype == core.float32:
        rest = a.to(core.float64) - q.to(core.float64) * b.to(core.float64)
    else:
        rest = core.fma(-q, b, a)
    return _settled(q, core.where(b < 0, -rest, rest), mode)


@function
def _rcp(x, mode: constexpr):
    return _div(core.full(x.shape, 1, x.dtype), x, mode)


@function
def _sqrt(x, mode: constexpr):
    s = core.sqrt(x)
    if x.dtype == core.float32:
        lost = x.to(core.float64) - s.to(core.float64) * s.to(core.float64)
    else:
        lost = core.fma(-s, s, x)
    return _settled(s, lost, mode)


@function
def _fma(a, b, c, mode: constexpr):
    if mode == "rn":
        return core.fma(a, b, c)
    else:
        core.static_assert(a.dtype == core.float32, "fma with a direction takes float32 only")
        p = a.to(core.float64) * b.to(core.float64)  # exact
        d = c.to(core.float64)
        s = p + d
        nearest = s.to(core.float32)
        return _settled(nearest, (s - nearest.to(core.float64)) + _sum_lost(p, d, s), mode)


@function
def _to_float(x, dtype: constexpr, mode: constexpr):
    """A float64 or an integer as a narrower float."""
    nearest = x.to(dtype)
    if x.dtype.is_int() and x.dtype.primitive_bitwidth == 64:
        high = (x >> 32).to(core.float64) * 4294967296.0
        low = (x & 0xFFFFFFFF).to(core.float64)
        s = high + low
        lost = (s - nearest.to(core.float64)) + _sum_lost(high, low, s)
    else:
        lost = x.to(core.float64) - nearest.to(core.float64)
    return _settled(nearest, lost, mode)


@constexpr_function
def _bounds(source, target):
    """The least and the greatest integer, and what NaN becomes."""
    nan = 0
    if source.primitive_bitwidth == 64 or target.primitive_bitwidth == 64:
        bits = target.primitive_bitwidth
        nan = -(1 << (bits - 1)) if target.is_int_signed() else 1 << (bits - 1)
    return target.get_int_min_value(), target.get_int_max_value(), nan


@constexpr_function
def _limits(target):
    """The first floats below and above all integers of a type: powers of two, or -1."""
    low, high = target.get_int_min_value(), target.get_int_max_value()
    return float(low), float(high + 1)


@function
def to_int(x, dtype: constexpr, mode: constexpr):
    """A float as an integer; what does not fit becomes the nearest one that does."""
    bounds: constexpr = _bounds(x.dtype, dtype)
    limits: constexpr = _limits(dtype)
    if mode == "rn":
        whole = _round(x)
    elif mode == "rd":
        whole = core.floor(x)
    elif mode == "ru":
        whole = core.ceil(x)
    else:
        whole = _trunc(x)
    below = whole < limits[0]
    above = whole >= limits[1]
    inside = core.where(above | below | (x != x), 0.0, whole).to(dtype)
    least = core.full(x.shape, bounds[0], dtype)
    greatest = core.full(x.shape, bounds[1], dtype)
    nan = core.full(x.shape, bounds[2], dtype)
    return core.where(x != x, nan, core.where(above, greatest, core.where(below, least, inside)))


# ---- names

MODES = ("rn", "rz", "rd", "ru")
_ARITHMETIC = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "div": _div,
    "rcp": _rcp,
    "sqrt": _sqrt,
    "fma": _fma,
}
_SOURCES = {
    "int": core.int32,
    "uint": core.uint32,
    "ll": core.int64,
    "ull": core.uint64,
    "float": core.float32,
    "double": core.float64,
}
_CONVERSIONS = (
    *("double2float int2float uint2float ll2float ull2float ll2double ull2double".split()),
    *(f"{a}2{b}" for a in ("float", "double") for b in ("int", "uint", "ll", "ull")),
)
_EXACT = ("int2double_rn", "uint2double_rn")


def _arithmetic(name: str, compute: Any, mode: str) -> Callable[..., Any]:
    def apply(*args: Any) -> Any:
        tiles = floats(name, *args)
        if tiles[0].dtype not in (core.float32, core.float64):
            raise Invalid(
                f"libdevice.{name} of {tiles[0].dtype}",
                hint="it takes float32 and float64: x.to(tl.float32)",
            )
        return compute(*tiles, mode)

    apply.__name__ = apply.__qualname__ = name
    return core.builtin(apply)


def _conversion(name: str) -> Callable[..., Any]:
    kinds, mode = name.split("_")
    source, target = (_SOURCES[k] for k in kinds.split("2"))
    compute = to_int if target.is_int() else _to_float

    def apply(x: Any) -> Any:
        x = core.to_tensor(x)
        if x.dtype.is_floating() != source.is_floating():
            raise Invalid(f"libdevice.{name} of {x.dtype}", hint=f"it takes {source}")
        return compute(x.to(source), target, mode)

    apply.__name__ = apply.__qualname__ = name
    return core.builtin(apply)


ROUNDED: dict[str, Callable[..., Any]] = {
    **{
        f"{name}_{mode}": _arithmetic(f"{name}_{mode}", compute, mode)
        for name, compute in _ARITHMETIC.items()
        for mode in MODES
    },
    **{f"{name}_{mode}": _conversion(f"{name}_{mode}") for name in _CONVERSIONS for mode in MODES},
    **{name: _conversion(name) for name in _EXACT},
}
