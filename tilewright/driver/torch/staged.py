"""Several native programs with host calls between them, over sizes that are known or come with the
call: the whole of it as Python source, written once.

What a call has to look up is looked up here: which variable holds a slot, where each size comes
from, what a host call is given. So an operator that runs in eager costs little more than the second
native program that follows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch._library import custom_ops
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tilewright.capture.torch.captured import Captured, Filled, HostCall, Returned, Segment, Slot
from tilewright.capture.torch.dtypes import torch_dtype
from tilewright.capture.torch.host_calls import trimmed
from tilewright.capture.torch.layout import contiguous
from tilewright.driver.torch.fast import Call, Dry, Program, problem_found
from tilewright.driver.torch.large_results import LargeResults
from tilewright.driver.torch.layouts import as_announced, restrided
from tilewright.driver.torch.straight import straight
from tilewright.driver.torch.tensors import allocator, draw_seed, label
from tilewright.driver.weights.bound import BoundWeights
from tilewright.driver.weights.given_up import require_elements
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.slots import Number, Restrided, Same, SymbolicInt, Value, View, symbol_from
from tilewright.ir.types import DType

# Where a call finds a symbol's value: argument, its axis or None, factor, constant.
Binder = tuple[str, int, int | None, int, int]
_OPERATORS = {
    "floordiv": "({} // {})",
    "mod": "({} % {})",
    "min": "min({}, {})",
    "max": "max({}, {})",
}
_LITERALS = (bool, int, str, type(None))
_TENSOR = re.compile(r"\b(?:a\d+|h\d+|drawn|[oi]\d+_\d+)\b")


def can_be_staged(captured: Captured) -> bool:
    """Numbers that torch's own expressions give take the long way."""
    return not captured.scalars


def read_in_eager(captured: Captured) -> set[str]:
    """Slots that host calls read, that are changed, or that are results."""
    given = [(step.args, step.kwargs) for step in captured.steps if isinstance(step, HostCall)]
    leaves = pytree.tree_leaves(given)
    slots = {x.label for x in leaves if isinstance(x, Slot)}
    slots |= {x.slot for x in leaves if isinstance(x, (View, Restrided))}
    slots |= {name for pair in captured.mutated for name in pair}
    return slots | {r.slot for r in captured.results if isinstance(r, (Same, View, Restrided))}


