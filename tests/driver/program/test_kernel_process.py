"""Kernels that another process compiles: the same bytes, and nothing is lost where it cannot."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from tilewright import ops
from tilewright.base import knobs
from tilewright.base.events import Log
from tilewright.driver.program import kernel_process
from tilewright.driver.program.compilers import Compilers, Kernel
from tilewright.driver.program.kernel_process import Answer, KernelProcess, Request, processes_for
from tilewright.driver.program.kernel_server import answer
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.ir.node import Graph, input
from tilewright.ir.types import TensorType, f32
from tilewright.kernel.defaults.choices import Choices
from tilewright.runtime.cuda.assembling import assembled, available
from tilewright.runtime.cuda.image import KernelImage, from_bytes
from tilewright.targets import default, get

GROUP = """
group kernel
  in a0: f32[40,24]
  in a1: f32[24,36]
  out y0: f32[40,36]
  local t0: f32[40,36]
  t0[t0.i0,t0.i1] add= a0[t0.i0,t0.r0] * a1[t0.r0,t0.i1] for t0.i0 in 40, t0.i1 in 36, t0.r0 in 24 from 0.0
  y0[y0.i0,y0.i1] = max(t0[y0.i0,y0.i1], 0.0) for y0.i0 in 40, y0.i1 in 36
"""  # noqa: E501


@pytest.fixture(scope="module")
def process():
    started = KernelProcess()
    wait = time.monotonic() + 60
    while not started.is_ready(0.1):
        assert not started.ended and time.monotonic() < wait, "the process does not start"
    yield started
    started.close()


def test_another_process_gives_the_same_bytes_and_survives_nonsense(process: KernelProcess) -> None:
    request = Request("k_0", GROUP, "ranked", default())
    there, here = process.answer(request), answer(request)
    assert there is not None
    assert (there.image, there.schedule) == (here.image, here.schedule)
    assert process.answer(Request("k_0", "no group", "ranked", default())) is None
    assert not process.ended and process.usable


def test_kernels_that_come_back_are_compiled_here(process: KernelProcess) -> None:
    done: list[str] = []
    took: list[Answer] = []

    def kernel(name: str, text: str) -> Kernel:
        request = Request(name, text, "default", default())
        return Kernel(len(text), lambda: done.append(name), took.append, request)

    with knobs.compile_jobs.override(2), Compilers(default(), [process]) as compilers:
        compilers.add(kernel("wrong", "no group at all"))
        compilers.add(kernel("right", GROUP))
        while len(compilers._answers) < 1:  # the caller does something else meanwhile
            time.sleep(0.01)
        compilers.finish()
    assert [a.schedule.parallel for a in took] == [True]
    assert done == ["wrong"]
    wait = time.monotonic() + 60
    while process not in kernel_process._idle:  # a thread gives it back
        assert time.monotonic() < wait
        time.sleep(0.01)
    kernel_process._idle.remove(process)


def test_without_other_processes_everything_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends at once, and none that can be started."""
    monkeypatch.setattr(kernel_process, "_SERVER", "pass")
    monkeypatch.setattr(kernel_process, "_KERNELS", 1)
    monkeypatch.setattr(kernel_process, "_idle", [])
    x = input("x", TensorType(f32, (6, 8)))
    graph = Graph("small", (x,), (ops.exp(ops.neg(x)),))
    with knobs.compile_jobs.override(2):
        (ends,) = processes_for(graph, default())
        ends._process.wait()
        assert not ends.is_ready(1.0) and ends.ended
        assert compile_graph(graph, Options(), Log()).kernels
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        monkeypatch.setattr(kernel_process, "_idle", [])
        assert processes_for(graph, default()) == []
        with knobs.compile_processes.override(False):
            assert processes_for(graph, default()) == []


def test_a_process_ends_with_the_one_that_started_it() -> None:
    program = (
        "from tilewright.driver.program.kernel_process import KernelProcess\n"
        "import os\n"
        "p = KernelProcess()\n"
        "print(p._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    made = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    pid = int(made.stdout)
    wait = time.monotonic() + 60
    while _runs(pid):
        assert time.monotonic() < wait, "it is still there"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_another_process_compiles_for_a_gpu_by_given_choices(process: KernelProcess) -> None:
    """The same bytes as here; a schedule that is refused is an answer, an error is none."""
    target = get("cuda:90")
    request = Request("k_0", GROUP, "default", target)
    there, here = process.answer(request), answer(request)
    assert there is not None and b".visible .entry" in there.image
    assert (there.image, there.schedule) == (here.image, here.schedule)
    library = process.answer(replace(request, choices=Choices(library=True)))
    assert library is not None and "Library" in library.schedule.trace and not library.refused
    no_product = replace(request, text=GROUP.replace("a0[t0.i0,t0.r0] * ", ""))
    refused = process.answer(replace(no_product, choices=Choices(library=True)))
    assert refused is not None and "sums of products" in refused.refused and not refused.image
    assert process.answer(replace(request, text="no group")) is None


def test_code_is_assembled_where_the_library_is() -> None:
    request = Request("k_0", GROUP, "default", get("cuda:90"), assembles=True)
    made = from_bytes(KernelImage, answer(request).image)
    assert made.ptx and (made.cubin[:4] == b"\x7fELF" if available() else not made.cubin)
    assert assembled(b"no PTX", "sm_90a") == b"" == assembled(made.ptx, "sm_80")


def test_code_that_the_library_makes_slow_is_left_to_the_driver() -> None:
    """Registers that a group of warps gives to others are known to whole programs only."""
    given = "setmaxnreg.dec.sync.aligned.u32 24;"
    head = ".version 8.0\n.target sm_90a\n.address_size 64\n"
    text = f"{head}.visible .entry k()\n.reqntid 256\n.minnctapersm 1\n{{ {given} ret; }}\n"
    plain = assembled(text.replace(given, "").encode(), "sm_90a")
    assert bool(plain) == available() and not assembled(text.encode(), "sm_90a")
