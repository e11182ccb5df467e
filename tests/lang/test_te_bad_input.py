"""What cannot be done is refused in words, and the schedule stays as it was."""

from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import te
from tilewright.base.errors import TilewrightError


class Case:
    """A reduction C, a map D over it, and E which reads both."""

    def __init__(self) -> None:
        self.k = te.reduce_axis((0, 40), "k")
        self.a, self.b = te.placeholder((64, 40), name="A"), te.placeholder((40, 96), name="B")
        self.c = te.compute(
            (64, 96), lambda i, j: te.sum(self.a[i, self.k] * self.b[self.k, j], axis=self.k), "C"
        )
        self.d = te.compute((64, 96), lambda i, j: self.c[i, j] + 1, name="D")
        self.e = te.compute((64, 96), lambda i, j: self.d[i, j] + self.c[i, j], name="E")
        self.i, self.j = self.c.op.axis
        self.s = te.create_schedule(self.e.op)


@contextmanager
def refused(s: te.Schedule, match: str):
    """One sentence that says so; loops, steps and axes are those of before."""
    state = [s.trace, s.nest, [repr(s[t]) for t in s.outputs]]
    with pytest.raises(TilewrightError, match=match) as why:
        yield
    assert "\n" not in why.value.what and len(why.value.what) < 400
    assert [s.trace, s.nest, [repr(s[t]) for t in s.outputs]] == state


def odd(x: Any) -> Any:
    """What the types forbid and a user may still pass."""
    return x


