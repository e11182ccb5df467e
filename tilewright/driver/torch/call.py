"""The call path: torch tensors in, addresses to native programs, fresh torch tensors out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from tilewright import ops
from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.events import Log
from tilewright.capture.torch.captured import Argument, Captured, HostCall, Returned, Segment, Slot
from tilewright.capture.torch.dtypes import torch_dtype
from tilewright.driver.torch.fast import (
    Call,
    Dry,
    Hold,
    Program,
    Writer,
    direct_call,
    draw_seed,
    fast_call,
    is_plain,
    known_strides,
    label,
    problem_found,
    require_memory,
    slots_of,
)
from tilewright.driver.torch.filled import require_apart, require_like, updates_of
from tilewright.driver.torch.late import watch
from tilewright.driver.torch.layouts import as_announced, one_of, restrided
from tilewright.driver.torch.staged import Stages, can_be_staged
from tilewright.driver.weights.bound import BoundWeights
from tilewright.driver.weights.given_up import given_up, require_elements
from tilewright.driver.weights.watch import WeightWatch, address
from tilewright.graph.specialise import graph_symbols, specialise
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int
from tilewright.ir.node import Graph, Input, Node, rebuild
from tilewright.ir.slots import (
    Number,
    Restrided,
    Result,
    Same,
    SymbolicInt,
    Value,
    View,
    symbol_from,
)

Compile = Callable[..., Program]  # a graph, and `updates` as of Options


class Unit:
    """One translated fx graph, callable as AOTAutograd calls: a list of arguments, which it
    empties.
    """

    def __init__(
        self,
        captured: Captured,
        compile: Compile,
        log: Log,
        keep: int,
        session: Dry,
        kind: str,
        device: torch.device,
        together: Sequence[int] = (),
    ) -> None:
        """Results of the numbers `together` may share memory: they are not the caller's, or live
        and die together."""
        self.device = device
        self.captured, self.log, self.session, self.kind = captured, log, session, kind
        self._boxed_call = True  # on the object: torch's wrappers copy its attributes
        plain = is_plain(captured)
        if plain and device.type == "cpu" and (updates := updates_of(captured)):
            compile = partial(compile, updates=updates)
        self.segments = [SegmentRunner(s, compile, log, keep, device) for s in captured.segments]
        # Inputs of a backward graph come from autograd, which promises values, not strides.
        self.check = kind == "backward"
        self._strides = known_strides(captured.arguments)
        plain = plain and not any(s.symbols for s in self.segments)
        self._bound: BoundWeights | None = None
        self._fast: Call | None = None
        self._is_plain = plain
        self.writer: Writer | None = None  # of other ways to call it
        if plain:
            made = fast_call(
                captured,
                self.segments[0].static_program(),
                session,
                device,
                slots_of(captured, together),
                self.restore_layouts if self.check else None,
            )
            self._fast, self._bound, self.writer = made.call, made.weights, made.writer
        self._binders = _binders(captured.arguments)
        self._staged: Stages | None = None
        if not plain and can_be_staged(captured) and all(s.is_whole for s in self.segments):
            whole = [s.specialised()[0] for s in self.segments]
            restore = self.restore_layouts if self.check else None
            self._staged = Stages(captured, whole, self._binders, session, device, restore)
            self._fast = self._staged.call()

    @property
    def programs(self) -> list[Program]:
        """Every program compiled so far."""
        return [p for s in self.segments for p in s.programs()]

    def into(self, args: list[Any], given: Sequence[Any]) -> list[Any]:
        """Fill the given tensors, one per result, instead of fresh ones."""
        buffers = self.captured.segments[0].buffers if self._is_plain else ()
        fresh = [r.slot for r in self.captured.results if isinstance(r, Same)]
        if fresh != [b.slot for b in buffers] or len(fresh) != len(self.captured.results):
            raise Unsupported(
                "out= works where every result is fresh and of a static shape",
                hint="leave out= out and copy the result",
            )
        if len(given) != len(buffers):
            raise Invalid(f"out= holds {len(given)} tensors for {len(buffers)} results")
        for k, (b, x) in enumerate(zip(buffers, given, strict=True)):
            require_like(k, b, x, self.device)
        require_apart(args, given)
        assert self._fast is not None
        return self._fast(args, given)

    def readers(self) -> Iterator[Reader]:
        """Every program that reads weights, and which."""
        raw = _read_in_eager(self.captured)
        bound = [self._bound] * len(self.segments) if self._staged is None else self._staged.weights
        for segment, held in zip(self.segments, bound, strict=True):
            for s in segment.specialised():
                tensors = s.read if held is None else held.tensors
                named = (k for k, slot in enumerate(s.labels) if slot in raw)
                kept = {*s.program.kept, *named}
                yield Reader(s.program, tensors, frozenset(kept))

    @property
    def direct(self) -> Callable[[list[Any]], list[Any]]:
        """The shortest way to call it."""
        return self._fast if self._fast is not None and not self.check else self

    def spread(self) -> Callable[..., list[Any]]:
        """The shortest way to call it with arguments one by one."""
        made = self.writer.spread() if self.writer is not None and not self.check else None
        if made is not None:
            return made
        direct = self.direct
        return lambda *args: direct(list(args))

    def of_call(
        self,
        given: Sequence[str | torch.Tensor],
        form: str,
        hold: Hold,
        after: Sequence[str],
        names: Mapping[str, Any],
    ) -> Callable[[tuple[Any, ...], dict[str, Any]], Any] | None:
        """A function of what a user's call passes (see `direct_call`), where there is one."""
        if not self._is_plain or self.check or self.captured.mutated:
            return None
        program = self.segments[0].static_program()
        make = direct_call(self.captured, program, self.device, given, self._bound)
        return make(form, hold, after, names)

    def __call__(self, args: list[Any]) -> list[Any]:
        if self._fast is not None:
            return self._fast(args)
        if self.check:
            self.restore_layouts(args)
        return self._general(args)

    def refresh(self) -> None:
        """Derive everything from the weights again before the next result."""
        for p in self.programs:
            p.refresh()

    def synchronise(self) -> None:
        """Waits for the work of all calls, and raises what they found in their data."""
        for s in (x for segment in self.segments for x in segment.specialised()):
            problem = s.found_late()
            if problem is not None:
                raise problem
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # ---- the general path: dims, host calls, random seeds

    def _general(self, args: list[Any]) -> list[Any]:
        captured = self.captured
        env: dict[str, Any] = dict(captured.constants)
        dims: dict[str, int] = {}
        numbers: dict[str, Any] = {}
        for a, x in zip(captured.arguments, args, strict=True):
            if a.kind == "float":
                env[a.slot] = self._number(float(x))
                if a.symbol is not None:
                    numbers[a.symbol] = float(x)
            elif a.kind == "int":
                if a.symbol is not None:
                    numbers[a.symbol] = int(x)
            else:
                env[a.slot] = x.to(self.device) if a.moved else x
        for name, index, axis, factor, constant in self._binders:
            x = args[index]
            dims[name] = (int(x if axis is None else x.shape[axis]) - constant) // factor
        args.clear()
        if captured.seed is not None:
            env[captured.seed] = draw_seed(self.device)
        scalars = self._scalars(dims, numbers, env)
        runners = iter(self.segments)
        for step in captured.steps:
            if isinstance(step, HostCall):
                self._host(step, env, dims)
                scalars = self._scalars(dims, numbers, env)
            else:
                next(runners)(env, dims, scalars)
        if captured.mutated and not self.session.dry:
            old, new = zip(*captured.mutated, strict=True)
            torch._foreach_copy_([env[x] for x in old], [env[x] for x in new])
        return [_result(r, env, dims) for r in captured.results]

    def _scalars(
        self, dims: dict[str, int], numbers: Mapping[str, Any], env: dict[str, Any]
    ) -> dict[str, float]:
        """Numbers that torch's own expressions give for these dims."""
        out: dict[str, float] = {}
        for s in self.captured.scalars:
            known = {
                name: int(D.evaluate(d, dims))
                for name, d in s.dims.items()
                if all(x.name in dims for x in D.symbols(d))
            }
            sizes_only = True
            for v in s.expression.free_symbols:
                if str(v) not in known and str(v) in numbers:
                    known[str(v)], sizes_only = numbers[str(v)], False
            if len(known) < len(s.expression.free_symbols):
                continue  # the result of a host call that has not run yet
            table = {v: sympy.sympify(known[str(v)]) for v in s.expression.free_symbols}
            value = s.expression.xreplace(table)
            if s.slot.startswith("dim:"):
                dims[s.slot.removeprefix("dim:")] = int(value)
                continue
            number = float(bool(value) if value.is_Boolean else value)
            env[s.slot] = self._number(number)
            if sizes_only:
                out[s.slot] = number
        return out

    def _number(self, x: float) -> torch.Tensor:
        """A number as a segment reads it."""
        return torch.full((), x, dtype=torch.float64, device=self.device)

    def _host(self, call: HostCall, env: dict[str, Any], dims: dict[str, int]) -> None:
        args = _filled(call.args, env, dims)
        kwargs = _filled(call.kwargs, env, dims)
        require_elements((args, kwargs))
        _take(call.returned, call.function(*args, **kwargs), env, dims, self.device)

    # ---- inputs that are not as they were captured

    def restore_layouts(self, args: list[Any]) -> None:
        for k, stride in self._strides:
            x = args[k]
            if x is not None and x.stride() != stride and x.numel() > 0:
                fixed = torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device)
                args[k] = fixed.copy_(x)


