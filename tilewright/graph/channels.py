"""Channels last: where a convolution's output channels are not innermost, images are stored so.

Vectors run along channels: with a pixel's channels adjacent in memory, whole vectors are what a
contraction reads, adds up and stores. The order spreads from convolutions through everything that
does not mix axes (maps, padding, pooling, resizing, normalisation); conversions stand at the edges.
It spreads, too, from where pixels are gathered out of an image that lies so already: vectors along
pixels would collect it element by element; and from what a weight's gradient sums over the pixels
of such an image, which would be turned for it. Images around filters of single pixels alone stay as
they are: those are products of matrices (`pixel_products.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.base.events import Log
from tilewright.graph.classify import Facts, contraction, facts
from tilewright.graph.decompose import Decompose
from tilewright.graph.pixel_products import FlatPixels, needs_no_turning
from tilewright.ir import dim as D
from tilewright.ir import expr as E
from tilewright.ir.expr import Load, Reduce, Tensor, Value
from tilewright.ir.maps import Map
from tilewright.ir.node import Graph, Node, node
from tilewright.ir.passes import Pass, of_target
from tilewright.ir.target import Target
from tilewright.ir.types import TensorType, f32
from tilewright.ops.arranged import Order, arranged, inverse, reordered
from tilewright.ops.layout import relayout
from tilewright.ops.views import Permute, permute, reshape

# Channels that make vectors where pixels are gathered; of fewer, pixels are lanes.
FEWEST = 8


def multiplied(t: Target) -> tuple[str, ...]:
    """The dtypes of which instructions multiply matrices, with sums in float32."""
    return tuple(sorted({p.a.name for p in t.products if p.a is p.b and p.c is f32}))


@dataclass(frozen=True)
class ChannelsLast(Pass, needs=("Decompose",), rounds=True, regions=True):
    """Rewrite convolutions, and what lies between them, to the order with channels innermost."""

    # On a GPU: the images that are turned, there also for filters of single channels. Threads read
    # neighbouring pixels of others.
    dtypes: tuple[str, ...] | None = of_target(
        None, lambda t: None if t.grid is None else multiplied(t)
    )

    def apply(self, program: Graph, log: Log) -> Graph:
        last, plain = _spread(program, self.dtypes)
        if plain:
            count = sum(facts(n).kind == "contract" for n in plain)
            log.add("layout", f"{count} convolutions of single pixels as products")
        if last:
            count = sum(facts(n).kind == "contract" for n in last)
            log.add("layout", f"{len(last)} values with channels last around {count} convolutions")
        return _Rewriting(last, plain).run(program) if last or plain else program


def stored_last(program: Graph, target: Target) -> tuple[bool, ...]:
    """Which outputs the pass would store with channels last, if nothing were said of them."""
    made = Decompose().on(target).apply(program, Log())
    last, _ = _spread(made, ChannelsLast().on(target).dtypes)
    return tuple(o in last for o in made.outputs)


def order_of(rank: int) -> Order:
    return (0, *range(2, rank), 1)


def _spread(graph: Graph, dtypes: tuple[str, ...] | None) -> tuple[set[Node], set[Node]]:
    """Values to be stored with channels last; and others around convolutions that need not be."""
    nodes = graph.nodes()
    seeds = [n for n in nodes if _is_seed(n) and _keeps_apart(n)]
    if dtypes is None:
        seeds += [n for n in nodes if _gathers_pixels(n) and _keeps_apart(n)]
        seeds += [x for n in nodes for x in _summed_images(n) if _keeps_apart(x)]
    else:
        seeds += [n for n in nodes if _has_filters(n) and _keeps_apart(n)]
        seeds = [n for n in seeds if n.inputs[0].dtype.name in dtypes]
    last, plain = set[Node](), set[Node]()
    if not seeds:
        return last, plain
    users, fit = graph.users(), {n for n in nodes if _keeps_apart(n)}
    order = {r: order_of(r) for r in {n.rank for n in seeds}}
    for seed in seeds:
        if seed in last or seed in plain:
            continue
        found = _around(seed, users, fit)
        stays = dtypes is None and needs_no_turning(found, users, graph.outputs, order[seed.rank])
        (plain if stays else last).update(found)
    return last, plain


def _around(seed: Node, users: Mapping[Node, Sequence[Node]], fit: set[Node]) -> set[Node]:
    """All values that the order spreads to from one."""
    stack, found = [seed], set[Node]()
    while stack:
        n = stack.pop()
        if n in found:
            continue
        found.add(n)
        around = [x for x in n.inputs if x in fit and x.rank == n.rank and _is_image(n, x)]
        around += [u for u in users[n] if u in fit and u.rank == n.rank and _is_image(u, n)]
        stack += [x for x in around if x not in found]
    return found


def _is_seed(n: Node) -> bool:
    """A contraction of an image: windows or pixels as rows, channels as columns, but not last."""
    c = contraction(n)
    return c is not None and c.lane == 1 and n.rank >= 3 and n.rank - 1 in c.rows


def _gathers_pixels(n: Node) -> bool:
    """Does it read pixels at places that are data, of an image that lies with channels last?"""
    if not isinstance(n.type, TensorType) or n.rank < 4 or not any(map(_lies_last, n.inputs)):
        return False
    if D.bounds(n.shape[1])[0] < FEWEST:
        return False
    f = facts(n)
    return any(
        len(a.index) == n.rank
        and _lies_last(n.inputs[a.operand])
        and any(D.data_values(i) for i in a.index[2:])
        for a in f.accesses
    )


def _summed_images(n: Node) -> Iterator[Node]:
    """Computed images that lie with channels last, of which a contraction sums up all pixels, as
    the gradient of a weight does."""
    f = facts(n)
    if f.kind != "contract" or f.reduce is None:
        return
    for a in f.accesses:
        x = n.inputs[a.operand]
        wide = x.rank >= 4 and len(a.index) == x.rank and x.op.elementwise
        pixels = wide and all(any(s in f.reduce.axes for s in D.symbols(i)) for i in a.index[2:])
        if pixels and D.bounds(x.shape[1])[0] >= FEWEST and _lies_last(x):
            yield x


def _lies_last(x: Node) -> bool:
    """Is it an image with channels last in another order, perhaps after elementwise work?"""
    stack, seen = [x], {x}
    while stack:
        y = stack.pop()
        if isinstance(y.op, Permute) and y.op.perm == inverse(order_of(y.rank)):
            continue
        if not y.op.elementwise or not isinstance(y.type, TensorType) or y.rank < 3:
            return False
        wide = [z for z in y.inputs if isinstance(z.type, TensorType) and z.shape == y.shape]
        if not wide:
            return False
        stack += [z for z in wide if z not in seen]
        seen.update(wide)
    return True


def _places(f: Facts) -> set[Tensor]:
    """Operands that only say where others are read."""
    inside = {v for a in f.accesses for i in a.index for v in D.data_values(i)}
    said = {x.source for v in inside for x in (v, *E.loads(v)) if isinstance(x, Load)}
    body = f.outputs[0].body if f.outputs else None
    plain = set() if body is None else {x.source for x in _outside(body)}
    return {x for x in f.inputs if x in said and x not in plain}


def _outside(body: Value) -> Iterator[Load]:
    """What a value reads, without what indices read."""
    stack, seen = [body], set[Value]()
    while stack:
        v = stack.pop()
        if v in seen:
            continue
        seen.add(v)
        if isinstance(v, Load):
            yield v
        elif isinstance(v, Reduce):
            stack.append(v.body)
        else:
            stack += v.args


def _keeps_apart(n: Node) -> bool:
    """Is axis k of every operand of the result's rank read along axis k of the result alone?

    What is summed over may be added to any axis, as windows do. Places of what is read may be data
    of an operand of their own.
    """
    if not isinstance(n.type, TensorType) or n.rank < 3 or not n.inputs:
        return False
    if n.op.random or n.op.barrier or hasattr(n.op, "interpret"):
        return False
    f = facts(n)
    if f.kind not in ("map", "view", "reduce", "contract") or f.reshape:
        return False
    if f.kind == "contract" and not _is_seed(n) and not _has_filters(n):
        return False  # a matrix product has its own rows and columns
    out, places = f.outputs[0].axes, _places(f)
    for a in f.accesses:
        if f.inputs[a.operand] in places and len(a.index) != n.rank:
            continue
        if len(a.index) != n.rank or f.inputs[a.operand].rank != n.rank:
            if f.kind == "map" and f.pointwise:
                continue
            return False
        if _is_weight_of(n, a.operand):
            continue
        for k, i in enumerate(a.index):
            if any(s in out and s is not out[k] for s in D.symbols(i)):
                return False
    return True


def _is_weight_of(n: Node, operand: int) -> bool:
    """The operand of a contraction that is no image: it is indexed by no pixel of the result."""
    f = facts(n)
    if f.kind != "contract":
        return False
    pixels = f.outputs[0].axes[2:]
    return not any(
        s in pixels
        for a in f.accesses
        if a.operand == operand
        for i in a.index
        for s in D.symbols(i)
    )


def _own_channel(n: Node, operand: int) -> int | None:
    """The axis of a weight along which every channel of the image has its own filter."""
    f = facts(n)
    channel = f.outputs[0].axes[1]
    image = [a for a in f.accesses if a.operand != operand]
    own = [a for a in f.accesses if a.operand == operand]
    if not all(D.coefficient(a.index[1], channel) == 1 for a in image) or len(own) != 1:
        return None
    return own[0].axes.index(1) if 1 in own[0].axes else None


def _has_filters(n: Node) -> bool:
    """A filter of its own per channel."""
    return any(_is_weight_of(n, k) and _own_channel(n, k) is not None for k in (0, 1))


def _is_image(n: Node, x: Node) -> bool:
    """Does n read x as an image, not as a weight?"""
    return any(x is y and not _is_weight_of(n, k) for k, y in enumerate(n.inputs))


class _Rewriting:
    def __init__(self, last: set[Node], plain: set[Node]) -> None:
        self.last, self.around = last, plain
        self.pixels = FlatPixels()
        self.stored: dict[Node, Node] = {}  # with channels last
        self.plain: dict[Node, Node] = {}

    def run(self, graph: Graph) -> Graph:
        moved: dict[Node, Node] = {}
        for n in graph.nodes():
            if n in self.last:
                moved[n] = self.stored[n] = self.turned(n)
            elif isinstance(n.op, Permute) and n.inputs[0] in self.stored:
                # Of an image that its user wants with channels last, nothing is left to do.
                x = self.stored[n.inputs[0]]
                order = reordered(inverse(order_of(n.rank)), n.op.perm)
                same = order == tuple(range(n.rank))
                moved[n] = self.plain[n] = x if same else permute(x, order)
            else:
                ins = tuple(self.as_it_was(x) for x in n.inputs)
                same = all(a is b for a, b in zip(ins, n.inputs, strict=True))
                if n in self.around and self.pixels.add(n, ins):
                    moved[n] = self.plain[n] = self.pixels.back(n)
                else:
                    moved[n] = self.plain[n] = n if same else node(n.op, *ins)
        return graph.with_outputs((self.as_it_was(o) for o in graph.outputs), moved)

    def as_it_was(self, n: Node) -> Node:
        if n not in self.plain:
            self.plain[n] = permute(self.stored[n], inverse(order_of(n.rank)))
        return self.plain[n]

    def turned(self, n: Node) -> Node:
        """The node over operands with channels last."""
        order = order_of(n.rank)
        f = facts(n)
        if f.kind == "map" and f.pointwise and n.op.elementwise:
            return node(n.op, *(self.broadcast(x, n.rank) for x in n.inputs))
        orders: list[Order] = []
        ins: list[Node] = []
        for k, x in enumerate(n.inputs):
            if _is_weight_of(n, k) and (channel := _own_channel(n, k)) is not None:
                # One filter per channel: filters are adjacent as channels are.
                turned = (*(a for a in range(x.rank) if a != channel), channel)
                orders.append(turned)
                ins.append(relayout(self.as_it_was(x), Map.permutation(turned)))
            elif x.rank != n.rank or _is_weight_of(n, k):
                orders.append(tuple(range(x.rank)))
                ins.append(self.as_it_was(x))
            else:
                orders.append(order)
                ins.append(self.image(x, f.kind == "contract"))
        return arranged(n.op, orders, order, *ins)

    def image(self, x: Node, store: bool) -> Node:
        if x in self.stored:
            return self.stored[x]
        plain, order = unpermuted(self.as_it_was(x), order_of(x.rank))
        if store and order != tuple(range(x.rank)):  # tiles read it again and again
            return relayout(plain, Map.permutation(order))
        return permute(plain, order)

    def broadcast(self, x: Node, rank: int) -> Node:
        """An operand of elementwise work, its missing axes put in front before they are turned."""
        if x in self.stored and x.rank == rank:
            return self.stored[x]
        plain = self.as_it_was(x)
        if plain.rank == 0:
            return plain
        if plain.rank < rank:
            plain = reshape(plain, (1,) * (rank - plain.rank) + plain.shape)
        return permute(*unpermuted(plain, order_of(rank)))


def unpermuted(x: Node, order: Order) -> tuple[Node, Order]:
    """What a value with its axes in an order is another order of: an image may come with channels
    last, and torch's order is a view of that."""
    while isinstance(x.op, Permute):
        x, order = x.inputs[0], reordered(x.op.perm, order)
    return x, order
