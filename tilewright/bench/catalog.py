"""What can be measured, by name. No torch here: the parent process stays small and starts fast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tilewright.base.errors import Invalid

Kind = Literal["model", "operator", "program"]


@dataclass(frozen=True)
class Case:
    """Something to run: a builder of `models.py` or `operators.py`, or a user's own program."""

    name: str
    about: str
    kind: Kind
    builder: str = ""  # its name there where it is not the case's own; a program as it is named
    dtype: str | None = None  # None: the one that the command line names
    listed: bool = True  # part of `models` or `ops`, or run only when named

    def request(self) -> dict[str, Any]:
        """As it is sent to another process."""
        return asdict(self) | {"builder": self.builder or self.name}


def _models(*rows: tuple[str, str]) -> tuple[Case, ...]:
    return tuple(Case(name, about, "model") for name, about in rows)


def _operators(*rows: tuple[str, str]) -> tuple[Case, ...]:
    return tuple(Case(name, about, "operator") for name, about in rows)


MODELS = (
    *_models(
        ("resnet50", "ResNet-50, one image of 224²"),
        ("mobilenetv2", "MobileNetV2, one image of 224²"),
        ("bert", "BERT-base, 128 tokens"),
        ("gpt2", "GPT-2, 128 tokens"),
        ("vit", "ViT-B/16, one image of 224²"),
        ("llama", "a Llama of 8 layers × 1024, 64 tokens"),
        ("llama_decode1", "the same Llama, one token"),
        ("mlp", "784-1024-1024-10, a batch of 64"),
    ),
    Case("bert_bf16", "BERT-base in bfloat16, 128 tokens", "model", "bert", "bfloat16"),
    *(
        Case(name, about, "model", listed=False)
        for name, about in (
            ("convnext", "ConvNeXt-T, one image of 224²"),
            ("t5", "T5-small, 64 and 32 tokens"),
            ("clip", "CLIP ViT-B/32, two texts and one image"),
            ("whisper_encoder", "the encoder of Whisper-tiny, 30 seconds"),
            ("swin", "Swin-T, one image of 224²"),
        )
    ),
)

# The models of a run on a GPU, besides those of above: larger batches and a larger Llama.
GPU_ONLY = tuple(
    Case(name, about, "model", listed=False)
    for name, about in (
        ("bert_b32", "BERT-base, 32 times 128 tokens"),
        ("resnet50_b64", "ResNet-50, 64 images of 224²"),
        ("vit_b8", "ViT-B/16, 8 images of 224²"),
        ("llama_1b_decode1", "a Llama of 16 layers × 2048, one token"),
        ("llama_1b_512", "the same Llama, 512 tokens"),
    )
)
GPU_MODELS = (
    *("bert", "bert_b32", "gpt2", "resnet50", "resnet50_b64", "vit_b8"),
    *("llama_1b_decode1", "llama_1b_512", "t5"),
)

OPERATORS = (
    *_operators(
        ("softmax", "softmax of 4096 rows of 1024"),
        ("layernorm", "layer norm of 4096 rows of 1024"),
        ("rmsnorm", "RMS norm of 4096 rows of 1024, spelled out"),
        ("chain", "eight elementwise operators on 4 M numbers"),
        ("matmul", "1024³, both sides given at the call"),
        ("matmul_packed", "1024³, one side a weight"),
        ("linear_gelu", "128×768×3072 + bias + gelu"),
        ("attention", "12 heads, 512 × 64, causal, spelled out"),
        ("attention_fused", "the same as one operator"),
        ("conv3x3", "3×3, 64 channels, 56²"),
        ("depthwise3x3", "3×3, one per channel, 144 channels, 56²"),
    ),
    Case("matmul_bf16", "1024³ in bfloat16", "operator", "matmul", "bfloat16"),
    *_operators(
        ("gemv", "4096² times one row, the matrix a weight"),
        ("copy", "a copy of 4 M numbers"),
        ("relu", "relu of 4 M numbers"),
        ("add", "the sum of two times 4 M numbers"),
        ("gelu", "gelu of 4 M numbers"),
    ),
    Case("matmul_int8", "1024³, int8 to int32", "operator", listed=False),
    Case("attention_4096", "2 heads, 4096 × 64, causal", "operator", listed=False),
    Case("attention_8192", "2 heads, 8192 × 64, causal", "operator", listed=False),
    Case("attention_query", "one query, 4096 keys, 8 heads of 64", "operator", listed=False),
    Case("sum_middle", "[3, 100000, 3] summed over its middle axis", "operator", listed=False),
)

# How a program of the user's own is named.
PROGRAMS = "FILE.py:NAME, PACKAGE.MODULE:NAME or FILE.pt2"
SUITES = {"models": MODELS, "ops": OPERATORS}
ALL = {case.name: case for suite in (*SUITES.values(), GPU_ONLY) for case in suite}


def chosen(names: Sequence[str], device: str = "cpu") -> list[Case]:
    """The cases behind suites, names and programs, each once."""
    found: dict[str, Case] = {}
    for name in names:
        if name == "models" and device != "cpu":
            found |= {name: ALL[name] for name in GPU_MODELS}
        elif name in SUITES:
            found |= {case.name: case for case in SUITES[name] if case.listed}
        elif name in ALL:
            found[name] = ALL[name]
        elif name.endswith((".tw", ".onnx")):
            raise Invalid(
                f"{name} has no eager run to be compared with", hint=f"bench takes {PROGRAMS}"
            )
        elif ":" in name or name.endswith((".py", ".pt2")):
            found[name] = Case(name.rpartition(":")[2], name, "program", name)
        else:
            raise Invalid(
                f"nothing to measure is called {name!r}",
                hint=f"there are {', '.join([*SUITES, *ALL])}, and {PROGRAMS} for your own",
            )
    return list(found.values())
