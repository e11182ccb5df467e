"""Static shapes, one program, nothing else to do: the shortest way from tensors to native code.

The call is written as Python source for the graph at hand, since every loop and lookup it saves
counts: the whole of it should cost a few microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from tilewright.base.errors import Unsupported
from tilewright.capture.torch.captured import Captured, Segment
from tilewright.capture.torch.dtypes import torch_dtype
from tilewright.driver.torch import many
from tilewright.driver.torch.large_results import LargeResults
from tilewright.driver.torch.protocol import Dry, Program
from tilewright.driver.torch.sizes import binders, known_strides, sizes_in, stand_ins
from tilewright.driver.torch.straight import straight
from tilewright.driver.torch.tensors import allocator, label, require_memory, start_of
from tilewright.driver.weights.bound import BoundWeights
from tilewright.graph.specialise import graph_symbols
from tilewright.ir.dim_code import SizeCode
from tilewright.ir.node import Graph
from tilewright.ir.slots import Buffer, Result, Same, SymbolicInt, Value, View

# Arguments, which it empties, and optionally tensors to fill; results.
Call = Callable[..., list[Any]]


@dataclass(frozen=True)
class FastCall:
    """The call, and the weights it watches."""

    call: Call
    weights: BoundWeights | None
    writer: Writer


LATER = (
    "This was found in an earlier call: a GPU does its work after the call that enqueued it. "
    "With CUDA_LAUNCH_BLOCKING=1 in the environment the call itself raises."
)
# Weights in more runs than this are looked up one by one.
MOST_RUNS = 8
# Up to this many arguments each is named in the source; beyond, lists are shorter than names.
NAMED_LIMIT = 32


# Of a list of arguments: the caller's results, tensors that are kept, memory of others.
Keeping = Callable[[list[Any]], tuple[tuple[Any, ...], list[torch.Tensor], Sequence[torch.Tensor]]]
# Where a kept result is: among tensors, or in which memory, how many bytes from its beginning.
KeptAt = int | tuple[int, int]
# For values of symbols: a function of arguments, where there is one for just these.
Way = Callable[[tuple[int, ...]], Call | None]
# Makes arguments lie as they were captured.
Restore = Callable[[list[Any]], None]
# Tensors, and those from which values are derived: are they looked at before every call?
Hold = Callable[[Sequence[torch.Tensor], Sequence[int]], bool]


def is_plain(captured: Captured) -> bool:
    """One segment whose sizes arguments say, and results that are its buffers, inputs or views of
    them."""
    known = {name for name, *_ in binders(captured.arguments)}
    return (
        len(captured.steps) == 1
        and len(captured.segments) == 1
        and captured.seed is None
        and not captured.constants
        and not captured.scalars
        and all(a.kind != "float" and not a.moved for a in captured.arguments)
        and all(isinstance(r, (Same, Value, View, SymbolicInt)) for r in captured.results)
        and all(sizes_in(r) <= known for r in (*captured.results, *captured.segments[0].buffers))
        and graph_symbols(captured.segments[0].graph).keys() <= known
    )


def fast_call(
    captured: Captured,
    program: Program,
    session: Dry,
    device: torch.device,
    together: Collection[str] = (),
    restore: Restore | None = None,
    way: Way | None = None,
    before: Restore | None = None,
    training: bool = False,
    plain: bool = False,
) -> FastCall:
    """A function of the list of arguments, which it empties, to the list of results. Buffers of
    slots that are `together` share memory. `restore` is called first where arguments may lie
    otherwise than they were captured, and `before` before it. `way` has functions for some
    values of the symbols, in the order of `binders`. In a step of `training` large results have the
    memory of the last step's. `plain`: weights are arguments like any other."""
    writer = Writer(captured, program, device, plain=plain)
    writer.large = LargeResults.of(program) if training and device.type == "cpu" else None
    writer.names |= {"session": session, "way": way}
    writer.change()
    writer.update()
    if not writer.symbols:
        writer.join(together)
    return FastCall(writer.function(restore, before), writer.names.get("bind"), writer)


def direct_call(
    captured: Captured,
    program: Program,
    device: torch.device,
    given: Sequence[str | torch.Tensor],
    weights: BoundWeights | None,
    way: Way | None = None,
) -> Callable[..., Callable[[tuple[Any, ...], dict[str, Any]], Any]]:
    """The same of the arguments of a user's call, `args` and `kwargs`: `given` has a tensor that
    never changes or an expression for each argument of the graph. For the rest see `of_call`."""
    writer = Writer(captured, program, device, given, weights)
    writer.names["way"] = way
    return writer.of_call


