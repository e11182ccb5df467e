"""`tw.compile`: torch.compile ahead of the first call, with a shorter way in.

Dynamo's guards decide whether a compiled entry fits a call; they are called directly here, and the
code Dynamo wrote for the entry is called directly, which saves the trip through the interpreter's
frame hook. A call no entry fits goes through torch.compile and leaves an entry behind.
"""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import count
from typing import Any, NamedTuple

import torch
import torch._dynamo.utils
import torch.fx.experimental._config
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.exc import BackendCompilerFailed, FailOnRecompileLimitHit
from torch._dynamo.exc import Unsupported as CannotCapture
from torch._dynamo.utils import graph_break_reasons
from torch.utils import _pytree as pytree

from tilewright.base.collector import garbage_waits
from tilewright.base.errors import Invalid, TilewrightError, Unsupported
from tilewright.base.events import Log
from tilewright.capture.torch.places import place_in_frames
from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.devices import require_known
from tilewright.driver.torch.options import TorchOptions
from tilewright.driver.torch.own_weights import Owner
from tilewright.driver.torch.reasons import break_reason, title_of
from tilewright.driver.torch.shortcut import Call, shortcut
from tilewright.driver.torch.unchanged import CannotWatch, Unchanged, module_of
from tilewright.driver.weights.given_up import traceable

_number = count()


def _call(function: Any, args: Any, kwargs: Any) -> Any:
    """The frame that Dynamo compiles, copied per compiled function."""
    return function(*args, **kwargs)


_TOO_OFTEN = (
    "pass what varies as a tensor, mark sizes with dynamic=True, "
    "or raise torch._dynamo.config.recompile_limit"
)
# With dynamic=True sizes may be 0 or 1 too, and two that were equal once need not be again: one
# program for all of them. Torch would compile another one for each such case. Where sizes vary as
# calls show it, its own rules stay: 1 is often another thing, such as one token after many.
_SIZES: Any = torch.fx.experimental._config
_ANY_SIZE = {"use_duck_shape": False, "backed_size_oblivious": True}
# How Dynamo's code names its helpers.
_UTILS = "__import_torch_dot__dynamo_dot_utils"


class Helpers:
    """Dynamo's helpers without the two calls that record profiling spans around fetching inputs.
    And sizes are just read: to keep Dynamo from tracing that takes three microseconds a size."""

    call_size = staticmethod(torch.Tensor.size)
    call_stride = staticmethod(torch.Tensor.stride)
    call_storage_offset = staticmethod(torch.Tensor.storage_offset)

    def record_pregraph_bytecode_enter(self) -> None:
        return None

    def record_pregraph_bytecode_exit(self, span: Any) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(torch._dynamo.utils, name)


class _Entry(NamedTuple):
    """What Dynamo has compiled. Its own entry is gone after `torch._dynamo.reset`."""

    compile_id: Any
    code: types.CodeType
    root: Any  # of its guards


