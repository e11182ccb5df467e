"""The call path: torch tensors in, addresses to native programs, fresh torch tensors out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import sympy
import torch

from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.events import Log
from tilewright.capture.torch.captured import Captured, HostCall, Returned, Segment, Slot
from tilewright.driver.torch.batched_gradients import batches, one_by_one
from tilewright.driver.torch.fast import (
    Call,
    Hold,
    Writer,
    direct_call,
    fast_call,
    is_plain,
    slots_of,
)
from tilewright.driver.torch.filled import require_apart, require_like, updates_of
from tilewright.driver.torch.layouts import as_announced, restrided
from tilewright.driver.torch.often import Key, Meanwhile, Often, Ready, weights_apart
from tilewright.driver.torch.protocol import Dry, Program
from tilewright.driver.torch.segment_runner import (
    Compile,
    SegmentRunner,
    numbers_of,
)
from tilewright.driver.torch.sizes import binders, known_strides
from tilewright.driver.torch.spent import set_apart, spent_inputs
from tilewright.driver.torch.staged import Stages, can_be_staged, read_in_eager
from tilewright.driver.torch.tensors import draw_seed, label
from tilewright.driver.weights.bound import BoundWeights
from tilewright.driver.weights.given_up import require_elements
from tilewright.graph.specialise import specialise
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
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
from tilewright.runtime import room
from tilewright.runtime.memory import GIVES_BACK

# Kinds of graphs whose results are kept for a gradient, or are gradients.
TRAINING = ("forward", "backward")
FEW = 16  # arguments


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
        meanwhile: Meanwhile | None = None,
        spent: Sequence[int] = (),
        sparing: bool = False,
        owns: bool = False,
    ) -> None:
        """Results of the numbers `together` may share memory: they are not the caller's, or live
        and die together. `meanwhile`: None where the program of all sizes stays the only one.
        Arguments of the numbers `spent` are not needed after a call. `sparing`: memory that nobody
        needs goes back to the system during a training step, which takes time. `owns`: weights may
        be given up, and it is to be known which ones calls read."""
        self.device = device
        self.captured, self.log, self.session, self.kind = captured, log, session, kind
        self._boxed_call = True  # on the object: torch's wrappers copy its attributes
        self._binders = binders(captured.arguments)
        self._symbols = [name for name, *_ in self._binders]
        plain = is_plain(captured)
        if plain and not self._symbols and device.type == "cpu":
            if updates := updates_of(captured):
                compile = partial(compile, updates=updates)
            if free := spent_inputs(captured, spent):
                compile = partial(compile, spent=free)
            if kind in TRAINING:
                compile = partial(compile, fresh=True)
            if sparing and kind == "backward" and GIVES_BACK:
                compile = partial(compile, give_back=True)
        self.segments = [SegmentRunner(s, compile, log, keep, device) for s in captured.segments]
        # Inputs of a backward graph come from autograd, which promises values, not strides.
        self.check = kind == "backward"
        self._strides = known_strides(captured.arguments)
        self._slots = slots_of(captured, together)
        self._bound: BoundWeights | None = None
        self._fast: Call | None = None
        self.writer: Writer | None = None  # of other ways to call it
        general = [s for s in self.segments if s.symbols and s.is_whole and device.type == "cpu"]
        self._is_plain = plain and bool(general or not self._symbols)
        self._staged: Stages | None = None
        if self._is_plain:
            often: Often[Call] | None = None
            if general and meanwhile is not None:
                ask = partial(self._ask, meanwhile)
                often = Often(captured.name, self._symbols, meanwhile.limits, ask, log)
                general[0].often = often
            program = self.segments[0].static_program()
            position = {a.slot: k for k, a in enumerate(captured.arguments)}
            read = [position[label(n)] for n in self.segments[0].graph.inputs]
            over = [read[k] for k in program.spent]
            before = set_apart(over) if over else None
            if sparing and kind in TRAINING:
                before = partial(_free_pages, before)
            made = fast_call(
                captured,
                program,
                session,
                device,
                self._slots,
                self.restore_layouts if self.check else None,
                often.way if often is not None else None,
                before,
                kind in TRAINING,
                not owns and _few_raw_weights(captured, program, device),
            )
            self._fast, self._bound = made.call, made.weights
            self.writer = None if self._symbols else made.writer
        elif can_be_staged(captured) and all(s.is_whole for s in self.segments):
            whole = [s.specialised()[0] for s in self.segments]
            restore = self.restore_layouts if self.check else None
            training = kind in TRAINING
            self._staged = Stages(
                captured, whole, self._binders, session, device, restore, training
            )
            self._fast = self._staged.call()

    @property
    def programs(self) -> list[Program]:
        """Every program compiled so far."""
        return [p for s in self.segments for p in s.programs()]

    def _ask(self, meanwhile: Meanwhile, key: Key, ready: Ready[Call]) -> None:
        """A function for calls of some sizes, when its program is there."""
        dims = dict(zip(self._symbols, key, strict=True))
        graph = self.segments[0].graph

        def take(program: Program | None, said: str) -> None:
            if program is None:
                return ready(None, None, said)
            program.watch(self.segments[0].segment.watched)
            made = fast_call(
                _of_sizes(self.captured, dims),
                program,
                self.session,
                self.device,
                self._slots,
                self.restore_layouts if self.check else None,
                training=self.kind in TRAINING,
            )
            if made.weights is not None and self._bound is not None and self._bound.tensors:
                made.weights(self._bound.tensors)  # what is derived from them is there at once
            ready(made.call, program, f"{said}, {weights_apart(program)}")

        meanwhile.request(lambda: specialise(graph, dims), take)

    def into(self, args: list[Any], given: Sequence[Any]) -> list[Any]:
        """Fill the given tensors, one per result, instead of fresh ones."""
        static = self._is_plain and not self._symbols
        buffers = self.captured.segments[0].buffers if static else ()
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
        raw = read_in_eager(self.captured)
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
        if self._fast is None or self.check:
            return None
        if not self._is_plain or self.captured.mutated:
            count = len(self.captured.results)
            return _around(self._fast, given, count, form, after, names)
        program, often = self.segments[0].static_program(), self.segments[0].often
        way = often.way if often is not None else None
        make = direct_call(self.captured, program, self.device, given, self._bound, way)
        return make(form, hold, after, names)

    def __call__(self, args: list[Any]) -> list[Any]:
        if self.check and (level := batches()):
            return one_by_one(self._one, args, level)
        return self._one(args)

    def _one(self, args: list[Any]) -> list[Any]:
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


def _few_raw_weights(captured: Captured, program: Program, device: torch.device) -> bool:
    """Is nothing derived from weights, and are arguments so few that the native call reads their
    addresses sooner than it is seen that none has moved?"""
    return not program.weights and len(captured.arguments) <= FEW and device.type == "cpu"


def _free_pages(then: Callable[[list[Any]], None] | None, args: list[Any]) -> None:
    """What calls before had, and nobody has now, goes back: this one has its values elsewhere."""
    room.trim()
    if then is not None:
        then(args)


def _around(
    call: Call,
    given: Sequence[str | torch.Tensor],
    results: int,
    form: str,
    after: Sequence[str],
    names: Mapping[str, Any],
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """What `direct_call` makes, by a function of the list of arguments to that of the results."""
    scope: dict[str, Any] = {**names, "made": call}
    passed = []
    for k, what in enumerate(given):
        passed.append(what if isinstance(what, str) else f"a{k}")
        if not isinstance(what, str):
            scope[f"a{k}"] = what
    each = (f"found[{k}]" for k in range(results))
    lines = [f"found = made([{', '.join(passed)}])", *after, f"return {form.format(*each)}"]
    exec("def call(args, kwargs):\n" + "".join(f"    {x}\n" for x in lines), scope)
    return scope["call"]


def _of_sizes(captured: Captured, dims: Mapping[str, int]) -> Captured:
    """What was captured, for given sizes."""

    def sizes(given: Sequence[Dim]) -> tuple[int, ...]:
        return numbers_of(given, dims)

    (segment,) = captured.segments
    buffers = [replace(b, shape=sizes(b.shape), stride=sizes(b.stride)) for b in segment.buffers]
    checks = [c if c.size is None else replace(c, size=sizes([c.size])[0]) for c in segment.checks]
    arguments = [
        replace(
            a,
            shape=sizes(a.shape),
            stride=sizes(a.stride),
            value=None if a.value is None else sizes([a.value])[0],
        )
        for a in captured.arguments
    ]
    results: list[Result] = []
    for r in captured.results:
        if isinstance(r, View):
            (start,) = sizes([r.offset])
            base = None if r.base is None else sizes(r.base)
            r = View(r.slot, sizes(r.shape), sizes(r.stride), start, base)
        elif isinstance(r, SymbolicInt):
            r = Value(sizes([r.value])[0])
        results.append(r)
    graph = specialise(segment.graph, dims)
    step = Segment(graph, tuple(buffers), tuple(checks))
    return replace(captured, arguments=tuple(arguments), steps=(step,), results=tuple(results))


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
    shape, stride = numbers_of(r.shape, dims), numbers_of(r.stride, dims)
    if isinstance(r, View):
        if r.base is not None:
            x = as_announced(x, numbers_of(r.base, dims))
        start = x.storage_offset() + int(D.evaluate(r.offset, dims))
        return x.as_strided(shape, stride, start)
    assert isinstance(r, Restrided)
    return restrided(x, shape, stride, int(D.evaluate(r.offset, dims)))
