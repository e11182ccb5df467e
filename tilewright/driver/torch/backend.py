"""The torch.compile backend `tilewright` (entry point group torch_dynamo_backends)."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.fx
from torch._dynamo import trace_rules
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import ShortenTraceback
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.utils import get_metrics_context
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._guards import CompileContext, TracingContext
from torch._higher_order_ops.effects import has_effects
from torch._ops import OpOverload

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.collector import garbage_waits
from tilewright.base.errors import Invalid, Unsupported
from tilewright.base.events import Event, Log
from tilewright.base.untraced import keep_untraced
from tilewright.capture.torch.captured import Captured, HostCall
from tilewright.capture.torch.context import RANDOM_IN_EAGER
from tilewright.capture.torch.decompositions import decompositions
from tilewright.capture.torch.joined_steps import join_steps
from tilewright.capture.torch.masks import masks_in_order
from tilewright.capture.torch.partition import Partition, Told
from tilewright.capture.torch.places import place_in_frames, place_of
from tilewright.capture.torch.plain import plain_graph, weight_positions
from tilewright.capture.torch.rolled import rolled
from tilewright.capture.torch.traced_loops import loops_traced
from tilewright.capture.torch.translate import translate
from tilewright.capture.torch.undivided import undivided
from tilewright.driver.program.interpreted import InterpretedProgram
from tilewright.driver.program.meanwhile import compile_meanwhile
from tilewright.driver.program.options import Options, default_passes
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.torch.call import Unit
from tilewright.driver.torch.devices import device_of_graph, machine_of, require_known
from tilewright.driver.torch.kept_images import Strides, keep_images
from tilewright.driver.torch.often import Limits, Meanwhile
from tilewright.driver.torch.options import TorchOptions
from tilewright.driver.torch.protocol import Program
from tilewright.driver.torch.reasons import break_reason, fallback_remedy, title_of
from tilewright.driver.torch.recompiled import Frame, change_of
from tilewright.driver.torch.spent import spent_arguments
from tilewright.driver.torch.step import Step
from tilewright.driver.torch.tracing import has_data_sizes, kept_for_us, require_any_size, trace_for
from tilewright.driver.torch.wrapper import metadata, wrapper_is_trivial, wrapper_only_shares
from tilewright.ir.node import Graph
from tilewright.ir.pipeline import Pipeline
from tilewright.runtime.cuda.machine import Machine

keep_untraced(trace_rules)


class FallbackError(Unsupported, ShortenTraceback):
    """Under strict: an operator would run in eager. Torch passes this kind of error on without its
    own frames.
    """

    def __init__(self, what: str, *, where: object = None, hint: str | None = None) -> None:
        self.what, self.hint = what, hint
        self.where = None if where is None else str(where)
        RuntimeError.__init__(self, what)
        self.first_useful_frame = sys._getframe(1)


class Session:
    """Everything that was compiled for one function or module: its units and its log."""

    def __init__(
        self,
        options: TorchOptions,
        log: Log | None = None,
        machines: Callable[[torch.device], Machine | None] | None = None,
    ) -> None:
        """`machines` says which GPU code for a device runs on, if on any; by default torch's."""
        self.options, self._machines = options, machines or _machine
        self.log = log or Log()
        self.units: list[Unit] = []
        # By compile id: units that AOTAutograd's wrapper only passes arguments and results to.
        self.direct: dict[str, Unit] = {}
        # The same where arguments are changed in place, or results are arguments or views of them.
        self._sharing: dict[str, Unit] = {}
        # By compile id: where Dynamo's code finds the arguments of the graph.
        self.sources: dict[str, tuple[str, ...]] = {}
        # By compile id: what the gradient's graph need not check again.
        self._checked_indices: dict[str, Mapping[str, frozenset[tuple[str, bool]]]] = {}
        self._kept_strides: dict[str, Mapping[str, Strides]] = {}  # what it gets in another layout
        # By compile id: forward units. Those of their gradients may be compiled when the first
        # gradient is asked for.
        self._steps: dict[str, Step] = {}
        self.dry = False  # the examples of tw.compile run without changing anything
        self.parameters: tuple[str, ...] = ()  # of the function, where tw.compile passes arguments
        self._broken: set[tuple[str, str]] = set()  # cuts that were told

    def backend(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any], **_: Any
    ) -> Callable[..., Any]:
        """Compile what Dynamo captured; AOTAutograd passes forward and backward to `unit`."""
        require_known(example_inputs)
        require_any_size(shape_env())
        self._note_break(gm)
        self._note_recompile(gm)
        self.sources[str(CompileContext.current_compile_id())] = argument_sources(gm)
        with garbage_waits():
            return (
                self._as_scans(gm, example_inputs)
                or self._plain(gm)
                or self._by_aot(gm, example_inputs)
            )

    def _as_scans(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any] | None:
        """A graph with long chains of equal steps, or with scans for those that Dynamo did not
        trace; None where there are none, or where they have no native form as a whole."""
        loops = loops_traced()
        traced_once = loops is not None and loops.scans > 0
        for said, where in loops.refusals.values() if loops is not None else ():
            self.log.add("loops", said, where=where)
        if traced_once:
            join_steps(gm)
        scans = rolled(gm) or (gm if traced_once else None)
        if scans is None:
            return None
        before = len(self.units)
        try:
            made = self._by_aot(scans, example_inputs)
        except Exception as problem:  # torch refuses more of scans than of what they are made of
            why = str(problem).strip().split("\n")[0]
        else:
            calls = [c for u in self.units[before:] for c in u.captured.host_calls]
            why = next((c.why for c in calls if "scan" in c.operator), "")
            if not why:
                for said, where in loops.told if loops is not None else ():
                    self.log.add("loops", said, where=where)
                return made
        del self.units[before:]
        self.log.add("loops", f"equal steps stay written out: {why}")
        if loops is not None and traced_once:  # Dynamo has to trace all of them
            loops.refuse()
            raise Unsupported(f"scans have no native form: {why}")
        return None

    def _plain(self, gm: torch.fx.GraphModule) -> Callable[..., Any] | None:
        """A graph that nothing has to be done to first. None where that is not so, or where an
        operator would run in eager: AOTAutograd may put others in its place."""
        graph = plain_graph(gm) if knobs.plain_capture.get() else None
        if graph is None:
            return None
        try:
            unit = self._unit("inference", graph, weight_positions(gm))
        except Unsupported:
            return None
        return None if unit is None else unit.spread()

    def _by_aot(
        self, gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
    ) -> Callable[..., Any]:
        masks_in_order(gm)
        wrap = aot_autograd(
            fw_compiler=lambda g, x: self.unit("forward", g),
            bw_compiler=lambda g, x: self.unit("backward", g),
            inference_compiler=lambda g, x: self.unit("inference", g),
            decompositions=decompositions(),
            partition_fn=self._partition(gm),
            keep_inference_input_mutations=True,
        )
        with undivided(gm):
            compiled = wrap(gm, example_inputs)
        compilation = str(CompileContext.current_compile_id())
        made = self._steps.get(compilation)
        if made is not None:
            return made.call(compiled)
        # What AOTAutograd puts around a graph takes longer than a small one. It would switch
        # autocasting off, too, where that is on: guards say that it is off in all calls.
        unit = self.direct.get(compilation) or self._sharing.get(compilation)
        if unit is None or len(unit.captured.arguments) != len(example_inputs) or autocasts():
            return compiled
        return unit.spread()

    def _partition(self, gm: torch.fx.GraphModule) -> Partition:
        device = device_of_graph(gm)
        machine = self._machines(device)
        target = targets.default() if machine is None else machine.target
        return Partition(target, device, self.options.activation_memory, self._note_kept)

    def _note_kept(self, told: Told) -> None:
        self.log.add("kept", told.said(), bytes=told.bytes, usual=told.usual, again=told.again)

    def unit(self, kind: str, gm: torch.fx.GraphModule) -> Callable[..., Any]:
        """The graph as native code; in eager, with a sentence, where it cannot be."""
        try:
            made = self._unit(kind, gm)
            assert made is not None
            return made
        except Unsupported as problem:
            if self.options.strict or self.options.own_weights:
                raise
            if kept_for_us() and has_data_sizes(shape_env()):
                raise  # it is traced again, with breaks where data decides sizes
            self.log.add(
                "fallback",
                f"a whole graph runs in eager: {problem.what}",
                where=problem.where,
                operator="the graph",
                operators=sum(n.op == "call_function" for n in gm.graph.nodes),
                remedy=problem.hint or "write this line with other operators",
            )
            return self._in_eager(gm)

    def _in_eager(self, gm: torch.fx.GraphModule) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if self.dry:  # what it changes are copies
                args = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in args)
            return gm.forward(*args)

        return make_boxed_func(run)

    @garbage_waits()
    def _unit(
        self, kind: str, gm: torch.fx.GraphModule, plain: tuple[int, ...] | None = None
    ) -> Unit | None:
        """`plain`: weights of a graph that AOTAutograd has not seen; None where it has to."""
        if self.options.own_weights and kind != "inference":
            raise Unsupported(
                "own_weights=True stores weights packed, and gradients need them as they are",
                hint="call it under torch.no_grad() or torch.inference_mode()",
            )
        device = device_of_graph(gm)
        machine = self._machines(device)
        self._require_fitting(machine)
        spent = spent_arguments(gm, metadata()) if kind == "backward" else ()
        compilation = str(CompileContext.current_compile_id())
        captured = translate(
            gm,
            weights=plain or (_weights(gm) if kind == "inference" else ()),
            random=self.options.random,
            name=f"{kind}{len(self.units)}",
            checks=self.options.checks and knobs.checks.get(),
            checked_indices=self._checked_indices.get(compilation) if kind == "backward" else None,
            strides=self._kept_strides.get(compilation) if kind == "backward" else None,
            device=device,
        )
        if plain is not None and not all(map(_is_theirs, captured.host_calls)):
            return None
        if kind == "forward":
            self._checked_indices[compilation] = captured.checked_indices
        if kind == "forward":
            target = targets.default() if machine is None else machine.target
            kept = keep_images(captured, result_names(gm), given_results(), target)
            captured, self._kept_strides[compilation] = kept.captured, kept.strides
        self._report_fallbacks(captured)
        for check in (c for s in captured.segments for c in s.checks):
            self.log.add("check", str(check), where=check.place)
        made = Unit(
            captured,
            partial(self.compile_graph, machine=machine),
            self.log,
            self.options.specialisations,
            self,
            kind,
            device,
            _together(kind, len(captured.results)) if machine is not None else (),
            self._meanwhile(machine),
            spent,
            sparing=self.options.activation_memory < 1 and machine is None,
            owns=self.options.own_weights,
        )
        self.units.append(made)
        if kind == "forward":
            self._steps[compilation] = Step(made, metadata())
        elif kind == "backward" and compilation in self._steps:
            self._steps[compilation].add(made)
        if plain is not None or (
            kind == "inference" and wrapper_is_trivial(len(captured.arguments))
        ):
            self.direct[compilation] = made
        elif kind == "inference" and wrapper_only_shares(captured):
            self._sharing[compilation] = made
        return made

    def _require_fitting(self, machine: Machine | None) -> None:
        """Options that only programs on the CPU have."""
        if machine is None:
            return
        for name, asked in (
            ("own_weights=True", self.options.own_weights),
            ('executor="interpreter"', self.options.executor == "interpreter"),
        ):
            if asked:
                raise Invalid(
                    f"{name} is for models on the CPU", hint="leave it out, or use .cpu()"
                )

    def compile_graph(
        self,
        graph: Graph,
        machine: Machine | None = None,
        updates: tuple[tuple[int, int], ...] = (),
        spent: tuple[int, ...] = (),
        fresh: bool = False,
        give_back: bool = False,
    ) -> Program:
        if self.options.executor == "interpreter":
            return InterpretedProgram(graph)
        options = self._program_options(machine, updates, spent, fresh, give_back)
        return compile_graph(graph, options, self.log, machine)

    def _meanwhile(self, machine: Machine | None) -> Meanwhile | None:
        """How sizes that are called often get programs; None where they do not. What measures would
        do so while calls go on, traces are for kernels of other names, and a program of its own
        would need weights that were given up."""
        given = self.options
        chosen = given.choose if given.choose != "auto" else knobs.choose.get()
        apart = given.own_weights or given.optimize or given.schedules or given.validate
        looks = knobs.dump.get() or knobs.resume.get()
        if machine is not None or given.executor == "interpreter" or apart or looks:
            return None
        if given.specialise_after == 0 or chosen == "timed":
            return None
        options = self._program_options(None)
        limits = Limits(given.specialise_after, given.specialise_most)
        return Meanwhile(limits, lambda graph, done: compile_meanwhile(graph, options, done))

    def _program_options(
        self,
        machine: Machine | None,
        updates: tuple[tuple[int, int], ...] = (),
        spent: tuple[int, ...] = (),
        fresh: bool = False,
        give_back: bool = False,
    ) -> Options:
        given = self.options
        return Options(
            passes=self._passes(machine),
            optimize=given.optimize,
            precision=given.precision,
            round_between=given.round_between,
            validate=given.validate,
            schedules=given.schedules,
            choose=given.choose,
            tune_seconds=given.tune_seconds,
            one_kernel=given.one_kernel and machine is not None,
            updates=updates,
            spent=() if given.validate or given.optimize else spent,  # they run on values twice
            fresh_results=fresh,
            give_back=give_back,
        )

    def _passes(self, machine: Machine | None) -> Pipeline | None:
        """The given list of passes; None: the default one."""
        given = self.options
        same = machine is not None and torch.are_deterministic_algorithms_enabled()
        if given.passes is not None or not (given.own_weights or same):
            return given.passes
        target, own = machine and machine.target, given.own_weights
        return default_passes().passes(
            target, precision=given.precision, own_weights=own, deterministic=same
        )

    def refresh(self) -> None:
        """Recompute everything derived from weights, whatever their version counters say."""
        for u in self.units:
            u.refresh()

    def synchronise(self) -> None:
        """Waits for the work of all calls, and raises what they found in their data."""
        for u in self.units:
            u.synchronise()

    # ---- events

    def _report_fallbacks(self, captured: Captured) -> None:
        for call in (c for c in captured.host_calls if not c.trim):
            if call.library:
                self.log.add(
                    "library",
                    f"{call.library} is called for {call.operator}",
                    where=call.place,
                    operator=call.operator,
                    library=call.library,
                )
                continue
            if self.options.strict and not self._asked_for(call):
                raise FallbackError(
                    f"{call.operator} would run in eager: {call.why}",
                    where=call.place,
                    hint="leave strict out to let it run between native segments, "
                    "or write it with operators that have a native form",
                )
            self.log.add(
                "fallback",
                f"{call.operator} runs in eager: {call.why}",
                where=call.place,
                operator=call.operator,
                remedy=fallback_remedy(call.operator),
            )

    def _asked_for(self, call: HostCall) -> bool:
        """random="eager" requests these calls, so they are not failures."""
        return self.options.random == "eager" and call.why == RANDOM_IN_EAGER

    def _note_break(self, gm: torch.fx.GraphModule) -> None:
        reason = getattr(gm, "compile_subgraph_reason", None)
        if reason is None or not reason.graph_break:
            return
        if self.options.strict:
            remedy = break_reason(str(reason.reason)).remedy
            raise FallbackError(
                f"the graph breaks: {title_of(str(reason.reason))}",
                where=place_in_frames(reason.user_stack),
                hint=f"{remedy}; or leave strict out to compile the parts around it",
            )
        self.note_break(reason)

    def note_break(self, reason: Any) -> None:
        """Torch cut the graph; it may say so more than once."""
        event = break_event(str(reason.reason), place_in_frames(reason.user_stack))
        key = event.message, str(event.where)
        if key not in self._broken:
            self._broken.add(key)
            self.log.emit(event)

    def _note_recompile(self, gm: torch.fx.GraphModule) -> None:
        context = CompileContext.current_compile_id()
        again = getattr(context, "frame_compile_id", 0) or 0
        if again == 0:
            return
        guard = recompile_reason()
        change = change_of(guard, _frame(self.parameters)) if guard else None
        why = change.words if change is not None else "nobody says what changed"
        places = (place_of(n) for n in gm.graph.nodes)
        where = next((p for p in places if p is not None), None)
        self.log.add(
            "recompile",
            f"compiled again ({again + 1} times by now): {why}",
            where=where,
            what=why,
            guard=guard,
            remedy=change.remedy if change is not None else None,
        )


