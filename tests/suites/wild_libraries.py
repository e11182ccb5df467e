"""Libraries of Triton kernels that the suite knows, each by a folder that no other has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DRIVERS = Path(__file__).with_name("wild")


@dataclass(frozen=True)
class Library:
    name: str
    marker: str  # a folder or file that no other library has
    sources: tuple[str, ...]  # folders that are imported from
    kernels: tuple[str, ...]  # folders with its kernels
    tests: tuple[str, ...] = ()  # patterns of test files of its own
    without: tuple[str, ...] = ()  # words in names of test files that need a GPU or a network
    apart: tuple[str, ...] = ()  # words in paths of kernels for other machines
    driver: str | None = None  # our file that calls its kernels
    bare: tuple[str, ...] = ()  # packages whose __init__ is not run
    before: tuple[str, ...] = ()  # modules imported before its tests are
    arguments: tuple[str, ...] = ()  # more for pytest
    environment: Mapping[str, str] = field(default_factory=dict)

    def files(self, checkout: Path) -> list[str]:
        return [
            str(path)
            for pattern in self.tests
            for path in sorted(checkout.glob(pattern))
            if not any(word in str(path.relative_to(checkout)) for word in self.without)
        ]


LIBRARIES = (
    Library(
        name="Liger-Kernel",
        marker="src/liger_kernel/ops",
        sources=("src",),
        kernels=("src/liger_kernel/ops",),
        tests=("test/transformers/test_*.py",),
        without=("cutedsl", "cutile", "cute_", "auto_model", "monkey_patch", "trainer"),
        apart=("backends", "cute"),
    ),
    Library(
        name="flash-linear-attention",
        marker="fla/ops",
        sources=(".",),
        kernels=("fla/ops", "fla/modules"),
        tests=("tests/ops/test_*.py", "tests/modules/test_*.py"),
        without=("tilelang", "backends", "cache"),
    ),
    Library(
        name="attorch",
        marker="attorch/act_kernels.py",
        sources=(".",),
        kernels=("attorch",),
        tests=("tests/test_*.py",),
        driver="drive_attorch.py",
    ),
    Library(
        name="conch",
        marker="conch/kernels",
        sources=(".",),
        kernels=("conch/kernels",),
        tests=("tests/*_test.py",),
    ),
    Library(
        name="FlagGems",
        marker="src/flag_gems/ops",
        sources=("src",),
        kernels=("src/flag_gems/ops", "src/flag_gems/fused", "src/flag_gems/utils"),
        tests=("tests/test_*.py",),
        before=("setup_flag_gems",),
        arguments=("--mode=quick",),
        environment={"GEMS_VENDOR": "nvidia"},
    ),
    Library(
        name="unsloth",
        marker="unsloth/kernels",
        sources=(".",),
        kernels=("unsloth/kernels",),
        driver="drive_unsloth.py",
        bare=("unsloth", "unsloth.kernels"),
    ),
    Library(
        name="mamba-ssm",
        marker="mamba_ssm/ops/triton",
        sources=(".",),
        kernels=("mamba_ssm/ops/triton",),
        tests=("tests/ops/triton/test_*.py",),
        driver="drive_mamba.py",
        bare=("mamba_ssm",),
    ),
    Library(
        name="flash-attention",
        marker="flash_attn/ops/triton",
        sources=(".",),
        kernels=("flash_attn/ops/triton", "flash_attn/losses", "flash_attn/layers"),
        driver="drive_flash_attention.py",
        bare=("flash_attn",),
    ),
    Library(
        name="xformers",
        marker="xformers/ops/_triton",
        sources=(".",),
        kernels=("xformers/ops", "xformers/triton"),
        tests=("tests/test_rmsnorm.py", "tests/test_rope_padded.py", "tests/test_tiled_matmul.py"),
        driver="drive_xformers.py",
    ),
    Library(
        name="torchao",
        marker="torchao/kernel",
        sources=(".",),
        kernels=("torchao",),
        driver="drive_torchao.py",
    ),
    Library(
        name="lightllm",
        marker="lightllm/common/basemodel/triton_kernel",
        sources=(".",),
        kernels=("lightllm",),
        driver="drive_lightllm.py",
        bare=("lightllm",),
    ),
    Library(
        name="vLLM",
        marker="vllm/v1/attention",
        sources=(".",),
        kernels=("vllm",),
        driver="drive_vllm.py",
        bare=("vllm",),
    ),
    Library(
        name="SGLang",
        marker="python/sglang/srt/layers",
        sources=("python",),
        kernels=("python/sglang/srt",),
        driver="drive_sglang.py",
        bare=("sglang", "sglang.srt"),
    ),
    Library(
        name="triton_kernels",
        marker="python/triton_kernels/triton_kernels",
        sources=("python/triton_kernels",),
        kernels=("python/triton_kernels/triton_kernels",),
        tests=("python/triton_kernels/tests/test_*.py",),
        without=("distributed", "roofline"),
        environment={"TILEWRIGHT_TRITON_BACKEND": "cuda:80"},
    ),
)


def known_by(checkout: Path) -> list[Library]:
    """The libraries of which a folder is a checkout."""
    return [library for library in LIBRARIES if (checkout / library.marker).exists()]