class Staged(Protocol):
    """A program that serves all sizes."""

    program: Program

    def mend(self, addresses: list[int], inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Of the addresses of the last inputs, of which one is 0, those that can be read are put in
        place; gives memory that has to live as long as they do."""
        ...

    def note_sizes(self, dims: Mapping[str, int]) -> None:
        """Of the latest call, for what is found later."""
        ...


class Stages:
    """Writes the call of a captured graph, all of whose programs are known."""

    def __init__(
        self,
        captured: Captured,
        programs: Sequence[Staged],
        binders: Iterable[Binder],
        session: Dry,
        device: torch.device,
        restore: Callable[[list[Any]], None] | None = None,
        training: bool = False,
    ) -> None:
        """`restore` makes arguments lie as they were captured. In a step of `training` large
        results have the memory of the last step's."""
        self._gradients, self._training = training, training and device.type == "cpu"
        self.captured, self.device = captured, device
        self.weights: list[BoundWeights | None] = []  # of each program
        self._sizes: dict[str, str] = {}  # variables of symbols
        self._slots: dict[str, str] = {}  # variables of slots
        self._names: dict[str, Any] = {
            "empty": allocator(device),
            "number": partial(_number, device),
            "laid": partial(_laid, device),
            "move": partial(_moved, device),
            "restrided": restrided,
            "view": _view,
            "require_elements": require_elements,
            "session": session,
        }
        self._weights = {a.slot for a in captured.arguments if a.weight}
        self._seen = read_in_eager(captured)
        self._begun: set[str] = set()  # slots that are the beginning of a variable's memory
        self.lines: list[str] = []
        self._begin(binders, restore)
        left = iter(programs)
        for k, step in enumerate(captured.steps):
            if isinstance(step, HostCall):
                self._host(step)
            else:
                self._segment(k, step, next(left))
        self._end()

    def call(self) -> Call:
        """A function of the list of arguments, which it empties, to the list of results."""
        lines = _with_ends(self.lines)
        source = "def call(args):\n" + "".join(f"    {line}\n" for line in lines)
        scope = dict(self._names)
        exec(source, scope)
        return scope["call"]

    def _say(self, *lines: str) -> None:
        self.lines.extend(lines)

    def _named(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self._names)}"
        self._names[name] = value
        return name

    # ---- arguments and results

    def _begin(
        self, binders: Iterable[Binder], restore: Callable[[list[Any]], None] | None
    ) -> None:
        if restore is not None:
            self._names["restore"] = restore
            self._say("restore(args)")
        count = len(self.captured.arguments)
        if count:
            self._say(f"{', '.join(f'a{k}' for k in range(count))}, = args")
        for k, a in enumerate(self.captured.arguments):
            if a.kind == "float":
                self._say(f"a{k} = number(a{k})")
            elif a.moved:
                self._say(f"a{k} = move(a{k})")
            self._slots[a.slot] = f"a{k}"
        for name, k, axis, factor, constant in binders:
            value = f"int(a{k})" if axis is None else f"a{k}.shape[{axis}]"
            self._size(name, value, factor, constant)
        self._say("args.clear()")
        for slot, x in self.captured.constants.items():
            self._slots[slot] = self._named("c", x)
        if self.captured.seed is not None:
            self._names["seed"] = partial(draw_seed, self.device)
            self._slots[self.captured.seed] = "drawn"
            self._say("drawn = seed()")

    def _end(self) -> None:
        if self.captured.mutated:
            # Together: statistics of many norms would each be a launch on a GPU.
            self._names["copy_all"] = torch._foreach_copy_
            old = "".join(f"{self._slots[x]}, " for x, _ in self.captured.mutated)
            new = "".join(f"{self._slots[x]}, " for _, x in self.captured.mutated)
            self._say(f"if not session.dry: copy_all([{old}], [{new}])")
        self._say(f"return [{', '.join(map(self._value, self.captured.results))}]")

    def _size(self, name: str, value: str, factor: int, constant: int) -> None:
        variable = self._sizes.setdefault(name, f"n{len(self._sizes)}")
        less = f"({value} - {constant})" if constant else value
        self._say(f"{variable} = {f'{less} // {factor}' if factor != 1 else less}")

    # ---- native programs

    def _segment(self, k: int, segment: Segment, staged: Staged) -> None:
        program = staged.program
        large = LargeResults.of(program) if self._training else None
        for j, b in enumerate(segment.buffers):
            if large is not None and (make := large.maker(b)) is not None:
                self._slots[b.slot] = f"o{k}_{j}"
                self._say(f"o{k}_{j} = {self._named('new', make)}()")
                continue
            kind = self._named("d", torch_dtype(b.dtype, b.paired))
            self._slots[b.slot] = f"o{k}_{j}"
            self._say(f"o{k}_{j} = empty({self._tuple(b.shape)}, {self._tuple(b.stride)}, {kind})")
        inputs = segment.graph.inputs
        slots = [label(n) for n in inputs]
        read: list[str] = []
        for slot, n in zip(slots, inputs, strict=True):
            variable = self._slots[slot]
            if slot.startswith("host") and slot not in self._begun:
                # An operator may give another layout than announced, and a few another dtype. The
                # slot has it as it is: it may be a result, with eager's strides.
                read.append(f"i{k}_{len(read)}")
                self._say(
                    f"{read[-1]} = {self._as_read(variable, n.dtype, segment.laid.get(slot))}"
                )
            else:
                read.append(variable)
        count = sum(slot in self._weights for slot in slots)
        self.weights.append(None)
        bound, mend_name = f"bound{k}", self._named("mend", staged.mend)
        every = f"({''.join(f'{x}, ' for x in read)})"
        if count:
            self.weights[-1] = BoundWeights(program, count)
            self._names[f"bind{k}"] = self.weights[-1]
            self._say(f"{bound} = bind{k}(({''.join(f'{x}, ' for x in read[:count])}))")
            self._say(f"if {bound} is None: {mend_name}([0] * {len(read)}, {every})")
        else:
            self._names[bound] = program.bind(())
        rest = read[count:]
        lines = [f"addresses = [{', '.join(f'{x}.data_ptr()' for x in rest)}]"]
        if rest:
            others = f"({''.join(f'{x}, ' for x in rest)})"
            lines.append(f"if 0 in addresses: room{k} = {mend_name}(addresses, {others})")
        made = [f"o{k}_{j}" for j in range(len(segment.buffers))]
        outs = ", ".join(f"{x}.data_ptr()" for x in made)
        sizes = [self._sizes[s] for s in program.dims]
        self._names[f"run{k}"] = program.run_bound
        dims = f", [{', '.join(sizes)}]" if sizes else ""
        run = f"run{k}({bound}, addresses, [{outs}]{dims})"
        run += f"  # {' '.join(read)}"  # a use: their memory is read
        lines.append(f"found = {run}")
        call = straight(program, self._names.get(bound), len(rest), len(made))
        if segment.checks and program.tells_later:
            self._names[f"note{k}"] = staged.note_sizes
            self._say(f"note{k}({self._known()})")
        if call is not None:
            self._names[f"straight{k}"] = call
            last = [f"{bound}.address"] if count else []
            self._say(f"found = straight{k}({', '.join([*made, *rest, *sizes, *last])})")
            # The last line has all names: none is deleted before it.
            lines = ["if found is False:", *(f"    {x}" for x in lines)]
        self._say(*lines)
        if segment.checks:
            # Before inputs are changed: where the error is caught, they are as they were.
            self._names[f"problem{k}"] = partial(problem_found, segment, program)
            self._say(f"if found is not None: raise problem{k}(found, {self._known()})")

    def _known(self) -> str:
        """The sizes that are known so far, as source."""
        return f"{{{', '.join(f'{s!r}: {v}' for s, v in self._sizes.items())}}}"

    def _as_read(self, x: str, dtype: DType, stride: tuple[int, ...] | None) -> str:
        """What a host call gave, as a program reads it; most lies so."""
        laid = f"laid({x}, {self._named('d', dtype)}, {stride})"
        if self.device.type != "cpu":
            return laid
        kind = self._named("d", torch_dtype(dtype, False))
        lies = f"{x}.is_contiguous()" if stride is None else f"{x}.stride() == {stride}"
        return f"{x} if {x}.dtype is {kind} and {lies} and {x}.is_cpu else {laid}"

    # ---- host calls

    def _host(self, call: HostCall) -> None:
        if call.function is trimmed and self._trim(call):
            return
        given = [self._value(x) for x in call.args]
        given += [f"{name}={self._value(x)}" for name, x in call.kwargs.items()]
        slots = [x.label for x in _leaves((call.args, call.kwargs)) if isinstance(x, Slot)]
        watched = [self._slots[s] for s in slots if s in self._weights]
        if watched:
            self._say(f"require_elements(({''.join(f'{x}, ' for x in watched)}))")
        binding = binding_of(call.function)
        if not self._gradients and only_differentiates(call.function):
            binding = partial(_below_autograd, binding)
        function = self._named("f", binding)
        made = f"{function}({', '.join(given)})"
        if isinstance(call.returned, tuple):
            self._say(f"t = {made}")
            self._take(call.returned, "t", may_be_number(call.function))
            self._say("del t")
        elif call.returned is None:
            self._say(made)
        else:
            self._take(call.returned, made, may_be_number(call.function))

    def _trim(self, call: HostCall) -> bool:
        """The beginnings of tensors that only native code reads are where the tensors are. False,
        and nothing said, where they are seen or do not lie together."""
        axis, count, *sources = call.args
        assert isinstance(call.returned, tuple)
        (size, *filled), known = call.returned, self.captured.segments
        buffers = {b.slot: b for s in known for b in s.buffers}
        for r, x in zip(filled, sources, strict=True):
            if not isinstance(r, Filled) or not isinstance(x, Slot) or r.slot in self._seen:
                return False
            b = buffers.get(x.label)
            if b is None or b.stride != contiguous(b.shape) or any(d != 1 for d in b.shape[:axis]):
                return False
        assert isinstance(size, SymbolicInt) and isinstance(count, Slot)
        self._tell(size.value, f"{self._slots[count.label]}.item()")
        for r, x in zip(filled, sources, strict=True):
            assert isinstance(r, Filled)
            self._slots[r.slot] = self._slots[x.label]
            self._begun.add(r.slot)
        return True

    def _take(self, returned: Returned, value: str, number: bool) -> None:
        """What a host call returned goes to variables, and gives values to symbols."""
        if isinstance(returned, tuple):
            for k, r in enumerate(returned):
                if r is not None:
                    self._take(r, f"{value}[{k}]", number)
        elif isinstance(returned, SymbolicInt):
            self._tell(returned.value, f"int({value})")
        elif returned is not None:
            variable = f"h{len(self._slots)}"
            self._slots[returned.slot] = variable
            self._say(f"{variable} = {value}")
            if number:
                kinds = f"{variable}.__class__ in (bool, float)"
                self._say(f"if {kinds}: {variable} = number({variable})")
            for axis, d in enumerate(returned.shape):
                self._tell(d, f"{variable}.shape[{axis}]")

    def _tell(self, d: Dim, value: str) -> None:
        """A dim has this value: so has its symbol, where that is not known yet."""
        found = symbol_from(d)
        if found is not None and found[0] not in self._sizes:
            self._size(found[0], value, *found[1:])

    # ---- values as source

    def _value(self, x: Any) -> str:
        """What a host call is given, or a result."""
        if isinstance(x, Slot):
            return self._slots[x.label]
        if isinstance(x, Same):
            return self._slots[x.slot]
        if isinstance(x, SymbolicInt):
            return self._dim(x.value)
        if isinstance(x, Number):
            return f"{self._named('v', x.type)}({self._slots[x.slot]}.item())"
        if isinstance(x, (View, Restrided)):
            return self._view(x)
        if isinstance(x, Value):
            return self._value(x.value)
        if isinstance(x, dict):
            return f"{{{', '.join(f'{k!r}: {self._value(v)}' for k, v in x.items())}}}"
        if isinstance(x, (list, tuple)):
            inside = "".join(f"{self._value(y)}, " for y in x)
            return f"[{inside}]" if isinstance(x, list) else f"({inside})"
        return repr(x) if type(x) in _LITERALS else self._named("v", x)

    def _view(self, r: View | Restrided) -> str:
        x, shape, stride = self._slots[r.slot], self._tuple(r.shape), self._tuple(r.stride)
        if isinstance(r, Restrided):
            return f"restrided({x}, {shape}, {stride}, {self._dim(r.offset)})"
        if r.base is not None:
            base = self._tuple(r.base)
            return f"view({x}, {base}, {shape}, {stride}, {self._dim(r.offset)})"
        return f"{x}.as_strided({shape}, {stride}, {x}.storage_offset() + {self._dim(r.offset)})"

    def _tuple(self, dims: Sequence[Dim]) -> str:
        return f"({''.join(f'{self._dim(d)}, ' for d in dims)})"

    def _dim(self, d: Dim) -> str:
        if isinstance(d, int):
            return repr(d)
        terms = []
        for mono, c in d.terms:
            factors = [self._atom(a) for a in mono]
            terms.append(" * ".join([repr(c), *factors] if c != 1 or not factors else factors))
        return f"({' + '.join(terms)})"

    def _atom(self, a: D.Atom) -> str:
        if isinstance(a, D.Sym):
            return self._sizes[a.name]
        assert isinstance(a, D.Quo), "sizes that data decides are symbols"
        return _OPERATORS[a.op].format(self._dim(a.a), self._dim(a.b))