def _is_theirs(call: HostCall) -> bool:
    """Is it a call that AOTAutograd would leave as it is: of a library, or of the user's operator
    whose calls need no order?"""
    named, own = call.function, ("aten", "prims", "prim")
    if isinstance(named, OpOverload) and named.namespace not in own:
        return not has_effects(named)
    return bool(call.library) or call.trim


def break_event(reason: str, where: object, prefix: str = "") -> Event:
    """A cut of the graph, in torch's title and in our words."""
    found, title = break_reason(reason), title_of(reason)
    said = {"title": title, "reason": reason, "what": found.what, "remedy": found.remedy}
    return Event("graph-break", prefix + title, None if where is None else str(where), said)


def _frame(parameters: Sequence[str]) -> Frame:
    """The frame that Dynamo is compiling."""
    try:
        root = InstructionTranslator.current_tx().output.root_tx
    except AttributeError:  # nobody is compiling a frame
        root = None
    if root is None:
        return Frame({}, {}, parameters)
    return Frame(root.f_locals, root.f_globals, parameters)


# Sessions by torch's compile id: `explain` finds those of a torch.compile'd function by it.
_sessions: weakref.WeakValueDictionary[str, Session] = weakref.WeakValueDictionary()


def tilewright_backend(
    gm: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    options: Mapping[str, Any] | None = None,
    **rest: Any,
) -> Callable[..., Any]:
    """`torch.compile(model, backend="tilewright", options={"strict": True, …})`."""
    if rest:
        raise Invalid(f"the tilewright backend does not know {', '.join(rest)}")
    chosen = TorchOptions.parse(options or {})
    if chosen.own_weights:
        raise Invalid(
            "own_weights is for whole modules, which torch.compile does not show to a backend",
            hint="use tw.compile(module, own_weights=True)",
        )
    session = Session(chosen)
    compiled = session.backend(gm, example_inputs)
    _sessions[str(CompileContext.current_compile_id())] = session
    return compiled


