"""The call path: torch tensors in, addresses to native programs, fresh torch tensors out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, Protocol

import sympy
import torch

from tilewright import ops
from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.events import Log
from tilewright.capture.torch.captured import (
    Argument,
    Buffer,
    Captured,
    HostCall,
    Restrided,
    Result,
    Same,
    Segment,
    Slot,
    SymbolicInt,
    Value,
    View,
)
from tilewright.capture.torch.dtypes import TO_TORCH
from tilewright.driver.weights import WeightWatch
from tilewright.graph.specialise import graph_symbols, specialise
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Input, Node, rebuild

data_ptr = torch.Tensor.data_ptr


class Program(Protocol):
    """A compiled graph: addresses of contiguous memory in, addresses of memory to fill, values of
    `dims`.
    """

    dims: tuple[str, ...]
    weights: tuple[int, ...]  # inputs from which values are derived that outlive a call

    def run(
        self, inputs: Sequence[int], outputs: Sequence[int], dims: Sequence[int] = ()
    ) -> None: ...

    def refresh(self) -> None:
        """Derive them again before the next result."""
        ...


class Dry(Protocol):
    """Tells whether a call must leave its inputs as they are."""

    dry: bool


Compile = Callable[[Graph], Program]


class Unit:
    """One translated fx graph, callable as AOTAutograd calls: a list of arguments, which it
    empties.
    """

    def __init__(
        self, captured: Captured, compile: Compile, log: Log, keep: int, session: Dry, kind: str
    ) -> None:
        self.captured, self.log, self.session, self.kind = captured, log, session, kind
        self._boxed_call = True  # on the object: torch's wrappers copy its attributes
        self.segments = [SegmentRunner(s, compile, log, keep) for s in captured.segments]
        # Inputs of a backward graph come from autograd, which promises values, not strides.
        self.check = kind == "backward"
        symbolic = any(s.symbols for s in self.segments)
        plain = (
            len(captured.steps) == 1
            and len(self.segments) == 1
            and not symbolic
            and captured.seed is None
            and not captured.held
            and not captured.scalars
            and all(a.kind != "float" for a in captured.arguments)
            and all(isinstance(r, (Same, Value, View)) and _static(r) for r in captured.results)
        )
        self._fast = FastPath(captured, self.segments[0]) if plain else None
        self._binders = _binders(captured.arguments)

    @property
    def programs(self) -> list[Program]:
        """Every program compiled so far."""
        return [p for s in self.segments for p in s.programs()]

    def __call__(self, args: list[Any]) -> list[Any]:
        if self.check:
            self._restore_layouts(args)
        if self._fast is not None:
            return self._fast(args, self.session.dry)
        return self._general(args)

    def refresh(self) -> None:
        """Derive everything from the weights again before the next result."""
        for p in self.programs:
            p.refresh()

    # ---- the general path: dims, host calls, random seeds

    def _general(self, args: list[Any]) -> list[Any]:
        captured = self.captured
        env: dict[str, Any] = dict(captured.held)
        dims: dict[str, int] = {}
        numbers: dict[str, Any] = {}
        for a, x in zip(captured.arguments, args, strict=True):
            if a.kind == "float":
                env[a.slot] = torch.tensor(float(x), dtype=torch.float64)
                if a.symbol is not None:
                    numbers[a.symbol] = float(x)
            elif a.kind == "int":
                if a.symbol is not None:
                    numbers[a.symbol] = int(x)
            else:
                env[a.slot] = x
        for name, index, axis, factor in self._binders:
            x = args[index]
            dims.setdefault(name, int(x if axis is None else x.shape[axis]) // factor)
        args.clear()
        if captured.seed is not None:
            env[captured.seed] = draw_seed()
        scalars = self._scalars(dims, numbers, env)
        runners = iter(self.segments)
        for step in captured.steps:
            if isinstance(step, HostCall):
                self._host(step, env, dims)
                scalars = self._scalars(dims, numbers, env)
            else:
                next(runners)(env, dims, scalars)
        if not self.session.dry:
            for old, new in captured.mutated:
                env[old].copy_(env[new])
        return [_result(r, env, dims) for r in captured.results]

    def _scalars(
        self, dims: dict[str, int], numbers: Mapping[str, Any], env: dict[str, Any]
    ) -> dict[str, float]:
        """Numbers that torch's own expressions give for these dims."""
        out: dict[str, float] = {}
        for s in self.captured.scalars:
            known = {**numbers, **dims}
            names = {str(v) for v in s.expression.free_symbols}
            if not names <= known.keys():
                continue  # told by a host call that has not run yet
            table = {v: sympy.sympify(known[str(v)]) for v in s.expression.free_symbols}
            value = s.expression.xreplace(table)
            if s.slot.startswith("dim:"):
                dims[s.slot.removeprefix("dim:")] = int(value)
                continue
            number = float(value)
            env[s.slot] = torch.tensor(number, dtype=torch.float64)
            if names <= dims.keys():
                out[s.slot] = number
        return out

    def _host(self, call: HostCall, env: dict[str, Any], dims: dict[str, int]) -> None:
        args = _filled(call.args, env, dims)
        kwargs = _filled(call.kwargs, env, dims)
        out = call.function(*args, **kwargs)
        for r, shape, x in zip(
            call.results, call.shapes, (out,) if call.single else out, strict=False
        ):
            if isinstance(r, SymbolicInt):
                dims[D.the_sym(r.value).name] = int(x)
            elif r is not None:
                if isinstance(x, float):
                    x = torch.tensor(x, dtype=torch.float64)
                if shape is not None:
                    for d, n in zip(shape, x.shape, strict=True):
                        if D.is_sym(d):
                            dims.setdefault(D.the_sym(d).name, int(n))
                env[r] = x

    # ---- inputs that are not as they were captured

    def _restore_layouts(self, args: list[Any]) -> None:
        for k, (a, x) in enumerate(zip(self.captured.arguments, args, strict=True)):
            if not a.native or a.kind != "tensor" or a.dtype is None or x is None:
                continue
            if any(not isinstance(s, int) for s in (*a.stride, *a.shape)):
                continue
            if x.stride() != a.stride and x.numel() > 0:
                fixed = torch.empty_strided(x.shape, a.stride, dtype=x.dtype)  # type: ignore[arg-type]
                args[k] = fixed.copy_(x)


