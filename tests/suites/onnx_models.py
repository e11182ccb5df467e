"""Hugging Face models that torch.onnx exports, read back and judged; and their speed.

    python -m tests.suites.onnx_models                 # all, small, by the rule of float64
    python -m tests.suites.onnx_models bert swin --full
    python -m tests.suites.onnx_models --written       # written by tw.to_onnx instead
    python -m tests.suites.onnx_models --speed         # the bench models beside ONNX Runtime

Needs transformers and onnxscript; `--speed` needs onnxruntime and an idle machine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils import _pytree as pytree

import tilewright as tw
from tests.suites.model_checks import DRAWS
from tests.suites.models import BUILDERS, Example, hf, language, reference, tokens
from tilewright.base.errors import TilewrightError
from tilewright.bench.example import Builder, prepared
from tilewright.bench.models import Picked, image, vision
from tilewright.bench.oracle import disagreements

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 101,
}
BENCH = tuple("resnet50 mobilenetv2 bert gpt2 vit llama llama_decode1 mlp".split())
LEFT_OUT = ("resnet50_b64", "bert_b32", "vit_b8", "llama_1b_decode1", "llama_1b_512")
MODELS: dict[str, Builder] = {k: v for k, v in BUILDERS.items() if k not in LEFT_OUT}


def model(name: str) -> Callable[[Builder], Builder]:
    def register(build: Builder) -> Builder:
        MODELS[name] = build
        return build

    return register


def _text(inner: Any, tiny: bool, *results: str) -> Example:
    return language(inner, tokens(inner.config.vocab_size, 1, 13 if tiny else 64), *results)


def _encoder(name: str, config: str, kind: str, sizes: dict[str, Any] | None = None) -> None:
    """A model that takes tokens and gives hidden states, or logits."""

    @model(name)
    def build(tiny: bool) -> Example:
        made = getattr(hf, config)(**((TINY if sizes is None else sizes) if tiny else {}))
        made.use_cache = False
        result = "logits" if kind.endswith("LM") else "last_hidden_state"
        return _text(getattr(hf, kind)(made), tiny, result)


_encoder("roberta", "RobertaConfig", "RobertaModel", TINY | {"max_position_embeddings": 64})
_encoder("electra", "ElectraConfig", "ElectraModel", TINY | {"embedding_size": 16})
_encoder("albert", "AlbertConfig", "AlbertModel", TINY | {"embedding_size": 16})
_encoder("deberta", "DebertaV2Config", "DebertaV2Model", TINY)
_encoder("mpnet", "MPNetConfig", "MPNetModel", TINY)
_encoder(
    "distilbert",
    "DistilBertConfig",
    "DistilBertModel",
    {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 101},
)
_encoder(
    "opt",
    "OPTConfig",
    "OPTForCausalLM",
    {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "ffn_dim": 64,
        "vocab_size": 101,
        "word_embed_proj_dim": 32,
    },
)
_SMALL_DECODER = {**TINY, "num_key_value_heads": 2}
_FULL_DECODER = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 8000,
}


def _decoder(name: str, config: str, kind: str) -> None:
    @model(name)
    def build(tiny: bool) -> Example:
        sizes = _SMALL_DECODER if tiny else _FULL_DECODER
        made = getattr(hf, config)(use_cache=False, **sizes)
        return _text(getattr(hf, kind)(made), tiny, "logits")


_decoder("mistral", "MistralConfig", "MistralForCausalLM")
_decoder("qwen2", "Qwen2Config", "Qwen2ForCausalLM")
_decoder("gemma", "GemmaConfig", "GemmaForCausalLM")


@model("bart")
def bart(tiny: bool) -> Example:
    sizes: dict[str, Any] = {"vocab_size": 101, "d_model": 32} if tiny else {}
    for side in ("encoder", "decoder") if tiny else ():
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 64}
    inner = hf.BartModel(hf.BartConfig(use_cache=False, **sizes))
    source, target = (tokens(inner.config.vocab_size, 1, n) for n in (13, 7))
    wanted = ("last_hidden_state", "encoder_last_hidden_state")
    return Example(Picked(inner, ("input_ids", "decoder_input_ids"), wanted), (source, target))


@model("wav2vec2")
def wav2vec2(tiny: bool) -> Example:
    small = {
        **{k: v for k, v in TINY.items() if k != "vocab_size"},
        "conv_dim": (16, 16),
        "conv_stride": (5, 2),
        "conv_kernel": (10, 3),
        "num_feat_extract_layers": 2,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
    }
    inner = hf.Wav2Vec2Model(hf.Wav2Vec2Config(**(small if tiny else {})))
    sound = torch.randn(1, 400 if tiny else 16000)
    return Example(Picked(inner, ("input_values",), ("last_hidden_state",)), (sound,))


@model("deit")
def deit(tiny: bool) -> Example:
    sizes = {k: v for k, v in TINY.items() if k != "vocab_size"} if tiny else {}
    side = 24 if tiny else 224
    config = hf.DeiTConfig(image_size=side, patch_size=8 if tiny else 16, num_labels=10, **sizes)
    return vision(hf.DeiTForImageClassification(config), image(side), "logits")


@model("segformer")
def segformer(tiny: bool) -> Example:
    small = {
        "hidden_sizes": [8, 16, 24, 32],
        "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 2, 3, 4],
        "decoder_hidden_size": 16,
    }
    config = hf.SegformerConfig(num_labels=5, **(small if tiny else {}))
    return vision(hf.SegformerForSemanticSegmentation(config), image(64 if tiny else 256), "logits")


@model("detr")
def detr(tiny: bool) -> Example:
    small: dict[str, Any] = {"d_model": 32, "num_queries": 7}
    for side in ("encoder", "decoder"):
        small |= {f"{side}_layers": 1, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 64}
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]} if tiny else {}
    body = hf.ResNetConfig(out_features=["stage2" if tiny else "stage4"], **sizes)
    config = hf.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=body,
        num_labels=5,
        **(small if tiny else {}),
    )
    inner = hf.DetrForObjectDetection(config)
    return vision(inner, image(64 if tiny else 256), "logits", "pred_boxes")


# ---- right


def exported(example: Example, path: Path, written: bool) -> Path:
    """The model as a file, by torch's exporter or by ours."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if written:
            tw.to_onnx(example.module, *example.inputs, path=path)
        else:
            torch.onnx.export(example.module, example.inputs, str(path), dynamo=True, verbose=False)
    return path


