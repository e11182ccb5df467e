"""`passes=`: every way in takes the list, checks it before anything runs, and compiles by it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tests.generators import checked
from tests.gpu.fake import fake_machine
from tests.graph.build import arg, build, weight
from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.driver.cli import main
from tilewright.driver.looking.explain import explain
from tilewright.driver.program import default_passes
from tilewright.driver.program.options import Options
from tilewright.driver.program.program_cache import key_of
from tilewright.driver.program.programs import compile_graph
from tilewright.driver.torch.backend import Session
from tilewright.driver.torch.options import TorchOptions
from tilewright.graph.online_softmax import OnlineSoftmax
from tilewright.ir.dim import Dim
from tilewright.ir.interpret import evaluate
from tilewright.ir.node import Graph, Node, rebuild
from tilewright.ir.passes import PASSES, Pass
from tilewright.ir.pipeline import Pipeline
from tilewright.ops.layout import Relayout
from tilewright.runtime.program import Program
from tilewright.targets import default

LEAST = "Simplify, Decompose, EmptyValues"


@pytest.fixture(autouse=True)
def forget_own_passes() -> Iterator[None]:
    known = dict(PASSES)
    yield
    PASSES.clear()
    PASSES.update(known)


@dataclass(frozen=True)
class Halves(Pass, before=("Decompose",)):
    """Every sum of a matrix product and something is halved: seen in the result."""

    def apply(self, program: Graph, log: Log) -> Graph:
        def change(n: Node) -> Node:
            return build.mul(n, 0.5) if n.op.name == "matmul" else n

        return rebuild(program, change)


def mlp() -> Graph:
    x = build.matmul(arg("x", 5, 24), weight("w", 24, 33))
    return Graph("mlp", (arg("x", 5, 24), weight("w", 24, 33)), (build.softmax(x, 1),))


def static(shape: Sequence[Dim]) -> list[int]:
    return [d for d in shape if isinstance(d, int)]


def run(p: Program, *arrays: np.ndarray) -> np.ndarray:
    out = np.empty(static(p.outputs[0].shape), np.float32)
    p.run([a.ctypes.data for a in arrays], [out.ctypes.data])
    return out


def operands(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.random((5, 24), np.float32), rng.random((24, 33), np.float32)


def reports(graph: Graph, **options: Any) -> tuple[Program, str]:
    p = compile_graph(graph, Options(**options))
    return p, str(explain(p))


def test_a_graph_is_compiled_by_the_given_list() -> None:
    x, w = operands()
    (expected,) = evaluate(mlp(), (x, w))
    whole, _ = reports(mlp())
    least, report = reports(mlp(), passes=LEAST)
    for p in (whole, least):
        np.testing.assert_allclose(run(p, x, w), expected, rtol=1e-5)
    assert whole.prologue is not None  # packs the weight
    assert least.prologue is None and "PackOperands" not in report
    assert [r.text for r in least.details.cut.passes] == LEAST.split(", ")
    # The same from the cache, where the record of the passes is read on first use.
    again, shown = reports(mlp(), passes=Pipeline.parse(LEAST))
    assert again.kernels[0].cached and "Decompose" in shown and "no change by" in shown


def test_passes_of_ones_own_change_results() -> None:
    x, w = operands()
    listed = tw.passes().before("Decompose", Halves())
    p, report = reports(mlp(), passes=listed)
    assert "Halves" in report
    e = np.exp((x @ w) / 2)
    np.testing.assert_allclose(run(p, x, w), e / e.sum(1, keepdims=True), rtol=1e-5)
    plain, _ = reports(mlp(), passes=[*tw.passes()])
    (expected,) = evaluate(mlp(), (x, w))
    np.testing.assert_allclose(run(plain, x, w), expected, rtol=1e-5)


def test_programs_are_found_by_their_list() -> None:
    target = default()
    plain = key_of(mlp(), Options(), target)
    least = key_of(mlp(), Options(passes=LEAST), target)
    assert plain != least == key_of(mlp(), Options(passes=Pipeline.parse(LEAST)), target)
    assert key_of(mlp(), Options(passes=f"{LEAST}, FoldConstants{{limit=3}}"), target) != least
    assert key_of(mlp(), Options(passes=[Halves(), *tw.passes()]), target) is None


def test_torch_takes_the_list() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(24, 33), nn.Softmax(1)).eval()
    x = torch.randn(5, 24)
    with torch.no_grad():
        for made in (
            tw.compile(net, x, passes=LEAST),
            torch.compile(net, backend="tilewright", options={"passes": LEAST}),
        ):
            torch.testing.assert_close(made(x), net(x))
            (report,) = tw.explain(made).programs
            assert [r.text for r in report.passes] == LEAST.split(", ")
            torch.compiler.reset()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"passes": "Simplify"}, "Decompose is missing"),
        ({"passes": 3}, "passes=3 is no list of passes"),
        ({"passes": ["Simplify"]}, "'Simplify' is no pass"),
        ({"passes": tw.passes(), "precision": "strict"}, "BatchNormFold, .* may round differently"),
        ({"passes": tw.passes(), "own_weights": True}, "needs the pass ReadPacked"),
        ({"winograd": False}, "option 'winograd' is not known"),
    ],
)
def test_lists_that_cannot_be_are_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(Invalid, match=says):
        tw.compile(lambda x: x + 1, **options)


def test_the_command_line_takes_the_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n\nf_inputs = [torch.ones(3, 4)]\n\n"
        "def f(x):\n    return torch.softmax(x, 1)\n"
    )

    assert main(["explain", f"{program}:f", "--passes", LEAST]) == 0
    shown = capsys.readouterr().out
    assert "Decompose" in shown and "PackOperands" not in shown
    assert main(["explain", f"{program}:f", "--passes", "Simplfy"]) == 2
    assert "did you mean Simplify" in capsys.readouterr().err
    assert main(["passes", "--precision", "strict"]) == 0
    shown = capsys.readouterr().out
    assert f'passes="{tw.passes(precision="strict")}"' in shown and "split_weights" in shown


# ---- any list that is allowed gives the same results


def random_list(rng: random.Random) -> Pipeline:
    """Passes left out, put in and moved, as often as the checks allow."""
    made = [*tw.passes(), OnlineSoftmax()]
    while True:
        drawn = [p for p in made if rng.random() < 0.7]
        for _ in range(rng.randrange(4)):
            if drawn:
                p = drawn.pop(rng.randrange(len(drawn)))
                drawn.insert(rng.randrange(len(drawn) + 1), p)
        try:
            return Pipeline(tuple(drawn))
        except Invalid:
            continue


def network() -> Graph:
    """A convolution, normalisation, attention, a concatenation, and a value without elements."""
    x, w = arg("x", 1, 16, 8, 8), weight("w", 16, 16, 3, 3)
    scale = weight("s", 16, 1, 1)
    y = build.relu(build.mul(build.conv_valid(x, w, (1, 1), (1, 1), 1), scale))
    q = build.reshape(y, (1, 16, 36))
    scores = build.softmax(build.matmul(q, build.permute(q, (0, 2, 1))), 2)
    out = build.concat([build.matmul(scores, q)] + [q] * 3, 1)
    empty = build.slice(out, 0, 0, 0)
    return Graph("network", (x, w, scale), (out, build.sum(empty, (0,), False)))


def check_seed(seed: int) -> None:
    listed = random_list(random.Random(seed))
    rng = np.random.default_rng(seed)
    g = network()
    arrays = [rng.standard_normal(static(n.shape)).astype(np.float32) / 4 for n in g.inputs]
    expected = evaluate(g, arrays)
    p = compile_graph(g, Options(passes=listed))
    got = [np.empty(e.shape, np.float32) for e in expected]
    p.run([a.ctypes.data for a in arrays], [o.ctypes.data for o in got])
    for o, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(o, e, rtol=2e-3, atol=2e-4, err_msg=f"seed {seed}: {listed}")
    packs = any(isinstance(n.op, Relayout) for n in listed.run(g, default(), Log()).nodes())
    assert packs or "PackOperands" not in str(listed)


@pytest.mark.parametrize("seed", range(4))
def test_any_allowed_list_gives_the_same_results(seed: int) -> None:
    check_seed(seed)


GENERATOR = checked("passes", check_seed)


def test_the_same_bits_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch is asked for deterministic algorithms, no sums come in any order."""
    monkeypatch.setattr(
        default_passes, "GPU", default_passes.with_atomics(default_passes.GPU, True)
    )
    assert "atomic" in str(default_passes.passes("cuda:90"))
    assert "atomic" not in str(default_passes.passes("cuda:90", deterministic=True))
    _, machine = fake_machine()
    session = Session(TorchOptions.parse({}), machines=lambda device: machine)
    assert session._passes(machine) is None
    torch.use_deterministic_algorithms(True)
    try:
        listed = str(session._passes(machine))
    finally:
        torch.use_deterministic_algorithms(False)
    assert "GridKeyBlocks" in listed and "atomic" not in listed
