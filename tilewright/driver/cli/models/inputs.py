"""Inputs on the command line: `f32[8,16]`, `x=f32[8,16]`, `x=@file.npy`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.driver.program.arrays import random_array
from tilewright.ir.types import TENSOR_DTYPES, TensorType

INPUT = "x=f32[8,16] (random), x=@FILE.npy, or without x= in order; once for each input"
_TYPE = re.compile(r"(\w+)\[([\d,\s]*)\]\Z")
_NAMED = re.compile(r"([^=\[\]@]+)=(.*)\Z", re.DOTALL)


@dataclass(frozen=True)
class Value:
    """An input: an array, and its dtype, which numpy may lack (bf16 is an array of float32)."""

    array: np.ndarray
    dtype: str


@dataclass(frozen=True)
class Inputs:
    """Those in order, and those by name."""

    listed: Sequence[Value] = ()
    named: Mapping[str, Value] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.listed or self.named)

    def placed(self, names: Sequence[str], of: str) -> dict[str, Value]:
        """All by name, for a model with these inputs."""
        if len(self.listed) > len(names):
            raise Invalid(
                f"{of} has {len(names)} inputs, and {len(self.listed)} were given",
                hint=f"they are {', '.join(names)}",
            )
        found = dict(zip(names, self.listed))
        for name, value in self.named.items():
            if name not in names:
                raise Invalid(
                    f"{of} has no input {name!r}", hint=f"its inputs are {', '.join(names)}"
                )
            if name in found:
                raise Invalid(f"the input {name!r} is given twice", hint="in order, and by name")
            found[name] = value
        return found


def parse_inputs(texts: Iterable[str], seed: int = 0) -> Inputs:
    """What `--input` was given, in order. Random values are the same each time."""
    rng = np.random.default_rng(seed)
    listed: list[Value] = []
    named: dict[str, Value] = {}
    for text in texts:
        match = _NAMED.match(text.strip())
        name, said = match.groups() if match else (None, text)
        value = _value(said.strip(), rng)
        if name is None:
            listed.append(value)
        elif name in named:
            raise Invalid(f"the input {name!r} is given twice")
        else:
            named[name] = value
    return Inputs(listed, named)


def _value(text: str, rng: np.random.Generator) -> Value:
    if text.startswith("@"):
        array = _read(Path(text[1:]))
        return Value(array, str(array.dtype))
    t = parse_type(text)
    return Value(random_array(t, rng), t.dtype.name)


def _read(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise Invalid(f"there is no file {path}", hint="numpy.save writes one") from None
    except (OSError, ValueError, EOFError) as why:
        raise Invalid(
            f"{path} is no array of numpy's: {why}", hint="numpy.save writes one"
        ) from why


def parse_type(text: str) -> TensorType:
    """`f32[8,16]` on the command line."""
    found = _TYPE.match(text.strip())
    if found is None or found.group(1) not in TENSOR_DTYPES:
        raise Invalid(
            f"{text!r} does not say an input",
            hint=f"write it as f32[8,16] or @FILE.npy; dtypes are {', '.join(TENSOR_DTYPES)}",
        )
    shape = tuple(int(d) for d in found.group(2).split(",") if d.strip())
    return TensorType(TENSOR_DTYPES[found.group(1)], shape)
