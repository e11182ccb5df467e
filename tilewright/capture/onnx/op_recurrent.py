"""Recurrent layers: RNN, LSTM and GRU, as scans. Products with the input are one for all positions,
before the scan; those with the state are within."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright import ops
from tilewright.capture.onnx.context import Context, translation
from tilewright.capture.onnx.op_elementwise import softplus
from tilewright.ir.dim import Dim
from tilewright.ir.node import Node
from tilewright.ir.types import i64

Function = Callable[[Node], Node]
# The functions that take numbers of a layer's lists, how many, and the defaults.
_SCALED: dict[str, tuple[float, ...]] = {
    "affine": (1.0, 0.0),
    "leakyrelu": (0.01,),
    "thresholdedrelu": (1.0,),
    "scaledtanh": (1.0, 1.0),
    "hardsigmoid": (0.2, 0.5),
    "elu": (1.0,),
}


def _function(c: Context, name: str, numbers: Sequence[float]) -> Function:
    a, b = (*numbers, 0.0, 0.0)[:2]
    known: dict[str, Function] = {
        "relu": ops.relu,
        "tanh": ops.tanh,
        "sigmoid": ops.sigmoid,
        "softsign": lambda x: ops.div(x, ops.add(ops.abs(x), 1.0)),
        "softplus": lambda x: softplus(c, x),
        "affine": lambda x: ops.add(ops.mul(x, a), b),
        "leakyrelu": lambda x: ops.where(ops.lt(x, 0.0), ops.mul(x, a), x),
        "thresholdedrelu": lambda x: ops.where(ops.gt(x, a), x, ops.full(x.shape, 0.0, x.dtype)),
        "scaledtanh": lambda x: ops.mul(ops.tanh(ops.mul(x, b)), a),
        "hardsigmoid": lambda x: ops.minimum(ops.maximum(ops.add(ops.mul(x, a), b), 0.0), 1.0),
        "elu": lambda x: ops.where(ops.lt(x, 0.0), ops.mul(ops.expm1(x), a), x),
    }
    if name not in known:
        c.refuse(f"the activation {name!r} is not known")
    return known[name]


@dataclass(frozen=True)
class _Layer:
    """A layer's operands, with positions first."""

    c: Context
    x: Node  # [positions, batch, inputs]
    w: Node  # [directions, gates * hidden, inputs]
    r: Node  # [directions, gates * hidden, hidden]
    b: Node | None  # [directions, 2 * gates * hidden]
    lengths: Node | None
    functions: list[Function]  # of all directions

    @property
    def hidden(self) -> Dim:
        return self.r.shape[2]

    @property
    def directions(self) -> list[bool]:
        """Of each direction, whether it goes back."""
        names = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}
        given = self.c.get("direction", "forward")
        if given not in names or len(names[given]) != self.w.shape[0]:
            self.c.refuse(f"{self.w.ttype!r} are no weights of direction {given!r}")
        return names[given]

    def clipped(self, x: Node) -> Node:
        most = self.c.get("clip", 0.0)
        return ops.maximum(ops.minimum(x, most), -most) if most else x

    def of(self, d: int) -> list[Function]:
        """The functions of a direction. Gates are clipped before them; the cell, which the third is
        applied to, is not, as other runtimes have it."""
        count = len(self.functions) // len(self.directions)
        given = self.functions[d * count : (d + 1) * count]
        clipped: list[Function] = [lambda x, f=f: f(self.clipped(x)) for f in given[:2]]
        return clipped + given[2:]

    def bias(self, d: int) -> tuple[Node | None, Node | None]:
        """Of the input and of the state."""
        if self.b is None:
            return None, None
        first, second = ops.split(_at(self.b, d), [self.w.shape[1]] * 2, 0)
        return first, second

    def products(self, d: int) -> Node:
        """The input times its weights, at all positions."""
        length, batch, width = self.x.shape
        rows = ops.reshape(self.x, (length * batch, width))
        made = ops.matmul(rows, ops.permute(_at(self.w, d), (1, 0)))
        return ops.reshape(made, (length, batch, self.w.shape[1]))

    def recurrent_weights(self, d: int) -> Node:
        return ops.permute(_at(self.r, d), (1, 0))

    def mask(self) -> Node | None:
        """Which positions each text of the batch has."""
        if self.lengths is None:
            return None
        length, batch = self.x.shape[:2]
        at = ops.reshape(ops.iota(length, 0, 1, i64), (length, 1, 1))
        return ops.lt(at, ops.reshape(ops.cast(self.lengths, i64), (1, batch, 1)))

    def state(self, given: Node | None, d: int) -> Node:
        if given is None:
            return ops.full((self.x.shape[1], self.hidden), 0.0, self.x.dtype)
        return _at(given, d)

    def results(self, wholes: Sequence[Node], *last: Sequence[Node]) -> tuple[Node, ...]:
        """All positions, and the last states; with the batch first where the model has it so."""
        y = ops.stack(list(wholes), 1)
        states = [ops.stack(list(x), 0) for x in last]
        if not self.c.get("layout", 0):
            return (y, *states)
        return ops.permute(y, (2, 0, 1, 3)), *(ops.permute(x, (1, 0, 2)) for x in states)


