"""The examples are right, and what their runner writes is there to be read."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from examples.tiles import measuring  # noqa: E402
from examples.tiles.__main__ import NAMES, bar, example, main, table  # noqa: E402


def test_every_example_is_run() -> None:
    folder = Path(measuring.__file__).parent
    files = {p.stem for p in folder.glob("*.py")} - {"__init__", "__main__", "measuring"}
    assert files == set(NAMES)


# Attention takes longest, and its kernel is among the tutorials that tests run.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "attention")) for n in NAMES]
)
def test_right_timed_and_drawn(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    threads = torch.get_num_threads()
    assert main([name, "--quick", "--threads", "1", "--plot", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"{name}: " in shown and "checks right" in shown and "WRONG" not in shown
    for case in example(name).cases(quick=True):
        assert case.name in shown and case.unit in shown
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    head, *rows = (tmp_path / f"{name}.csv").read_text().splitlines()
    assert head.count(",") == 2 and "tilewright (G" in head and "torch (G" in head
    assert len(rows) >= 2 and all(float(x) > 0 for row in rows for x in row.split(","))
    assert torch.get_num_threads() == threads


def test_the_same_mask_whatever_the_blocks_are() -> None:
    """Numbers are those of the elements' places: a longer tensor begins with the same mask."""
    dropout = example("dropout")
    x = torch.ones(20_000)
    for f in (dropout.dropout, dropout.simple_dropout):  # type: ignore[attr-defined]
        assert torch.equal(f(x, 0.4, 5)[:3000], f(x[:3000], 0.4, 5))


def test_layer_norm_and_attention_train() -> None:
    """As functions of torch: gradients arrive through a graph, at views too."""
    layernorm, attention = example("layernorm"), example("attention")
    x = torch.randn(2, 40, 32, requires_grad=True)
    w, b = torch.ones(32, requires_grad=True), torch.zeros(32, requires_grad=True)
    y = layernorm.layer_norm(x, w, b)  # type: ignore[attr-defined]
    heads = y.view(2, 40, 2, 16).transpose(1, 2)
    out = attention.attention(heads, heads, heads, True)  # type: ignore[attr-defined]
    ours = torch.autograd.grad(out.square().sum(), (x, w, b))
    y = torch.nn.functional.layer_norm(x, (32,), w, b)
    heads = y.view(2, 40, 2, 16).transpose(1, 2)
    out = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    for got, want in zip(ours, torch.autograd.grad(out.square().sum(), (x, w, b)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4)


def test_a_wrong_result_is_found() -> None:
    exact = torch.randn(100, dtype=torch.float64)
    peer = exact.float()
    assert measuring.judge("it", peer.clone(), peer, exact).right
    off = peer.clone()
    off[3] += 1e-3
    nan = peer.clone()
    nan[3] = float("nan")
    for x in (off, nan):
        found = measuring.judge("it", x, peer, exact)
        assert not found.right and "WRONG" in str(found)


def test_a_wrong_example_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add = example("add")
    monkeypatch.setattr(add, "check", lambda quick: [measuring.equal("one is two", 1 == 2)])
    assert main(["add", "--quick", "--threads", "1"]) == 1
    assert "one is two: WRONG" in capsys.readouterr().out


def test_times_become_ratios_and_rates() -> None:
    case = measuring.Case("it", int, int, work=4e9, unit="GB/s", goal=2.0)
    found = measuring.Timed(case, ours=[1.0, 2.0, 3.0], peer=[4.0, 4.0, 4.0])
    assert found.times_faster == 2.0
    assert found.rates(measuring.OURS) == (2.0, 4 / 3, 4.0)
    assert [len(c._cells) for c in table([found], 2).columns] == [1] * 8
    assert bar(1.0).endswith("│") and bar(0.5).count("━") == 3 and bar(9.0).count("━") == 12


def test_slow_calls_are_not_made_often(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    case = measuring.Case("it", lambda: None, lambda: calls.append(time.sleep(0.06)), 1.0, "GB/s")
    monkeypatch.setattr(measuring, "MOST_SECONDS", 0.13)
    found = measuring.timed(case, rounds=50)
    # One call to compile, one to see how long it takes, and one or two rounds of one call.
    assert len(found.ours) == len(found.peer) <= 2 and len(calls) <= 4
    assert min(found.peer) >= 0.05


@pytest.mark.parametrize(
    "wrong", [["nothing"], ["add", "--threads", "0"], ["add", "--rounds", "0"]]
)
def test_bad_options(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(wrong)
    assert "there are add" in capsys.readouterr().err or wrong[0] == "add"