class FastPath:
    """Static shapes, one program, nothing else to do: as few Python steps per call as there can
    be.
    """

    def __init__(self, captured: Captured, segment: SegmentRunner) -> None:
        self.captured = captured
        self.program = segment.static_program()
        self.run = self.program.run
        position = {a.slot: k for k, a in enumerate(captured.arguments)}
        graph = segment.graph
        self.reads = [position[_label(n)] for n in graph.inputs]
        derived = [self.reads[k] for k in self.program.weights]
        self.watch = WeightWatch(derived) if derived else None
        self.everything = self.reads == list(range(len(captured.arguments)))
        self.buffers = [_allocation(b) for b in segment.segment.buffers]
        self.empty_inputs = any(
            isinstance(d, int) and d == 0 for n in graph.inputs for d in n.shape
        )
        slots = {b.slot: k for k, b in enumerate(segment.segment.buffers)}
        self.mutated = [(position[old], slots[new]) for old, new in captured.mutated]
        self.results = [self._compiled(r, position, slots) for r in captured.results]
        fresh = [r for r in captured.results if isinstance(r, Same) and r.slot in slots]
        whole = len(fresh) == len(captured.results) == len(slots)
        self.direct = whole and [slots[r.slot] for r in fresh] == list(range(len(slots)))

    def _compiled(
        self, r: Result, position: Mapping[str, int], slots: Mapping[str, int]
    ) -> Callable[[list[Any], list[Any]], Any]:
        if isinstance(r, Value):
            value = r.value
            return lambda args, outs: value
        assert isinstance(r, (Same, View))
        if r.slot in slots:
            k = slots[r.slot]
            if isinstance(r, Same):
                return lambda args, outs: outs[k]
            shape, stride, offset = r.shape, r.stride, r.offset
            return lambda args, outs: outs[k].as_strided(shape, stride, offset)
        k = position[r.slot]
        if isinstance(r, Same):
            return lambda args, outs: args[k]
        shape, stride, start = r.shape, r.stride, r.offset
        return lambda args, outs: args[k].as_strided(
            shape, stride, args[k].storage_offset() + start
        )

    def __call__(self, args: list[Any], dry: bool) -> list[Any]:
        outs = [make() for make in self.buffers]
        given = args if self.everything else [args[k] for k in self.reads]
        addresses = list(map(data_ptr, given))
        if 0 in addresses and not self.empty_inputs:
            _explain_freed(self.captured, args)
        if self.watch is not None and self.watch.changed(args):
            self.program.refresh()
        self.run(addresses, list(map(data_ptr, outs)))
        if self.direct:
            args.clear()
            return outs
        if not dry:
            for old, new in self.mutated:
                args[old].copy_(outs[new])
        results = [r(args, outs) for r in self.results]
        args.clear()
        return results


