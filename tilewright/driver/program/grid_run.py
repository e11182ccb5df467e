"""Nests and graphs on a GPU, on CUDA tensors and torch's current stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.events import Log
from tilewright.capture.torch.dtypes import torch_dtype
from tilewright.driver.program.default_passes import passes
from tilewright.graph.cluster import Fused
from tilewright.graph.fuse import fuse
from tilewright.ir import dim as D
from tilewright.ir.node import Constant, Graph, Node
from tilewright.ir.target import Target
from tilewright.ir.types import bf16, to_memory
from tilewright.kernel.group import Buffer, Group, build_group
from tilewright.kernel.nest import Nest
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.text import group_text
from tilewright.llvm.launch import scratch_bytes
from tilewright.runtime.cuda.device import Device, device
from tilewright.runtime.cuda.gpu import GpuKernel
from tilewright.runtime.cuda.kernels import Loaded
from tilewright.runtime.cuda.module import Launcher
from tilewright.targets.nvptx import target_of as target_of

DEVICE = "cuda"


def prepared(graph: Graph, target: Target, log: Log) -> Graph:
    """The graph after the passes before fusion."""
    return passes(target).run(graph, target, log)


class GridKernel(GpuKernel):
    """A nest on a GPU, on torch's tensors; memory between its launches is torch's too."""

    def __call__(self, tensors: Mapping[str, Any], sizes: Mapping[str, int], stream: int) -> None:
        """Launches it; the tensors are torch's, on its device, and fit."""
        addresses = {name: t.data_ptr() for name, t in tensors.items()}
        self.fitting(addresses).run(addresses, sizes, stream, self._allocate)

    def _allocate(self, size: int) -> tuple[int, object]:
        made = torch.empty(size, dtype=torch.uint8, device=place(self.device))
        return made.data_ptr(), made


def place(on: Device) -> torch.device:
    """A device as torch names it."""
    return torch.device(DEVICE, on.number)


def current_stream(number: int) -> int:
    """The stream on which torch would launch now."""
    return torch._C._cuda_getCurrentRawStream(number)


def check_tensor(name: str, t: Any, b: Buffer, number: int, sizes: dict[str, int]) -> None:
    """An error where a tensor is not what a kernel takes; sizes are read from it."""
    if not hasattr(t, "data_ptr"):
        raise Invalid(f"{name} is a {type(t).__name__}, not a torch tensor")
    if t.device.type != "cuda" or (t.device.index or 0) != number:
        raise Invalid(f"{name} is on {t.device}, the function runs on cuda:{number}")
    got = str(t.dtype).removeprefix("torch.")
    need = "bfloat16" if b.dtype is bf16 else str(b.dtype.numpy)
    if got != need:
        raise Invalid(f"{name} is of {got}, {need} is needed")
    if not t.is_contiguous():
        raise Invalid(f"{name} is not contiguous", hint="pass a contiguous copy")
    if len(t.shape) != len(b.shape):
        raise Invalid(f"{name} has {len(t.shape)} axes, {len(b.shape)} are needed")
    for d, n in zip(b.shape, t.shape, strict=True):
        if D.is_sym(d) and sizes.setdefault(D.the_sym(d).name, int(n)) != n:
            raise Invalid(f"{name} says {d} = {n}, another says {sizes[D.the_sym(d).name]}")
    want = tuple(int(D.evaluate(d, sizes)) for d in b.shape)
    if tuple(t.shape) != want:
        raise Invalid(f"{name} has shape {tuple(t.shape)}, {want} is needed")