def _at(x: Node, d: int) -> Node:
    """One direction of an operand."""
    return ops.reshape(ops.slice(x, 0, d, d + 1), x.shape[1:])


def _layer(
    c: Context,
    x: Node,
    w: Node,
    r: Node,
    b: Node | None,
    lengths: Node | None,
    states: Sequence[Node | None],
    functions: Sequence[str],
) -> tuple[_Layer, list[Node | None]]:
    """The layer and its first states. `functions` are those of one direction by default."""
    given = list(states)
    if c.get("layout", 0):
        x = ops.permute(x, (1, 0, 2))
        given = [None if s is None else ops.permute(s, (1, 0, 2)) for s in given]
    names = [n.lower() for n in c.get("activations", list(functions) * int(_whole(w.shape[0])))]
    alphas, betas = iter(c.get("activation_alpha", [])), iter(c.get("activation_beta", []))
    made = []
    for name in names:
        numbers = [
            next(source, default)
            for source, default in zip((alphas, betas), _SCALED.get(name, ()), strict=False)
        ]
        made.append(_function(c, name, numbers))
    layer = _Layer(c, x, w, r, b, lengths, made)
    if len(names) != len(functions) * len(layer.directions):
        c.refuse(f"{len(names)} activations for {len(layer.directions)} directions")
    return layer, given


def _whole(d: Dim) -> int:
    assert isinstance(d, int)
    return d


def _sum(x: Node, *more: Node | None) -> Node:
    for y in more:
        x = x if y is None else ops.add(x, y)
    return x


@translation("RNN")
def rnn(
    c: Context,
    x: Node,
    w: Node,
    r: Node,
    b: Node | None = None,
    lengths: Node | None = None,
    first: Node | None = None,
) -> tuple[Node, ...]:
    layer, (h0,) = _layer(c, x, w, r, b, lengths, [first], ["Tanh"])
    wholes, lasts = [], []
    for d, back in enumerate(layer.directions):
        (f,) = layer.of(d)
        given = _sum(layer.products(d), *layer.bias(d))

        def step(
            states: Sequence[Node], slices: Sequence[Node], same: Sequence[Node], f: Function = f
        ) -> list[Node]:
            return [f(ops.add(slices[0], ops.matmul(states[0], same[0])))]

        whole, (last,) = ops.over_positions(
            step, [layer.state(h0, d)], [given], [layer.recurrent_weights(d)], back, layer.mask()
        )
        wholes.append(whole)
        lasts.append(last)
    return layer.results(wholes, lasts)


