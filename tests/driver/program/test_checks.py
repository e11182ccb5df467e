"""What eager refuses while it runs, compiled programs refuse in the same words, with the line."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import DispatchKey

import tilewright as tw
from tests.driver import check_costs
from tests.driver.hostile_inputs import USES, Program, check_seed, fault
from tests.seeds import crossed, drawn
from tilewright.base import knobs


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield


X = torch.arange(20.0).reshape(5, 4)
GOOD, BAD = torch.tensor([1, 4]), torch.tensor([1, 7])


def rows(x: Tensor, i: Tensor) -> Tensor:
    return x[i] * 2


def _checks(fast: Any) -> list[str]:
    return [e.message for e in tw.explain(fast).checks]


@pytest.mark.parametrize("seed", drawn([*range(4), *range(100, 300)], quick=4))
def test_hostile_inputs(seed: int) -> None:
    with torch.enable_grad():
        check_seed(seed)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("bad", "mode"),
    crossed(
        [(NAN, -0.001), (-0.001, NAN), (NAN, INF), (NAN,)], ["plain", "branch", "other branch"], 3
    ),
)
def test_a_nan_hides_no_other_element(mode: str, bad: tuple[float, ...]) -> None:
    """Each element is judged alone, and which branch runs does not depend on them."""
    use = next(u for u in USES if u.name == "cross_entropy of chances")
    good, target = torch.full((5, 3), 0.5), torch.full((5, 3), 0.25)
    spoilt = good.clone()
    spoilt.view(-1)[3 : 3 + len(bad)] = torch.tensor(bad)
    calls = (((good, target), ()), ((spoilt, target), bad))
    assert fault(Program(use, "as it is", "as it is", mode, calls)) is None


@pytest.mark.parametrize("bad", [(-1.0, INF), (INF, -1.0)])
def test_eager_names_the_first_bad_weight_and_we_any(bad: tuple[float, ...]) -> None:
    use = next(u for u in USES if u.name == "multinomial, again")
    weights = torch.full((4, 3), 0.5)
    weights.view(-1)[3:5] = torch.tensor(bad)
    calls = (((weights, torch.zeros(())), bad),)
    assert fault(Program(use, "as it is", "as it is", "plain", calls)) is None


def test_the_error_names_the_users_line_and_explain_lists_it() -> None:
    fast = tw.compile(rows, X, GOOD, strict=True)
    with pytest.raises(IndexError) as problem:
        fast(X, BAD)
    words, place = str(problem.value).split("\n")
    assert words == "index 7 is out of bounds for dimension 0 with size 5"
    assert place.strip() == f"at {__file__}:{rows.__code__.co_firstlineno + 1}"
    (event,) = tw.explain(fast).checks
    assert event.message == "IndexError: index … is out of bounds for dimension 0 with size 5"
    assert event.where is not None and event.where in place
    assert "checked at each call" in str(tw.explain(fast))
    assert torch.equal(fast(X, GOOD), rows(X, GOOD))  # and goes on


def test_checks_can_be_left_out() -> None:
    clamped = X[torch.tensor([1, 4])] * 2
    for fast in (
        tw.compile(rows, checks=False),
        torch.compile(rows, backend="tilewright", options={"checks": False}),
    ):
        assert torch.equal(fast(X, BAD), clamped)
        assert not _checks(fast)
    with knobs.checks.override(False):
        assert torch.equal(tw.compile(rows)(X, BAD), clamped)


def test_the_interpreter_checks_too() -> None:
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        tw.compile(rows, executor="interpreter")(X, BAD)


def test_programs_out_of_the_cache_check_too(tmp_path: Path) -> None:
    with knobs.cache_dir.override(tmp_path):
        for _ in range(2):
            torch._dynamo.reset()
            fast = tw.compile(rows)
            with pytest.raises(IndexError, match="index 7 is out of bounds"):
                fast(X, BAD)
            assert torch.equal(fast(X, GOOD), rows(X, GOOD))


def test_inputs_are_as_they_were_where_a_call_is_refused() -> None:
    def changes(x: Tensor, i: Tensor) -> Tensor:
        x.add_(1)
        x[i] = 0
        return x.sum()

    fast = tw.compile(changes)
    x = X.clone()
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        fast(x, BAD)
    assert torch.equal(x, X)
    assert fast(x, GOOD) == changes(X.clone(), GOOD)
    assert torch.equal(x[0], X[0] + 1)


def test_filling_a_given_tensor_is_checked() -> None:
    fast = tw.compile(rows, X, GOOD, strict=True)
    out = torch.empty(2, 4)
    fast(X, GOOD, out=out)
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        fast(X, BAD, out=out)


def test_each_thread_gets_its_own_answer() -> None:
    fast = tw.compile(rows, X, GOOD, strict=True)
    expected = rows(X, GOOD)
    wrong: list[str] = []

    def good() -> None:
        for _ in range(300):
            if not torch.equal(fast(X, GOOD), expected):
                wrong.append("another result")

    def bad(index: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(300):
                try:
                    fast(X, torch.tensor([0, index]))
                    wrong.append("no error")
                except IndexError as problem:
                    if f"index {index} is" not in str(problem):
                        wrong.append(str(problem))

        return run

    threads = [threading.Thread(target=f) for f in (good, bad(6), bad(-9), good)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


PROVED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "positions": lambda x, i: x[torch.arange(x.shape[0])],
    "constants": lambda x, i: x[torch.tensor([0, 4, -5])],
    "arg-maximum": lambda x, i: x[:, x.argmax(1)],
    "order": lambda x, i: x.gather(0, x.argsort(0)),
    "the largest": lambda x, i: x[:, x.topk(2, 1).indices],
    "clamped": lambda x, i: F.embedding(i.clamp(0, 4), x),
    "remainder": lambda x, i: x[i % 5],
    "conditions": lambda x, i: x[(i > 3).long()],
    "constant divisors": lambda x, i: i // 3 + i % 7,
    "divisors above 0": lambda x, i: i // (i.clamp(min=1)),
}


@pytest.mark.parametrize("name", PROVED)
def test_what_is_proved_is_not_checked(name: str) -> None:
    f = PROVED[name]
    fast = tw.compile(f)
    assert torch.equal(fast(X, BAD), f(X, BAD))
    assert not _checks(fast)


def test_one_check_for_the_same_indices_and_size() -> None:
    fast = tw.compile(lambda x, i: x[i] + (x * 2)[i] + F.embedding(i, x) * F.embedding(i, x + 1))
    fast(X, GOOD)
    assert len(_checks(fast)) == 2  # from the end, and not


def test_gradients_do_not_check_again() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        return F.embedding(i, x) + x.gather(0, i[:, None].expand(2, 4))

    fast = tw.compile(f)
    with torch.enable_grad():
        fast(X.clone().requires_grad_(), GOOD).sum().backward()
    kinds = [(u.kind, len(u.captured.segments[0].checks)) for u in fast.units]
    assert kinds == [("forward", 1), ("backward", 0)]


def test_indices_that_are_weights_are_checked_once() -> None:
    class Table(nn.Module):
        at: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, 4))
            self.register_buffer("at", torch.randint(0, 5, (100,)))

        def forward(self, x: Tensor) -> Tensor:
            return F.embedding(self.at, self.weight) + x

    table = Table()
    fast = tw.compile(table, torch.ones(4), strict=True)
    (program,) = fast.units[0].programs
    assert program.prologue is not None
    assert "max=" in "".join(k.group for k in program.prologue.kernels)
    assert "max=" not in "".join(k.group for k in program.kernels)
    table.at[3] = 9
    with pytest.raises(IndexError, match="index out of range in self"):
        fast(torch.ones(4))


def test_nothing_has_no_extreme_where_its_size_is_symbolic() -> None:
    def largest(x: Tensor) -> Tensor:
        return x[3:].max()

    fast = tw.compile(largest, dynamic=True)
    assert fast(torch.arange(9.0)) == 8
    with pytest.raises(RuntimeError, match=r"max\(\): Expected reduction dim to be specified"):
        fast(torch.arange(3.0))


def test_what_a_program_says_of_its_sizes_is_checked() -> None:
    def few(x: Tensor) -> Tensor:
        found = torch.nonzero(x)
        torch._check(found.shape[0] <= 3, lambda: "too many are not 0")
        return found + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = tw.compile(few, fullgraph=True)
        assert fast(torch.tensor([1.0, 0, 2])).shape == (2, 1)
        with pytest.raises(RuntimeError, match="too many are not 0"):
            fast(torch.ones(7))


def test_own_weights_are_checked_too() -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8)).eval()
    fast = tw.compile(model, torch.tensor([3]), own_weights=True)
    with pytest.raises(IndexError, match="index out of range in self"):
        fast(torch.tensor([50]))


def test_rows_of_a_tensor_that_turns_out_to_be_empty() -> None:
    def f(x: Tensor, i: Tensor) -> Tensor:
        return x[x[:, 0] > 0][i]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        fast = tw.compile(f, fullgraph=True)
        assert torch.equal(fast(X + 1, GOOD), f(X + 1, GOOD))
        with pytest.raises(IndexError, match="out of bounds for dimension with size 0"):
            fast(-X, GOOD)
        assert tw.compile(f, fullgraph=True, checks=False)(-X, GOOD).shape == (2, 4)
        nothing = torch.empty(0, dtype=torch.int64)
        assert torch.equal(fast(-X, nothing), f(-X, nothing))


@pytest.mark.parametrize("older", [False, True])
def test_classes_of_one_hot(older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # Older versions of torch take one_hot apart without stating what it asks of its classes.
    operator, own = torch.ops.aten.one_hot.default, DispatchKey.CompositeImplicitAutograd
    if older and own in operator.py_kernels:
        monkeypatch.delitem(operator.py_kernels, own)
        operator._dispatch_cache.clear()
    try:
        fast = tw.compile(lambda x, i: x[0, 0] + F.one_hot(i, 5), X, GOOD, strict=True)
        assert len(_checks(fast)) == 2
        for bad, words in ((BAD, "smaller than num_classes"), (-GOOD, "non-negative")):
            with pytest.raises(RuntimeError, match=f"Class values must be {words}"):
                fast(X, bad)
        torch.testing.assert_close(fast(X, GOOD), X[0, 0] + F.one_hot(GOOD, 5))
        proved = tw.compile(lambda i: F.one_hot(i.clamp(0, 4), 5) * 2, GOOD, strict=True)
        assert not older or not _checks(proved)
    finally:
        operator._dispatch_cache.clear()


# ---- what checks cost


def _kernels(fast: Any) -> int:
    return len(tw.explain(fast).kernels)


@pytest.mark.parametrize("count", [7, 3000, 70_001])
def test_indices_are_checked_in_the_loop_that_reads_them(count: int) -> None:
    """No kernel is added, and each index is looked at, wherever it stands."""
    table, index = torch.randn(50), torch.randint(-50, 50, (count,))

    def gathered(x: Tensor, i: Tensor) -> Tensor:
        return x[i] * 2

    fast, bare = (tw.compile(gathered, table, index, checks=c) for c in (True, False))
    assert _kernels(fast) == _kernels(bare) == 1
    assert torch.equal(fast(table, index), gathered(table, index))
    for place in {0, 1, count // 2, count - 2, count - 1}:
        for bad in (50, -51, 1 << 62, -(1 << 63)):
            wrong = index.clone()
            wrong[place] = bad
            with pytest.raises(IndexError, match=f"index {bad} is out of bounds"):
                fast(table, wrong)


def test_checked_indices_need_no_second_comparison() -> None:
    """Whatever is out of range is reported, so that any element may be read there."""
    x, i = torch.randn(50, 3), torch.randint(0, 50, (40, 3))
    along = torch.gather
    for checks in (True, False):
        fast = tw.compile(lambda x, i: along(x, 0, i), x, i, checks=checks)
        assert torch.equal(fast(x, i), along(x, 0, i))
        assert ("max(min(" in tw.explain(fast).group(0)) != checks


@pytest.mark.parametrize("count", [1000, 100_000, 70_001])
def test_a_sum_is_rounded_the_same_way_whatever_is_fused_with_it(count: int) -> None:
    x = torch.randn(count)
    alone, beside = (
        tw.compile(f, x, strict=True)
        for f in (lambda x: x.sum(), lambda x: (x.relu(), x.sum(), (x > 0).sum()))
    )
    relu, total, positive = beside(x)
    assert torch.equal(relu, x.relu()) and positive == (x > 0).sum()
    assert torch.equal(total, alone(x))
    assert _kernels(beside) == 1


def test_the_command_that_measures_checks() -> None:
    cost = check_costs.measured("gather_16k", 7)
    assert cost.checks == 1 and 0 < cost.low <= cost.ratio <= cost.high
    assert "gather_16k" in check_costs.PROGRAMS and "gpt2" in check_costs.PROGRAMS
    nothing = check_costs.Cost("mlp", 0)
    assert check_costs.table([cost, nothing]).row_count == 2


def test_an_index_that_is_known_and_out_of_range() -> None:
    """Torch does not look at it while it traces."""
    for index in (5, -6):
        f = torch.compile(
            lambda x, i=index: torch.select_scatter(x, x[0], 0, i) * 2, backend="tilewright"
        )
        with pytest.raises(IndexError, match=rf"select\(\): index {index} out of range"):
            f(X)


def test_probabilities_of_cross_entropy() -> None:
    f = torch.compile(F.binary_cross_entropy, backend="tilewright")
    chances, target = torch.tensor([0.0, 1.0, 0.25]), torch.ones(3)
    torch.testing.assert_close(f(chances, target), F.binary_cross_entropy(chances, target))
    for bad in (1.5, -0.5, float("nan")):
        with pytest.raises(RuntimeError, match="all elements of input should be between 0 and 1"):
            f(torch.tensor([0.5, bad, 0.25]), target)
