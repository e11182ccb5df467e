"""What a kernel reads of the Python around it may change: the next launch sees it."""

import torch

import tilewright as tw
import tilewright.language as tl

SCALE = tl.constexpr(2)


@tw.jit
def scaled(out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, i * SCALE)


def test_a_changed_global_makes_the_kernel_again(monkeypatch):
    out = torch.zeros(8, dtype=torch.int32)
    scaled[(1,)](out, BLOCK=8)
    assert out.tolist() == [2 * k for k in range(8)]
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(5))
    with tw.record() as log:
        scaled[(1,)](out, BLOCK=8)
    assert out.tolist() == [5 * k for k in range(8)]
    (event,) = log.of("recompile")
    assert "SCALE" in event.message


def test_a_global_that_changes_while_a_kernel_is_made(monkeypatch):
    """Another thread has seen the new value before the kernel of the old one is done."""
    f, out = tw.jit(scaled.fn), torch.zeros(8, dtype=torch.int32)
    compiled = f.compiled

    def slowly(*args, **kwargs):
        kernel = compiled(*args, **kwargs)
        monkeypatch.setattr(f, "compiled", compiled)
        monkeypatch.setitem(globals(), "SCALE", tl.constexpr(5))
        f[(1,)](torch.zeros(16, dtype=torch.int32), BLOCK=16)
        return kernel

    monkeypatch.setattr(f, "compiled", slowly)
    f[(1,)](out, BLOCK=8)
    f[(1,)](out, BLOCK=8)
    assert out.tolist() == [5 * k for k in range(8)]


def test_a_function_that_is_another_by_now_makes_the_kernel_again():
    """As where a cell of a notebook that defines it is run again."""

    def times(n):
        @tw.jit
        def multiplied(x):
            return x * n

        return multiplied

    helper = times(tl.constexpr(2))

    @tw.jit
    def applied(out, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, helper(i))

    out = torch.zeros(8, dtype=torch.int32)
    applied[(1,)](out, BLOCK=8)
    assert out.tolist() == [2 * k for k in range(8)]
    helper = times(tl.constexpr(5))
    applied[(1,)](out, BLOCK=8)
    assert out.tolist() == [5 * k for k in range(8)]
