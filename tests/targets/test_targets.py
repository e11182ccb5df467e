"""Targets: detected or named, printed and parsed, and refused in a sentence."""

import dataclasses
import platform

import pytest

from tilewright import targets
from tilewright.base import knobs
from tilewright.base.errors import Invalid
from tilewright.base.machine import CacheSizes, usable_cores
from tilewright.ir.target import Target
from tilewright.llvm.objects import HostCpu, assembly
from tilewright.targets import arm64, x86
from tilewright.targets.family import Host

PROCESSORS = [name for name in targets.names() if targets.get(name).grid is None]

COPY = """
define void @copy(ptr %to, ptr %from) {{
  %v = load <{lanes} x float>, ptr %from, align 4
  %w = fadd <{lanes} x float> %v, %v
  store <{lanes} x float> %w, ptr %to, align 4
  ret void
}}
"""


@pytest.mark.parametrize("name", targets.names())
def test_text_round_trips(name: str) -> None:
    target = targets.get(name)
    assert Target.parse(target.text()) == target
    assert Target.parse(f"# a comment\n\n{target}") == target


@pytest.mark.parametrize("name", PROCESSORS)
def test_one_vector_is_one_register(name: str) -> None:
    target = targets.get(name)
    text = assembly(COPY.format(lanes=target.lanes(32)), target)
    adds = [line for line in text.splitlines() if "add" in line.split("#")[0]]
    assert len(adds) == 1, text


def test_host() -> None:
    host = targets.host()
    assert host.name == "host"
    assert host.cores == usable_cores()
    machine = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}
    assert host.arch == machine[platform.machine()]
    assert host.l1 <= host.l2
    assert targets.get("host") == host == targets.host()


def test_lanes() -> None:
    v3 = targets.get("x86-64-v3")
    assert [v3.lanes(bits) for bits in (8, 16, 32, 64, 512)] == [32, 16, 8, 4, 1]
    with pytest.raises(Invalid, match="positive number of bits"):
        v3.lanes(0)


def test_features() -> None:
    v3, v4 = targets.get("x86-64-v3"), targets.get("x86-64-v4")
    assert v3.has("avx2") and v3.has_fma and not v3.has("avx512f")
    assert v4.has("avx512f") and v4.vector_registers == 32
    assert not targets.get("x86-64").has_fma
    assert targets.get("arm64").has_fma


def test_keys() -> None:
    v3 = targets.get("x86-64-v3")
    renamed = dataclasses.replace(v3, name="mine")
    bigger = dataclasses.replace(v3, cores=64)
    assert renamed.key() == v3.key()
    assert bigger.key() != v3.key()
    assert bigger.codegen_key() == v3.codegen_key()
    known = [targets.get(name) for name in PROCESSORS[1:]]
    apart = [x for x in known if not any("." in f for f in x.features)]
    assert len({x.codegen_key() for x in apart}) == len(apart) < len(known)


def test_features_that_llvm_does_not_know() -> None:
    """Programs ask them of the machine; LLVM would complain."""
    plain, arm = targets.get("wasm32"), targets.get("wasm32-arm")
    (own,) = set(arm.features) - set(plain.features)
    assert arm.has(own[1:]) and "." in own and own[1:] in targets.family_of(arm).tests
    assert arm.feature_string() == plain.feature_string() == ",".join(plain.features)
    assert arm.codegen_key() == plain.codegen_key() and arm.key() != plain.key()


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(Invalid, match="no target 'vax'") as caught:
        targets.get("vax")
    for name in ("host", "x86-64", "x86-64-v3", "x86-64-v4", "arm64"):
        assert name in str(caught.value)


def test_default_follows_the_knob() -> None:
    with knobs.target.override(None):
        assert targets.default() == targets.host()
    with knobs.target.override("x86-64-v4"):
        assert targets.default() == targets.here(targets.get("x86-64-v4"))
    with knobs.target.override("nothing"), pytest.raises(Invalid, match="no target"):
        targets.default()


def host_with(triple: str, features: tuple[str, ...], flags: frozenset[str] = frozenset()) -> Host:
    return Host(HostCpu(triple, "generic", features), flags, CacheSizes(1, 2, 3), 7)


@pytest.mark.parametrize(
    ("features", "bits", "registers"),
    [
        ((), 128, 16),
        (("+avx2", "+fma"), 256, 16),
        (("+avx2", "+fma", "+avx512f"), 256, 16),
        (("+avx2", "+fma", "+avx512f", "+avx512bw", "+avx512vl", "+avx512dq"), 512, 32),
    ],
)
def test_x86_hosts(features: tuple[str, ...], bits: int, registers: int) -> None:
    target = x86.describe(host_with("x86_64-unknown-linux-gnu", features))
    assert (target.vector_bits, target.vector_registers) == (bits, registers)
    assert target.has_fma == ("+fma" in features)
    assert (target.l1, target.l2, target.l3, target.cores) == (1, 2, 3, 7)


def test_arm64_hosts_learn_from_the_kernel() -> None:
    flags = frozenset({"asimdhp", "asimddp", "sha1"})
    target = arm64.describe(host_with("aarch64-unknown-linux-gnu", ("+neon", "-dotprod"), flags))
    assert target.features == ("+dotprod", "+fullfp16", "+neon")
    assert target.has_f16
    plain = arm64.describe(host_with("aarch64-unknown-linux-gnu", ("+neon",)))
    assert not plain.has_f16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins `target NAME`"),
        ("target", "begins `target NAME`"),
        ("target t\n  cpu c", "lacks triple"),
        ("target t\n  triple a-b-c\n  cpu c\n  wings 2", "no field 'wings'"),
        ("target t\n  triple a-b-c\n  cpu c\n  cores two", "whole number"),
        ("target t\n  triple a-b-c\n  cpu c\n  cores 0", "must be positive"),
        ("target t\n  triple a-b-c\n  cpu c\n  has_fma 1", "yes or no"),
        ("target t\n  triple a-b-c\n  cpu c\n  features avx", r"\+name or -name"),
        ("target t\n  triple a b\n  cpu c", "one word"),
        ("target t\n  triple a-b-c\n  cpu c\n  grid.ptx 83", "lacks grid.capability"),
        ("target t\n  triple a-b-c\n  cpu c\n  grid.wings 2", "no field 'grid.wings'"),
        ("target t\n  triple a-b-c\n  cpu c\n  grid.ptx 83\n  grid.capability 0", "positive"),
    ],
)
def test_bad_text_gets_a_sentence(text: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        Target.parse(text)
