"""What only whole launches of tile kernels show: waiting, Python without a source, and functions
written for Triton's own builder."""

import threading
import time
from typing import Any

import pytest

import tilewright as tw
import tilewright.language as tl
from tests.driver.tile.impatience import impatience
from tilewright.base import knobs
from tilewright.lang.tile.language import core

torch = pytest.importorskip("torch")

MADE = """
def made(x, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n) * 2, i < n)
"""


def test_a_function_without_source_runs_step_by_step_only():
    scope: dict[str, Any] = {"tl": tl}
    exec(MADE, scope)
    with pytest.raises(tw.Invalid, match="the source of made cannot be read"):
        tw.jit(scope["made"])
    x = torch.arange(6.0)
    with knobs.interpret.override(True):
        made = tw.jit(scope["made"])
        made[(1,)](x, 5, BLOCK=8)
    assert x.tolist() == [0, 2, 4, 6, 8, 5]
    with pytest.raises(tw.Invalid, match="the source of made cannot be read"):
        made[(1,)](x.double(), 5, BLOCK=8)


@pytest.mark.parametrize("stepping", [False, True])
def test_what_triton_hands_its_functions_is_taken(stepping):
    @core.builtin
    def doubled(x, _semantic=None):
        y = tl.add(x, x, _semantic=_semantic)  # type: ignore
        return y.to(tl.float32, _semantic=_semantic)  # type: ignore

    @tw.jit
    def kernel(x, out):
        tl.store(out, doubled(tl.load(x)), _builder=None)  # type: ignore

    x, out = torch.tensor([3], dtype=torch.int32), torch.zeros(1)
    with knobs.interpret.override(stepping):
        kernel[(1,)](x, out)
    assert out.item() == 6


@tw.jit
def poll(flag, out, timeout):
    tl.store(out, tl.atomic_poll(flag, 7, timeout_ns=timeout))


@tw.jit
def poll_for_ever(flag, out):
    tl.store(out, tl.atomic_poll(flag, 7))


def test_polling_waits_for_whoever_writes():
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.bool)
    poll[(1,)](flag, out, 1000)
    assert not out.item(), "nobody writes"

    def write():
        time.sleep(0.05)
        flag[0] = 7

    writer = threading.Thread(target=write)
    writer.start()
    poll[(1,)](flag, out, 60 * 10**9)
    writer.join()
    assert out.item()


@pytest.mark.parametrize("stepping", [False, True])
def test_polling_in_vain_is_an_error(stepping):
    flag, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.bool)
    told = pytest.raises(tw.TilewrightError, match="waits for a value that no one writes")
    with knobs.interpret.override(stepping):
        with impatience(), told:
            poll_for_ever[(1,)](flag, out)
        poll[(1,)](flag, out, 1000)
    assert not out.item()


def test_programs_wait_for_those_before_them():
    @tw.jit
    def chain(flags, out):
        n = tl.program_id(0)
        if n > 0:
            tl.atomic_poll(flags + n - 1, 1)
            tl.store(out + n, tl.load(out + n - 1) + n)
        tl.atomic_xchg(flags + n, 1)

    flags, out = torch.zeros(2, 64, dtype=torch.int32)
    chain[(64,)](flags, out)
    assert out.tolist() == [n * (n + 1) // 2 for n in range(64)]
