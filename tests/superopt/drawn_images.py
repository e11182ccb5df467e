"""Laws of images for random true rules: convolutions of all settings, pools, channels and groups.

What is drawn is a program of n images of c channels, whose height and width are those of the input
after a list of windows: each was a convolution or a pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.superopt.drawn_rules import (
    Draw,
    Pair,
    add,
    apply,
    both,
    formula,
    joined,
    matmul,
    mul,
    relu,
)
from tilewright.ir.types import f64
from tilewright.superopt.blocks import Block
from tilewright.superopt.terms import Term, Tree

Two = tuple[int, int]


@dataclass(frozen=True)
class Window:
    kernel: Two
    stride: Two
    padding: Two
    dilation: Two

    def conv(self, x: Tree, w: Tree, groups: int = 1) -> Term:
        settings = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}
        if groups > 1:
            settings |= {"groups": groups}
        return apply("conv", x, w, **settings)

    def avg_pool(self, x: Tree, whole: bool = True) -> Term:
        return apply(
            "avg_pool",
            x,
            kernel=self.kernel,
            stride=self.stride,
            padding=self.padding,
            ceil=False,
            count_include_pad=whole,
            divisor=None,
        )

    def max_pool(self, x: Tree) -> Term:
        return apply(
            "max_pool",
            x,
            kernel=self.kernel,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
        )


@dataclass(frozen=True)
class Image:
    """What is drawn: how many images, channels, and the windows that made them."""

    images: Block
    channels: Block
    windows: tuple[Window, ...]

    @property
    def last(self) -> Window:
        return self.windows[-1]

    def before(self, channels: Block) -> Image:
        return Image(self.images, channels, self.windows[:-1])

    def kernel(self, channels: Block) -> tuple[Block, ...]:
        """The kind of a kernel from so many channels."""
        return (self.channels, channels, *self.last.kernel)


ImageLaw = Callable[[Draw, Image, int], Pair | None]
LAWS: dict[str, ImageLaw] = {}


def law(f: ImageLaw) -> ImageLaw:
    LAWS[f.__name__] = f
    return f


def drawn_window(d: Draw) -> Window:
    kernel = d.rng.choice([(3, 3), (3, 3), (1, 1), (1, 3), (3, 1), (2, 2), (1, 2)])
    dilation = d.rng.choice([(1, 1), (1, 1), (2, 2), (1, 2)])
    padding = d.rng.choice([(0, 0), (1, 1), (kernel[0] // 2, kernel[1] // 2), (2, 1)])
    return Window(kernel, d.rng.choice([(1, 1), (1, 1), (2, 2), (2, 1)]), padding, dilation)


def drawn_pool(d: Draw) -> Window:
    """Whose padding is at most half of it."""
    kernel = d.rng.choice([(3, 3), (2, 2), (1, 3), (3, 2)])
    padding = d.rng.choice([(0, 0), (kernel[0] // 2, kernel[1] // 2)])
    return Window(kernel, d.rng.choice([(1, 1), (2, 2), (1, 2)]), padding, (1, 1))


def pair(d: Draw, x: Image, depth: int) -> Pair:
    if depth <= 0 or d.coin(0.4):
        made = program(d, x)
        return made, made
    return drawn_law(d, x, depth)[1]


def program(d: Draw, x: Image) -> Tree:
    if not x.windows:
        found: Tree = d.leaf((x.images, x.channels, "h", "w"))
    else:
        channels = d.size()
        found = x.last.conv(program(d, x.before(channels)), d.leaf(x.kernel(channels)))
    return relu(found) if d.coin(0.2) else found


def drawn_law(d: Draw, x: Image, depth: int, names: list[str] | None = None) -> tuple[str, Pair]:
    while True:
        name = d.rng.choice(names or list(LAWS))
        found = LAWS[name](d, x, depth - 1)
        if found is not None:
            return name, found if d.coin() else (found[1], found[0])


def two(d: Draw, x: Image, depth: int) -> tuple[Pair, Pair]:
    return pair(d, x, depth), pair(d, x, depth)


@law
def elements(d: Draw, x: Image, depth: int) -> Pair:
    a, b = two(d, x, depth)
    s, p = d.leaf(()), d.leaf((), positive=True)
    c = d.leaf((x.channels, 1, 1))
    ways = [
        both(add, lambda a, b: add(b, a), a, b),
        both(lambda a, b: mul(add(a, b), s), lambda a, b: add(mul(a, s), mul(b, s)), a, b),
        both(lambda a, b: mul(mul(a, b), c), lambda a, b: mul(a, mul(b, c)), a, b),
        both(lambda a, b: relu(mul(a, p)), lambda a, b: mul(relu(a), p), a, b),
        both(lambda a, b: add(add(a, b), c), lambda a, b: add(add(a, c), b), a, b),
    ]
    return d.rng.choice(ways)


@law
def conv_is_linear(d: Draw, x: Image, depth: int) -> Pair | None:
    if not x.windows:
        return None
    channels, conv, s = d.size(), x.last.conv, d.leaf(())
    a, b = two(d, x.before(channels), depth)
    k, l = d.leaf(x.kernel(channels)), d.leaf(x.kernel(channels))
    f = lambda a, b: apply(name, a, b)  # noqa: E731
    name = d.rng.choice(["add", "sub"])
    out = d.leaf((x.channels, 1, 1))
    rows = apply("reshape", out, shape=formula(f"({_size(x.channels)}, 1, 1, 1)"))
    ways = [
        both(lambda a: conv(a, f(k, l)), lambda a: f(conv(a, k), conv(a, l)), a),
        both(lambda a, b: conv(f(a, b), k), lambda a, b: f(conv(a, k), conv(b, k)), a, b),
        both(lambda a: conv(mul(a, s), k), lambda a: conv(a, mul(k, s)), a),
        both(lambda a: mul(conv(a, k), s), lambda a: conv(mul(a, s), k), a),
        both(lambda a: conv(apply("neg", a), k), lambda a: apply("neg", conv(a, k)), a),
        both(lambda a: mul(conv(a, k), out), lambda a: conv(a, mul(k, rows)), a),
    ]
    return d.rng.choice(ways)


def _size(b: Block) -> str:
    return f"({_size(b[0])} + {_size(b[1])})" if isinstance(b, tuple) else str(b)


@law
def conv_of_channels(d: Draw, x: Image, depth: int) -> Pair | None:
    if not x.windows:
        return None
    c, e, conv = d.size(), d.size(), x.last.conv
    a, b = pair(d, x.before(c), depth), pair(d, x.before(e), depth)
    k, l = d.leaf(x.kernel(c)), d.leaf(x.kernel(e))
    return both(
        lambda a, b: conv(joined(a, b, 1), joined(k, l, 1)),
        lambda a, b: add(conv(a, k), conv(b, l)),
        a,
        b,
    )


@law
def conv_of_parts(d: Draw, x: Image, depth: int) -> Pair | None:
    if not x.windows:
        return None
    c, conv = d.size(), x.last.conv
    if isinstance(x.channels, tuple):
        a = pair(d, x.before(c), depth)
        k, l = (d.leaf((half, c, *x.last.kernel)) for half in x.channels)
        return both(
            lambda a: conv(a, joined(k, l, 0)),
            lambda a: joined(conv(a, k), conv(a, l), 1),
            a,
        )
    if isinstance(x.images, tuple):
        halves = [pair(d, Image(half, c, x.windows[:-1]), depth) for half in x.images]
        k = d.leaf(x.kernel(c))
        return both(
            lambda a, b: conv(joined(a, b, 0), k),
            lambda a, b: joined(conv(a, k), conv(b, k), 0),
            *halves,
        )
    return None


@law
def groups(d: Draw, x: Image, depth: int) -> Pair | None:
    """A convolution in groups is one for each of them."""
    if not x.windows:
        return None
    window = x.last
    if isinstance(x.channels, tuple) and x.channels[0] == x.channels[1]:
        c = d.size()
        o, _ = x.channels
        a, b = two(d, x.before(c), depth)
        k, l = (d.leaf((o, c, *window.kernel)) for _ in "kl")
        return both(
            lambda a, b: window.conv(joined(a, b, 1), joined(k, l, 0), groups=2),
            lambda a, b: joined(window.conv(a, k), window.conv(b, l), 1),
            a,
            b,
        )
    if isinstance(x.channels, int) and x.channels > 1:
        # As many groups as channels: linear, as any is.
        n = x.channels
        a, b = two(d, x.before(n), depth)
        k = d.leaf((n, 1, *window.kernel))
        return both(
            lambda a, b: window.conv(add(a, b), k, groups=n),
            lambda a, b: add(window.conv(a, k, groups=n), window.conv(b, k, groups=n)),
            a,
            b,
        )
    return None


@law
def enlarged(d: Draw, x: Image, depth: int) -> Pair | None:
    """Zeros around a kernel."""
    if not x.windows or 1 not in x.last.kernel or 5 in x.last.kernel:
        return None
    w, c = x.last, d.size()
    more = tuple(1 if k == 1 else 0 for k in w.kernel)
    wide = Window(
        (w.kernel[0] + 2 * more[0], w.kernel[1] + 2 * more[1]),
        w.stride,
        (w.padding[0] + more[0] * w.dilation[0], w.padding[1] + more[1] * w.dilation[1]),
        w.dilation,
    )
    k = d.leaf(x.kernel(c))
    around = (0, 0, *more)
    grown = apply("pad", k, lo=around, hi=around, value=0.0)
    return both(lambda a: w.conv(a, k), lambda a: wide.conv(a, grown), pair(d, x.before(c), depth))


@law
def padded_before(d: Draw, x: Image, depth: int) -> Pair | None:
    if not x.windows or x.last.padding == (0, 0):
        return None
    w, c = x.last, d.size()
    around = (0, 0, *w.padding)
    k, valid = d.leaf(x.kernel(c)), Window(w.kernel, w.stride, (0, 0), w.dilation)
    return both(
        lambda a: w.conv(a, k),
        lambda a: valid.conv(apply("pad", a, lo=around, hi=around, value=0.0), k),
        pair(d, x.before(c), depth),
    )


@law
def one_by_one(d: Draw, x: Image, depth: int) -> Pair | None:
    """Two convolutions of single elements are one, whose kernel is a product of matrices."""
    if not x.windows or x.last.kernel != (1, 1):
        return None
    c, l, o = d.size(), d.size(), x.channels
    if isinstance(o, tuple):
        return None
    unit = Window((1, 1), (1, 1), (0, 0), (1, 1))
    u, v = d.leaf((l, c, 1, 1)), d.leaf((o, l, 1, 1))
    flat = matmul(
        apply("reshape", v, shape=formula(f"({o}, {l})")),
        apply("reshape", u, shape=formula(f"({l}, {c})")),
    )
    merged = apply("reshape", flat, shape=formula(f"({o}, {c}, 1, 1)"))
    return both(
        lambda a: x.last.conv(unit.conv(a, u), v),
        lambda a: x.last.conv(a, merged),
        pair(d, x.before(c), depth),
    )


@law
def steps(d: Draw, x: Image, depth: int) -> Pair | None:
    """A convolution with a stride is every other element of one without."""
    if len(x.windows) != 1 or x.last.stride == (1, 1):
        return None
    w, c = x.last, d.size()
    full, k = Window(w.kernel, (1, 1), w.padding, w.dilation), d.leaf(x.kernel(c))
    image = d.leaf((x.images, c, "h", "w"))
    found: Tree = full.conv(image, k)
    for axis, name in enumerate("hw"):
        more = 2 * w.padding[axis] - w.dilation[axis] * (w.kernel[axis] - 1)
        found = apply(
            "slice",
            found,
            axis=axis + 2,
            start=0,
            stop=formula(f"{name} + {more}"),
            step=w.stride[axis],
        )
    return w.conv(image, k), found


@law
def pools(d: Draw, x: Image, depth: int) -> Pair | None:
    w = x.last if x.windows else None
    if w is None or w.dilation != (1, 1) or any(2 * p > k for p, k in zip(w.padding, w.kernel)):
        return None
    whole = d.coin()
    avg = lambda a: w.avg_pool(a, whole)  # noqa: E731
    top = w.max_pool
    a, b = two(d, x.before(x.channels), depth)
    s, p = d.leaf(()), d.leaf((), positive=True)
    c = d.size()
    unit = Window((1, 1), (1, 1), (0, 0), (1, 1))
    k = d.leaf((x.channels, c, 1, 1))
    shift = d.leaf((x.channels, 1, 1))
    ways = [
        both(lambda a, b: avg(add(a, b)), lambda a, b: add(avg(a), avg(b)), a, b),
        both(lambda a: avg(mul(a, s)), lambda a: mul(avg(a), s), a),
        both(
            lambda a: avg(unit.conv(a, k)),
            lambda a: unit.conv(avg(a), k),
            pair(d, x.before(c), depth),
        ),
        both(lambda a: top(mul(a, p)), lambda a: mul(top(a), p), a),
        both(lambda a: top(add(a, shift)), lambda a: add(top(a), shift), a),
    ]
    for axis, b in ((0, x.images), (1, x.channels)):
        if isinstance(b, tuple):
            kinds = (
                Image(half, x.channels, x.windows[:-1]) if axis == 0 else x.before(half)
                for half in b
            )
            halves = [pair(d, kind, depth) for kind in kinds]
            for f in (avg, top):
                ways.append(
                    both(
                        lambda a, b, f=f, axis=axis: f(joined(a, b, axis)),
                        lambda a, b, f=f, axis=axis: joined(f(a), f(b), axis),
                        *halves,
                    )
                )
    return d.rng.choice(ways)


@law
def pool_by_conv(d: Draw, x: Image, depth: int) -> Pair | None:
    """The mean of a window is a convolution in as many groups as channels."""
    w = x.last if x.windows else None
    if w is None or not isinstance(x.channels, int) or w.kernel not in ((2, 2), (1, 2)):
        return None
    if w.dilation != (1, 1) or any(2 * p > k for p, k in zip(w.padding, w.kernel)):
        return None
    n = x.channels
    value = 1.0 / (w.kernel[0] * w.kernel[1])
    kernel = apply("full", shape=(n, 1, *w.kernel), value=value, dtype=f64)
    return both(
        w.avg_pool,
        lambda a: w.conv(a, kernel, groups=n),
        pair(d, x.before(n), depth),
    )


@law
def parts_of_channels(d: Draw, x: Image, depth: int) -> Pair | None:
    if not isinstance(x.channels, tuple):
        return None
    first, second = (pair(d, Image(x.images, half, x.windows), depth) for half in x.channels)
    u, v = (d.leaf((half, 1, 1)) for half in x.channels)
    ways = [
        both(
            lambda a, b: relu(joined(a, b, 1)),
            lambda a, b: joined(relu(a), relu(b), 1),
            first,
            second,
        ),
        both(
            lambda a, b: joined(add(a, u), add(b, v), 1),
            lambda a, b: add(joined(a, b, 1), joined(u, v, 0)),
            first,
            second,
        ),
    ]
    return d.rng.choice(ways)


def image_rule(d: Draw) -> tuple[str, Pair]:
    """Both sides of a true rule of images, and the law at its root."""
    window = drawn_pool(d) if d.coin(0.35) else drawn_window(d)
    images: Block = (d.size(), d.size()) if d.coin(0.2) else d.size()
    o = d.size()
    channels: Block = d.rng.choice([o, o, (o, o), (o, d.size()), 2, 3])
    return drawn_law(d, Image(images, channels, (window,)), d.rng.choice([1, 1, 2]))
