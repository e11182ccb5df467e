"""Launches that run step by step: the Python of a kernel itself, or its translation.

`run_eager` calls the Python function of a kernel once for every program of the grid, with tensors
whose elements are known: print, breakpoints and pdb work. `interpret` does the same with a kernel
that was translated. Both compute with an `EagerBuilder`, so that an operation has one meaning.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base import knobs
from tilewright.base.errors import Invalid, TilewrightError
from tilewright.ir.types import DType, b1, f32, i32, i64, u64
from tilewright.lang.tile.builder import using
from tilewright.lang.tile.front.diagnostics import Mistake
from tilewright.lang.tile.front.functions import Argument, Parameter, TileFunction
from tilewright.lang.tile.ir import Block, Kernel, Operation, Pointer, TileType, Value, walk
from tilewright.lang.tile.language import core
from tilewright.lang.tile.language.types import base_type, constexpr, dtype, pointer_type, unwrap
from tilewright.lang.tile.stepping.computing import EagerBuilder
from tilewright.lang.tile.stepping.evaluate import ELEMENTWISE
from tilewright.lang.tile.stepping.known import EagerValue, known
from tilewright.lang.tile.stepping.raw_memory import FOREIGN, Memory, element_of, is_array
from tilewright.lang.tile.stepping.turns import Turns
from tilewright.lang.tile.stepping.watching import CheckingBuilder

__all__ = [
    "EagerBuilder",
    "EagerValue",
    "bind",
    "bind_all",
    "interpret",
    "run_eager",
]


def run_eager(
    function: TileFunction,
    grid: Sequence[int],
    arguments: Mapping[str, Any],
    described: Mapping[str, Argument] | None = None,
    builder: EagerBuilder | None = None,
) -> None:
    """Run a kernel's Python for every program of a grid. `arguments` are the caller's objects by
    parameter; `described` gives the types of numbers where they were decided before."""
    if builder is None:
        checked = knobs.tile_check.get()
        builder = (
            CheckingBuilder(Memory(), grid, kernel=function.name)
            if checked
            else EagerBuilder(Memory(), grid)
        )
    bound = bind_all(function, arguments, described)
    positional: list[Any] = []
    named: dict[str, Any] = {}
    with using(builder):
        for p in function.parameters:
            argument, leaves = bound[p.name]
            x = _visible(builder, argument, iter(leaves), p.is_constexpr)
            if p.variadic:
                positional += x
            elif function.signature.parameters[p.name].kind.name == "KEYWORD_ONLY":
                named[p.name] = x
            else:
                positional.append(x)
        run = builder.stepper.function(function)

        def program() -> None:
            if unwrap(run(*positional, **named)) is not None:
                raise Invalid(
                    f"a kernel returns nothing, and {function.name} returns a value",
                    where=f"{function.file}:{function.line}",
                    hint="store it: tl.store(pointer, value)",
                )

        try:
            Turns(builder, program).go()
        except Mistake as mistake:  # of what the language and Python share, such as max
            where = _line_of(mistake)
            raise Invalid(str(mistake), where=where, hint=mistake.hint) from None
        except TilewrightError as error:
            if error.where is None:
                error.where = _line_of(error)
            raise
    builder.finish()


def _line_of(error: BaseException) -> str | None:
    """The innermost line of the user's that an error went through."""
    trace, found = error.__traceback__, None
    while trace is not None:
        if not trace.tb_frame.f_globals.get("__name__", "").startswith("tilewright."):
            found = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


# ---- arguments as a kernel sees them

Leaf = builtins.tuple[str, Any]  # a number or an array of a launch, and what to call it
Bound = builtins.tuple[Argument, list[Leaf]]


def bind_all(
    function: TileFunction,
    arguments: Mapping[str, Any],
    described: Mapping[str, Argument] | None = None,
) -> dict[str, Bound]:
    """What each parameter stands for, and what a launch gives for it."""
    bound: dict[str, Bound] = {}
    for p in function.parameters:
        if p.name not in arguments and not p.has_default and not p.variadic:
            raise Invalid(
                f"{function.name} is launched without {p.name}",
                where=f"{function.file}:{function.line}",
                hint=f"give it by name or by position: {function.name}[grid](…, {p.name}=…)",
            )
        x = arguments.get(p.name, () if p.variadic else p.default)
        if p.is_constexpr:
            bound[p.name] = Argument.constant(unwrap(x)), []
            continue
        argument = (described or {}).get(p.name)
        declared = argument.element if argument is not None else _declared(p)
        bound[p.name] = bind(x, p.name, declared, not p.do_not_specialize)
    return bound