class Writer:
    def __init__(
        self,
        captured: Captured,
        program: Program,
        device: torch.device,
        given: Sequence[str | torch.Tensor] | None = None,
        bind: BoundWeights | None = None,
        plain: bool = False,
    ) -> None:
        self.captured, self.program, self.given = captured, program, given
        self.segment: Segment = captured.segments[0]
        self.graph: Graph = self.segment.graph
        self.position = {a.slot: k for k, a in enumerate(captured.arguments)}
        self.reads = [self.position[label(n)] for n in self.graph.inputs]
        self.named = given is not None or len(captured.arguments) <= NAMED_LIMIT
        # Weights, the first inputs of the graph, are compared together.
        self.weights = 0 if plain else sum(captured.arguments[k].weight for k in self.reads)
        self.slots = {b.slot: k for k, b in enumerate(self.segment.buffers)}
        self.changed: list[int] = []  # arguments that the program changes itself
        self.placed: dict[str, int] = {}  # slots of new values, and inputs at whose place they are
        self.joined: dict[str, int] = {}  # slots whose memory is a part of one allocation
        self.parts: many.Parts | None = None
        self.large: LargeResults | None = None
        # Sizes that are known at the call only, as Python's variables, and what is made of them.
        bound = binders(captured.arguments)
        self.symbols = {name: f"n{k}" for k, (name, *_) in enumerate(bound)}
        self.binders, self.sizes = bound, SizeCode(self.symbols)
        self.names: dict[str, Any] = {
            "empty": allocator(device),
            "reads": self.reads,
            "require_memory": require_memory,
            "run": program.run_bound,
        }
        if self.weights:
            self.names["bind"] = bind or BoundWeights(program, self.weights)

    def change(self) -> None:
        """New values of arguments are the program's concern, where it takes care of them."""
        pairs, buffers = self.captured.mutated, self.segment.buffers
        last = buffers[len(buffers) - len(pairs) :]
        read = {label(n): k for k, n in enumerate(self.graph.inputs)}
        taken = {r.slot for r in self.captured.results if isinstance(r, (Same, View))}
        for (old, new), b in zip(pairs, last, strict=True):
            like = self.captured.arguments[self.position[old]]
            if b.slot != new or new in taken or old not in read or b.stride != like.stride:
                return
        if pairs and self.program.change([read[old] for old, _ in pairs]):
            self.changed = [self.position[old] for old, _ in pairs]
            for _, new in pairs:
                del self.slots[new]

    def update(self) -> None:
        """New values of arguments lie at their place, where the program allows it."""
        for out, k in self.program.updated:
            if k >= self.weights:
                self.placed[self.segment.buffers[out].slot] = k - self.weights
                self.changed.append(self.reads[k])

    def join(self, together: Collection[str]) -> None:
        """These slots share memory, where that is quicker."""
        found = [b for b in self.segment.buffers if b.slot in self.slots and b.slot in together]
        self.parts = many.parts([_form(b) for b in found], self.names["empty"])
        if self.parts is not None:
            self.joined = {b.slot: k for k, b in enumerate(found)}
            self.names["parts"] = self.parts

    def argument(self, k: int) -> str:
        return f"a{k}" if self.named else f"args[{k}]"

    def function(self, restore: Restore | None = None, first: Restore | None = None) -> Call:
        results = ", ".join(map(self._result, self.captured.results))
        way = self._way("args", ["return found"])
        self.names["first"] = first
        before = ["first(args)"] if first is not None else []
        before += [*self._restored(restore), *self._take(), *self._bound_sizes(), *way]
        after = [
            *self._spare(),
            *self._allocate(),
            *self._work("((k, args[k]) for k in reads)"),
            *self._write_back(),
            *(f"results = [{results}]", "args.clear()", "return results"),
        ]
        return self._made("args, given=None", [*before, *self.sizes.lines, *after])

    def _bound_sizes(self) -> list[str]:
        """The values of all symbols."""
        lines = []
        for name, k, axis, factor, constant in self.binders:
            found = self.argument(k) if axis is None else f"{self.argument(k)}.shape[{axis}]"
            if (factor, constant) != (1, 0):
                found = f"({found} - {constant}) // {factor}"
            lines.append(f"{self.symbols[name]} = {found}")
        return lines

    def _way(self, args: str, after: Sequence[str]) -> list[str]:
        """Where there is a function for just these sizes, `found` is what it returns."""
        if not self.symbols or self.names.get("way") is None:
            return []
        key = "".join(f"{n}, " for n in self.symbols.values())
        called = [f"found = found({args})", *after]
        lines = [f"found = way(({key}))", "if found is not None:"]
        return [*lines, *(f"    {x}" for x in called)]

    def spread(self) -> Callable[..., list[Any]] | None:
        """A function of the arguments one by one: no list is made and emptied. None where there are
        many."""
        if not self.named:
            return None
        lines = [*self._spare(), *self._fresh()]
        lines += ["joined, places = parts()"] if self.joined else []
        read = "".join(f"{self.argument(k)}, " for k in self.reads)
        lines += [*self._work(f"zip(reads, ({read}))", spread=True), *self._write_back()]
        lines.append(f"return [{', '.join(map(self._result, self.captured.results))}]")
        return self._made(", ".join(map(self.argument, range(len(self.position)))), lines)

    def keeping(self, given: int) -> tuple[Keeping, list[KeptAt]] | None:
        """A function of the list of arguments. None where a result that is kept is no tensor."""
        kept, tensors = [], []
        for r in self.captured.results[given:]:
            if not isinstance(r, (Same, View)):
                return None
            if self.parts is not None and r.slot in self.joined:
                base, start = self.parts.places[self.joined[r.slot]]
                size = self.parts.groups[base][2].itemsize
                offset = r.offset if isinstance(r, View) and isinstance(r.offset, int) else 0
                kept.append((base, start + offset * size))
            else:
                kept.append(len(tensors))
                tensors.append(self._result(r))
        results = "".join(f"{self._result(r)}, " for r in self.captured.results[:given])
        lines = [
            *self._restored(None),
            *self._take(),
            *self._spare(),
            *self._fresh(),
            "bases, places = parts.memory()" if self.joined else "bases = ()",
            *self._work("((k, args[k]) for k in reads)"),
            *self._write_back(),
            f"return ({results}), [{''.join(f'{x}, ' for x in tensors)}], bases",
        ]
        return self._made("args", lines), kept

    def from_kept(
        self, kept: Sequence[KeptAt], bases: Sequence[many.Form], restore: Restore
    ) -> Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]] | None:
        """A function of kept tensors, followed by the memory of others, and of the arguments after
        those that are kept. None where a result is not fresh."""
        slots = {r.slot for r in self.captured.results if isinstance(r, (Same, View))}
        if not slots <= set(self.slots) or self.captured.mutated or self.weights:
            return None
        count = sum(isinstance(x, int) for x in kept)
        later = range(len(kept), len(self.captured.arguments))
        at = {k: x for k, x in enumerate(kept) if isinstance(x, int)}
        at |= {k: count + j for j, k in enumerate(later)}
        plain = [k for k in self.reads if k in at]
        strides = dict(known_strides(self.captured.arguments))
        names = self.names
        names["read"] = many.addresses([(at[k], strides.get(k)) for k in plain])
        names["slowly"] = partial(_slowly, at, plain, restore)
        names["memory"] = start_of
        numbers = {k: j for j, k in enumerate(plain)}
        found: list[str] = []
        for k in self.reads:
            where = None if k in at else kept[k]
            found.append(
                f"b{where[0]} + {where[1]}" if isinstance(where, tuple) else f"found[{numbers[k]}]"
            )
        lines = [f"plain = [*saved[:{count}], *others]"]
        if names["read"] is not None:
            lines += ["found = read(plain)", "if not found: found = slowly(plain)"]
        else:
            lines += self._few_addresses([(at[k], strides.get(k)) for k in plain])
        for k, (shape, _, dtype) in enumerate(bases):
            names[f"t{k}"] = dtype
            lines.append(f"b{k} = memory(saved[{count + k}], {shape[0]}, t{k})")
        lines += [f"addresses = [{', '.join(found)}]", *self._fresh()]
        lines += ["joined, places = parts()"] if self.joined else []
        results = "".join(f"{self._result(r)}, " for r in self.captured.results)
        lines += [*self._launched(), f"return ({results})"]
        return self._made("saved, others", lines)

    def _few_addresses(self, wanted: Sequence[tuple[int, tuple[int, ...] | None]]) -> list[str]:
        """Addresses of tensors of the list `plain`, too few for a native loop, which lie with these
        strides."""
        known = [(f"plain[{k}]", strides) for k, strides in wanted]
        fits = " and ".join(f"{x}.stride() == {s}" for x, s in known if s is not None) or "True"
        read = ", ".join(f"{x}.data_ptr()" for x, _ in known)
        return [
            f"try: found = [{read}] if {fits} else []",
            "except RuntimeError: found = []  # one has no memory",
            f"if {'0 in found or ' if known else ''}len(found) < {len(known)}: "
            "found = slowly(plain)",
        ]

    def of_call(
        self, form: str, hold: Hold, after: Sequence[str], names: Mapping[str, Any]
    ) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
        """`form` says what is returned, with `{0}` for the first result. `hold` may promise that
        weights are watched elsewhere. `after` are lines that use `names` and follow the work."""
        assert self.given is not None and not self.captured.mutated
        held = [self.given[k] for k in self.reads[: self.weights]]
        tensors = [x for x in held if isinstance(x, torch.Tensor)]
        if tensors and len(tensors) == len(held) and hold(tensors, self.program.weights):
            self.names["bind"] = self.names["bind"].again
        lines = []
        for k, what in enumerate(self.given):
            if isinstance(what, str):
                lines.append(f"a{k} = {what}")
            else:
                self.names[f"a{k}"] = what
        read = "".join(f"{self.argument(k)}, " for k in self.reads)
        every = "".join(f"{self.argument(k)}, " for k in range(len(self.given)))
        each = (f"found[{k}]" for k in range(len(self.captured.results)))
        lines += self._bound_sizes()
        lines += self._way(f"[{every}]", [*after, f"return {form.format(*each)}"])
        results = form.format(*map(self._result, self.captured.results))
        work = [*self._fresh(), *self._work(f"zip(reads, ({read}))"), *after, f"return {results}"]
        if after:
            self.names = {**names, **self.names}
        return self._made("args, kwargs", [*lines, *self.sizes.lines, *work])

    def _made(self, parameters: str, lines: Sequence[str]) -> Callable[..., Any]:
        source = f"def call({parameters}):\n" + "".join(f"    {line}\n" for line in lines)
        exec(source, scope := dict(self.names))
        return scope["call"]

    def _take(self) -> list[str]:
        count = len(self.captured.arguments)
        if not self.named or not count:
            return []
        return [f"{', '.join(f'a{k}' for k in range(count))}, = args"]

    def _restored(self, restore: Restore | None) -> list[str]:
        """Where one native loop both finds addresses and sees that all lies as it should, nothing
        else is done about it."""
        rest = self.reads[self.weights :]
        strides = dict(known_strides(self.captured.arguments)) if restore is not None else {}
        read = None if self.named else many.addresses([(k, strides.get(k)) for k in rest])
        self.names["restore"], self.names["read"] = restore, read
        if read is None:
            return [] if restore is None else ["restore(args)"]
        again = [] if restore is None else ["if not addresses: restore(args)"]
        return ["addresses = read(args)", *again]

    def _fresh(self) -> list[str]:
        lines = []
        for k, b in enumerate(self.segment.buffers[: len(self.slots)]):
            if b.slot not in self.joined and b.slot not in self.placed:
                self.names[f"d{k}"] = torch_dtype(b.dtype, b.paired)
                if self.large is not None and (make := self.large.maker(b)) is not None:
                    self.names[f"new{k}"] = make
                    lines.append(f"o{k} = new{k}()")
                    continue
                shape, stride = self.sizes.all(b.shape), self.sizes.all(b.stride)
                lines.append(f"o{k} = empty({shape}, {stride}, d{k})")
        return lines

    def _allocate(self) -> list[str]:
        lines = self._fresh()
        if self.joined:
            return [*lines, "joined, places = parts()"]
        if not lines:
            return []
        taken = ", ".join(f"o{k}" for k in range(len(lines)))
        return ["if given is None:", *(f"    {line}" for line in lines), f"else: {taken}, = given"]

    def _work(self, read: str, spread: bool = False) -> list[str]:
        """Native code on the addresses of what is read and of fresh memory. `spread`: there is no
        list of arguments."""
        check = f"require_memory({read})"
        lines = []
        if self.weights:
            weights = self.reads[: self.weights]
            picked = (
                f"({', '.join(map(self.argument, weights))},)" if spread else self._picked(weights)
            )
            lines += [f"bound = bind({picked})", f"if bound is None: {check}"]
        rest = self.reads[self.weights :]
        names = [f"{self.argument(k)}.data_ptr()" for k in rest]
        found = [f"addresses = [{', '.join(names)}]"]
        if rest and self.program.dims:
            self.names["stand_ins"] = stand_ins
            read = "".join(f"{self.argument(k)}, " for k in rest)
            found += [
                "if 0 in addresses:",
                f"    {check}",
                f"    room = stand_ins(addresses, ({read}))",
            ]
        elif rest:
            found.append(f"if 0 in addresses: {check}")
        if self.names.get("read") is not None:
            lines += ["if not addresses:", *(f"    {line}" for line in found)]
            return [*lines, *self._launched()]
        return [*lines, *self._straight(rest, [*found, *self._launched()])]

    def _straight(self, rest: Sequence[int], otherwise: Sequence[str]) -> list[str]:
        """All of that as one native call where there is one, which may refuse."""
        call = None
        if self.named and not self.joined:
            bound = None if self.weights else self.names.setdefault("bound", self.program.bind(()))
            call = straight(self.program, bound, len(rest), len(self.slots))
        if call is None:
            return list(otherwise)
        self.names["straight"] = call
        given = [  # new values of an argument are its own memory
            f"o{k}" if (at := self.placed.get(b.slot)) is None else self.argument(rest[at])
            for k, b in enumerate(self.segment.buffers[: len(self.slots)])
        ]
        given += [*map(self.argument, rest), *map(self.symbols.__getitem__, self.program.dims)]
        given += ["bound.address"] if self.weights else []
        lines = [f"found = straight({', '.join(given)})"]
        if not self.segment.checks:
            return [*lines, "if found is not None:", *(f"    {x}" for x in otherwise)]
        return [*lines, "if found is False:", *(f"    {x}" for x in otherwise[:-1]), otherwise[-1]]

    def _launched(self) -> list[str]:
        """`addresses` are known."""
        if not self.weights:
            self.names.setdefault("bound", self.program.bind(()))
        dims = "".join(f"{self.symbols[name]}, " for name in self.program.dims)
        run = f"run(bound, addresses, [{self._outs()}]{f', ({dims})' if dims else ''})"
        if not self.segment.checks:
            return [run]
        # Before inputs are changed: where the error is caught, they are as they were.
        self.names["problem"] = partial(problem_found, self.segment, self.program)
        known = ", ".join(f"{name!r}: {n}" for name, n in self.symbols.items())
        return [f"found = {run}", f"if found is not None: raise problem(found, {{{known}}})"]

    def _outs(self) -> str:
        """Addresses of fresh memory, in the order of buffers."""
        found: list[str] = []
        first = 0
        placed: list[int] = []
        for k, b in enumerate(self.segment.buffers[: len(self.slots)]):
            if b.slot in self.placed:  # those of neighbours are picked together
                if placed:
                    found.pop()
                placed.append(self.placed[b.slot])
                found.append(self._picked_addresses(placed))
                first = k + 1
                continue
            placed = []
            if b.slot not in self.joined:
                found.append(f"o{k}.data_ptr()")
                first = k + 1
                continue
            at = self.joined[b.slot]
            if k > first:
                found.pop()
            found.append(f"*places[{at - (k - first)}:{at + 1}]")
        return ", ".join(found)

    def _picked_addresses(self, inputs: Sequence[int]) -> str:
        """Some of the addresses that were read, as elements of a list."""
        if len(inputs) == 1:
            return f"addresses[{inputs[0]}]"
        name = f"at{inputs[0]}"
        self.names[name] = itemgetter(*inputs)
        return f"*{name}(addresses)"

    def _picked(self, positions: Sequence[int]) -> str:
        """A tuple of the arguments at some positions. Slices take a third of the time that looking
        each of two hundred up takes; weights stand next to each other but for the inputs."""
        if self.given is not None:
            held = [self.given[k] for k in positions]
            if any(isinstance(x, str) for x in held):
                return f"({', '.join(map(self.argument, positions))},)"
            self.names["weights"] = tuple(held)
            return "weights"
        runs: list[list[int]] = []
        for k in positions:
            if runs and runs[-1][1] == k:
                runs[-1][1] += 1
            else:
                runs.append([k, k + 1])
        if len(runs) > MOST_RUNS and len(positions) > 1:
            self.names["pick"] = itemgetter(*positions)
            return "pick(args)"
        return f"({', '.join(f'*args[{a}:{b}]' for a, b in runs)},)"

    def _spare(self) -> list[str]:
        """Where nothing is to be changed, what the program changes are copies."""
        names = [self.argument(k) for k in self.changed]
        lines = [f"    {name} = {name}.clone()" for name in names]
        if self.names.get("read") is not None:
            lines.append("    addresses = []")  # those of the copies are others
        return ["if session.dry:", *lines] if names else []

    def _write_back(self) -> list[str]:
        if not self.captured.mutated:
            return []
        lines = []
        if self.changed:  # others have to see that it was
            self.names["changed"] = torch.autograd.graph.increment_version
            lines.append(f"changed([{', '.join(map(self.argument, self.changed))}])")
        done = set(self.changed)
        pairs = [(self.position[x], y) for x, y in self.captured.mutated]
        left = [(k, y) for k, y in pairs if k not in done]
        if left:
            # Together: statistics of many norms would each be a launch on a GPU.
            self.names["copy_all"] = torch._foreach_copy_
            old = "".join(f"{self.argument(k)}, " for k, _ in left)
            new = "".join(f"o{self.slots[y]}, " for _, y in left)
            lines.append(f"if not session.dry: copy_all([{old}], [{new}])")
        return lines

    def _result(self, r: Result) -> str:
        if isinstance(r, Value):
            name = f"value{len(self.names)}"
            self.names[name] = r.value
            return name
        if isinstance(r, SymbolicInt):
            return self.sizes.of(r.value)
        assert isinstance(r, (Same, View))
        fresh = r.slot in self.slots
        base = f"o{self.slots[r.slot]}" if fresh else self.argument(self.position[r.slot])
        start: object = self.sizes.of(r.offset) if isinstance(r, View) else 0
        if self.parts is not None and r.slot in self.joined:
            at = self.joined[r.slot]
            base, start = f"joined[{at}]", f"{self.parts.offsets[at]} + {start}"
        elif not fresh:
            start = f"{base}.storage_offset() + {start}"
        if isinstance(r, Same):
            return base
        shape, stride = self.sizes.all(r.shape), self.sizes.all(r.stride)
        return f"{base}.as_strided({shape}, {stride}, {start})"