def is_ours(backend: Any) -> bool:
    """Is it what torch.compile calls for this compiler?"""
    return backend is tilewright_backend or isinstance(getattr(backend, "__self__", None), Session)


trace_for(is_ours)


def session_of(compile_id: object) -> Session | None:
    return _sessions.get(str(compile_id))


def recompile_reason() -> str | None:
    """The guard that failed, in torch's words: what a recompilation records of itself."""
    metrics = getattr(get_metrics_context(), "_metrics", {})
    reason = metrics.get("recompile_reason")
    if not reason:
        return None
    # "0/0: tensor 'x' size mismatch at index 0. expected 3, actual 4": the first number is an id.
    first = str(reason).strip().splitlines()[0]
    return first.split(": ", 1)[-1]


def argument_sources(gm: torch.fx.GraphModule) -> tuple[str, ...]:
    """Where each argument of a graph comes from, as Dynamo's guards name it; "" where nobody
    says."""
    found = []
    for n in gm.graph.find_nodes(op="placeholder"):
        name = getattr(getattr(n, "_dynamo_source", None), "name", "")
        found.append(name() if callable(name) else name)  # a method in older versions
    return tuple(found)


def autocasts() -> bool:
    """Is any device in a region of autocasting?"""
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def shape_env() -> Any:
    """Where torch keeps what it knows of sizes while it compiles; None outside of that."""
    context = TracingContext.try_get()
    return getattr(getattr(context, "fake_mode", None), "shape_env", None)


