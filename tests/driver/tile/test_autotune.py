"""Configurations are timed once, cached on disk one by one, and leave arguments as they should
be."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as tl
from tilewright.base import knobs
from tilewright.driver.tile.autotune import LISTENERS, Autotuner

torch = pytest.importorskip("torch")


@tw.jit
def scale(x, n, factor, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, i < n) * factor, i < n)


def configs(*blocks, **options):
    return [tw.Config({"BLOCK": b}, **options) for b in blocks]


def over(meta):
    return (tw.cdiv(meta["n"], meta["BLOCK"]),)


class Clock:
    """Times without measuring: by the block in `order`; records what it was called with."""

    def __init__(self, *order):
        self.order, self.timed, self.calls = order, [], 1

    def __call__(self, call, quantiles):
        for _ in range(self.calls):
            call()
        block = self.order[len(self.timed) % len(self.order)]
        self.timed.append(block)
        return [float(block)] * len(quantiles)


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with knobs.cache_dir.override(tmp_path):
        yield


def tuned(clock, blocks, key=("n",), **options):
    return tw.autotune(configs(*blocks), key=list(key), do_bench=clock, **options)(tw.jit(scale.fn))


def test_the_fastest_is_launched_and_the_result_is_right():
    clock = Clock(3, 1, 2)
    f = tuned(clock, (64, 128, 256), restore_value=["x"])
    x = torch.ones(1000)
    f[over](x, 1000, 2.0)
    assert f.best_config.kwargs == {"BLOCK": 128}
    assert torch.equal(x, torch.full((1000,), 2.0))
    assert len(clock.timed) == 3 and len(f.configs_timings) == 3
    f[over](x, 1000, 2.0)
    assert len(clock.timed) == 3
    assert torch.equal(x, torch.full((1000,), 4.0))


def test_another_key_is_timed_again():
    clock = Clock(3, 1)
    f = tuned(clock, (64, 128))
    f[over](torch.ones(1000), 1000, 2.0)
    f[over](torch.ones(500), 500, 2.0)
    assert len(clock.timed) == 4
    f[over](torch.ones(500, dtype=torch.float64), 500, 2.0)
    assert len(clock.timed) == 6
    f[over](torch.ones(500), 500, 3.0)  # not in the key
    assert len(clock.timed) == 6


def test_times_are_cached_on_disk_one_by_one():
    first = Clock(3, 1)
    tuned(first, (64, 128))[over](torch.ones(1000), 1000, 2.0)
    assert len(first.timed) == 2
    again = Clock(9, 9)
    f = tuned(again, (64, 128))
    f[over](torch.ones(1000), 1000, 2.0)
    assert again.timed == [] and f.best_config.kwargs == {"BLOCK": 128}
    more = Clock(2)
    g = tuned(more, (64, 128, 256))
    g[over](torch.ones(1000), 1000, 2.0)
    assert len(more.timed) == 1, "only the configuration that is new is timed"
    assert g.best_config.kwargs == {"BLOCK": 128}
    fresh = Clock(3, 1)
    tuned(fresh, (64, 128), cache_results=False)[over](torch.ones(1000), 1000, 2.0)
    assert len(fresh.timed) == 2


def test_reset_to_zero_leaves_zeros_before_the_launch():
    @tw.jit
    def count(x, n, BLOCK: tl.constexpr):
        tl.atomic_add(x + tl.arange(0, BLOCK), 1.0, tl.arange(0, BLOCK) < n)

    clock = Clock(1, 2)
    clock.calls = 5
    f = tw.autotune(configs(64, 128), key=["n"], reset_to_zero=["x"], do_bench=clock)(count)
    x = torch.full((32,), 5.0)
    f[(1,)](x, 32)
    assert torch.equal(x, torch.ones(32))


def test_restore_value_of_numpy_arrays():
    clock = Clock(1, 2)
    clock.calls = 3
    f = tuned(clock, (64, 128), restore_value=["x"])
    x = np.ones(100, np.float32)
    f[over](x, 100, 2.0)
    np.testing.assert_array_equal(x, np.full(100, 2.0, np.float32))


def test_pruning():
    clock = Clock(1, 1, 1, 1)
    seen = {}

    def early(configs, named, **kwargs):
        seen.update(named)
        return [c for c in configs if c.kwargs["BLOCK"] <= named["n"]]

    def model(n, BLOCK, **_):
        return abs(BLOCK - 128)

    prune = {"early_config_prune": early, "perf_model": model, "top_k": 2}
    f = tuned(clock, (32, 64, 128, 4096), prune_configs_by=prune)
    f[over](torch.ones(1000), 1000, 2.0)
    assert len(clock.timed) == 2 and seen["n"] == 1000
    assert {c.kwargs["BLOCK"] for c in f.configs_timings} == {64, 128}
    with pytest.raises(tw.Invalid, match="leaves no configuration"):
        f[over](torch.ones(8), 8, 2.0)


def test_one_configuration_is_not_timed():
    clock = Clock(1)
    f = tuned(clock, (64,))
    f[over](torch.ones(100), 100, 2.0)
    assert clock.timed == []


def test_a_configuration_that_fails_is_none_to_choose():
    f = tuned(Clock(1), (100, 64))  # 100 is no power of two
    x = torch.ones(100)
    f[over](x, 100, 2.0)
    assert f.best_config.kwargs == {"BLOCK": 64}
    bad = tuned(Clock(1), (100, 200))
    with pytest.raises(tw.Invalid, match="power of"):
        bad[over](x, 100, 2.0)


def test_hooks_of_configurations():
    seen = []
    slow = tw.Config({"BLOCK": 64}, pre_hook=lambda given: seen.append(given["BLOCK"]))
    clock = Clock(1, 2)
    f = tw.autotune([slow, *configs(128)], key=["n"], do_bench=clock)(tw.jit(scale.fn))
    f[over](torch.ones(100), 100, 2.0)
    assert seen == [64, 64], "once timed, once launched"
    assert len(clock.timed) == 2


def test_constants_are_not_given_twice():
    f = tuned(Clock(1, 2), (64, 128))
    with pytest.raises(tw.Invalid, match="BLOCK, which autotune chooses"):
        f[over](torch.ones(100), 100, 2.0, BLOCK=32)


def test_names_that_are_no_parameters_are_refused():
    with pytest.raises(tw.Invalid, match="no parameter m"):
        tw.autotune(configs(64), key=["n"], reset_to_zero=["m"])(scale)


def test_keys_that_are_no_parameters_tell_nothing_apart():
    assert "m" not in scale.arg_names
    f = tw.autotune(configs(64), key=["n", "m"])(scale)
    x = torch.ones(100)
    f[over](x, 100, 2.0)
    assert (x == 2).all()


def test_listeners_hear_what_was_found(monkeypatch):
    heard = []
    monkeypatch.setitem(LISTENERS, "test", lambda **found: heard.append(found))
    tuned(Clock(2, 1), (64, 128))[over](torch.ones(100), 100, 2.0)
    tuned(Clock(2, 1), (64, 128))[over](torch.ones(100), 100, 2.0)
    assert [h["cache_hit"] for h in heard] == [False, True]
    assert heard[0]["best_config"].kwargs == {"BLOCK": 128}
    assert heard[1]["duration"] is None


def test_warmup_makes_every_configuration():
    f = tuned(Clock(1), (64, 128))
    x = torch.ones(100)
    made = f.warmup(x, 100, 2.0, grid=(1,))
    assert [k.constants["BLOCK"] for k in made] == [64, 128]
    assert torch.equal(x, torch.ones(100))


def test_the_clock_itself():
    f = tw.autotune(configs(64, 256), key=["n"], warmup=1, rep=1, cache_results=False)(scale)
    assert isinstance(f, Autotuner)
    x = torch.ones(1000)
    f[over](x, 1000, 1.0)
    assert all(0 < t[0] < 1e4 for t in f.configs_timings.values())
    assert f.bench_time > 0


def test_configs():
    a, b = tw.Config({"BLOCK": 64}, num_warps=8), tw.Config({"BLOCK": 64}, num_warps=8)
    assert a == b and hash(a) == hash(b) and a != tw.Config({"BLOCK": 64})
    assert a.all_kwargs() == {"BLOCK": 64, "num_warps": 8, "num_ctas": 1, "num_stages": 3}
    assert "BLOCK: 64" in str(a) and "num_warps: 8" in str(a)


def test_heuristics_compute_constants():
    @tw.heuristics({"BLOCK": lambda given: tw.next_power_of_2(given["n"])})
    @tw.jit
    def whole(x, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(x + i, BLOCK, i < n)

    x = torch.zeros(100)
    kernel = whole[(1,)](x, 100)
    assert kernel.constants["BLOCK"] == 128
    assert torch.equal(x, torch.full((100,), 128.0))


def test_autotune_over_heuristics():
    @tw.autotune(configs(32, 64), key=["n"], do_bench=Clock(2, 1))
    @tw.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
    @tw.jit
    def whole(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(x + i, 1.0 if EVEN else 2.0, i < n)

    x = torch.zeros(96)
    whole[over](x, 96)
    assert whole.best_config.kwargs == {"BLOCK": 64}
    assert torch.equal(x, torch.full((96,), 2.0))


def test_options_for_a_gpu_make_no_other_kernel():
    clock = Clock(3, 1)
    both = [tw.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (2, 4, 8)]
    f = tw.autotune(both, key=["n"], do_bench=clock)(tw.jit(scale.fn))
    f[over](torch.ones(100), 100, 2.0)
    assert len(clock.timed) == 2 and len(f.jit_function.kernels) == 2
    assert len(f.configs_timings) == 6 and f.best_config == both[3]
    again = Clock(9)
    g = tw.autotune(both[1:], key=["n"], do_bench=again)(tw.jit(scale.fn))
    g[over](torch.ones(100), 100, 2.0)
    assert again.timed == [] and g.best_config.kwargs == {"BLOCK": 128}


def test_warps_that_a_kernel_or_its_grid_asks_for_are_timed_apart():
    @tw.jit
    def with_warps(x, n, num_warps: tl.constexpr):
        tl.store(x, num_warps)

    both = [tw.Config({}, num_warps=w) for w in (2, 4)]
    clock = Clock(1, 2)
    tw.autotune(both, key=["n"], do_bench=clock)(with_warps)[(1,)](torch.ones(1), 1)
    assert len(clock.timed) == 2

    clock = Clock(1, 2)
    some = [tw.Config({"BLOCK": 64}, num_warps=w) for w in (2, 4)]
    f = tw.autotune(some, key=["n"], do_bench=clock)(tw.jit(scale.fn))
    f[lambda meta: (meta["num_warps"],)](torch.ones(64), 64, 2.0)
    assert len(clock.timed) == 2


def test_configurations_compile_at_the_same_time_before_any_is_timed():
    kernels = []

    class Watching(Clock):
        def __call__(self, call, quantiles):
            kernels.append(len(f.jit_function.kernels))
            return super().__call__(call, quantiles)

    with knobs.compile_jobs.override(4):
        f = tuned(Watching(4, 3, 2, 1), (16, 32, 64, 128), restore_value=["x"])
        x = torch.ones(100)
        f[over](x, 100, 2.0)
    assert kernels == [4, 4, 4, 4] and torch.equal(x, torch.full((100,), 2.0))


def test_functions_of_one_name_are_timed_apart():
    def times(n):
        @tw.jit
        def multiplied(x):
            return x * n

        return multiplied

    @tw.jit
    def applied(out, f: tl.constexpr, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, f(i))

    clock = Clock(2, 1)
    choices = [tw.Config({"f": times(tl.constexpr(n)), "BLOCK": 16}) for n in (3, 5)]
    f = tw.autotune(choices, key=[], do_bench=clock)(applied)
    out = torch.zeros(16, dtype=torch.int32)
    f[(1,)](out)
    assert len(clock.timed) == 2 and out.tolist() == [5 * k for k in range(16)]


def test_a_list_with_the_same_configuration_twice_says_why_it_fails():
    f = tuned(Clock(1), (48, 48))  # no power of two
    with pytest.raises(tw.TilewrightError, match="48"):
        f[over](torch.ones(100), 100, 2.0)
    assert not f.cache