def problem_found(
    segment: Segment, program: Program, found: Sequence[int], dims: Mapping[str, int]
) -> Exception:
    """What to raise for what a program found in its data."""
    problem = segment.problem(found, dims)
    if program.tells_later:
        problem.add_note(LATER)
    return problem


def _slowly(
    at: Mapping[int, int], reads: Sequence[int], restore: Restore, plain: list[Any]
) -> list[int]:
    """Addresses of arguments, by their places in `plain`, which lie as they should afterwards."""
    args: list[Any] = [None] * (1 + max(at, default=0))
    for k, place in at.items():
        args[k] = plain[place]
    restore(args)
    for k, place in at.items():
        plain[place] = args[k]  # a copy lives as long as the call
    try:
        found = [args[k].data_ptr() for k in reads]
    except RuntimeError as problem:
        raise Unsupported(
            f"a compiled gradient was given a tensor without memory: {problem}",
            hint="run the function in eager where gradients are batched",
        ) from None
    if 0 in found:
        require_memory((k, args[k]) for k in reads)
    return found


def slots_of(captured: Captured, results: Sequence[int]) -> set[str]:
    """Slots that only these results are made of."""
    chosen = set(results)
    own: set[str] = set()
    others = {name for pair in captured.mutated for name in pair}
    for k, r in enumerate(captured.results):
        if isinstance(r, (Same, View)):
            (own if k in chosen else others).add(r.slot)
    return own - others


def _form(b: Buffer) -> many.Form:
    shape, stride = (tuple(d for d in x if isinstance(d, int)) for x in (b.shape, b.stride))
    return shape, stride, torch_dtype(b.dtype, b.paired)
