"""A segment of a call, and the programs that run it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any

import torch

from tilewright import ops
from tilewright.base.errors import Unsupported
from tilewright.base.events import Log
from tilewright.capture.torch.captured import Segment
from tilewright.capture.torch.dtypes import torch_dtype
from tilewright.driver.torch.fast import problem_found
from tilewright.driver.torch.late import watch
from tilewright.driver.torch.layouts import as_announced, one_of
from tilewright.driver.torch.often import Often
from tilewright.driver.torch.protocol import Program
from tilewright.driver.torch.tensors import label, require_memory
from tilewright.driver.weights.given_up import given_up
from tilewright.driver.weights.watch import WeightWatch, address
from tilewright.graph.specialise import graph_symbols, specialise
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim, Int
from tilewright.ir.node import Graph, Input, Node, rebuild

Compile = Callable[..., Program]  # a graph, and `updates` as of Options


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
        # Programs of sizes that are called often, where the call is this segment (see `Unit`).
        self.often: Often[Any] | None = None
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
        others = self.often.programs() if self.often is not None else []
        return [*(s.program for s in self.specialised()), *others]

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
                numbers_of(b.shape, dims),
                numbers_of(b.stride, dims),
                dtype=torch_dtype(b.dtype, b.paired),
                device=self.device,
            )
        inputs = []
        for slot, dtype in zip(self.labels, self.dtypes, strict=True):
            x = env[slot]
            if slot.startswith("host"):
                # An operator may give another layout than announced, and a few another dtype.
                # The slot has it as it is: it may be a result, with eager's strides.
                x = x.to(self.device, torch_dtype(dtype, x.is_complex()))
                stride = self.segment.laid.get(slot)
                x = x.contiguous() if stride is None else as_announced(x, stride)
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


def numbers_of(dims: Sequence[Dim], values: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else int(D.evaluate(d, values)) for d in dims)
