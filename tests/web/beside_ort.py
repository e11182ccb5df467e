"""Ours beside onnxruntime-web in one page of Chromium, in turns.

    python -m tests.web.beside_ort --ort node_modules/onnxruntime-web/dist [--models resnet18,…]
        [--threads 1] [--rounds 20] [--folder kept]

`npm install onnxruntime-web` gets that folder. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tests.web.browsers import Chromium
from tests.web.server import serving
from tilewright.bench.example import Example
from tilewright.bench.models import image, language, randomize_batch_norm, tokens, vision
from tilewright.driver.export.api import export

hf: Any = import_module("transformers")
# Times as fast as onnxruntime-web: with SIMD128, and with relaxed SIMD.
BARS = {"resnet18": (2.7, 3.2), "mobilenetv2": (2.0, 2.3), "bert": (1.4, 1.7)}


def resnet18() -> Example:
    sizes = {"hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2], "num_labels": 1000}
    inner = hf.ResNetForImageClassification(hf.ResNetConfig(layer_type="basic", **sizes))
    return vision(randomize_batch_norm(inner), image(224), "logits")


def mobilenetv2() -> Example:
    config = hf.MobileNetV2Config(image_size=224, num_labels=1000)
    inner = hf.MobileNetV2ForImageClassification(config)
    return vision(randomize_batch_norm(inner), image(224), "logits")


def bert() -> Example:
    """Six layers of 384, 128 tokens."""
    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12}
    inner = hf.BertModel(hf.BertConfig(intermediate_size=1536, **sizes))
    return language(inner, tokens(30522, 1, 128), "last_hidden_state")


MODELS: dict[str, Callable[[], Example]] = {
    "resnet18": resnet18,
    "mobilenetv2": mobilenetv2,
    "bert": bert,
}


def prepare(name: str, folder: Path, targets: list[str]) -> None:
    """The package, the ONNX file, an input and the right result."""
    torch.manual_seed(0)
    example = MODELS[name]()
    model = example.module.eval()
    with torch.no_grad():
        right = model(*example.inputs)[0]
    example.inputs[0].numpy().tofile(folder / f"{name}.input")
    right.numpy().tofile(folder / f"{name}.output")
    export(model, *example.inputs, path=folder / name, target=targets, name=name)
    path = str(folder / f"{name}.onnx")
    torch.onnx.export(model, example.inputs, path, dynamo=False, opset_version=17)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--ort", type=Path, required=True)
    p.add_argument("--models", default=",".join(MODELS))
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--rounds", type=int, default=20)
    p.add_argument("--folder", type=Path, help="where models are made; those that are there stay")
    given = p.parse_args()
    own = tempfile.TemporaryDirectory()
    folder = given.folder or Path(own.name)
    folder.mkdir(exist_ok=True)
    suffix = "-threads" if given.threads > 1 else ""
    suffix += "-arm" if platform.machine() in ("aarch64", "arm64") else ""
    targets = [f"wasm32{suffix}", f"wasm32-relaxed{suffix}"]
    for name in given.models.split(","):
        if not (folder / f"{name}.onnx").exists():
            prepare(name, folder, targets)
    here = Path(__file__).parent
    folders = {"/": here, "/ort/": given.ort, "/models/": folder}
    folders["/web/"] = Path(str(files("tilewright") / "web"))
    with serving(folders) as url, Chromium(Path(own.name) / "profile") as page:
        for name in given.models.split(","):
            page.open(f"{url}/beside_ort.html")
            page.until("window.ready")
            call = ", ".join(map(json.dumps, (name, targets, given.threads, given.rounds)))
            found = page.evaluate(f"return await race({call})")
            _show(name, found)


def _show(name: str, found: list[dict[str, Any]]) -> None:
    base, *_ = found
    for x, bar in zip(found, (1.0, *BARS[name])):
        best, middle = min(x["milliseconds"]), median(x["milliseconds"])
        faster = min(base["milliseconds"]) / best, median(base["milliseconds"]) / middle
        print(
            f"{name:12} {x['name']:24} best {best:7.1f} ms ({faster[0]:.2f}x, bar {bar}) "
            f"median {middle:7.1f} ms ({faster[1]:.2f}x) error {x['error']:.1e}",
            flush=True,
        )


if __name__ == "__main__":
    main()
