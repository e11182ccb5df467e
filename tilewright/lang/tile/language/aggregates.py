"""Classes whose objects a kernel's variables can hold: several values under names.

    @tl.core._aggregate
    class State:
        x: tl.tensor
        n: tl.constexpr

Their fields are the annotated names, set once while an object is made.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.errors import Invalid
from tilewright.lang.tile.language.tensor import builtin, tuple
from tilewright.lang.tile.language.types import base_value, constexpr, tuple_type


def aggregate(cls: type) -> Any:
    """Makes a class one of the language's."""
    fields = _fields(cls)
    own = cls.__dict__.get("__init__")
    start: Callable[..., Any] = own if own is not None else _default_init(cls, fields)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        functools.partial(start, self)(*args, **kwargs)
        missing = [name for name in fields if name not in self.__dict__]
        if missing:
            what = f"{cls.__name__} is made without {', '.join(missing)}"
            raise Invalid(what, hint="__init__ sets every annotated field")
        self.__dict__["_complete"] = True

    def set_field(self: Any, name: str, value: Any) -> None:
        if name not in fields:
            known = ", ".join(fields)
            raise Invalid(f"{cls.__name__} has no field {name}", hint=f"its fields: {known}")
        if self.__dict__.get("_complete"):
            hint = f"tl.aggregate_replace(x, {name}=…) makes a changed copy"
            raise Invalid(f"{cls.__name__}.{name} is set when the object is made", hint=hint)
        kind = fields[name]
        if isinstance(kind, type) and not isinstance(value, kind):
            what = f"{cls.__name__}.{name} is a {kind.__name__}, not a {type(value).__name__}"
            raise Invalid(what, hint="give a value of the annotated type")
        self.__dict__[name] = value

    body = {
        "__init__": init,
        "__setattr__": set_field,
        "__tile_aggregate__": True,
        "__tile_builtin__": True,
        "__aggregate_fields__": builtins.tuple(fields),
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "flatten": _flatten,
        "rebuild": _rebuild,
        "type": property(lambda self: tuple_type([_type(v) for v in _values(self)], list(fields))),
    }
    return type(cls.__name__, (cls, base_value), body)


def _fields(cls: type) -> dict[str, Any]:
    """Names and types, those of base classes first."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        names = inspect.get_annotations(base)
        if not names or base is base_value:
            continue
        try:
            kinds = typing.get_type_hints(base)
        except NameError:  # annotations of names that are known later stay unchecked
            kinds = {}
        found.update({name: kinds.get(name) for name in names})
    return found


def _default_init(cls: type, fields: dict[str, Any]) -> Callable[..., None]:
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > len(fields):
            what = f"{cls.__name__} takes {len(fields)} values, {len(args)} given"
            raise Invalid(what, hint=f"its fields: {', '.join(fields)}")
        given = dict(zip(fields, args, strict=False))
        for name, v in kwargs.items():
            if name in given or name not in fields:
                problem = "is given twice" if name in given else "is no field"
                raise Invalid(f"{cls.__name__}: {name} {problem}")
            given[name] = v
        for name in fields:
            if name in given:
                setattr(self, name, _settled(given[name]))
            elif hasattr(cls, name):
                setattr(self, name, _settled(getattr(cls, name)))

    return init


def _settled(x: Any) -> Any:
    """Python's values as those of the language."""
    if isinstance(x, base_value):
        return x
    if isinstance(x, builtins.tuple):
        items = [_settled(v) for v in x]
        names = getattr(x, "_fields", None)
        return tuple(items, tuple_type([_type(v) for v in items], names) if names else None)
    return constexpr(x)


def _values(x: Any) -> list[Any]:
    return [x.__dict__[name] for name in type(x).__aggregate_fields__]


def _type(v: Any) -> Any:
    return v.type


def _flatten(self: Any) -> list[Any]:
    return [t for v in _values(self) for t in v.flatten()]


def _rebuild(self: Any, tensors: Sequence[Any]) -> Any:
    rest = list(tensors)
    made = object.__new__(type(self))
    for name, v in zip(type(self).__aggregate_fields__, _values(self), strict=True):
        n = len(v.flatten())
        made.__dict__[name] = v.rebuild(rest[:n])
        rest = rest[n:]
    made.__dict__["_complete"] = True
    return made


@builtin
def aggregate_replace(instance: Any, **changes: Any) -> Any:
    """A copy of an aggregate with some fields changed."""
    if not getattr(type(instance), "__tile_aggregate__", False):
        raise Invalid(f"aggregate_replace of {instance!r}", hint="it is for objects of aggregates")
    names = type(instance).__aggregate_fields__
    for name in changes:
        if name not in names:
            what = f"{type(instance).__name__} has no field {name}"
            raise Invalid(what, hint=f"its fields: {', '.join(names)}")
    made = object.__new__(type(instance))
    for name in names:
        made.__dict__[name] = _settled(changes.get(name, instance.__dict__[name]))
    made.__dict__["_complete"] = True
    return made
