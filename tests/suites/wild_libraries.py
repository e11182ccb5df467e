"""Libraries of Triton kernels that the suite knows, each by a folder that no other has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DRIVERS = Path(__file__).with_name("wild")


@dataclass(frozen=True)
class Library:
    name: str
    marker: str  # a folder that no other library has; none: it is torch's, and there is no checkout
    sources: tuple[str, ...]  # folders that are imported from
    kernels: tuple[str, ...]  # folders with its kernels
    tests: tuple[str, ...] = ()  # patterns of test files of its own
    without: tuple[str, ...] = ()  # words in names of test files that need a GPU or a network
    about: str = ""  # a pattern that test files have which concern its kernels
    apart: tuple[str, ...] = ()  # words in paths of kernels for other machines
    driver: str | None = None  # pattern of our files that call its kernels
    bare: tuple[str, ...] = ()  # packages whose __init__ is not run
    absent: tuple[str, ...] = ()  # modules that are stood in for though they are there
    before: tuple[str, ...] = ()  # modules imported before its tests are
    arguments: tuple[str, ...] = ()  # more for pytest
    device: str | None = "cpu"  # what tensors for a GPU are made on; None: nothing asks for one
    environment: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(
        default_factory=dict
    )  # the version that it reads as its own

    def files(self, checkout: Path) -> list[str]:
        return [
            str(path)
            for pattern in self.tests
            for path in sorted(checkout.glob(pattern))
            if not any(word in str(path.relative_to(checkout)) for word in self.without)
            and re.search(self.about, path.read_text(errors="replace"))
        ]


def _deselected(file: str, *names: str) -> tuple[str, ...]:
    return tuple(f"--deselect={file}::{name}" for name in names)


MULTI = _deselected(
    "tests/test_pointwise_dynamic.py",
    "test_dynamic_function_with_multiprocess",
)

SEVERAL = _deselected(  # they start a process for each of four GPUs
    "test/transformers/test_rms_norm.py", "test_dtensor_rms_norm"
) + _deselected("test/transformers/test_swiglu.py", "test_dtensor_liger_silumul")

LIBRARIES = (
    Library(
        name="Liger-Kernel",
        marker="src/liger_kernel/ops",
        sources=("src",),
        kernels=("src/liger_kernel/ops",),
        tests=("test/transformers/test_*.py",),
        without=("cutedsl", "cutile", "cute_", "auto_model", "monkey_patch", "trainer")
        + ("flex_attention",),  # it compares functions of torch
        driver="drive_liger.py",
        apart=("backends", "cute"),
        arguments=SEVERAL,
    ),
    Library(
        name="flash-linear-attention",
        marker="fla/ops",
        sources=(".",),
        kernels=("fla/ops", "fla/modules"),
        tests=("tests/ops/**/test_*.py", "tests/modules/test_*.py"),
        without=("tilelang", "backends", "cache"),
        # For other machines; and a file that asks for a function which is gone.
        apart=("triton_ascend", "delta_rule/parallel.py"),
        driver="drive_linear_attention*.py",
        # Of its backends the one in Triton, not those in other languages.
        environment={"FLA_DISABLE_BACKEND_DISPATCH": "1"},
    ),
    Library(
        name="attorch",
        marker="attorch/act_kernels.py",
        sources=(".",),
        kernels=("attorch",),
        tests=("tests/test_*.py",),
        without=("multi_head_attention",),  # it only says that there is no such layer
        driver="drive_attorch.py",
    ),
    Library(
        name="conch",
        marker="conch/kernels",
        sources=(".",),
        kernels=("conch/kernels",),
        tests=("tests/*_test.py",),
        driver="drive_conch.py",
        environment={"TILEWRIGHT_TRITON_BACKEND": "cuda:90"},  # which has floats of 8 bits
    ),
    Library(
        name="FlagGems",
        marker="src/flag_gems/ops",
        sources=("src",),
        kernels=("src/flag_gems/ops", "src/flag_gems/fused", "src/flag_gems/utils"),
        tests=("tests/test_*.py",),
        # Those are about threads and processes that compile at the same time.
        without=("libentry",),
        driver="drive_flag_gems.py",
        arguments=("--mode=quick", *MULTI),
        environment={"GEMS_VENDOR": "nvidia"},
    ),
    Library(
        name="unsloth",
        marker="unsloth/kernels",
        sources=(".",),
        kernels=("unsloth/kernels",),
        # Its own tests of grouped products ask torch for what only GPUs have: histc of integers.
        driver="drive_unsloth.py",
        bare=("unsloth", "unsloth.kernels"),
        before=("setup_unsloth",),
    ),
    Library(
        name="mamba-ssm",
        marker="mamba_ssm/ops/triton",
        sources=(".",),
        kernels=("mamba_ssm/ops/triton",),
        tests=("tests/ops/triton/test_*.py",),
        without=("test_ssd", "mamba3"),  # of sizes for a GPU
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
        tests=tuple(f"tests/test_{name}.py" for name in ("rmsnorm", "tiled_matmul", "indexing")),
        driver="drive_xformers.py",  # its masks are in a package of their own
    ),
    Library(
        name="torchao",
        marker="torchao/quantization",
        sources=(".",),
        kernels=("torchao",),
        tests=tuple(
            f"test/{file}.py"
            for file in (
                "prototype/mx_formats/test_kernels",
                "prototype/moe_training/nvfp4_training/test_*amax*",
                "prototype/moe_training/nvfp4_training/test_*quantize*",
            )
        )
        + ("torchao/prototype/float8nocompile/kernels/*_test.py",),
        # Its other tests are of sizes for a GPU, or of more than a kernel.
        driver="drive_torchao.py",
        before=("setup_torchao",),
        apart=("comms.py",),  # it exchanges data between GPUs
        # Tests of floats of 8 bits ask for a GPU that has them.
        environment={"TILEWRIGHT_TRITON_BACKEND": "cuda:100"},
    ),
    Library(
        name="lightllm",
        marker="lightllm/common/basemodel/triton_kernel",
        sources=(".",),
        kernels=("lightllm",),
        tests=("unit_tests/common/**/test_*.py", "unit_tests/models/**/test_*.py"),
        without=("deepep", "speed"),
        driver="drive_lightllm*.py",
        bare=("lightllm", "lightllm.common.basemodel", "lightllm.models"),
    ),
    Library(
        name="vLLM",
        marker="vllm/v1/attention",
        sources=(".",),
        kernels=("vllm",),
        tests=tuple(
            f"tests/{where}/test_*.py"
            for where in (
                *(
                    f"kernels/{x}"
                    for x in ("attention", "core", "mamba", "moe", "quantization", ".")
                ),
                *(f"models/{x}" for x in ("inkling", "kimi_k3")),
                *(f"v1/{x}" for x in ("attention", "sample", "spec_decode", "worker")),
                "v1/determinism",
            )
        )
        + tuple(f"tests/{x}.py" for x in ("lora/test_punica_ops*", "lora/test_fused_moe_lora*"))
        + (
            "tests/quantization/test_turboquant.py",
            "tests/quantization/test_per_token_kv_cache.py",
        ),
        without=("rocm", "xpu", "flashinfer", "cutlass", "deepgemm", "deepep", "marlin", "aiter")
        + ("amd", "flashmla", "cpu", "machete", "qutlass", "hadacore", "cutedsl", "combinations"),
        about="triton",
        # lamport.py lets GPUs write into each other's memory.
        apart=("rocm", "rdna", "amd", "xpu", "cutedsl", "cutlass", "flydsl", "lamport"),
        before=("setup_vllm",),
        driver="drive_vllm*.py",
        absent=("vllm.vllm_flash_attn", "llguidance", "xgrammar"),
        arguments=("--noconftest", "-p", "setup_vllm"),
        versions={"vllm": "1.0.0"},
    ),
    Library(
        name="SGLang",
        marker="python/sglang/srt/layers",
        sources=("python",),
        kernels=("python/sglang",),
        tests=(
            "test/registered/**/test_*.py",
            "test/manual/**/test_*.py",
            "python/sglang/srt/layers/attention/minimax_sparse_ops/tests/test_*.py",
            "python/sglang/multimodal_gen/test/unit/test_*triton*.py",
        ),
        without=("cute", "flashinfer", "trtllm", "deepgemm", "deep_gemm", "cutlass", "marlin")
        + ("rocm", "hip", "npu", "ascend", "xpu", "mps", "musa", "mlx", "amd", "aiter", "/cpu/")
        + (
            "e2e",
            "models",
            "eval",
            "server",
            "bench",
            "stress",
            "perf",
            "vlm",
            "-gpu-",
            "symm_mem",
        ),
        about=r"sglang\.kernels\.ops|triton",
        # Those in benchmarks and tests are copies for comparison.
        apart=(
            "npu",
            "hardware_backend",
            "kernels/aot",
            "hip",
            "rocm",
            "amd_",
            "aiter",
            "symm_mem",
        ),
        driver="drive_sglang*.py",
        # Which has floats of 8 bits.
        environment={"TILEWRIGHT_TRITON_BACKEND": "cuda:90"},
        before=("setup_sglang",),
        arguments=("--noconftest",),
    ),
    Library(
        name="triton_kernels",
        marker="python/triton_kernels/triton_kernels",
        sources=("python/triton_kernels",),
        kernels=("python/triton_kernels/triton_kernels",),
        tests=tuple(
            f"python/triton_kernels/tests/{where}test_*.py"
            for where in ("", "test_tensor_details/")
        ),
        without=("distributed", "roofline"),
        apart=("distributed.py",),  # it exchanges data between GPUs
        driver="drive_triton_kernels.py",
        environment={"TILEWRIGHT_TRITON_BACKEND": "cuda:80"},
    ),
)


INDUCTOR = Library(
    name="Inductor",
    marker="",
    sources=(),
    kernels=(),
    driver="drive_inductor.py",
    device=None,
)


def known_by(checkout: Path) -> list[Library]:
    """The libraries of which a folder is a checkout."""
    return [library for library in LIBRARIES if (checkout / library.marker).exists()]