@dataclass
class _Plan:
    """A call with tensors of given shapes. Values are numbered: the inputs, constants, then what is
    allocated; a launch names its arguments by these numbers."""

    given: int
    constants: list[torch.Tensor] = field(default_factory=list)
    allocated: list[tuple[tuple[int, ...], torch.dtype]] = field(default_factory=list)
    launches: list[tuple[Launcher, tuple[int, ...], list[int], tuple[int, int, int]]] = field(
        default_factory=list
    )
    results: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    counted: int = 0  # bytes of counters, which are zero before and after every launch
    counters: dict[int, Any] = field(default_factory=dict)  # by stream

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """The number of a value that a call allocates."""
        self.allocated.append((shape, dtype))
        return self.given + len(self.constants) + len(self.allocated) - 1

    def add(self, code: Loaded, of: dict[str, int], sizes: dict[str, int]) -> None:
        """The launches of a kernel whose buffers have these numbers."""
        for b in code.kernels.scratch:
            size = scratch_bytes(b, sizes)
            if b.scope == "counter":
                self.counted += size
                of[b.name] = -self.counted  # so far before the end of all counters
            else:
                of[b.name] = self.room((size,), torch.uint8)
        for p in code.planned(sizes):
            arguments = tuple(of[a] for a in p.arguments)
            self.launches.append((p.launch, arguments, p.dims, p.blocks))

    def values(self, tensors: Sequence[Any], on: torch.device) -> list[Any]:
        made = [torch.empty(s, dtype=d, device=on) for s, d in self.allocated]
        return [*tensors, *self.constants, *made]

    def launch(self, addresses: list[int], on: Device) -> None:
        on.use()
        stream = current_stream(on.number)
        end = self._counters(stream, on) if self.counted else 0
        for launch, arguments, dims, blocks in self.launches:
            given = [addresses[k] if k >= 0 else end + k for k in arguments]
            launch.again([*given, *dims], blocks, stream)

    def _counters(self, stream: int, on: Device) -> int:
        """Where the counters of calls on a stream end, which run one after the other. While the
        stream is recorded, they belong to what is recorded."""
        capturing = torch.cuda.is_current_stream_capturing()
        made = None if capturing else self.counters.get(stream)
        if made is None:
            made = torch.zeros(self.counted, dtype=torch.uint8, device=place(on))
            if not capturing:
                self.counters[stream] = made
        return made.data_ptr() + self.counted


def _fit(tensors: Sequence[Any], dtypes: Sequence[torch.dtype], on: torch.device) -> bool:
    """Are tensors of known shapes what a function takes?"""
    return all(
        t.dtype is d and t.device == on and t.is_contiguous()
        for t, d in zip(tensors, dtypes, strict=True)
    )


class GridFunction:
    """A scheduled nest as a function of CUDA tensors, outputs among its arguments, as te has it."""

    def __init__(
        self, nest: Nest, arguments: Sequence[Buffer], target: Target, on: Device | None = None
    ) -> None:
        self.arguments, self.target = list(arguments), target
        self.device = on or device(0)
        self.kernel = GridKernel(nest, target, self.device)
        self._dtypes = [torch_dtype(b.dtype, False) for b in self.arguments]
        self._plans: dict[Any, _Plan] = {}
        self._place = place(self.device)

    @property
    def text(self) -> str:
        """The code as LLVM IR text."""
        return self.kernel.loaded().kernels.text

    @property
    def ptx(self) -> str:
        return self.kernel.loaded().ptx

    def __call__(self, *tensors: Any) -> None:
        if len(tensors) != len(self.arguments):
            names = ", ".join(b.name for b in self.arguments)
            what = f"{len(tensors)} arguments were given, {len(self.arguments)} are needed"
            raise Invalid(f"{what}: {names}")
        shapes = [getattr(t, "shape", None) for t in tensors]
        plan = self._plans.get((True, *shapes))
        if plan is None or not _fit(tensors, self._dtypes, self._place):
            plan = self._planned(tensors, True)
        values = plan.values(tensors, self._place)
        addresses = [t.data_ptr() for t in values]
        self._check_overlap(tensors, addresses)
        if any(a & 15 for a in addresses):
            plan = self._plans.get((False, *shapes)) or self._planned(tensors, False)
        plan.launch(addresses, self.device)

    def _planned(self, tensors: Sequence[Any], aligned: bool) -> _Plan:
        sizes: dict[str, int] = {}
        for b, t in zip(self.arguments, tensors, strict=True):
            check_tensor(b.name, t, b, self.device.number, sizes)
        plan = _Plan(len(tensors))
        code = self.kernel.loaded(16 if aligned else self.kernel.least_alignment)
        dims = {x.name: sizes[x.name] for x in self.kernel.nest.dims}
        plan.add(code, {b.name: k for k, b in enumerate(self.arguments)}, dims)
        self._plans[(aligned, *[t.shape for t in tensors])] = plan
        return plan

    def _check_overlap(self, tensors: Sequence[Any], addresses: list[int]) -> None:
        for k, b in enumerate(self.arguments):
            if b.scope != "out":
                continue
            start, end = addresses[k], addresses[k] + tensors[k].nbytes
            for j, other in enumerate(self.arguments):
                first = addresses[j]
                if j != k and start < first + tensors[j].nbytes and first < end:
                    raise Invalid(f"the output {b.name} overlaps {other.name} in memory")