def bind(x: Any, name: str, declared: Any = None, special: bool = True) -> Bound:
    """The same for one object. `declared` is an element that numbers are taken as; with `special`,
    an integer 1 is a constant, as it is to a compiled kernel."""
    if isinstance(x, constexpr):
        return Argument.constant(x.value), []
    if isinstance(x, builtins.tuple):
        parts = [bind(v, f"{name}[{k}]", None, special) for k, v in enumerate(x)]
        kind = type(x)
        make = (lambda given: kind(*given)) if hasattr(x, "_fields") else None
        leaves = [leaf for _, inner in parts for leaf in inner]
        return Argument.group([a for a, _ in parts], make), leaves
    if all(hasattr(x, a) for a in ("base", "shape", "strides", "block_shape")):
        return _descriptor(x, name)
    if is_array(x):
        to = declared.to if isinstance(declared, Pointer) else element_of(x)
        return Argument.pointer(to), [(name, x)]
    if isinstance(x, (bool, int, float, np.bool_, np.integer, np.floating)):
        return _number(x, name, declared, special)
    constant = (type(None), str, base_type, TileFunction, DType)
    if isinstance(x, constant) or callable(x) or type(x).__name__ == "dtype":
        return Argument.constant(x), []
    raise Invalid(
        f"{name} is a {type(x).__name__}, which a kernel cannot be given",
        hint="give arrays, numbers, tuples of them, or constants to tl.constexpr parameters",
    )


def _number(x: Any, name: str, declared: Any, special: bool) -> Bound:
    if isinstance(declared, DType):
        element = declared
    elif isinstance(x, (bool, np.bool_)):
        element = b1
    elif isinstance(x, (float, np.floating)):
        element = f32
    else:
        element = next((e for e in (i32, i64, u64) if e.lowest <= x <= e.highest), None)
        if element is None:
            raise Invalid(f"{name} = {x} does not fit into 64 bits")
    if special and element.is_int and x == 1:
        return Argument.constant(1), []
    return Argument.scalar(element), [(name, x)]


def _descriptor(x: Any, name: str) -> Bound:
    base, leaves = bind(x.base, name)
    rank, block = len(x.shape), list(x.block_shape)
    sizes, steps = [Argument.scalar(i32)] * rank, [Argument.scalar(i64)] * (rank - 1)
    padding = getattr(x, "padding", "zero")

    def make(given: Any) -> Any:
        address, *rest = given
        strides = [*rest[rank:], constexpr(1)]
        return core.make_tensor_descriptor(
            address, rest[:rank], strides, block, padding_option=padding
        )

    numbers = [(name, int(n)) for n in (*x.shape, *builtins.list(x.strides)[:-1])]
    return Argument.group([base, *sizes, *steps], make), [*leaves, *numbers]


def _declared(p: Parameter) -> Any:
    """The element that an annotation names, such as tl.int64."""
    a = p.annotation
    if isinstance(a, pointer_type) or not isinstance(a, (dtype, str)):
        return None
    if isinstance(a, dtype):
        return a.ir
    kind = getattr(core, p.annotation_text.rsplit(".", 1)[-1], None)
    return kind.ir if type(kind) is dtype else None


def _visible(
    builder: EagerBuilder, argument: Argument, leaves: Iterator[Leaf], constant: bool
) -> Any:
    if argument.parts is not None:
        parts = builtins.tuple(_visible(builder, a, leaves, False) for a in argument.parts)
        return argument.make(parts) if argument.make is not None else core.tuple(parts)
    if argument.element is not None:
        name, x = next(leaves)
        return core.tensor(bind_value(builder, TileType(argument.element), x, name))
    if not constant and type(argument.value) is int:
        return constexpr(argument.value)  # 1, to which a compiled kernel would be specialised
    return argument.value


# ---- translated kernels