@translation("LSTM")
def lstm(
    c: Context,
    x: Node,
    w: Node,
    r: Node,
    b: Node | None = None,
    lengths: Node | None = None,
    first: Node | None = None,
    first_cell: Node | None = None,
    peepholes: Node | None = None,
) -> tuple[Node, ...]:
    functions = ["Sigmoid", "Tanh", "Tanh"]
    layer, (h0, c0) = _layer(c, x, w, r, b, lengths, [first, first_cell], functions)
    coupled, hidden = bool(c.get("input_forget", 0)), layer.hidden
    wholes, lasts, cells = [], [], []
    for d, back in enumerate(layer.directions):
        f, g, h = layer.of(d)
        given = _sum(layer.products(d), *layer.bias(d))
        captured = [layer.recurrent_weights(d)]
        if peepholes is not None:
            captured += ops.split(_at(peepholes, d), [hidden] * 3, 0)

        def step(
            states: Sequence[Node],
            slices: Sequence[Node],
            same: Sequence[Node],
            fs: tuple[Function, Function, Function] = (f, g, h),
        ) -> list[Node]:
            f, g, h = fs
            before, cell = states
            gates = ops.add(slices[0], ops.matmul(before, same[0]))
            i, o, forget, new = ops.split(gates, [hidden] * 4, 1)
            if len(same) > 1:
                i = ops.add(i, ops.mul(cell, same[1]))
                forget = ops.add(forget, ops.mul(cell, same[3]))
            i = f(i)
            kept = ops.sub(ops.full(i.shape, 1.0, i.dtype), i) if coupled else f(forget)
            cell = ops.add(ops.mul(kept, cell), ops.mul(i, g(new)))
            if len(same) > 1:
                o = ops.add(o, ops.mul(cell, same[2]))
            return [ops.mul(f(o), h(cell)), cell]

        states = [layer.state(h0, d), layer.state(c0, d)]
        whole, (last, cell) = ops.over_positions(
            step, states, [given], captured, back, layer.mask()
        )
        wholes.append(whole)
        lasts.append(last)
        cells.append(cell)
    return layer.results(wholes, lasts, cells)


@translation("GRU")
def gru(
    c: Context,
    x: Node,
    w: Node,
    r: Node,
    b: Node | None = None,
    lengths: Node | None = None,
    first: Node | None = None,
) -> tuple[Node, ...]:
    layer, (h0,) = _layer(c, x, w, r, b, lengths, [first], ["Sigmoid", "Tanh"])
    after, hidden = bool(c.get("linear_before_reset", 0)), layer.hidden
    parts = [hidden * 3] if after else [hidden * 2, hidden]  # products with the state
    wholes, lasts = [], []
    for d, back in enumerate(layer.directions):
        f, g = layer.of(d)
        of_input, of_state = layer.bias(d)
        weights = layer.recurrent_weights(d)
        given = _sum(layer.products(d), of_input)
        captured = list(ops.split(weights, parts, 1))
        if of_state is not None:
            captured += ops.split(of_state, parts, 0)

        def step(
            states: Sequence[Node],
            slices: Sequence[Node],
            same: Sequence[Node],
            fs: tuple[Function, Function] = (f, g),
        ) -> list[Node]:
            f, g = fs
            (before,) = states
            early, late = ops.split(slices[0], [hidden * 2, hidden], 1)
            biases = same[len(parts) :] or [None] * len(parts)
            made = _sum(ops.matmul(before, same[0]), biases[0])
            gates = ops.slice(made, 1, 0, hidden * 2)
            z, reset = (f(x) for x in ops.split(ops.add(early, gates), [hidden] * 2, 1))
            if after:
                inner = ops.mul(reset, ops.slice(made, 1, hidden * 2, hidden * 3))
            else:
                inner = _sum(ops.matmul(ops.mul(reset, before), same[1]), biases[1])
            new = g(ops.add(late, inner))
            one = ops.full(z.shape, 1.0, z.dtype)
            return [ops.add(ops.mul(ops.sub(one, z), new), ops.mul(z, before))]

        whole, (last,) = ops.over_positions(
            step, [layer.state(h0, d)], [given], captured, back, layer.mask()
        )
        wholes.append(whole)
        lasts.append(last)
    return layer.results(wholes, lasts)
