"""Modules, functions and exported programs of torch, as models to be exported."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from tilewright.base.collector import garbage_waits
from tilewright.base.errors import Invalid, Unsupported
from tilewright.capture.torch.decompositions import decompositions
from tilewright.capture.torch.quick_tables import quick_tables
from tilewright.capture.torch.recurrent import as_scans, recurrent_layers
from tilewright.capture.torch.undivided import by_sizes
from tilewright.capture.torch.whole import Whole, whole
from tilewright.driver.export.model import (
    Check,
    Described,
    Model,
    Weight,
    counted_names,
)
from tilewright.ir.node import Input
from tilewright.ir.types import TensorType
from tilewright.runtime.program_data import Stored

_HELD = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


def model_of_torch(given: Any, examples: Sequence[Any], dynamic: Any, name: str | None) -> Model:
    """`given` is a module, a function, what torch.export made, or the path of a `.pt2` file."""
    if isinstance(given, str | Path):
        given, name = _loaded(Path(given)), name or Path(given).stem
    if isinstance(given, ExportedProgram):
        if examples or dynamic is not None:
            raise Invalid(
                "an exported program has its sizes already",
                hint="leave out examples and dynamic=, or give the module itself",
            )
        return _model(given, name or "model", ())
    name = name or _name_of(given)
    module = given if isinstance(given, torch.nn.Module) else _as_module(given)
    if not examples and inspect.signature(module.forward).parameters:
        raise Invalid(f"{name} needs example inputs", hint="tw.export(model, x, path=…)")
    try:
        # Of one tensor that is given twice torch would make one input, and leave the other unread.
        with garbage_waits(), torch.no_grad(), recurrent_layers():
            apart = pytree.tree_map_only(torch.Tensor, torch.clone, tuple(examples))
            exported = torch.export.export(module, apart, dynamic_shapes=dynamic)
    except Exception as problem:
        raise Unsupported(
            f"torch.export cannot capture {name}: {_first_lines(problem)}",
            hint="torch.export.export(model, examples) says more",
        ) from problem
    return _model(exported, name, tuple(_dims(module, examples, dynamic)))


def _loaded(path: Path) -> ExportedProgram:
    if not path.is_file():
        raise Invalid(f"there is no file {path}")
    try:
        return torch.export.load(path)
    except Exception as problem:
        raise Invalid(
            f"{path} is no exported program: {_first_lines(problem)}",
            hint="torch.export.save(torch.export.export(model, examples), path) writes one",
        ) from None


def _first_lines(problem: Exception) -> str:
    lines = [x.strip() for x in str(problem).splitlines() if x.strip()]
    return " ".join(lines[:3])[:400] or type(problem).__name__


def _name_of(given: Any) -> str:
    name = getattr(given, "__name__", type(given).__name__)
    return name if name.isidentifier() else "model"


def _as_module(function: Any) -> torch.nn.Module:
    if not callable(function):
        raise Invalid(
            f"a {type(function).__name__} cannot be exported",
            hint="give a torch.nn.Module, a function, a .pt2 or an .onnx file",
        )
    module = torch.nn.Module()
    module.forward = function
    return module


def _dims(module: torch.nn.Module, examples: Sequence[Any], dynamic: Any) -> Iterator[str]:
    """The user's names of the axes of all tensors among the examples, "" where there is none, in
    the order in which torch numbers tensors and their axes."""
    if dynamic is None:
        return
    bound = inspect.signature(module.forward).bind(*examples).arguments
    given: Any = dynamic
    if not isinstance(dynamic, Mapping):
        given = dict(zip(bound, dynamic))
    for name, value in bound.items():
        yield from _axes(value, given.get(name))


def _axes(value: Any, wanted: Any) -> Iterator[str]:
    if isinstance(value, torch.Tensor):
        for k in range(value.ndim):
            d = wanted.get(k) if isinstance(wanted, Mapping) else wanted[k] if wanted else None
            yield d.__name__ if hasattr(d, "__name__") else ""
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _axes(inner, None if wanted is None else wanted.get(key))
    elif isinstance(value, list | tuple):
        for k, inner in enumerate(value):
            yield from _axes(inner, None if wanted is None else wanted[k])


def _model(exported: ExportedProgram, name: str, dims: Sequence[str]) -> Model:
    with garbage_waits(), recurrent_layers(), quick_tables():
        exported = exported.run_decompositions(decompositions() | by_sizes() | as_scans())
    signature = exported.graph_signature
    held = {_node(s): s for s in signature.input_specs if s.kind in _HELD}
    taken = [s for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
    for s in signature.input_specs:
        if s.kind not in (*_HELD, InputKind.USER_INPUT):
            raise Unsupported(f"{name} cannot be exported: it takes a {s.kind.name} of torch")
    outputs = _outputs(exported, name)
    nodes = [node for node, _ in outputs]
    found = whole(exported.graph_module, name, list(held), nodes, exported.range_constraints)
    inputs = _inputs(found, taken, name)
    types = [n.ttype for n in found.graph.outputs]
    gives = tuple(Described(n, t.dtype, t.shape) for (_, n), t in zip(outputs, types))
    return Model(
        name,
        found.graph,
        _weights(exported, found, held),
        inputs,
        gives,
        tuple(Check(c.words, c.size) for c in found.checks),
        _names(inputs, dims) | counted_names(gives, found.counted),
        {_node(s): s.arg.value for s in taken if isinstance(s.arg, ConstantArgument)},
        counted=found.counted,
    ).checked()


def _node(s: Any) -> str:
    return s.arg.name


def _outputs(exported: ExportedProgram, name: str) -> list[tuple[str, str]]:
    """Nodes of the results, and their names: by the keys and attributes under which the model
    returns them."""
    specs = exported.graph_signature.output_specs
    for s in specs:
        if s.kind is not OutputKind.USER_OUTPUT:
            raise Unsupported(
                f"{name} cannot be exported: it changes {s.target or _node(s)} in place, and a "
                "package keeps nothing between calls",
                hint="call .eval() first, or return the new value",
            )
    shape = exported.call_spec.out_spec
    assert shape is not None
    tree = pytree.tree_unflatten(list(range(len(specs))), shape)
    paths, _ = pytree.tree_flatten_with_path(tree)
    found = []
    for (path, _), s in zip(paths, specs, strict=True):
        if isinstance(s.arg, ConstantArgument) and s.arg.value is None:
            continue
        if not isinstance(s.arg, TensorArgument):
            raise Unsupported(
                f"{name} cannot be exported: it returns a number", hint="return a tensor"
            )
        found.append((s.arg.name, _path_name(path)))
    return found


def _path_name(path: Sequence[Any]) -> str:
    """`y`, `0.mask`; `output` where the model returns one tensor."""
    parts = [str(getattr(p, "key", getattr(p, "idx", getattr(p, "name", "")))) for p in path]
    shown = ".".join(parts)
    return f"output{shown}" if not shown or shown[0].isdigit() else shown


def _inputs(found: Whole, taken: Sequence[InputSpec], name: str) -> tuple[Described, ...]:
    inputs = []
    for label in (_node(s) for s in taken if not isinstance(s.arg, ConstantArgument)):
        if label not in found.inputs:
            raise Unsupported(
                f"{name} cannot be exported: its input {label} is no tensor with a native dtype",
                hint="take real tensors as inputs",
            )
        t = found.inputs[label]
        inputs.append(Described(label, t.dtype, t.shape, label))
    return tuple(inputs)


def _weights(
    exported: ExportedProgram, found: Whole, held: Mapping[str, InputSpec]
) -> dict[str, Weight]:
    tensors: dict[str, tuple[str, Any]] = {k: (k, v) for k, v in found.constants.items()}
    for label, s in held.items():
        target = str(s.target)
        values = exported.constants if target in exported.constants else exported.state_dict
        tensors[label] = target, values[target]
    made = {}
    for n in found.graph.inputs:
        assert isinstance(n.op, Input)
        if n.op.label in tensors:
            name, value = tensors[n.op.label]
            made[n.op.label] = Weight(name, _stored(value, n.ttype))
    return made


def _stored(x: torch.Tensor, t: TensorType) -> Stored:
    x = x.detach().cpu().contiguous()
    array = x.view(torch.uint16).numpy() if x.dtype is torch.bfloat16 else x.numpy()
    return Stored(t.dtype, array.view(t.dtype.memory))


def _names(inputs: Sequence[Described], dims: Sequence[str]) -> dict[str, str]:
    """The user's names of symbols; those without are called after an input and its axis."""
    axes = [(x.name, k, d) for x in inputs for k, d in enumerate(x.shape)]
    names = dims if len(dims) == len(axes) else [""] * len(axes)
    found: dict[str, str] = {}
    for given, (label, axis, d) in zip(names, axes, strict=True):
        if isinstance(d, int) or not re.fullmatch(r"\w+", str(d)):
            continue
        plain = given if given.isidentifier() and not given.startswith("_") else ""
        found.setdefault(str(d), plain or f"{label}_{axis}")
    return found
