"""Pages of models: what they take their inputs for, and whether browsers show the right results."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.web.browsers import BROWSERS, browser
from tests.web.nets import Image, drawn, mixed
from tests.web.server import serving
from tilewright.base.errors import Invalid, TilewrightError, Unsupported
from tilewright.driver.export import web
from tilewright.driver.export.api import Exported
from tilewright.driver.export.web import Page, Picture, export_page, static_files, write_page

WORDS = "[PAD] [UNK] [CLS] [SEP] the quick fox jump ##s ##ed over it , ! a".split()


def described(name: str, dtype: str, *shape: int | str) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}


def settings(*inputs: dict[str, Any], text: bool = False) -> dict[str, dict[str, Any]]:
    manifest = {"name": "net", "inputs": list(inputs), "dims": {"n": [2, 64]}}
    return web._inputs(manifest, Picture((0.5,), (0.25,)), text, True)


def test_what_inputs_are_follows_from_their_shapes() -> None:
    cases = {
        ("f32", 1, 3, 8, 9): ("image", "NCHW"),
        ("f32", "n", 8, 9, 1): ("image", "NHWC"),
        ("f32", 2, 3, 8, 9): ("numbers", None),
        ("f32", 1, 16, 8, 9): ("numbers", None),
        ("f64", 1, 3, 8, 9): ("numbers", None),
        ("i64", 1, "n"): ("numbers", None),
    }
    for (dtype, *shape), (kind, layout) in cases.items():
        found = settings(described("x", str(dtype), *shape))["x"]
        assert (found["kind"], found.get("layout")) == (kind, layout), shape
    floats = settings(described("x", "f32", 1, 3, 8, 8))["x"]
    assert floats["mean"] == [0.5] * 3 and floats["scale"] == pytest.approx(1 / 255)
    whole = settings(described("x", "u8", 1, 8, 8, 3))["x"]
    assert (whole["scale"], whole["mean"], whole["std"]) == (1, [0.0] * 3, [1.0] * 3)


def test_masks_go_with_the_text() -> None:
    names = ("ids", "attention_mask", "token_type_ids", "more")
    shapes: list[tuple[int | str, ...]] = [(1, "n"), (1, "n"), (1, "n"), (1, 7)]
    inputs = [described(n, "i64", *s) for n, s in zip(names, shapes)]
    found = settings(*inputs, text=True)
    assert found["ids"]["mask"] == "attention_mask" and found["ids"]["bounds"] == [2, 64]
    assert found["ids"]["types"] == "token_type_ids"
    assert found["attention_mask"] == {"kind": "text", "with": "ids"}
    assert found["more"] == {"kind": "numbers"}


def test_what_no_page_can_be_made_of_gets_a_sentence(tmp_path: Path) -> None:
    def file(name: str, text: str) -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    used = tmp_path / "used"
    used.mkdir()
    (used / "mine.txt").write_text("")
    byte_pairs = file("tokenizer.json", '{"model": {"type": "BPE"}}')

    def no_package(path: Path) -> Exported:
        return Exported(path, {"name": "net"}, ())

    table: list[tuple[dict[str, Any], type[TilewrightError], str]] = [
        ({}, Invalid, "no browser runs code for"),
        ({"path": used}, Invalid, "is there, and no page of a model"),
        ({"path": tmp_path / "no" / "site"}, Invalid, "there is no folder"),
        ({"labels": tmp_path / "none.txt"}, Invalid, "none.txt cannot be read"),
        ({"labels": file("a.json", "3")}, Invalid, "a.json is no list of labels"),
        ({"labels": file("b.json", "[")}, Invalid, "b.json is not JSON"),
        ({"vocabulary": file("v.txt", "a\nb")}, Invalid, r"\[CLS\] or \[SEP\] is missing"),
        ({"vocabulary": byte_pairs}, Unsupported, "a tokenizer of type BPE, and the page knows"),
    ]
    for options, kind, words in table:
        with pytest.raises(kind, match=words):
            write_page(options.pop("path", tmp_path / "site"), Page(**options), no_package)
    with pytest.raises(Invalid, match="mean has 2 numbers, and x has 3 channels"):
        Picture((0.1, 0.2)).settings("x", 3)
    for wrong in (
        partial(Picture, crop=0),
        partial(Picture, fit="squeeze"),
        partial(Picture, std=(0.0,)),
    ):
        with pytest.raises(TilewrightError):
            wrong()
    with pytest.raises(Unsupported, match="net has no input for a text"):
        settings(described("x", "f32", 1, 4), text=True)


def test_word_pieces() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    texts = ["The quick FOX jumps, jumped!", "thé foxes", "", "a\n it  it"]
    program = """
