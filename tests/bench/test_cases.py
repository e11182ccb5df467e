"""What can be measured, and what is known about it."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from tilewright.base.errors import Invalid
from tilewright.bench import catalog, operators
from tilewright.bench.example import Example, prepared
from tilewright.bench.facts import judge, verdict

OPERATORS = [case for case in catalog.OPERATORS if case.listed]


def test_names_are_those_of_builders() -> None:
    models = pytest.importorskip("tilewright.bench.models")
    for cases, known in (
        ((*catalog.MODELS, *catalog.GPU_ONLY), models.BUILDERS),
        (catalog.OPERATORS, operators.BUILDERS),
    ):
        assert {case.request()["builder"] for case in cases} == set(known)
    lists = (catalog.MODELS, catalog.GPU_ONLY, catalog.OPERATORS)
    assert len(catalog.ALL) == sum(map(len, lists))
    on_gpus = catalog.chosen(["models"], "cuda")
    assert [c.name for c in on_gpus] == list(catalog.GPU_MODELS)


def test_suites_names_and_programs() -> None:
    assert [c.name for c in catalog.chosen(["softmax", "ops"])] == [c.name for c in OPERATORS]
    assert [c.name for c in catalog.chosen(["swin", "a/b.py:f"])] == ["swin", "f"]
    assert "swin" not in [c.name for c in catalog.chosen(["models"])]
    with pytest.raises(Invalid, match="no eager"):
        catalog.chosen(["graph.tw"])
    with pytest.raises(Invalid, match="nothing to measure is called 'bret'"):
        catalog.chosen(["bret"])


@pytest.mark.parametrize("case", catalog.OPERATORS, ids=lambda c: c.name)
def test_operators_are_right_by_themselves(case: catalog.Case, tmp_path: Path) -> None:
    dtype = getattr(torch, case.dtype or "float32")
    with torch.no_grad():
        example = prepared(operators.BUILDERS[case.request()["builder"]], True, dtype)
        facts = judge(example, tmp_path / "right.pt")
        results = example.module(*example.inputs)
    assert verdict(results, tmp_path / "right.pt")[0] is None
    inputs = sum(x.nbytes for x in example.inputs)
    assert facts["read"] == inputs + facts["weights"]
    assert facts["written"] == results.nbytes
    products = ("matmul", "linear", "attention", "conv", "depthwise", "gemv")
    assert (facts["flops"] > 0) == case.name.startswith(products)


def test_operations_of_both_spellings_of_attention(tmp_path: Path) -> None:
    found = []
    for name in ("attention", "attention_fused"):
        with torch.no_grad():
            example = prepared(operators.BUILDERS[name], True, torch.float32)
            found.append(judge(example, tmp_path / name)["flops"])
    batch, heads, rows, width = example.inputs[0].shape
    assert found == [4 * batch * heads * rows * rows * width] * 2


class Tied(nn.Module):
    """A table that is looked up, and one that is multiplied with as well."""

    def __init__(self) -> None:
        super().__init__()
        self.positions = nn.Embedding(50, 8)
        self.words = nn.Embedding(100, 8)
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(ids) + self.positions(ids))


def test_of_a_table_only_what_is_looked_up_is_read(tmp_path: Path) -> None:
    ids = torch.arange(3)
    with torch.no_grad():
        facts = judge(Example(Tied(), (ids,)), tmp_path / "right.pt")
    assert facts["weights"] == (50 + 100) * 8 * 4
    rows = 3 * 8 * 4
    assert facts["read"] == ids.nbytes + 100 * 8 * 4 + 2 * rows


def test_wrong_results_are_found(tmp_path: Path) -> None:
    file = tmp_path / "right.pt"
    with torch.no_grad():
        example = prepared(operators.softmax, True, torch.float32)
        judge(example, file)
        right = example.module(*example.inputs)
    for wrong, error in ((right * 1.01, 0.02), (right[1:], math.inf), ((right, right), math.inf)):
        problem, found = verdict(wrong, file)
        assert problem and 1e-4 < found
        assert found <= error