class GridProgram:
    """A graph on a GPU: call it with CUDA tensors, in the order of the graph's inputs."""

    def __init__(
        self, graph: Graph, on: Device | None = None, target: Target | None = None
    ) -> None:
        self.device = on or device(0)
        self.target = target or target_of(self.device)
        self.graph = graph
        self.log = Log()
        ready = prepared(graph, self.target, self.log)
        self.fused: Fused = fuse(ready, self.target, self.log)
        self.kernels: list[tuple[GridKernel, Group, tuple[Node, ...], tuple[Node, ...]]] = []
        known: dict[str, GridKernel] = {}
        for c in self.fused.clusters:
            g = build_group("kernel", c.nodes, c.inputs, c.outputs, roles=c.roles)
            text = group_text(g)
            if text not in known:
                named = replace(g, name=f"k{len(known)}")
                nest = default_schedule(named, self.target)[1]
                known[text] = GridKernel(nest, self.target, self.device)
            self.kernels.append((known[text], g, c.inputs, c.outputs))
        self._constants: dict[Node, torch.Tensor] = {}
        self._dtypes = [torch_dtype(n.dtype, False) for n in graph.inputs]
        self._plans: dict[Any, _Plan] = {}
        self._place = place(self.device)

    def compile(self) -> None:
        """All code, now."""
        for k, *_ in self.kernels:
            k.loaded()

    def __call__(self, *tensors: Any) -> list[torch.Tensor]:
        key = (True, *[t.shape for t in tensors])
        plan = self._plans.get(key)
        if plan is None or not _fit(tensors, self._dtypes, self._place):
            plan = self._planned(tensors, True)
        values = plan.values(tensors, self._place)
        addresses = [t.data_ptr() for t in values]
        if any(a & 15 for a in addresses):
            plan = self._plans.get((False, *key[1:])) or self._planned(tensors, False)
        plan.launch(addresses, self.device)
        return [
            x if (x := values[k]).shape == shape else x.view(shape) for k, shape in plan.results
        ]

    def _planned(self, tensors: Sequence[Any], aligned: bool) -> _Plan:
        """The plan of a call, once its tensors are seen to fit."""
        inputs = self.graph.inputs
        if len(tensors) != len(inputs):
            raise Invalid(f"{len(tensors)} tensors were given, {len(inputs)} are needed")
        sizes: dict[str, int] = {}
        for n, t in zip(inputs, tensors, strict=True):
            b = Buffer(str(n.op), n.dtype, n.shape, "in")
            check_tensor(b.name, t, b, self.device.number, sizes)
        constants = [n for n in self.fused.graph.nodes() if isinstance(n.op, Constant)]
        numbers = {n: k for k, n in enumerate((*inputs, *constants))}
        plan = _Plan(len(inputs), [self._constant(n) for n in constants])

        def number(n: Node) -> int:
            base = self.fused.aliases.get(n, n)
            if base not in numbers:
                raise Unsupported(f"{n!r} is stored nowhere")
            return numbers[base]

        for kernel, g, ins, outs in self.kernels:
            for n in outs:
                numbers[n] = plan.room(_shape(n, sizes), torch_dtype(n.dtype, False))
            names = zip((*g.inputs, *g.outputs), (*ins, *outs), strict=True)
            of = {b.name: number(n) for b, n in names}
            code = kernel.loaded(16 if aligned else kernel.least_alignment)
            plan.add(code, of, {name: sizes[name] for name in g.dims()})
        plan.results = [(number(n), _shape(n, sizes)) for n in self.fused.graph.outputs]
        self._plans[(aligned, *[t.shape for t in tensors])] = plan
        return plan

    def _constant(self, n: Node) -> torch.Tensor:
        found = self._constants.get(n)
        if found is None:
            assert isinstance(n.op, Constant)
            plain = torch.from_numpy(to_memory(n.op.literal.array, n.dtype).copy())
            made = plain.to(self._place)
            found = made.view(torch.bfloat16) if n.dtype is bf16 else made
            self._constants[n] = found
        return found


def _shape(n: Node, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(int(D.evaluate(d, sizes)) for d in n.shape)
