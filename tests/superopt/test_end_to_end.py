"""The networks, whole: right by what a search prefers; and the command that compares."""

from __future__ import annotations

import pytest
import torch

from tests.seeds import drawn
from tests.suites.adapter import Work, compiled
from tests.superopt import end_to_end, networks
from tests.superopt.end_to_end import Row, Searched
from tests.superopt.random_searches import check_seed
from tilewright.bench.oracle import disagreements, in_double


def test_published_sizes() -> None:
    """Parameters as the papers count them, in millions."""
    said = {"squeezenet": 1.2, "nasnet": 5.3, "repvgg": 9.1}
    for name, millions in said.items():
        module = networks.build(name).module
        assert round(sum(p.numel() for p in module.parameters()) / 1e6, 1) == millions, name


@pytest.mark.parametrize("name", drawn(sorted(networks.BUILDERS, key="nasrnn".__ne__), 1))
def test_networks_by_what_a_search_prefers(name: str) -> None:
    example = networks.build(name, tiny=True)
    torch._dynamo.reset()
    with torch.no_grad():
        eager = example.module(*example.inputs)
        exact = in_double(networks.build(name, tiny=True).module.double(), *example.inputs)
        fast = compiled(example.module, "searched", strict=True, fullgraph=True, work=Work())
        assert disagreements(fast(*example.inputs), eager, exact) == []


@pytest.mark.parametrize("seed", drawn(range(40), 4))
def test_random_graphs_by_what_a_search_prefers(seed: int) -> None:
    check_seed(seed)


def row(name: str, before: float, after: float, same: bool = False) -> Row:
    return Row(name, Searched(), (1.0, 2.0), (9, 4), [before] * 7, [after] * 7, same, [])


def test_verdicts() -> None:
    """Programs that are the same count as equally fast, whatever a clock says."""
    rows = [row("nasrnn", 1.5, 1.0), row("bert", 1.0, 1.1, same=True)]
    assert [holds for _, holds in end_to_end.verdicts(rows)] == [True, True, True]
    slower = [row("nasrnn", 1.2, 1.0), row("bert", 1.0, 1.1)]
    assert [holds for _, holds in end_to_end.verdicts(slower)] == [False, False, False]
    assert end_to_end.table(rows).row_count == 2


def test_unknown_networks(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        end_to_end.main(["vgg"])
    assert "no network is called vgg" in capsys.readouterr().err