@dataclass(frozen=True)
class Reader:
    """A program with the tensors at its first inputs, and which of them are needed as they are."""

    program: Program
    tensors: Sequence[Any]
    kept: frozenset[int]


def _read_in_eager(captured: Captured) -> set[str]:
    """Slots that host calls read, that are changed, or that are results."""
    given = [(step.args, step.kwargs) for step in captured.steps if isinstance(step, HostCall)]
    leaves = pytree.tree_leaves(given)
    slots = {x.label for x in leaves if isinstance(x, Slot)}
    slots |= {x.slot for x in leaves if isinstance(x, (View, Restrided))}
    slots |= {name for pair in captured.mutated for name in pair}
    return slots | {r.slot for r in captured.results if isinstance(r, (Same, View, Restrided))}


class SegmentRunner:
    """A segment and its programs: one where shapes are static or compile symbolically, else one per
    value of dims.
    """

    def __init__(
        self, segment: Segment, compile: Compile, log: Log, keep: int, device: torch.device
    ) -> None:
        self.segment, self.graph, self.device = segment, segment.graph, device
        self.compile, self.log, self.keep = compile, log, keep
        self.symbols = tuple(sorted(graph_symbols(segment.graph)))
        self._programs: OrderedDict[tuple[Any, ...], Specialised] = OrderedDict()
        self._whole: Specialised | None = None
        self._lock = Lock()
        self.count = 0
        if not self.symbols:
            self._whole = Specialised(segment, segment.graph, compile(segment.graph), device)
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
            self._whole = Specialised(segment, segment.graph, program, device)

    @property
    def is_whole(self) -> bool:
        """Does one program serve all sizes?"""
        return self._whole is not None

    def static_program(self) -> Program:
        assert self._whole is not None
        return self._whole.program

    def specialised(self) -> list[Specialised]:
        if self._whole is not None:
            return [self._whole]
        return list(self._programs.values())  # other threads may add to it

    def programs(self) -> list[Program]:
        return [s.program for s in self.specialised()]

    def __call__(
        self, env: dict[str, Any], dims: Mapping[str, int], numbers: Mapping[str, float]
    ) -> None:
        (self._whole or self._for(dims, numbers))(env, dims)

    def _for(self, dims: Mapping[str, int], numbers: Mapping[str, float]) -> Specialised:
        labels = [label(n) for n in self.graph.inputs]
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
                f"{self.graph.name} for {values} (program {self.count}, of at most {self.keep})",
                values={s: dims[s] for s in self.symbols},
            )
            graph = specialise(with_numbers(self.graph, known), dims)
            made = Specialised(self.segment, graph, self.compile(graph), self.device)
            self._programs[key] = made
            if len(self._programs) > self.keep:
                self._programs.popitem(last=False)
            return made