def interpret(
    kernel: Kernel,
    grid: Sequence[int],
    arguments: Sequence[Any],
    builder: EagerBuilder | None = None,
) -> None:
    """Run a translated kernel for every program of a grid. `arguments` are what a launch gives, in
    the order of the kernel's: numbers, and arrays for pointers (or addresses of them)."""
    if len(arguments) != len(kernel.arguments):
        raise Invalid(
            f"{kernel.name} takes {len(kernel.arguments)} arguments, {len(arguments)} given"
        )
    builder = builder or EagerBuilder(Memory(), grid)
    given = {
        a: bind_value(builder, a.type, x, a.name or f"argument {k}")
        for k, (a, x) in enumerate(zip(kernel.arguments, arguments, strict=True))
    }
    runner = _Runner(builder)
    Turns(builder, lambda: runner.block(kernel.body, dict(given))).go()
    builder.place = None
    builder.finish()


def bind_value(builder: EagerBuilder, type: TileType, x: Any, name: str) -> EagerValue:
    """What a kernel sees of an argument: a number, or the address of an array."""
    if isinstance(type.element, Pointer):
        if is_array(x):
            return builder.pointer(type.element.to, builder.memory.add(name, x))
        if not isinstance(x, (int, np.integer)):
            raise Invalid(f"{name} is a {x.__class__.__name__}, and the kernel needs an array")
        return EagerValue(type, np.asarray(int(x), np.int64), np.asarray(FOREIGN))
    return builder.number(type, x)


class _Runner:
    """Walks blocks; `env` has the values of what was defined so far."""

    def __init__(self, builder: EagerBuilder) -> None:
        self.builder = builder

    def block(self, block: Block, env: dict[Value, EagerValue]) -> list[EagerValue]:
        for o in block.operations:
            self.builder.place = o.place
            for r, v in zip(o.results, self.operation(o, env), strict=True):
                env[r] = v
        return [env[y] for y in block.yields]

    def operation(self, o: Operation, env: dict[Value, EagerValue]) -> Sequence[EagerValue]:
        args = [env[a] for a in o.args]
        types = [r.type for r in o.results]
        if o.name in ("reduce", "scan"):
            return self.reduction(o, args, types, env)
        if o.name == "for":
            return self.loop(o, args, env)
        if o.name == "if":
            taken = self.builder.decide(args[0], "a branch")
            return self.block(o.blocks[0 if taken else 1], env)
        if o.name == "while":
            return self.repeat(o, args, env)
        return [known(v) for v in self.builder.emit(o.name, args, types, o.attrs)]

    def reduction(
        self,
        o: Operation,
        args: list[EagerValue],
        types: list[TileType],
        env: dict[Value, EagerValue],
    ) -> list[EagerValue]:
        (block,) = o.blocks
        place, vectors = o.place, all(x.name in ELEMENTWISE for x in walk(block))

        def function(values: Sequence[Value]) -> Sequence[Value]:
            if not vectors and any(v.type.shape for v in values):
                raise Invalid("the function of this reduction takes one element at a time")
            inner = dict(env)
            inner.update(zip(block.parameters, map(known, values), strict=True))
            results = self.block(block, inner)
            self.builder.place = place
            return results

        found = self.builder.combine(o.name, args, types, o.attrs, function)
        return [known(v) for v in found]

    def loop(
        self, o: Operation, args: list[EagerValue], env: dict[Value, EagerValue]
    ) -> list[EagerValue]:
        (block,) = o.blocks
        low, high, step = (self.builder.decide(a, "the bound of a loop") for a in args[:3])
        if step == 0:
            raise Invalid("the step of a loop is 0", where=o.place)
        carried, counter = args[3:], args[0].type
        for i in range(low, high, step):
            now = [self.builder.number(counter, i), *carried]
            env.update(zip(block.parameters, now, strict=True))
            carried = self.block(block, env)
        return carried

    def repeat(
        self, o: Operation, args: list[EagerValue], env: dict[Value, EagerValue]
    ) -> list[EagerValue]:
        condition, body = o.blocks
        carried = args
        while True:
            env.update(zip(condition.parameters, carried, strict=True))
            (more,) = self.block(condition, env)
            self.builder.place = o.place
            if not self.builder.decide(more, "a loop"):
                return carried
            env.update(zip(body.parameters, carried, strict=True))
            carried = self.block(body, env)