def static_inputs() -> tuple[int, ...]:
    """Inputs that AOTAutograd marks static: parameters and buffers."""
    meta = metadata()
    return tuple(meta.static_input_indices) if meta is not None else ()


def _weights(gm: torch.fx.GraphModule) -> tuple[int, ...]:
    """Inputs from which values are derived once for many calls. Where the graph changes half of
    what is static, as an optimizer's does, every call would derive them again."""
    given = {n: k for k, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
    copies = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    changed = {given[n.args[0]] for n in copies if n.args[0] in given}
    static = static_inputs()
    kept = tuple(k for k in static if k not in changed)
    return kept if 2 * len(kept) > len(static) else ()


def given_results() -> int:
    """How many results of a forward graph are the caller's; the others are for its gradient."""
    meta = metadata()
    return meta.num_forward if meta is not None else sys.maxsize


def _together(kind: str, results: int) -> Sequence[int]:
    """Results of a GPU's program that share memory: what a forward graph keeps for its gradient
    lives until that has run, gradients of weights until they are set to None."""
    if kind == "forward":
        return range(min(given_results(), results), results)
    return static_inputs() if kind == "backward" else ()


def result_names(gm: torch.fx.GraphModule) -> list[str]:
    """Torch's names of a graph's results, by which its gradient's graph takes them."""
    (leaves,) = next(n for n in reversed(gm.graph.nodes) if n.op == "output").args
    every = leaves if isinstance(leaves, (tuple, list)) else (leaves,)
    return [x.name if isinstance(x, torch.fx.Node) else "" for x in every]


def _machine(device: torch.device) -> Machine | None:
    return machine_of(device) if device.type == "cuda" else None