class SegmentRunner:
    """A segment and its programs: one where shapes are static or compile symbolically, else one
    per value of dims.
    """

    def __init__(self, segment: Segment, compile: Compile, log: Log, keep: int) -> None:
        self.segment, self.graph = segment, segment.graph
        self.compile, self.log, self.keep = compile, log, keep
        self.symbols = tuple(sorted(graph_symbols(segment.graph)))
        self._programs: OrderedDict[tuple[Any, ...], Specialised] = OrderedDict()
        self._whole: Specialised | None = None
        self._lock = Lock()
        self.count = 0
        if not self.symbols:
            self._whole = Specialised(segment, segment.graph, compile(segment.graph))
            return
        try:
            program = compile(segment.graph)
        except Unsupported as problem:
            self.log.add(
                "specialise",
                f"{self.graph.name} is compiled per value of {', '.join(self.symbols)}: "
                f"{problem.what}",
            )
        else:
            self._whole = Specialised(segment, segment.graph, program)

    def static_program(self) -> Program:
        assert self._whole is not None
        return self._whole.program

    def programs(self) -> list[Program]:
        if self._whole is not None:
            return [self._whole.program]
        return [s.program for s in self._programs.values()]

    def __call__(
        self, env: dict[str, Any], dims: Mapping[str, int], numbers: Mapping[str, float]
    ) -> None:
        (self._whole or self._for(dims, numbers))(env, dims)

    def _for(self, dims: Mapping[str, int], numbers: Mapping[str, float]) -> Specialised:
        labels = [_label(n) for n in self.graph.inputs]
        known = {k: v for k, v in numbers.items() if k in labels}
        key = (*(dims[s] for s in self.symbols), *known.values())
        with self._lock:
            found = self._programs.get(key)
            if found is not None:
                self._programs.move_to_end(key)
                return found
            self.count += 1
            values = ", ".join(f"{s} = {dims[s]}" for s in self.symbols)
            self.log.add(
                "specialise",
                f"{self.graph.name} for {values} (program {self.count}, {self.keep} are kept)",
                values={s: dims[s] for s in self.symbols},
            )
            graph = specialise(with_numbers(self.graph, known), dims)
            made = Specialised(self.segment, graph, self.compile(graph))
            self._programs[key] = made
            if len(self._programs) > self.keep:
                self._programs.popitem(last=False)
            return made


class Specialised:
    """A program with the slots it reads and the tensors it fills."""

    def __init__(self, segment: Segment, graph: Graph, program: Program) -> None:
        self.segment, self.program = segment, program
        self.labels = [_label(n) for n in graph.inputs]
        self.watch = WeightWatch(program.weights) if program.weights else None
        self.dense = {_label(n): n.op.role != "scalar" for n in graph.inputs}  # type: ignore[attr-defined]

    def __call__(self, env: dict[str, Any], dims: Mapping[str, int]) -> None:
        for b in self.segment.buffers:
            env[b.slot] = torch.empty_strided(
                _numbers(b.shape, dims), _numbers(b.stride, dims), dtype=TO_TORCH[b.dtype]
            )
        inputs = []
        for slot in self.labels:
            x = env[slot]
            if slot.startswith("host") and not x.is_contiguous():
                x = env[slot] = x.contiguous()
            inputs.append(x)
        outs = [env[b.slot].data_ptr() for b in self.segment.buffers]
        values = [dims[s] for s in self.program.dims]
        if self.watch is not None and self.watch.changed(inputs):
            self.program.refresh()
        self.program.run(list(map(data_ptr, inputs)), outs, values)


