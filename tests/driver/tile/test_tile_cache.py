"""Kernels that another process compiled: nothing is translated, and nothing stale is used."""

from __future__ import annotations

import enum
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.language as tl
from tilewright.base import knobs
from tilewright.base.cache import Cache
from tilewright.driver.tile import compile as tile_compile
from tilewright.driver.tile.request import Request
from tilewright.driver.tile.tile_cache import Opaque, binding_text, key_of, read_binding
from tilewright.lang.tile.front.functions import Argument
from tilewright.lang.tile.language.descriptors import TensorDescriptor
from tilewright.lang.tile.lowering.reports import DeviceAssertion
from tilewright.targets import host

SCALE = tl.constexpr(3)


class Mode(enum.Enum):
    DOUBLE = 2
    TRIPLE = 3


class Settings:
    def __init__(self, factor):
        self.factor = factor


SETTINGS = tl.constexpr(Settings(2))


@tw.jit
def doubled(x):
    return x * 2


@tw.jit
def tripled(x):
    return x * 3


@tw.jit
def scaled(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, doubled(tl.load(x + i, i < n)) * SCALE, i < n)


@tw.jit
def asserting(x, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.device_assert(v >= 0, "no negative numbers")
    tl.device_print("seen ", tl.sum(v, 0))


@tw.jit
def applied(out, f: tl.constexpr, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), f(tl.arange(0, B)))


@tw.jit
def by_mode(out, mode: tl.constexpr, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), mode.value)


@tw.jit
def by_object(out, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), SETTINGS.value.factor)


@tw.jit
def moved(source, target, N: tl.constexpr):
    target.store([0, 0], source.load([0, 0]))


@tw.jit
def of_pair(pair, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(pair.out + i, tl.load(pair.x + i) + 1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with (
        knobs.cache_dir.override(tmp_path),
        knobs.interpret.override(None),
        knobs.tile_check.override(None),
    ):
        yield


def anew(f):
    """The same kernel as another process has it."""
    return tw.jit(f.fn)


def translations(f):
    return len(f.log.of("tile"))


def test_nothing_is_translated_again():
    x, out = torch.arange(100.0), torch.empty(100)
    for times in (1, 0, 0):
        f = anew(scaled)
        out.zero_()
        f[(2,)](x, out, 100, B=64)
        torch.testing.assert_close(out, x * 6)
        assert translations(f) == times
    kernel = f[(2,)](x, out, 100, B=64)
    assert "define" in kernel.asm["llir"] and kernel.asm["ttir"].startswith("kernel scaled(")


def test_another_specialisation_is_another_kernel():
    x, out = torch.arange(128.0), torch.empty(128)
    for given in ({"n": 100, "B": 64}, {"n": 112, "B": 64}, {"n": 100, "B": 32}):
        for times in (1, 0):
            f = anew(scaled)
            f[(4,)](x, out, **given)
            assert translations(f) == times
    for times in (1, 0):  # the same tensor twice
        f = anew(scaled)
        f[(2,)](x, x, 100, B=64)
        assert translations(f) == times
    assert x[:100].tolist() == [6.0 * 6 * k for k in range(100)]


def test_a_changed_constant_compiles_again(monkeypatch):
    x, out = torch.ones(64), torch.empty(64)
    f = anew(scaled)
    f[(1,)](x, out, 64, B=64)
    monkeypatch.setitem(scaled.fn.__globals__, "SCALE", tl.constexpr(5))
    for times in (1, 0):
        f = anew(scaled)
        f[(1,)](x, out, 64, B=64)
        assert out.tolist() == [10.0] * 64 and translations(f) == times
    monkeypatch.setitem(scaled.fn.__globals__, "doubled", tripled)
    f = anew(scaled)
    f[(1,)](x, out, 64, B=64)
    assert out.tolist() == [15.0] * 64 and translations(f) == 1


def test_functions_and_members_of_enums_as_constants():
    out = torch.empty(64, dtype=torch.int32)
    for function, factor in ((doubled, 2), (tripled, 3)):
        for times in (1, 0):
            f = anew(applied)
            f[(1,)](out, function, B=64)
            assert out.tolist() == [factor * k for k in range(64)] and translations(f) == times
    for mode, want in ((Mode.DOUBLE, 2), (Mode.TRIPLE, 3)):
        for times in (1, 0):
            f = anew(by_mode)
            f[(1,)](out, mode, B=64)
            assert out.tolist() == [want] * 64 and translations(f) == times


def test_what_has_no_unique_text_is_not_cached(monkeypatch):
    out = torch.empty(64, dtype=torch.int32)
    for factor in (2, 7):
        monkeypatch.setattr(SETTINGS.value, "factor", factor)
        f = anew(by_object)
        f[(1,)](out, B=64)
        assert out.tolist() == [factor] * 64 and translations(f) == 1
    with pytest.raises(Opaque, match=r"SETTINGS\.value is a .*Settings"):
        key_of(Request(by_object, {"B": Argument.constant(64)}), host())
    assert any("by_object is not cached: SETTINGS" in e.message for e in f.log.of("cache"))


def test_reports_say_the_same(capsys):
    x = torch.ones(64)
    x[5] = -1
    texts = []
    for times in (1, 0):
        f = anew(asserting)
        with pytest.raises(DeviceAssertion, match="no negative numbers") as found:
            f[(1,)](x, B=64, debug=True)
        texts.append((str(found.value), capsys.readouterr().out))
        assert translations(f) == times
    assert texts[0] == texts[1]
    assert "test_tile_cache.py:" in texts[0][0] and "seen: 62.0" in texts[0][1]
    f[(1,)](x, B=64)  # without asserts it is another kernel
    assert translations(f) == 1


def test_descriptors_and_named_tuples():
    pair = namedtuple("pair", "x out")
    other = namedtuple("other", "out x")
    for times in (1, 0):
        f, x, out = anew(moved), torch.randn(16, 16), torch.empty(16, 16)
        f[(1,)](*(TensorDescriptor(t, [16, 16], [16, 1], [16, 16]) for t in (x, out)), N=16)
        assert torch.equal(x, out) and translations(f) == times
        f, x, out = anew(of_pair), torch.zeros(64), torch.empty(64)
        f[(1,)](pair(x, out), B=64)
        assert out.tolist() == [1.0] * 64 and translations(f) == times
        f[(1,)](other(out, x), B=64)
        assert translations(f) == 2 * times


def test_a_damaged_entry_is_made_again():
    x, out = torch.ones(64), torch.empty(64)
    anew(scaled)[(1,)](x, out, 64, B=64)
    for path in (Cache.from_knobs().directory / "tile").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-7])
    f = anew(scaled)
    f[(1,)](x, out, 64, B=64)
    assert translations(f) == 1 and out.tolist() == [6.0] * 64