class Compiled:
    """A compiled function or module. Attributes are those of the original.

    `fast(*args, out=…)` fills tensors (one, or any container of them) instead of fresh ones, unless
    the original takes an `out` of its own.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        session: Session,
        fullgraph: bool,
        dynamic: bool | None,
    ) -> None:
        self.original, self.session, self._dynamic = function, session, dynamic is True
        # A code object and a name of its own: Dynamo stores entries by code, sizes seen by name.
        name = f"{getattr(function, '__name__', type(function).__name__)}_{next(_number)}"
        # Dynamo leaves compiled functions in the globals of the frame: they die with this dict.
        self._scope = {"__name__": __name__, "__file__": __file__, "__builtins__": builtins}
        code = _call.__code__.replace(co_name=name)
        self._frame = types.FunctionType(code, self._scope, name)
        session.parameters = _parameters(function)
        run = torch.compile(
            self._frame, backend=session.backend, fullgraph=fullgraph, dynamic=dynamic
        )
        self._slow = _telling(run, session, _holds_optimizer(function))
        self.called = False  # to the end, at least once
        self._entries: list[tuple[Any, Callable[..., Any]]] = []
        self._found: list[_Entry] = []  # what Dynamo has compiled
        # By the number of an entry: what fits calls like one before, and how those are done.
        self._quick: dict[int, tuple[Callable[[dict[str, Any]], bool], Call]] = {}
        self._known: dict[int, Unchanged] = {}
        self._moving: set[str] = set()  # globals that change between calls
        self._misses = 0  # calls that were none like the last
        # By compile id: what it was compiled for, tensors without memory in place of the real ones.
        self._outlines: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._takes_out = "out" in session.parameters
        self._owner = Owner(function) if session.options.own_weights else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs and "out" in kwargs and not self._takes_out:
            return self._fill(kwargs.pop("out"), args, kwargs)
        function = self.original
        seen = {"function": function, "args": args, "kwargs": kwargs}
        for fits, call in self._quick.values():
            if fits(seen):
                return call(args, kwargs)
        self._look_at_tensors()
        for k, (fits, run) in enumerate(self._entries):
            if fits(seen):
                self._watch(k, seen)
                return run(function, args, kwargs)
        return self._compile(args, kwargs)

    def _watch(self, k: int, seen: dict[str, Any]) -> None:
        """The next call is likely to be like this one, of a module that nobody changed. Where it
        was changed again and again, that is looked at more and more rarely."""
        self._misses += 1
        quick = {j: x for j, x in self._quick.items() if j != k}  # k is as it was no more
        known = {j: x for j, x in self._known.items() if j != k}
        if k in self._known:
            self._moving |= self._known[k].changed()
        if self._misses & (self._misses - 1) == 0:
            try:
                root = self._found[k].root
                found = Unchanged.of(root, seen, self._scope, self._moving)
                quick[k], known[k] = (found.fits, self._call(k, found, seen)), found
            except CannotWatch as problem:
                said = f"all guards look in every call: {problem}"
                self.log.add("guards", said, detail=True)
        self._quick, self._known = quick, known

    def _look_at_tensors(self) -> None:
        """Guards of some versions of torch look at tensors only where dictionaries changed: where
        a tensor of a module was given other memory or another form, these look changed."""
        gone = {k for k, x in self._known.items() if x.reshaped()}
        if not gone:
            return
        for part in {id(m): m for k in gone for m in self._known[k].modules()}.values():
            both: tuple[dict[str, Any], ...] = (part._parameters, part._buffers)
            for held in both:
                for name, x in [*held.items()][:1]:
                    held.update([(name, None), (name, x)])  # one step: no thread sees it without
        self._quick = {k: x for k, x in self._quick.items() if k not in gone}
        self._known = {k: x for k, x in self._known.items() if k not in gone}

    def _call(self, k: int, unchanged: Unchanged, seen: dict[str, Any]) -> Call:
        """How calls are done that an entry fits, of a module as it was."""
        entry, run, function = self._found[k], self._entries[k][1], self.original
        made, name = None, str(entry.compile_id)
        if run is not self._slow and name in self.session.direct:

            def record(
                graph: Callable[[list[Any]], list[Any]],
                fetched: Callable[[Any, str], Any],
                helpers: Any,
            ) -> Any:
                names = [x for x in entry.code.co_names if x in self._scope]
                others = {x: fetched(self._scope[x], x) for x in names}
                code = self.runner(entry, graph, helpers, others)
                return code(*(fetched(x, name) for name, x in seen.items()))

            unit, sources = self.session.direct[name], self.session.sources.get(name, ())
            made = shortcut(entry.code, unit, sources, unchanged, seen, record)
        return made or (lambda args, kwargs: run(function, args, kwargs))

    def _fill(self, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Results go to the tensors of `out`, in the order of the results."""
        seen = {"function": self.original, "args": args, "kwargs": kwargs}
        entry = self._entry_for(seen)
        if entry is None:
            self._compile(args, kwargs)
            entry = self._entry_for(seen)
        if entry is None:
            raise Unsupported(self._too_often(), hint=_TOO_OFTEN)
        unit = self.session.direct.get(str(entry.compile_id))
        if unit is None or self.runner(entry) is self._slow:
            raise Unsupported(
                "out= works where the whole function is one graph without gradients, "
                "and no result shares memory with an input",
                hint="leave out= out and copy the result",
            )
        given = pytree.tree_leaves(out)
        run = self.runner(entry, lambda inputs: unit.into(inputs, given))
        return run(self.original, args, kwargs)

    def _entry_for(self, seen: dict[str, Any]) -> Any:
        entries = _debug_get_cache_entry_list(self._frame.__code__)
        return next((e for e in entries if e.guard_manager.root.check(seen)), None)

    def entry_like(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """What Dynamo compiled for arguments like these, and such arguments; without any, the only
        one that there is."""
        entries = _debug_get_cache_entry_list(self._frame.__code__)
        if args or kwargs:
            entry = self._entry_for({"function": self.original, "args": args, "kwargs": kwargs})
            if entry is None:
                hint = "call it with them first, under the same torch.no_grad() if it was so"
                raise Invalid(f"{self!r} was not compiled for these arguments", hint=hint)
            return entry, args, kwargs
        if len(entries) != 1:
            hint = "give example arguments, to say which" if entries else "call it once"
            raise Invalid(f"{self!r} was compiled {len(entries)} times", hint=hint)
        outline = self._outlines.get(str(entries[0].compile_id))
        if outline is None:
            hint = "give example arguments"
            raise Invalid(f"{self!r} has arguments besides tensors and numbers", hint=hint)
        return entries[0], *outline

    def _compile(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        require_known([*args, *kwargs.values()])
        known = len(self._entries)
        outline = _outline(args, kwargs)
        try:
            out = self._trace(args, kwargs)
        except BackendCompilerFailed as problem:
            inner = problem.inner_exception
            if isinstance(inner, TilewrightError):
                raise inner.with_traceback(None) from None
            raise
        except CannotCapture as problem:
            raise _not_captured(problem) from None
        except FailOnRecompileLimitHit:
            raise Unsupported(self._too_often(), hint=_TOO_OFTEN) from None
        if outline is not None:
            for e in _debug_get_cache_entry_list(self._frame.__code__):
                self._outlines.setdefault(str(e.compile_id), outline)
        entries = _debug_get_cache_entry_list(self._frame.__code__)
        self._found = [_Entry(e.compile_id, e.code, e.guard_manager.root) for e in entries]
        self._entries = [(e.root.check, self.runner(e)) for e in self._found]
        self._quick, self._known, self._misses = {}, {}, 0
        if known and len(self._entries) <= known:
            self.log.add(
                "fallback",
                f"{self._too_often()}: it ran in eager",
                operator="the function",
                remedy=_TOO_OFTEN,
            )
        return out

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._owner is not None:
            self._owner.watch()
        sizes = _SIZES.patch(**_ANY_SIZE) if self._dynamic else nullcontext()
        numbers = torch._dynamo.config.patch(specialize_float=True)
        known = self._dynamic and self._own_numbers_stay(args, kwargs)
        with traceable(), garbage_waits(), sizes, numbers if known else nullcontext():
            out = self._slow(self.original, args, kwargs)
        self.called = True
        if self._owner is not None:
            readers = [r for u in self.units for r in u.readers()]
            self._owner.give_up(readers, self.log)
        return out

    def _own_numbers_stay(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Are all numbers a module's own, such as an epsilon, and was it not compiled before? They
        are taken as they are then: for each that may change, guards written in Python look at the
        module in every call. The program after one that changed takes any."""
        if self._entries or module_of(self.original) is None:
            return False
        return not any(isinstance(x, float) for x in pytree.tree_leaves((args, kwargs)))

    def _too_often(self) -> str:
        limit = torch._dynamo.config.recompile_limit
        name = getattr(self.original, "__name__", type(self.original).__name__)
        return f"{name} was compiled {limit} times, for as many kinds of arguments, and no more"

    def runner(
        self,
        entry: Any,
        call: Callable[[list[Any]], list[Any]] | None = None,
        helpers: Any = None,
        others: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """The code that Dynamo wrote: it fetches weights, calls the graph, makes up the result.
        `call` and `helpers` stand in place of the graph and of Dynamo's own functions, `others` in
        place of what else it names."""
        code: types.CodeType = entry.code
        scope: dict[str, Any] = self._scope
        called = [name for name in code.co_names if name.startswith("__compiled_fn")]
        if len(called) != 1 or any(name.startswith("__resume") for name in code.co_names):
            # The graph breaks: Dynamo has to see the frames in which the rest of it runs.
            return self._slow
        unit = self.session.direct.get(str(entry.compile_id))
        if unit is not None:
            direct = call or unit.direct
            scope = {
                **scope,
                **(others or {}),
                called[0]: lambda *inputs: direct(list(inputs)),
                _UTILS: helpers or Helpers(),
            }
        return types.FunctionType(code, scope, code.co_name)

    @property
    def log(self) -> Log:
        return self.session.log

    @property
    def units(self) -> list[Any]:
        return self.session.units

    def refresh(self) -> None:
        """Derive everything from the weights again: after edits torch does not count."""
        self.session.refresh()

    def restore_weights(self) -> None:
        """Undo `own_weights=True`: the module's weights have memory of their own again, rebuilt
        from what is packed. From now on they are stored both ways."""
        if self._owner is None:
            raise Invalid(
                f"{self!r} took no weights", hint="only own_weights=True needs restore_weights()"
            )
        self._owner.restore()

    def __getattr__(self, name: str) -> Any:
        if "original" not in self.__dict__:  # a copy that is being made
            raise AttributeError(name)
        return getattr(self.original, name)

    def __repr__(self) -> str:
        return f"tilewright.compile({self.original!r})"


def _outline(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Arguments like these, without the tensors' memory; None where there are other objects."""
    leaves, form = pytree.tree_flatten((args, kwargs))
    out: list[Any] = []
    for x in leaves:
        if isinstance(x, torch.Tensor) and x.layout is torch.strided:
            x = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        elif x is not None and not isinstance(x, (bool, int, float, str)):
            return None
        out.append(x)
    try:
        return pytree.tree_unflatten(out, form)
    except (TypeError, ValueError):  # an object of a class that takes none but real tensors
        return None


def _telling(
    run: Callable[..., Any], session: Session, optimizes: bool = False
) -> Callable[..., Any]:
    """Calls in which Dynamo sees all frames. Cuts without a graph before them are told to no
    backend: they are in torch's list. Optimizers read numbers out of tensors: these are captured
    too."""
    numbers = (
        torch._dynamo.config.patch(capture_scalar_outputs=True) if optimizes else nullcontext()
    )

    def call(*given: Any) -> Any:
        known = len(graph_break_reasons)
        with numbers:
            out = run(*given)
        for reason in graph_break_reasons[known:]:
            session.note_break(reason)
        return out

    return call


def _holds_optimizer(function: Any) -> bool:
    """Is it a method of an optimizer, or does it refer to one: by itself, its object or as a
    global?"""
    owner = getattr(function, "__self__", None)
    found = [owner, *vars(owner).values()] if hasattr(owner, "__dict__") else [owner]
    plain = getattr(function, "__func__", function)
    for cell in getattr(plain, "__closure__", None) or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # it is empty still
            continue
    code, scope = getattr(plain, "__code__", None), getattr(plain, "__globals__", {})
    found += [scope.get(name) for name in getattr(code, "co_names", ())]
    return any(isinstance(x, torch.optim.Optimizer) for x in found)


def _parameters(function: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(getattr(function, "forward", function)).parameters)
    except (TypeError, ValueError):
        return ()


def compile(
    function: Callable[..., Any],
    *examples: Any,
    strict: bool = False,
    dynamic: bool | None = None,
    fullgraph: bool | None = None,
    **options: Any,
) -> Compiled:
    """Compile a function or module; with examples now, otherwise at the first call.

    The examples are run once. What the call would change (buffers, in-place updates of inputs, the
    random generator) is left as it was. `strict` makes a fallback an error and implies fullgraph;
    calls of LAPACK for dense factorisations, which `tw.explain` names, are none.

    `own_weights=True` (a module, for inference, as one graph) gives back the memory of weights that
    are packed: the model is in memory once. Running the module in eager is then an error;
    `restore_weights()` undoes it.
    """
    if not callable(function):
        raise Invalid(
            f"{type(function).__name__} cannot be compiled: it is not callable",
            hint="pass a function or a torch.nn.Module",
        )
    session = Session(TorchOptions.parse({"strict": strict, **options}))
    if fullgraph is None:
        fullgraph = strict or session.options.own_weights
    compiled = Compiled(function, session, fullgraph, dynamic)
    if examples:
        state = torch.get_rng_state()
        on_gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        session.dry = True
        try:
            compiled(*examples)
        finally:
            session.dry = False
            torch.set_rng_state(state)
            if on_gpus:
                torch.cuda.set_rng_state_all(on_gpus)
    return compiled


def _not_captured(problem: CannotCapture) -> Unsupported:
    """Dynamo's error in one sentence."""
    text = str(problem.msg if hasattr(problem, "msg") else problem).strip()
    stack = getattr(problem, "real_stack", None) or []
    return Unsupported(
        f"the function cannot be captured as one graph: {title_of(text)}",
        where=place_in_frames(stack),
        hint=f"{break_reason(text).remedy}; or leave strict (or fullgraph) out to compile the "
        "parts around it",
    )
