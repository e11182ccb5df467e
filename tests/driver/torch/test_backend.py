"""The backend: fallbacks and graph breaks are named, weights are fresh, bad input is an error."""

import threading
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn

import tilewright as tw
from tests.capture.running import assert_same
from tests.driver import random_torch, torch_maker
from tests.driver.outside import OUTSIDE, outside
from tests.driver.random_torch import check_seed
from tests.seeds import drawn
from tilewright.base import knobs
from tilewright.base.errors import Invalid, TilewrightError, Unsupported


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def uses_another(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1
    s = outside(y)
    return s.sum() + y.mean()


# ---- fallbacks


def test_fallback_runs_between_native_segments_and_is_named() -> None:
    x = torch.randn(4, 3)
    fast = tw.compile(uses_another)
    assert_same(fast(x), uses_another(x), 1e-4)
    (event,) = fast.log.of("fallback")
    assert event.data["operator"] == OUTSIDE
    assert event.where is not None and "test_backend.py" in event.where
    (unit,) = fast.units
    assert [type(s).__name__ for s in unit.captured.steps] == ["Segment", "HostCall", "Segment"]


def test_fallback_is_an_error_under_strict() -> None:
    with pytest.raises(Unsupported, match=r"outside\.default would run in eager") as caught:
        tw.compile(uses_another, torch.randn(4, 3), strict=True)
    assert "test_backend.py" in str(caught.value)
    backend: Any = "tilewright"
    strict = torch.compile(uses_another, backend=backend, options={"strict": True})
    with pytest.raises(TilewrightError, match=r"outside\.default would run in eager"):
        strict(torch.randn(4, 3))


def test_several_fallbacks_in_a_row_and_side_by_side() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        a = outside(x + 1)
        b = outside(x - 1)
        c = outside((a * b).diag() + 2)
        return c.sum() + a.mean() * b.mean()

    x = torch.randn(4, 4)
    fast = tw.compile(program)
    assert_same(fast(x), program(x), 1e-3)
    assert len(fast.log.of("fallback")) == 3


def test_complex_numbers_cross_the_border() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        z = torch.linalg.eigvals(x * 2) * 3j
        return torch.linalg.inv(torch.diag(z)).abs().sum() + z.abs().sum()

    x = torch.randn(4, 4)
    fast = tw.compile(program)
    assert_same(fast(x), program(x), 1e-3)
    assert len(fast.log.of("library")) == 2 and not fast.log.of("fallback")


def test_result_whose_size_depends_on_the_data() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x[x > 0] * 2).sum() + torch.nonzero(x).sum()

    fast = tw.compile(program)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for _ in range(3):
            x = torch.randn(20)
            assert_same(fast(x), program(x), 1e-5)


# ---- graph breaks