def test_without_a_cache_everything_is_made():
    with knobs.cache.override(False):
        for _ in range(2):
            f = anew(scaled)
            f[(1,)](np.ones(64, np.float32), np.ones(64, np.float32), 64, B=64)
            assert translations(f) == 1


def test_bindings_as_text():
    f = anew(asserting)
    kernel = f.warmup(torch.ones(64), B=64, grid=(1,), debug=True)
    binding = kernel.launchable.compiled.binding
    assert len(binding.sites) == 2
    assert read_binding(binding_text(binding)) == binding


SCRIPT = """
import numpy as np
import tilewright as tw
import tilewright.language as tl
from tilewright.base.events import recording

FACTOR = tl.constexpr({factor})

@tw.jit
def times(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, i < n) * FACTOR, i < n)

with recording() as log:
    x, out = np.ones(100, np.float32), np.empty(100, np.float32)
    times[(2,)](x, out, 100, B=64)
compiled = [e for e in log.of("cache") if e.message.startswith("miss")]
print(out[99].item(), len(log.of("tile")), len(compiled))
"""


def test_another_process_compiles_nothing(tmp_path):
    script = tmp_path / "script.py"
    root = Path(__file__).resolve().parents[3]

    def run(factor):
        script.write_text(SCRIPT.format(factor=factor))
        ran = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root)},
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.split()

    value, made, _ = run(2)
    assert (value, made) == ("2.0", "1")
    assert run(2) == ["2.0", "0", "0"], "nothing is translated, and no object is missed"
    assert run(7)[:2] == ["7.0", "1"]


def times(factor):
    @tw.jit
    def multiplied(x):
        return x * factor

    return multiplied


@tw.jit
def three(out, f: tl.constexpr, g: tl.constexpr, h: tl.constexpr, B: tl.constexpr):
    i = tl.arange(0, B)
    tl.store(out + i, f(i))
    tl.store(out + B + i, g(i))
    tl.store(out + 2 * B + i, h(i))


def test_functions_of_one_name_are_distinguished_wherever_they_are():
    two, five = times(tl.constexpr(2)), times(tl.constexpr(5))
    out = torch.empty(48, dtype=torch.int32)
    for functions, factors in (((two, five, two), (2, 5, 2)), ((two, five, five), (2, 5, 5))):
        f = anew(three)
        f[(1,)](out, *functions, B=16)
        assert out.tolist() == [n * k for n in factors for k in range(16)] and translations(f) == 1


@tw.jit
def annotated(out: torch.Tensor, B: tl.constexpr):
    tl.store(out + tl.arange(0, B), 1)


def test_annotations_are_no_reason_not_to_keep():
    for count in (1, 0):
        f = anew(annotated)
        f[(1,)](torch.empty(16, dtype=torch.int32), B=16)
        assert translations(f) == count


def test_defaults_by_name_of_a_function_over_constants():
    def key(n):
        @tw.constexpr_function
        def plus(x, *, more=n):
            return x + more

        @tw.jit
        def filled(out, B: tl.constexpr):
            tl.store(out + tl.arange(0, B), plus(1))

        return key_of(Request(filled, {"B": Argument.constant(16)}), host())

    assert key(1) != key(2)


def test_forms_are_made_once_for_all_who_read_them(monkeypatch):
    x, out = torch.arange(100.0), torch.empty(100)
    anew(scaled)[(2,)](x, out, 100, B=64)
    made = []
    write = tile_compile.write_tile
    monkeypatch.setattr(tile_compile, "write_tile", lambda *a: made.append(a) or write(*a))
    kernel = anew(scaled)[(2,)](x, out, 100, B=64)
    assert not made
    assert all(kernel.asm[name] for name in ("nest", "trace", "llir", "asm")) and len(made) == 1
