"""Translated kernels run on numpy: the operations of a kernel one after the other, for one program
after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.errors import Invalid
from tilewright.lang.tile.eager import EagerBuilder
from tilewright.lang.tile.evaluate import ELEMENTWISE
from tilewright.lang.tile.ir import Block, Kernel, Operation, Pointer, TileType, Value, walk
from tilewright.lang.tile.known import EagerValue, known
from tilewright.lang.tile.raw_memory import FOREIGN, Memory, is_array


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
    runner = _Runner(builder, kernel, given)
    for _ in builder.programs():
        runner.block(kernel.body, dict[Value, EagerValue](given))


def bind_value(builder: EagerBuilder, type: TileType, x: Any, name: str) -> EagerValue:
    """What a kernel sees of an argument: a number, or the address of an array."""
    if isinstance(type.element, Pointer):
        if is_array(x):
            return builder.pointer(type.element.to, builder.memory.add(name, x))
        if not isinstance(x, (int, np.integer)):
            raise Invalid(f"{name} is a {x.__class__.__name__}, and the kernel wants an array")
        return EagerValue(type, np.asarray(int(x), np.int64), np.asarray(FOREIGN))
    return builder.number(type, x)


class _Runner:
    """Walks blocks; `env` has the values of what was defined so far."""

    def __init__(
        self, builder: EagerBuilder, kernel: Kernel, given: dict[Value, EagerValue]
    ) -> None:
        self.builder, self.kernel, self.given = builder, kernel, given

    def block(self, block: Block, env: dict[Value, EagerValue]) -> list[EagerValue]:
        for o in block.operations:
            self.builder.place = o.place
            for r, v in zip(o.results, self.operation(o, env), strict=True):
                env[r] = v
        return [env[y] for y in block.yields]

    def operation(self, o: Operation, env: dict[Value, EagerValue]) -> Sequence[EagerValue]:
        args = [env[a] for a in o.args]
        types = [r.type for r in o.results]
        if o.name == "argument":
            return [self.given[self.kernel.arguments[o.attrs["index"]]]]
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