def breaks(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if y.sum() > 0:
        return y * 2
    return y * 3


def test_graph_break_is_an_event_with_its_line() -> None:
    fast = tw.compile(breaks)
    for x in (torch.ones(3), -torch.ones(3) * 9):
        assert_same(fast(x), breaks(x))
    (event, *_) = fast.log.of("graph-break")
    assert event.where is not None and "test_backend.py" in event.where
    assert event.message


def test_a_break_under_strict_without_fullgraph() -> None:
    backend: Any = "tilewright"
    strict = torch.compile(breaks, backend=backend, options={"strict": True})
    with pytest.raises(TilewrightError, match="the graph breaks: Data-dependent"):
        strict(torch.ones(3))


def test_what_follows_a_break_is_native_every_time() -> None:
    fast = tw.compile(breaks)
    x = torch.ones(3)
    calls: list[str] = []
    with knobs.straight_calls.override(False):
        assert_same(fast(x), breaks(x))
    for program in (p for unit in fast.units for p in unit.programs):
        was = program._call
        program._call = lambda *given, was=was: calls.append("") or was(*given)
    assert_same(fast(x), breaks(x))
    assert len(fast.units) == len(calls) == 2


def test_a_function_compiled_too_often_says_that_it_runs_in_eager() -> None:
    def program(x: torch.Tensor, key: str) -> torch.Tensor:
        return x + len(key)

    x = torch.ones(3)
    lenient = tw.compile(program)
    with torch._dynamo.config.patch(recompile_limit=2):
        for key in ("a", "bb", "ccc"):
            assert_same(lenient(x, key), program(x, key))
        (event,) = lenient.log.of("fallback")
        assert "compiled 2 times" in event.message
        strict = tw.compile(program, strict=True)
        with pytest.raises(Unsupported, match="compiled 2 times"):
            for key in ("a", "bb", "ccc"):
                strict(x, key)


def test_data_dependent_branch_under_strict_says_so() -> None:
    with pytest.raises(Unsupported, match="cannot be captured as one graph") as caught:
        tw.compile(breaks, torch.ones(3), strict=True)
    assert "test_backend.py" in str(caught.value)


# ---- weights


def linear() -> nn.Linear:
    return nn.Linear(8, 6).eval().requires_grad_(False)


@pytest.mark.parametrize("layers", [1, 12], ids=["few", "many"])
def test_weights_are_never_stale(layers: int) -> None:
    """The addresses of many weights are read together, of few one by one."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(layers))).eval().requires_grad_(False)
    layer: Any = model[-1]
    x = torch.randn(3, 8)
    other = nn.Linear(8, 8).requires_grad_(False)
    with torch.no_grad():
        fast = tw.compile(model, x, strict=True)
        assert sum(a.weight for u in fast.units for a in u.captured.arguments) == 2 * layers

        def agrees() -> None:
            assert_same(fast(x), model(x), 1e-5)
            assert_same(fast(x + 1), model(x + 1), 1e-5)

        agrees()
        layer.weight.mul_(2)
        agrees()
        layer.weight[0, 0] = 9
        agrees()
        layer.weight = nn.Parameter(torch.randn(8, 8), requires_grad=False)
        agrees()
        layer.weight.data = torch.randn(8, 8)
        agrees()
        layer.load_state_dict(other.state_dict())
        agrees()
        layer.load_state_dict(nn.Linear(8, 8).state_dict(), assign=True)
        layer.requires_grad_(False)
        agrees()


def test_weights_are_derived_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(12))).eval().requires_grad_(False)
    with torch.no_grad():
        fast = tw.compile(model, torch.randn(3, 8), strict=True)
        fast(torch.randn(3, 8))
        (program,) = fast.units[0].programs
        times: list[int] = []
        monkeypatch.setattr(program.prologue, "run", lambda *_: times.append(1))
        for _ in range(3):
            fast(torch.randn(3, 8))
    assert program.weights and not times


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
def test_an_optimizer_step_is_noticed(fused: bool) -> None:
    layer, x = nn.Linear(8, 6), torch.randn(3, 8)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=fused)
    with torch.no_grad():
        fast = tw.compile(layer, x, strict=True)
    for _ in range(3):
        layer(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            assert_same(fast(x), layer(x), 1e-5)


def test_refresh_after_an_edit_behind_torch() -> None:
    layer, x = linear(), torch.randn(3, 8)
    with torch.no_grad():
        fast = tw.compile(layer, x, strict=True)
        fast(x)
        layer.weight.numpy()[:] = 1
        tw.refresh(fast)
        assert_same(fast(x), layer(x), 1e-5)


def test_inference_tensors_have_no_version_and_are_right() -> None:
    with torch.inference_mode():
        layer, x = linear(), torch.randn(3, 8)
        fast = tw.compile(layer, x, strict=True)
        assert_same(fast(x), layer(x), 1e-5)
        layer.weight.mul_(2)
        assert_same(fast(x), layer(x), 1e-5)


def test_graphs_with_gradients_have_no_weights() -> None:
    layer, x = nn.Linear(8, 6), torch.randn(3, 8)
    fast = tw.compile(lambda t: layer(t).sum(), x, strict=True)
    assert not any(a.weight for u in fast.units for a in u.captured.arguments)


# ---- dims


def rows(x: torch.Tensor) -> torch.Tensor:
    return (x * x.shape[0]).softmax(-1).sum(0, keepdim=True).expand_as(x) + x.mean()


@pytest.mark.parametrize("executor", ["native", "interpreter"])
def test_dynamic_sizes(executor: str) -> None:
    fast = tw.compile(rows, dynamic=True, strict=True, executor=executor)
    for n in (3, 7, 2, 31, 7):
        x = torch.randn(n, 5)
        assert_same(fast(x), rows(x), 1e-5)
    assert len(fast.units) == 1


def test_a_second_size_becomes_a_symbol_and_programs_are_counted() -> None:
    fast = tw.compile(rows, strict=True, specialisations=2)
    for n in (3, 7, 8, 9, 10, 7):
        x = torch.randn(n, 5)
        assert_same(fast(x), rows(x), 1e-5)
    assert len(fast.units) == 2  # static, then symbolic
    assert all(len(s.programs()) <= 2 for u in fast.units for s in u.segments)


def test_a_recompilation_is_an_event_with_its_reason() -> None:
    fast = tw.compile(rows, strict=True)
    fast(torch.randn(3, 5))
    fast(torch.randn(3, 5, dtype=torch.float64))
    (event,) = fast.log.of("recompile")
    assert "dtype" in event.message
    assert event.where is not None and "test_backend.py" in event.where


def test_symbolic_sizes_in_training() -> None:
    norm = nn.BatchNorm1d(5)
    layer = nn.Sequential(nn.Linear(5, 5), norm, nn.Tanh())
    fast = tw.compile(layer, dynamic=True, strict=True)
    for n in (4, 6, 9):
        x = torch.randn(n, 5)
        ours = torch.autograd.grad(fast(x).sum(), list(layer.parameters()))
        norm.reset_running_stats()
        eager = torch.autograd.grad(layer(x).sum(), list(layer.parameters()))
        assert_same(ours, eager, 1e-4)


def test_sizes_as_numbers_and_results() -> None:
    def program(x: torch.Tensor) -> Any:
        n = x.shape[0]
        return x / n + n // 2, n * 2, torch.arange(n), torch.full((n, 2), n)

    fast = tw.compile(program, dynamic=True, strict=True)
    for n in (4, 5):
        assert_same(fast(torch.ones(n)), program(torch.ones(n)))


def test_a_float_that_changes() -> None:
    def program(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale + scale

    fast = tw.compile(program, strict=True)
    for scale in (1.5, 2.5, 3.25, -1.0):
        x = torch.randn(4)
        assert_same(fast(x, scale), program(x, scale))


def test_a_number_of_a_module_is_a_constant_until_it_changes() -> None:
    """Guards of a number that may change are Python's, and look at the module in every call."""

    class Scaled(nn.Module):
        scale = 0.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale + self.scale

    module = Scaled()
    fast = tw.compile(module, dynamic=True, strict=True)
    for module.scale in (1.5, 2.5, 3.25, -1.0, 1.5):
        for n in (4, 7):
            x = torch.randn(n)
            assert_same(fast(x), module(x))
    assert len(fast.units) == 2  # for 1.5, then for any


# ---- randomness


def test_random_streams_are_reproducible() -> None:
    def program(x: torch.Tensor) -> Any:
        return torch.rand(1000), torch.randn(1000), torch.nn.functional.dropout(x, 0.5, True)

    x = torch.ones(1000)
    fast = tw.compile(program, x, strict=True)
    torch.manual_seed(5)
    first, second = fast(x), fast(x)
    torch.manual_seed(5)
    again = fast(x)
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    assert not any(torch.equal(a, b) for a, b in zip(first, second))
    uniform, normal, dropped = first
    assert 0 <= float(uniform.min()) and float(uniform.max()) < 1
    assert abs(float(uniform.mean()) - 0.5) < 0.05 and abs(float(normal.std()) - 1) < 0.1
    assert set(dropped.tolist()) == {0.0, 2.0}


def test_random_from_eager_gives_its_bits() -> None:
    def program() -> torch.Tensor:
        return torch.rand(10) * 2

    fast = tw.compile(program, strict=True, random="eager")
    torch.manual_seed(1)
    ours = fast()
    torch.manual_seed(1)
    assert_same(ours, program())


# ---- threads


def test_two_threads_get_their_own_results() -> None:
    layer = linear()
    with torch.no_grad():
        fast = tw.compile(layer, torch.randn(3, 8), strict=True)
        inputs = [torch.randn(3, 8) for _ in range(4)]
        expected = [layer(x) for x in inputs]
    wrong: list[int] = []

    def work(k: int) -> None:
        with torch.no_grad():
            for _ in range(200):
                if not torch.allclose(fast(inputs[k]), expected[k], atol=1e-5):
                    wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


# ---- bad input


def test_another_dtype_or_shape_is_compiled_again() -> None:
    fast = tw.compile(lambda x: x * 2 + 1, torch.randn(3), strict=True)
    for x in (torch.randn(5), torch.randn(2, 2), torch.ones(3, dtype=torch.int64)):
        assert_same(fast(x), x * 2 + 1)


def test_freed_input() -> None:
    x = torch.randn(3)
    fast = tw.compile(lambda t: t + 1, x, strict=True)
    x.untyped_storage().resize_(0)
    with pytest.raises(Invalid, match="freed or resized"):
        fast(x)


def test_freed_input_of_a_symbolic_size() -> None:
    fast = tw.compile(lambda t: t + 1, torch.randn(3), strict=True, dynamic=True)
    x = torch.randn(5)
    assert_same(fast(x), x + 1)
    x.untyped_storage().resize_(0)
    with pytest.raises(Invalid, match="freed or resized"):
        fast(x)
    assert fast(torch.empty(0)).shape == (0,)


def test_freed_input_and_an_empty_one() -> None:
    x, empty = torch.randn(3), torch.empty(0)
    fast = tw.compile(lambda t, e: torch.cat((t + 1, e)), x, empty, strict=True)
    assert_same(fast(x, empty), x + 1)
    x.untyped_storage().resize_(0)
    with pytest.raises(Invalid, match=r"input 0 .* freed or resized"):
        fast(x, empty)


def test_resized_input() -> None:
    x = torch.randn(3)
    fast = tw.compile(lambda t: t + 1, x, strict=True)
    x.resize_(5).fill_(2)
    assert_same(fast(x), x + 1)


def test_not_callable_and_unknown_options() -> None:
    not_callable: Any = 3
    with pytest.raises(Invalid, match="not callable"):
        tw.compile(not_callable)
    with pytest.raises(Invalid, match="option 'stric' is not known"):
        tw.compile(lambda x: x, stric=True)
    with pytest.raises(Invalid, match="random='maybe'"):
        tw.compile(lambda x: x, random="maybe")
    with pytest.raises(Invalid, match="not a bool"):
        wrong: Any = 1
        tw.compile(lambda x: x, strict=wrong)
    for share in (0, 1.5, True, "half"):
        with pytest.raises(Invalid, match="above 0 and up to 1"):
            tw.compile(lambda x: x, activation_memory=share)


def test_other_devices_get_a_sentence() -> None:
    with pytest.raises(Invalid, match="compiles for the CPU"):
        tw.compile(lambda x: x + 1, torch.randn(3, device="meta"))


def test_wrong_shapes_inside_are_torchs_own_error() -> None:
    with pytest.raises(Exception, match=r"shape|size"):
        tw.compile(lambda x: x @ x, torch.randn(3, 4), strict=True)


def test_a_non_tensor_is_a_constant() -> None:
    fast = tw.compile(lambda x, n, s: x * n if s == "up" else x, strict=True)
    x = torch.randn(3)
    assert_same(fast(x, 2, "up"), x * 2)
    assert_same(fast(x, 2, "down"), x)


@pytest.mark.parametrize("seed", drawn([20, *range(22, 120), 21], quick=2))
def test_random_programs(seed: int) -> None:
    check_seed(seed)


def test_a_generator_whose_lines_torch_refuses_fails() -> None:
    def refused(maker: torch_maker.Maker) -> None:
        maker.say(maker.smooth, "torch.ones(2) + torch.ones(3)")

    with pytest.raises(AssertionError, match="refused 61 lines and took 0"):
        random_torch.random_program(0, [(refused, 1)])