def with_numbers(graph: Graph, known: Mapping[str, float]) -> Graph:
    """Scalar inputs whose value is known become constants."""
    if not known:
        return graph

    def known_value(n: Node) -> Node:
        if isinstance(n.op, Input) and n.op.label in known:
            return ops.full((), known[n.op.label], n.dtype)
        return n

    new = rebuild(graph, known_value)
    inputs = tuple(n for n in graph.inputs if _label(n) not in known)
    return Graph(graph.name, inputs, new.outputs, new.places)


def draw_seed() -> torch.Tensor:
    """One draw from torch's default generator: reproducible under torch.manual_seed."""
    return torch.empty((), dtype=torch.int64).random_()


def _label(n: Any) -> str:
    assert isinstance(n.op, Input)
    return n.op.label


def _numbers(dims: Sequence[Dim], values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else int(D.evaluate(d, values)) for d in dims)


def _static(r: Result) -> bool:
    if isinstance(r, View):
        return all(isinstance(d, int) for d in (*r.shape, *r.stride, r.offset))
    return True


def _allocation(b: Buffer) -> Callable[[], torch.Tensor]:
    shape, stride, dtype = b.shape, b.stride, TO_TORCH[b.dtype]
    make = torch.empty_strided
    return lambda: make(shape, stride, dtype=dtype)  # type: ignore[arg-type]


def _filled(tree: Any, env: Mapping[str, Any], dims: Mapping[str, int]) -> Any:
    if isinstance(tree, Slot):
        return env[tree.label]
    if isinstance(tree, SymbolicInt):
        return int(D.evaluate(tree.value, dims))
    if isinstance(tree, dict):
        return {k: _filled(v, env, dims) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(_filled(v, env, dims) for v in tree)
    return tree


def _result(r: Result, env: Mapping[str, Any], dims: Mapping[str, int]) -> Any:
    if isinstance(r, Value):
        return r.value
    if isinstance(r, SymbolicInt):
        return int(D.evaluate(r.value, dims))
    x = env[r.slot]
    if isinstance(r, Same):
        return x
    shape, stride = _numbers(r.shape, dims), _numbers(r.stride, dims)
    if isinstance(r, View):
        start = x.storage_offset() + int(D.evaluate(r.offset, dims))
        return x.as_strided(shape, stride, start)
    assert isinstance(r, Restrided)
    return torch.empty_strided(shape, stride, dtype=x.dtype).copy_(x)


def _binders(arguments: Sequence[Argument]) -> list[tuple[str, int, int | None, int]]:
    """(name of a dim, argument, its axis or None, divisor): where the call tells each dim's
    value.
    """
    out: dict[str, tuple[str, int, int | None, int]] = {}

    def bind(d: Dim | None, index: int, axis: int | None) -> None:
        if d is None or isinstance(d, int) or len(d.terms) != 1:
            return
        mono, factor = d.terms[0]
        if len(mono) == 1 and isinstance(mono[0], D.Sym) and factor > 0:
            name = mono[0].name
            if name not in out or (factor == 1 and out[name][3] != 1):
                out[name] = name, index, axis, factor

    for k, a in enumerate(arguments):
        bind(a.value, k, None)
    for k, a in enumerate(arguments):
        for axis, d in enumerate(a.shape):
            bind(d, k, axis)
    return list(out.values())


def _explain_freed(captured: Captured, args: Sequence[Any]) -> None:
    """An address of 0 where elements were promised: the tensor's memory was given back."""
    for k, (a, x) in enumerate(zip(captured.arguments, args, strict=True)):
        if a.native and isinstance(x, torch.Tensor) and x.data_ptr() == 0 and x.numel() > 0:
            raise Invalid(
                f"input {k} ({tuple(x.shape)}, {x.dtype}) has no memory: "
                "its storage was freed or resized",
                hint="pass a tensor that still owns its elements",
            )