def binding_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same operator by the function that users call, which takes arguments sooner, where there
    is one of that name and no other overload for it to choose but those that fill what is given."""
    if not isinstance(function, OpOverload) or function.namespace != "aten":
        return function
    packet = function.overloadpacket
    others = [getattr(packet, x) for x in packet.overloads() if x != "default"]
    if function._overloadname != "default" or not all(x._schema.is_mutable for x in others):
        return function
    places = (getattr(torch._C, x, None) for x in ("_VariableFunctions", "_linalg"))
    found = (getattr(place, packet.__name__, None) for place in places)
    return next((x for x in found if x is not None), function)


def only_differentiates(function: Callable[..., Any]) -> bool:
    """Is it an operator of `torch.library.custom_op`, of which autograd has nothing but what torch
    itself registered for it? Where no gradient is computed that passes all on, in Python, and takes
    longer than the operator's own call."""
    if not isinstance(function, OpOverload):
        return False
    if function._schema.name not in getattr(custom_ops, "OPDEFS", ()):
        return False
    lines = torch._C._dispatch_dump(function.name()).splitlines()
    known = (x for x in lines if x.startswith("Autograd") and "(inactive)" not in x)
    return all(f"{custom_ops.__file__}:" in x for x in known)


def _below_autograd(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return function(*args, **kwargs)


def may_be_number(function: Callable[..., Any]) -> bool:
    """May it return a number, or several, and not tensors only?"""
    if not isinstance(function, OpOverload):
        return True
    return any(str(r.type) != "Tensor" for r in function._schema.returns)


def _with_ends(lines: Sequence[str]) -> list[str]:
    """Tensors end with their last use: memory of what one host call took is free for the next."""
    last: dict[str, int] = {}
    for k, line in enumerate(lines):
        last.update((name, k) for name in _TENSOR.findall(line))
    ends: dict[int, list[str]] = {}
    for name, k in last.items():
        if k < len(lines) - 1:
            ends.setdefault(k, []).append(name)
    out: list[str] = []
    for k, line in enumerate(lines):
        out.append(line)
        if k in ends:
            out.append(f"del {', '.join(ends[k])}")
    return out


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (list, tuple)):
        for x in tree:
            yield from _leaves(x)
    else:
        yield tree


def _number(device: torch.device, x: float) -> torch.Tensor:
    """A number as a program reads it."""
    return torch.scalar_tensor(float(x), dtype=torch.float64, device=device)


def _moved(device: torch.device, x: torch.Tensor) -> torch.Tensor:
    return x.to(device)


def _laid(
    device: torch.device, x: torch.Tensor, dtype: DType, stride: tuple[int, ...] | None
) -> torch.Tensor:
    """As a program reads it: with these strides, or contiguous."""
    wanted = torch_dtype(dtype, x.is_complex())
    if x.dtype is not wanted or x.device != device:
        x = x.to(device, wanted)
    return x.contiguous() if stride is None else as_announced(x, stride)


def _view(
    x: torch.Tensor,
    base: Sequence[int],
    shape: Sequence[int],
    stride: Sequence[int],
    offset: int,
) -> torch.Tensor:
    """Of what a host call returned, with the strides that torch announced."""
    x = as_announced(x, base)
    return x.as_strided(shape, stride, x.storage_offset() + offset)
