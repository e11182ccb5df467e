"""What changed when a function is compiled again, in words.

Torch names the guard that failed: `tensor 'x' size mismatch at index 0. expected 3, actual 5`, or
`n == 3`. A guard of the second kind has the old value only: the new one is read from the frame.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
}
_STATES = {
    "grad_mode": "whether gradients are recorded (torch.no_grad)",
    "autocast_state": "autocast",
    "deterministic_algorithms": "torch.use_deterministic_algorithms",
    "num_threads": "the number of threads (torch.set_num_threads)",
    "default_dtype": "torch.set_default_dtype",
    "torch_function": "a mode of __torch_function__",
}


@dataclass(frozen=True)
class Frame:
    """What names in guards mean: variables of the frame, and parameters where the frame is that of
    tw.compile, which has them as `args` and `kwargs`."""

    locals: Mapping[str, Any]
    globals: Mapping[str, Any]
    parameters: Sequence[str] = ()

    def spoken(self, source: str) -> str:
        """A source as the user would say it."""
        if m := re.fullmatch(r"G\['\w+'\]\.(\w+)|G\['(\w+)'\]", source):
            return f"the global {m[1] or m[2]}"
        if m := re.match(r"args\[(\d+)\]", source):
            k = int(m[1])
            name = self.parameters[k] if k < len(self.parameters) else f"argument {k}"
            return name + source[m.end() :]
        source = re.sub(r"^kwargs\['(\w+)'\]", r"\1", source)
        return re.sub(r"^function\.", "self.", source)

    def value(self, source: str) -> Any:
        """Its value now: names, items and attributes, and nothing else, are followed."""
        return self._follow(ast.parse(source, mode="eval").body)

    def _follow(self, e: ast.expr) -> Any:
        match e:
            case ast.Name("G"):
                return self.globals
            case ast.Name(name):
                return self.locals[name]
            case ast.Attribute(of, name):
                return getattr(self._follow(of), name)
            case ast.Subscript(of, ast.Constant(key)):
                return self._follow(of)[key]
        raise LookupError(ast.dump(e))


@dataclass(frozen=True)
class Change:
    words: str
    remedy: str


def change_of(guard: str, frame: Frame) -> Change:
    """What a failed guard says has changed."""
    text = re.split(r"\s{2,}#|\n", guard.strip())[0].strip()
    for pattern, say in _WORDS:
        if m := re.match(pattern, text):
            return say(m, frame)
    return Change(f"{text} holds no more", "pass what varies as a tensor")


def _size(m: re.Match[str], frame: Frame) -> Change:
    name = frame.spoken(m[1])
    return Change(
        f"{name} has another size: axis {m[2]} was {m[3]} and is {m[4]}",
        f"torch._dynamo.mark_dynamic({name}, {m[2]}) before the first call, or dynamic=True",
    )


def _rank(m: re.Match[str], frame: Frame) -> Change:
    name = frame.spoken(m[1])
    return Change(
        f"{name} has another number of axes: it had {m[2]} and has {m[3]}",
        f"give {name} the same number of axes in all calls",
    )


def _dtype(m: re.Match[str], frame: Frame) -> Change:
    name, old, new = frame.spoken(m[1]), *(_DTYPES.get(x, x) for x in (m[2], m[3]))
    return Change(
        f"{name} has another dtype: it was {old} and is {new}", f"call {name}.to(torch.{old}) first"
    )


def _stride(m: re.Match[str], frame: Frame) -> Change:
    name = frame.spoken(m[1])
    return Change(
        f"{name} lies otherwise in memory: its stride along axis {m[2]} was {m[3]} and is {m[4]}",
        f"pass {name}.contiguous()",
    )


def _gradient(m: re.Match[str], frame: Frame) -> Change:
    name, now = frame.spoken(m[1]), "needs" if m[2] in ("0", "False") else "does not need"
    return Change(
        f"{name} {now} a gradient now (requires_grad)",
        "nothing, where it is meant: training and inference have a program each",
    )


def _state(m: re.Match[str], frame: Frame) -> Change:
    states = [_STATES.get(s, s) for s in m[1].split()]
    return Change(
        f"another setting of torch: {', '.join(states)}",
        "make all calls under the same settings, such as torch.no_grad()",
    )


def _equal(m: re.Match[str], frame: Frame) -> Change:
    source, old = m[1], m[2]
    name = frame.spoken(source)
    try:
        value = frame.value(source)
        plain = value is None or isinstance(value, (bool, int, float, str))
        now = f"is {value!r}" if plain else f"is a {type(value).__name__}"
    except (LookupError, AttributeError, TypeError, SyntaxError):
        now = "is another"
    remedy = f"pass {name} as a tensor, or keep it the same"
    if name.startswith("the global "):
        remedy = f"pass {name} as an argument, and as a tensor where it varies"
    elif name.startswith("self."):
        remedy = f"keep {name} in a tensor (a buffer), or the same"
    return Change(f"{name} was {old} and {now}", remedy)


def _type(m: re.Match[str], frame: Frame) -> Change:
    name = frame.spoken(m[1])
    return Change(f"{name} has another type", f"give {name} as the same type in all calls")


_TENSOR = r"tensor '(.+?)' "
_WORDS: tuple[tuple[str, Callable[[re.Match[str], Frame], Change]], ...] = (
    (_TENSOR + r"size mismatch at index (\d+)\. expected (\S+), actual (\S+)", _size),
    (_TENSOR + r"rank mismatch\. expected (\d+), actual (\d+)", _rank),
    (_TENSOR + r"dtype mismatch\. expected (\w+), actual (\w+)", _dtype),
    (_TENSOR + r"stride mismatch at index (\d+)\. expected (\S+), actual (\S+)", _stride),
    (_TENSOR + r"requires_grad mismatch\. expected requires_grad=(\w+)", _gradient),
    (r"GLOBAL_STATE changed: (.+)", _state),
    (r"___check_(?:type_id|obj_id)\((.+?), ", _type),
    (r"([\w.'\[\]]+) == (\S.*)", _equal),
)