class Specialised:
    """A program with the slots it reads and the tensors it fills."""

    def __init__(
        self, segment: Segment, graph: Graph, program: Program, device: torch.device
    ) -> None:
        self.segment, self.program, self.device = segment, program, device
        program.watch(segment.watched)
        self._sizes: Mapping[str, int] = {}  # of the latest call
        if segment.watched and program.tells_later:
            watch(self)
        self.labels = [label(n) for n in graph.inputs]
        self.dtypes = [n.dtype for n in graph.inputs]
        self.watch = WeightWatch(program.weights) if program.weights else None
        sizes = enumerate(n.shape for n in graph.inputs)
        self.sizes_vary = [k for k, s in sizes if any(isinstance(d, Int) or not d for d in s)]
        self.read: list[Any] = []  # weights of the latest call, by the program's inputs

    def __call__(self, env: dict[str, Any], dims: Mapping[str, int]) -> None:
        for b in self.segment.buffers:
            env[b.slot] = torch.empty_strided(
                _numbers(b.shape, dims),
                _numbers(b.stride, dims),
                dtype=torch_dtype(b.dtype, b.paired),
                device=self.device,
            )
        inputs = []
        for slot, dtype in zip(self.labels, self.dtypes, strict=True):
            x = env[slot]
            if slot.startswith("host"):
                # An operator may give another layout than announced, and a few another dtype.
                # The slot has it as it is: it may be a result, with eager's strides.
                x = x.to(self.device, torch_dtype(dtype, x.is_complex())).contiguous()
            inputs.append(x)
        outs = [env[b.slot].data_ptr() for b in self.segment.buffers]
        values = [dims[s] for s in self.program.dims]
        self._sizes = dims
        addresses = list(map(address, inputs))
        room = self.mend(addresses, inputs) if 0 in addresses else []
        known = None
        if self.watch is not None:
            self.read = inputs
            known = self.watch(inputs)
        found = self.program.run(addresses, outs, values, known)
        del room
        if found is not None:
            raise problem_found(self.segment, self.program, found, dims)

    def mend(self, addresses: list[int], inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Addresses, of the last inputs or of all, some of which are 0, become those that a program
        can read; gives the memory that stands in. Where data or edges decide what is read, kernels
        read the nearest element that there is: of a tensor without any, one that stands in for
        it."""
        room, first = [], len(self.labels) - len(inputs)
        for k in (k - first for k in self.sizes_vary if k >= first):
            if inputs[k].numel() == 0:
                room.append(one_of(inputs[k]))
                addresses[k] = address(room[-1])
        if 0 in addresses:
            packed = set(self.program.weights) - set(self.program.kept)
            names = (slot.removeprefix("in") for slot in self.labels[first:])
            needed = enumerate(zip(names, inputs, strict=True), first)
            require_memory(x for k, x in needed if k not in packed or given_up(x[1]) is None)
        return room

    def note_sizes(self, dims: Mapping[str, int]) -> None:
        """Those of the latest call, for what is found later."""
        self._sizes = dims

    def found_late(self) -> Exception | None:
        """What calls found in their data, once all work is done; it is told once."""
        found = self.program.check()
        if found is None:
            return None
        return problem_found(self.segment, self.program, found, self._sizes)


def _take(
    returned: Returned, x: Any, env: dict[str, Any], dims: dict[str, int], device: torch.device
) -> None:
    """What a host call returned goes to its slots, and gives values to symbols."""
    if isinstance(returned, tuple):
        for r, y in zip(returned, x, strict=False):
            _take(r, y, env, dims, device)
    elif isinstance(returned, SymbolicInt):
        _tell(returned.value, int(x), dims)
    elif returned is not None:
        if isinstance(x, (bool, float)):
            x = torch.full((), float(x), dtype=torch.float64, device=device)
        if isinstance(x, torch.Tensor):
            for d, n in zip(returned.shape, x.shape):
                _tell(d, int(n), dims)
        env[returned.slot] = x


def _tell(d: Dim, value: int, dims: dict[str, int]) -> None:
    """A dim has this value: so has its symbol, where there is one."""
    found = symbol_from(d)
    if found is not None:
        name, factor, constant = found
        dims.setdefault(name, (value - constant) // factor)


def with_numbers(graph: Graph, known: Mapping[str, float]) -> Graph:
    """Scalar inputs whose value is known become constants."""
    if not known:
        return graph

    def known_value(n: Node) -> Node:
        if isinstance(n.op, Input) and n.op.label in known:
            return ops.full((), known[n.op.label], n.dtype)
        return n

    new = rebuild(graph, known_value)
    inputs = tuple(n for n in graph.inputs if label(n) not in known)
    return Graph(graph.name, inputs, new.outputs, new.places)


def _numbers(dims: Sequence[Dim], values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else int(D.evaluate(d, values)) for d in dims)


def _filled(tree: Any, env: Mapping[str, Any], dims: Mapping[str, int]) -> Any:
    if isinstance(tree, Slot):
        return env[tree.label]
    if isinstance(tree, SymbolicInt):
        return int(D.evaluate(tree.value, dims))
    if isinstance(tree, Number):
        return tree.type(env[tree.slot].item())
    if isinstance(tree, (View, Restrided)):
        return _result(tree, env, dims)
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
    if isinstance(r, Number):
        return r.type(x.item())
    shape, stride = _numbers(r.shape, dims), _numbers(r.stride, dims)
    if isinstance(r, View):
        if r.base is not None:
            x = as_announced(x, _numbers(r.base, dims))
        start = x.storage_offset() + int(D.evaluate(r.offset, dims))
        return x.as_strided(shape, stride, start)
    assert isinstance(r, Restrided)
    return restrided(x, shape, stride, int(D.evaluate(r.offset, dims)))


def _binders(arguments: Sequence[Argument]) -> list[tuple[str, int, int | None, int, int]]:
    """(name of a symbol, argument, its axis or None, factor, constant): where a call finds each
    symbol's value, a number of its own where there is one.
    """
    out: dict[str, tuple[str, int, int | None, int, int]] = {}

    def bind(d: Dim | None, index: int, axis: int | None) -> None:
        found = symbol_from(d)
        if found is not None and (found[0] not in out or found[1:] == (1, 0) != out[found[0]][3:]):
            out[found[0]] = found[0], index, axis, *found[1:]

    for k, a in enumerate(arguments):
        bind(a.value, k, None)
    for k, a in enumerate(arguments):
        for axis, d in enumerate(a.shape):
            bind(d, k, axis)
    return list(out.values())