const { pieces } = await import(process.argv[1]);
const [words, texts] = JSON.parse(process.argv[2]);
const vocabulary = new Map(words.map((w, k) => [w, k]));
console.log(JSON.stringify(texts.map(t => pieces(t, vocabulary, true))));
"""
    script = str(files("tilewright") / "web" / "page" / "inputs.js")
    command = [node, "--input-type=module", "-e", program, script, json.dumps([WORDS, texts])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert json.loads(done.stdout or "0") == [
        "the quick fox jump ##s , jump ##ed !".split(),
        ["the", "[UNK]"],
        [],
        "a it it".split(),
    ], done.stderr


def pixels() -> np.ndarray:
    """An image that fits the input exactly, so that nothing is resized."""
    k = np.arange(24 * 24 * 3)
    return (k * 7919 % 256).astype(np.uint8).reshape(24, 24, 3)


DROP = """
const pixels = new ImageData(24, 24);
for (let p = 0, k = 0; p < 24 * 24; p++) {
  for (let c = 0; c < 3; c++, k++) pixels.data[4 * p + c] = (k * 7919) % 256;
  pixels.data[4 * p + 3] = 255;
}
const canvas = Object.assign(document.createElement("canvas"), { width: 24, height: 24 });
canvas.getContext("2d").putImageData(pixels, 0, 0);
const blob = await new Promise(done => canvas.toBlob(done, "image/png"));
const dataTransfer = new DataTransfer();
dataTransfer.items.add(new File([blob], "image.png", { type: "image/png" }));
const drop = new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true });
document.querySelector(".drop").dispatchEvent(drop);
"""
TEXT = """
const area = document.querySelector("textarea");
area.value = "The quick fox jumped over it!";
area.dispatchEvent(new Event("input"));
"""
NUMBERS = """
const [x, kind] = document.querySelectorAll("textarea");
document.querySelector("input[type=number]").value = 2;
[x.value, kind.value] = [ROWS, KINDS];
kind.dispatchEvent(new Event("input"));
"""


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), 16)
        self.last = nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shown = self.embed(ids) * mask.unsqueeze(-1).float()
        return self.last(shown.sum(1))


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sites")
    torch.manual_seed(0)
    labels = folder / "labels.txt"
    labels.write_text("north\neast\nsouth\nwest\n")
    picture = Picture((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    image = Image().eval()
    page = Page(picture=picture, labels=labels)
    export_page(image, torch.randn(1, 3, 24, 24), path=folder / "image", page=page)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS))
    length = torch.export.Dim("length", min=2, max=32)
    ids = torch.zeros(1, 5, dtype=torch.long)
    text = Text().eval()
    dynamic = {"ids": {1: length}, "mask": {1: length}}
    export_page(
        text, ids, ids + 1, path=folder / "text", page=Page(vocabulary=vocabulary), dynamic=dynamic
    )
    rows = torch.export.Dim("rows", min=1, max=64)
    dynamic = {"x": {0: rows}, "kind": {0: rows}}
    export_page(mixed(), *drawn(4), path=folder / "numbers", dynamic=dynamic)
    torch.save((image, text), folder / "models.pt")
    return folder


def rights(sites: Path) -> dict[str, list[str]]:
    """What pages should show."""
    image, text = torch.load(sites / "models.pt", weights_only=False)
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.25, 0.3])
    x = (torch.from_numpy(pixels()) / 255 - mean) / std
    names = ["north", "east", "south", "west"]
    ids = [WORDS.index(w) for w in "[CLS] the quick fox jump ##ed over it ! [SEP]".split()]
    tokens = torch.tensor([ids])
    with torch.no_grad():
        seen = image(x.permute(2, 0, 1)[None])[0].softmax(-1)
        told = text(tokens, torch.ones_like(tokens))[0].softmax(-1)
        made = mixed()(*drawn(2))["y"]
    return {
        "image": [f"{names[k]} {100 * seen[k]:.1f} %" for k in seen.argsort(descending=True)],
        "text": [f"Class {k} {100 * told[k]:.1f} %" for k in told.argsort(descending=True)],
        "numbers": [f"{float(v):.4g}" for v in made.flatten()],
    }


SHOWN = """
const shown = x => x.innerText.replace(/\\s+/g, " ").trim();
return [...document.querySelectorAll(".classes li")].map(shown);
"""
CELLS = """
const cells = document.querySelectorAll("#results .card:first-child td");
return [...cells].map(x => x.innerText);
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolated", [True, False])
@pytest.mark.parametrize("name", BROWSERS)
def test_pages_show_right_results(name: str, isolated: bool, sites: Path, tmp_path: Path) -> None:
    x, kind = drawn(2)
    numbers = NUMBERS.replace("ROWS", json.dumps(str(x.flatten().tolist())))
    numbers = numbers.replace("KINDS", json.dumps(str(kind.tolist())))
    acts = {"image": DROP, "text": TEXT, "numbers": numbers}
    right = rights(sites)
    with browser(name, tmp_path) as b, serving({"/": sites}, isolated) as url:
        for kind_of_page, act in acts.items():
            b.open(f"{url}/{kind_of_page}/index.html?threads=2")
            b.until("document.documentElement.dataset.ready")
            b.evaluate(act)
            b.until("!!document.querySelector('#results h2')")
            found = b.evaluate(CELLS if kind_of_page == "numbers" else SHOWN)
            want = right[kind_of_page]
            if kind_of_page == "numbers":
                np.testing.assert_allclose(list(map(float, found)), list(map(float, want)), 2e-3)
            else:
                assert found == want
            facts = b.evaluate("return document.getElementById('facts').innerText")
            assert f"Threads\n{2 if isolated else 1}\n" in facts
            assert ("threads" in facts) == isolated
            assert not b.evaluate("return document.getElementById('error').textContent")


@pytest.mark.slow
@pytest.mark.parametrize("name", BROWSERS)
def test_a_page_says_what_is_wrong(name: str, sites: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(sites / "numbers", broken)
    weights = broken / "package" / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-64])
    error = "document.getElementById('error').textContent"
    with browser(name, tmp_path / "profile") as b, serving({"/": tmp_path, "/good/": sites}) as url:
        b.open(f"{url}/site/index.html")
        assert "the file is truncated" in b.until(error)
        b.open(f"{url}/good/numbers/index.html")
        b.until("document.documentElement.dataset.ready")
        act = "const [x] = document.querySelectorAll('textarea'); x.value = '1 2 three';"
        b.evaluate(f"{act} x.dispatchEvent(new Event('input'))")
        assert "“three” is no number" in b.until(error)


def test_files_of_every_page() -> None:
    names = {x.name for x in static_files()}
    assert {"index.html", "page.css", "page.js", "tilewright.js", "tilewright.d.ts"} <= names
    assert sum(len(x.read_bytes()) for x in static_files()) < 60_000