BAD: dict[str, tuple[Callable[[Case], object], str]] = {
    "unknown axis": (lambda t: t.s[t.c].split(te.reduce_axis((0, 3), "z"), 2), "not an axis of C"),
    "axis of another stage": (lambda t: t.s[t.d].unroll(t.i), "is not an axis of D"),
    "no axis at all": (lambda t: t.s[t.c].vectorize(odd("j")), "'j' is not an axis of C"),
    "factor 0": (lambda t: t.s[t.c].split(t.i, factor=0), "0 is not a positive factor"),
    "factor below 0": (lambda t: t.s[t.c].split(t.i, factor=-4), "-4 is not a positive factor"),
    "no whole factor": (lambda t: t.s[t.c].split(t.i, factor=odd(2.5)), "2.5, not a whole number"),
    "no parts": (lambda t: t.s[t.c].split(t.i, nparts=0), "0 is not a positive"),
    "factor and parts": (lambda t: t.s[t.c].split(t.i, 2, 2), "one of them"),
    "second factor of a tile": (lambda t: t.s[t.c].tile(t.i, t.j, 8, 0), "0 is not a positive"),
    "tile of one axis": (lambda t: t.s[t.c].tile(t.i, t.i, 8, 8), "by itself"),
    "fuse of none": (lambda t: t.s[t.c].fuse(), "there is no axis"),
    "fuse inside out": (lambda t: t.s[t.c].fuse(t.j, t.i), "is not the only thing inside"),
    "fuse of the last two": (lambda t: t.s[t.c].fuse(t.i, t.j, t.k, t.i), "C.i0"),
    "reorder twice": (lambda t: t.s[t.c].reorder(t.i, t.i), "named twice"),
    "too many lanes": (lambda t: t.s[t.c].vectorize(t.j), "96 lanes are too many"),
    "too many copies": (lambda t: t.s[t.c].unroll(t.j), "96 copies are too many"),
    "inner parallel": (lambda t: t.s[t.c].parallel(t.j), "is inside C.i0"),
    "nothing to peel": (lambda t: t.s[t.c].peel(t.i), "no ragged tail"),
    "consumer in its producer": (
        lambda t: t.s[t.d].compute_at(t.s[t.c], t.i),
        "nothing inside C.i0 reads D",
    ),
    "before its other reader": (
        lambda t: t.s[t.c].compute_at(t.s[t.d], t.d.op.axis[0]),
        "E reads C outside D.i0",
    ),
    "an output placed": (
        lambda t: t.s[t.e].compute_at(t.s[t.d], t.d.op.axis[0]),
        "E is an argument",
    ),
    "at no stage": (lambda t: t.s[t.c].compute_at(odd(t.d), t.i), "is no stage of this schedule"),
    "inline a reduction": (lambda t: t.s[t.c].compute_inline(), "one plain store"),
    "inline an output": (lambda t: t.s[t.e].compute_inline(), "E is an output"),
    "copy for one who does not read": (
        lambda t: t.s.cache_read(t.a, "global", [t.c, t.d]),
        "D does not read A",
    ),
    "copy for nobody": (lambda t: t.s.cache_read(t.a, "global", []), "for no reader"),
    "no scope": (lambda t: t.s.cache_read(t.a, "moon", [t.c]), "moon is not a scope"),
    "cache an input": (lambda t: t.s.cache_write(t.a), "which is an input"),
    "factor a data axis": (lambda t: t.s.rfactor(t.c, t.i), "not a reduction loop"),
    "align to nothing": (lambda t: t.s[t.c].storage_align(t.i, 0), "0 is not a positive factor"),
    "no thread": (lambda t: t.s[t.c].bind(t.i, odd("threadIdx.x")), "is no thread axis"),
    "no stage": (lambda t: t.s[odd("C")], "neither a tensor nor an operation"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_call_changes_nothing(name: str) -> None:
    call, match = BAD[name]
    t = Case()
    t.s[t.d].split(t.d.op.axis[1], factor=8)  # something to lose
    with refused(t.s, match):
        call(t)


def test_parallel_over_a_carried_loop() -> None:
    t = Case()
    t.s[t.c].reorder(t.k, t.i, t.j)
    with refused(t.s, "C.r0"):
        t.s[t.c].parallel(t.k)
    x = te.placeholder((9,), name="x")
    state = te.placeholder((9,), name="state")
    init = te.compute((1,), lambda i: x[i], name="init")
    step = te.compute((9,), lambda i: state[i - 1] + x[i], name="step")
    sums = te.scan(init, step, state, name="sums")
    s = te.create_schedule(sums.op)
    for call in (s[sums].parallel, s[sums].vectorize):
        with refused(s, "sums"):
            call(sums.op.axis[0])


def test_what_lower_and_build_are_given() -> None:
    t = Case()
    args = [t.a, t.b, t.e]
    with refused(t.s, "E missing"):
        tw.lower(t.s, [t.a, t.b])
    with refused(t.s, "one is given twice"):
        tw.lower(t.s, [*args, t.e])
    with refused(t.s, "C is computed inside"):
        tw.lower(t.s, [*args, t.c])
    with refused(t.s, "not a list"):
        tw.lower(t.s, odd(t.a))
    with refused(t.s, "is no schedule"):
        tw.lower(odd(t.c), args)
    with refused(t.s, "there is no target 'abacus'"):
        tw.build(t.s, args, target="abacus")
    with refused(t.s, "3 is no target"):
        tw.build(t.s, args, target=odd(3))


def test_arguments_of_a_built_function() -> None:
    t = Case()
    f = tw.build(t.s, [t.a, t.b, t.e])
    a, b, e = (np.zeros(shape, "f4") for shape in ((64, 40), (40, 96), (64, 96)))
    frozen = e.copy()
    frozen.flags.writeable = False
    odd = np.frombuffer(bytes(64 * 40 * 4 + 1), "u1")[1:].view("f4").reshape(64, 40)
    bad = [
        ((a, b), "2 arguments were given, 3 are needed: A, B, E"),
        ((a[:32], b, e), r"A has shape \(32, 40\), \(64, 40\) is needed"),
        ((a.reshape(-1), b, e), "A has 1 axes, 2 are needed"),
        ((a, b.T.copy(), e), "B has shape"),
        ((a.astype("f8"), b, e), "A is of float64, float32 is needed"),
        ((a.astype(">f4"), b, e), "float32 is needed"),
        ((a, np.zeros((96, 40), "f4").T, e), "B is not contiguous"),
        ((a, np.zeros((40, 192), "f4")[:, ::2], e), "B is not contiguous"),
        ((np.zeros((64, 40), "f4")[::-1], b, e), "A is not contiguous"),
        ((np.broadcast_to(np.float32(0), (64, 40)), b, e), "A is not contiguous"),
        ((odd, b, e), "A does not start at a multiple of 4 bytes"),
        ((a, b, frozen), "the output E may not be written"),
        ((a, b, e.tolist()), "E is a list, not a numpy array or torch tensor"),
    ]
    for arrays, match in bad:
        with pytest.raises(tw.Invalid, match=match):
            f(*arrays)
    assert not e.any()  # nothing has run
    f(a, b, e)
    assert (e == 1).all()


def test_torch_arguments() -> None:
    torch = pytest.importorskip("torch")
    t = Case()
    f = tw.build(t.s, [t.a, t.b, t.e])
    a, b, e = (torch.zeros(shape) for shape in ((64, 40), (40, 96), (64, 96)))
    with pytest.raises(tw.Invalid, match="B is not contiguous"):
        f(a, torch.zeros(96, 40).T, e)
    with pytest.raises(tw.Invalid, match="A is of float16"):
        f(a.half(), b, e)
    with pytest.raises(tw.Invalid, match="A is on meta"):
        f(torch.zeros(64, 40, device="meta"), b, e)
    f(a, b, e)
    assert bool((e == 1).all())