def problems(module: nn.Module, draws: Sequence[Sequence[torch.Tensor]], path: Path) -> list[str]:
    """What is wrong with the file's results, by the rule of float64. A small model may give few
    numbers, whose errors are luck: all draws of its inputs are judged together."""
    session = tw.onnx.load(path)
    names = [a.name for a in session.get_inputs()]

    def ours(*inputs: torch.Tensor) -> list[torch.Tensor]:
        feeds = dict(zip(names, (x.numpy() for x in inputs), strict=True))
        return [torch.from_numpy(np.asarray(a)) for a in session.run(None, feeds)]

    def all_of(call: Callable[..., Any]) -> list[torch.Tensor]:
        found = [pytree.tree_leaves(call(*x)) for x in draws]
        return [torch.stack(some) for some in zip(*found, strict=True)]

    with torch.no_grad():
        exact = all_of(lambda *x: reference(Example(module, tuple(x))))
        return disagreements(all_of(ours), all_of(module), exact)


def check(name: str, tiny: bool, written: bool = False) -> list[str]:
    """What is wrong with a model, or why it has no result."""
    example = prepared(MODELS[name], tiny, torch.float32)
    seeds = range(DRAWS if tiny else 1)
    draws = [prepared(MODELS[name], tiny, torch.float32, seed).inputs for seed in seeds]
    with tempfile.TemporaryDirectory() as folder:
        path = exported(example, Path(folder) / "model.onnx", written)
        try:
            return problems(example.module, draws, path)
        except TilewrightError as error:
            return [f"refused: {error}"]


# ---- speed


def race(name: str, threads: int, rounds: int, seconds: float) -> tuple[float, float]:
    """Median seconds of a call, ours and ONNX Runtime's, in turns."""
    import onnxruntime as ort

    example = prepared(MODELS[name], False, torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = exported(example, Path(folder) / "model.onnx", False)
        tw.set_threads(threads)
        session = tw.onnx.load(path)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        other = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [a.name for a in session.get_inputs()]
    feeds = dict(zip(names, (x.numpy() for x in example.inputs), strict=True))
    calls: list[Callable[[], Any]] = [
        lambda: session.run(None, feeds),
        lambda: other.run(None, feeds),
    ]
    times: list[list[float]] = [[], []]
    for call in calls:
        call()
    for _ in range(rounds):
        for k, call in enumerate(calls):
            end = time.perf_counter() + seconds
            while time.perf_counter() < end:
                start = time.perf_counter()
                call()
                times[k].append(time.perf_counter() - start)
    ours, theirs = (statistics.median(t) for t in times)
    return ours, theirs


def speed(console: Console, names: Sequence[str], threads: int, rounds: int) -> None:
    table = Table(title=f"ONNX models, {threads} threads, medians in turns")
    for title in ("model", "ours, ms", "ONNX Runtime, ms", "ratio"):
        table.add_column(title, justify="left" if title == "model" else "right")
    ratios = []
    for name in names:
        ours, theirs = race(name, threads, rounds, 1.0)
        ratios.append(theirs / ours)
        table.add_row(name, f"{ours * 1e3:.2f}", f"{theirs * 1e3:.2f}", f"{ratios[-1]:.2f}")
        console.print(f"{name}: {ratios[-1]:.2f}")
    mean = math.exp(statistics.fmean(map(math.log, ratios)))
    table.add_row("geometric mean", "", "", f"{mean:.2f}", style="bold")
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.suites.onnx_models")
    parser.add_argument("names", nargs="*", help="models; without any, all of them")
    parser.add_argument("--full", action="store_true", help="in their full sizes")
    parser.add_argument("--written", action="store_true", help="written by tw.to_onnx")
    parser.add_argument("--speed", action="store_true", help="the bench models beside ONNX Runtime")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    console = Console()
    for name in given.names:
        if name not in MODELS:
            parser.error(f"there is no model {name}; there are {', '.join(sorted(MODELS))}")
    if given.speed:
        speed(console, given.names or BENCH, given.threads, given.rounds)
        return 0
    wrong = 0
    for name in given.names or sorted(MODELS):
        start = time.perf_counter()
        try:
            found = check(name, not given.full, given.written)
        except Exception as error:  # of the exporter: told, and the next model is tried
            found = [f"not exported: {type(error).__name__}: {str(error).splitlines()[0][:200]}"]
        wrong += bool(found)
        shown = "right" if not found else "; ".join(found)
        console.print(f"{name}: {shown} ({time.perf_counter() - start:.1f} s)", highlight=False)
    count = len(given.names or MODELS)
    console.print(f"{count - wrong} of {count} right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
