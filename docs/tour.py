"""A tour of Tilewright: one PyTorch function on its way to machine code. `python docs/tour.py`

Every section shows what a level of the compiler looks like, and how to get there yourself.
"""

from __future__ import annotations

import difflib
import textwrap
from pathlib import Path

import numpy as np
import torch

import tilewright as tw
from tilewright.base.events import Log
from tilewright.driver.program.arrays import random_inputs, run_arrays
from tilewright.driver.program.graph_run import judge
from tilewright.driver.program.options import Options
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.program.stages import clusters_text
from tilewright.graph.fuse import fuse
from tilewright.graph.memory import plan
from tilewright.ir.node import Graph
from tilewright.ir.text import parse_graph, print_graph
from tilewright.kernel.group import Group, build_group
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import start
from tilewright.kernel.schedule import default_schedule
from tilewright.kernel.step import apply, parse_trace, print_trace
from tilewright.kernel.text import group_text, nest_text, parse_group
from tilewright.llvm.emit import emit
from tilewright.llvm.objects import assembly
from tilewright.targets import default as default_target

ROWS, COLUMNS = 64, 200


def normalise(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """What travels: a softmax over rows, scaled by a weight per column."""
    return torch.softmax(x * 2.0, dim=-1) * w


def section(title: str, text: str) -> None:
    print(f"\n\n=== {title} ===\n")
    print(textwrap.fill(" ".join(text.split()), 98))


def show(text: str, first: int = 0) -> None:
    """Indented, and only the first lines where there are many."""
    lines = text.rstrip().splitlines()
    shown = lines if not first or len(lines) <= first else [*lines[:first], f"… {len(lines)} lines"]
    print("\n" + "\n".join(f"    {line}" for line in shown))


def changed_lines(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def captured() -> Graph:
    """The graph behind the function, as torch.compile's machinery passes it on."""
    with torch.no_grad():
        fast = tw.compile(normalise, torch.randn(ROWS, COLUMNS), torch.rand(COLUMNS))
    return fast.units[0].captured.segments[0].graph


def graph_level() -> Graph:
    section(
        "1. A graph says what is computed",
        """Dynamo and AOTAutograd capture the function; capture/torch translates their operators to
        ours. A graph is a functional DAG of typed operators. It prints to text, and the text reads
        back to the same interned nodes. Comments are the user's own lines: they follow a value
        through every rewrite.""",
    )
    graph = captured()
    text = print_graph(graph)
    show(text.replace(f"{Path(__file__).parent}/", ""))
    assert parse_graph(text) == graph
    return graph


def passes(graph: Graph) -> Graph:
    section(
        "2. Passes rewrite it",
        """Simplify applies rules (docs/proofs.md), Decompose writes operators in terms of primitive
        ones, FoldConstants computes what is known, PackOperands chooses layouts. A pass is a
        frozen dataclass; the pipeline is a list of them. Softmax is gone: it was defined as a
        composition of maxima, exponentials, sums and divisions.""",
    )
    target = default_target()
    ready = tw.passes(target).run(graph, target, Log())
    show(print_graph(ready, places=False))
    return ready


def clusters(ready: Graph) -> Group:
    section(
        "3. Fusion cuts it into clusters, one kernel each",
        """Operators are classified by their definitions (map, view, reduction, contraction), never
        by name. What is not fused is refused by name of a criterion, with the user's line. The
        memory plan puts every stored value into one arena, or straight into the result.""",
    )
    fused = fuse(ready, default_target(), Log())
    show(clusters_text(fused, plan(fused), lambda c: None))
    section(
        "4. A group: what one kernel computes, without loops",
        """Each line is a stage: an index function that holds for every point of its axes. `max=`
        and `add=` are reductions. Tensor expressions become groups as well.""",
    )
    c = fused.clusters[0]
    group = build_group("normalise", c.nodes, c.inputs, c.outputs)
    show(group_text(group))
    assert parse_group(group_text(group)) == group
    return group


def steps(group: Group) -> str:
    section(
        "5. A schedule: steps turn the group into loops, one at a time",
        """The first nest is the naive one: a loop per axis, a buffer per stage. Each step is a
        checked function from nest to nest which refuses, with a reason, where it would change the
        result; every prefix of a trace is a program that runs. These are the steps the default
        schedule chose for this machine, each with the lines it takes away (-) and adds (+).""",
    )
    target = default_target()
    trace, chosen = default_schedule(group, target)
    nest = start(group)
    show(nest_text(nest))
    for k, step in enumerate(trace):
        before, nest = nest_text(nest), step.apply(nest)
        print(f"\n    {k}. {step!r}")
        show(changed_lines(before, nest_text(nest)))
    assert nest == chosen
    print("\n    After the last step:")
    show(nest_text(nest))
    print("\n    A step that cannot be done says why:")
    try:
        parse_trace("Parallel(loop='nowhere')")[0].apply(nest)
    except tw.Refused as refusal:
        show(str(refusal))
    # The printed trace on the printed group gives the same code, byte for byte.
    again = apply(start(parse_group(group_text(group))), parse_trace(print_trace(trace)))
    assert emit(legalise(again, target), target) == emit(legalise(nest, target), target)
    return emit(legalise(nest, target), target)


def machine_code(text: str) -> None:
    target = default_target()
    section(
        "6. LLVM text",
        f"""The emitter accepts nests only and changes no loop: it evaluates index functions, and
        contiguity, uniform values and vectors fall out. exp is a polynomial, not a library call.
        The target is data: {target.name}, {target.vector_bits}-bit vectors,
        {target.vector_registers} of them.""",
    )
    show(text[text.rindex("\n", 0, text.index("@normalise")) :].lstrip("\n"), first=40)
    section(
        "7. Machine code",
        """LLVM comes as one wheel (llvmlite), so nothing else is needed on the machine. Objects are
        cached by content.""",
    )
    show(assembly(text, target), first=24)


def running(graph: Graph) -> None:
    section(
        "8. Running",
        """A program is one native entry function over an arena: Python makes one call, with
        addresses. Here it runs on numpy arrays, judged by the interpreter, which evaluates
        definitions in float64.""",
    )
    program = compile_graph(graph, Options(), Log())
    arrays = random_inputs(graph)
    got = run_arrays(program, arrays)
    (judged,) = judge(graph, arrays, got)
    print(f"\n    first row: {np.array2string(got[0][0, :5], precision=5)} …")
    print(f"    error against float64: {judged.error:.2e}, allowed {judged.allowed:.2e}")
    assert judged.right


def the_face() -> None:
    section(
        "9. The same, as users see it",
        """tw.compile does all of this before the first call. tw.explain shows what the program was
        compiled to; tw.record records the compiler's decisions.""",
    )
    x, w = torch.randn(ROWS, COLUMNS), torch.rand(COLUMNS)
    with torch.no_grad(), tw.record() as log:
        fast = tw.compile(normalise, x, w, strict=True)
        torch.testing.assert_close(fast(x, w), normalise(x, w))
    print("\n    events:", ", ".join(f"{n} {kind}" for kind, n in sorted(log.counts.items())))
    show(str(tw.explain(fast)))
    print("\n    TILEWRIGHT_DUMP=dir writes each of these stages as a file; edit one and give")
    print("    TILEWRIGHT_RESUME=dir to go on from there.")


def main() -> None:
    print(__doc__)
    graph = graph_level()
    ready = passes(graph)
    group = clusters(ready)
    machine_code(steps(group))
    running(graph)
    the_face()


if __name__ == "__main__":
    main()
