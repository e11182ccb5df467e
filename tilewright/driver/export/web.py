"""A page for a model: static files that any web server serves, with the model's package inside."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from tilewright.base.errors import Invalid, Unsupported, require
from tilewright.driver.export.api import Exported, export
from tilewright.targets import wasm

TARGETS = tuple(x.name for x in wasm.FAMILY.presets)
_PACKAGE, _PAGE, _VOCABULARY = "package", "page.json", "vocabulary.txt"
FITS = ("crop", "stretch")
# What some servers of static files read: with these headers a page may have threads.
_HEADERS = """/*
  Cross-Origin-Opener-Policy: same-origin
  Cross-Origin-Embedder-Policy: require-corp
"""


@dataclass(frozen=True)
class Picture:
    """How the page makes an input of an image: bytes / 255, less `mean`, divided by `std`, for each
    channel (or one number for all). Of the image it takes the middle, in the input's proportions
    and `crop` times as large as possible; all of it with `fit="stretch"`."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    crop: float = 1.0
    fit: str = "crop"

    def __post_init__(self) -> None:
        require(0 < self.crop <= 1, f"crop is {self.crop}: a part of the image, up to 1")
        require(self.fit in FITS, f"fit is {self.fit!r}", hint=f"one of {', '.join(FITS)}")
        require(all(x > 0 for x in self.std), f"std is {self.std}: numbers above 0")

    def settings(self, name: str, channels: int) -> dict[str, Any]:
        def of_each(values: tuple[float, ...], what: str) -> list[float]:
            if len(values) not in (1, channels):
                raise Invalid(
                    f"{what} has {len(values)} numbers, and {name} has {channels} channels",
                    hint="one number, or one of each channel",
                )
            return list(values) * (channels if len(values) == 1 else 1)

        mean, std = of_each(self.mean, "mean"), of_each(self.std, "std")
        return {"mean": mean, "std": std, "crop": self.crop, "fit": self.fit}


@dataclass(frozen=True)
class Page:
    """What the page of a model shows. `labels` is a file with the names of the classes, one in a
    line or a list in JSON; `vocabulary` one of word pieces (`vocab.txt`, or a `tokenizer.json` that
    has such), by which a text becomes numbers."""

    title: str | None = None
    picture: Picture = Picture()
    labels: str | Path | None = None
    vocabulary: str | Path | None = None


def export_page(
    model: Any,
    *examples: Any,
    path: str | Path,
    page: Page | None = None,
    target: str | Sequence[str] = TARGETS,
    **options: Any,
) -> Exported:
    """Write a folder with a page that runs a model in the browser, on an image, a text or numbers.

    What an input is follows from its shape: four axes of which one has 1 or 3 channels are an
    image (see `Picture`), whole numbers in two axes a text, if the page has a vocabulary; others
    are numbers. Other options are `tw.export`'s.
    """

    def make(package: Path) -> Exported:
        return export(model, *examples, path=package, target=target, **options)

    return write_page(Path(path), page or Page(), make)


def write_page(path: Path, page: Page, make: Callable[[Path], Exported]) -> Exported:
    """The same of a package that `make` writes to the folder it is given."""
    names = _labels(Path(page.labels)) if page.labels is not None else None
    pieces, lower = _pieces(Path(page.vocabulary)) if page.vocabulary is not None else (None, False)
    parent = path.absolute().parent
    require(parent.is_dir(), f"there is no folder {parent}", hint="make it first")
    ours = (path / _PAGE).is_file() or (path.is_dir() and not any(path.iterdir()))
    if path.exists() and not ours:
        raise Invalid(f"{path} is there, and no page of a model", hint="give a path of its own")
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{path.name}.") as folder:
        made = Path(folder) / path.name
        made.mkdir()
        found = make(made / _PACKAGE)
        if not any(x.module for x in found.levels):
            raise Invalid(
                f"no browser runs code for {', '.join(x.target.name for x in found.levels)}",
                hint=f"targets of pages are {', '.join(TARGETS)}",
            )
        settings = {
            "title": page.title or found.manifest["name"],
            "package": f"{_PACKAGE}/",
            "inputs": _inputs(found.manifest, page.picture, pieces is not None, lower),
            "labels": names,
        }
        (made / _PAGE).write_text(json.dumps(settings, indent=1, ensure_ascii=False) + "\n")
        if pieces is not None:
            (made / _VOCABULARY).write_text("\n".join(pieces) + "\n")
        (made / "_headers").write_text(_HEADERS)
        for file in static_files():
            (made / file.name).write_bytes(file.read_bytes())
        if path.exists():
            shutil.rmtree(path)
        made.rename(path)
    return Exported(path, found.manifest, found.levels)


def static_files() -> list[Traversable]:
    """Files that are the same in every page."""
    web = files("tilewright") / "web"
    own = [x for x in (web / "page").iterdir() if x.is_file()]
    return [*sorted(own, key=lambda x: x.name), web / "tilewright.js", web / "tilewright.d.ts"]


def _inputs(
    manifest: dict[str, Any], picture: Picture, has_vocabulary: bool, lower: bool
) -> dict[str, dict[str, Any]]:
    """What the page makes of each input."""
    found: dict[str, dict[str, Any]] = {}
    for x in manifest["inputs"]:
        name, shape = x["name"], x["shape"]
        layout = _layout(x)
        if layout is not None:
            channels = shape[1] if layout == "NCHW" else shape[3]
            whole = x["dtype"] == "u8"
            own = (Picture() if whole else picture).settings(name, channels)
            scale = 1 if whole else 1 / 255
            found[name] = {"kind": "image", "layout": layout, "scale": scale, **own}
        else:
            found[name] = {"kind": "numbers"}
    if has_vocabulary:
        _of_text(manifest, found, lower)
    return found


def _layout(x: dict[str, Any]) -> str | None:
    """The order of axes of an image; None: it is none."""
    shape = x["shape"]
    numbers = x["dtype"] in ("f32", "f16", "bf16", "u8")
    if not numbers or len(shape) != 4 or not (shape[0] == 1 or isinstance(shape[0], str)):
        return None
    return "NCHW" if shape[1] in (1, 3) else "NHWC" if shape[3] in (1, 3) else None


def _of_text(manifest: dict[str, Any], found: dict[str, dict[str, Any]], lower: bool) -> None:
    """The first input of tokens is the text's, and those of the same shape go with it."""
    whole = [x for x in manifest["inputs"] if x["dtype"] in ("i64", "i32")]
    tokens = [x for x in whole if len(x["shape"]) == 2]
    if not tokens:
        raise Unsupported(
            f"{manifest['name']} has no input for a text: whole numbers in two axes",
            hint="leave the vocabulary out",
        )
    first = tokens[0]
    length = first["shape"][1]
    bounds = manifest["dims"][length] if isinstance(length, str) else [length, length]
    settings = {"kind": "text", "vocabulary": _VOCABULARY, "lower": lower, "bounds": bounds}
    for x in tokens[1:]:
        role = next((r for r in ("mask", "type") if r in x["name"]), None)
        if role is not None and x["shape"] == first["shape"]:
            settings["mask" if role == "mask" else "types"] = x["name"]
            found[x["name"]] = {"kind": "text", "with": first["name"]}
    found[first["name"]] = settings


def _labels(path: Path) -> list[str]:
    text = _read(path)
    if path.suffix != ".json":
        return text.splitlines()
    names = _json(path, text)
    if isinstance(names, dict):
        try:
            names = [names[k] for k in sorted(names, key=int)]
        except ValueError:
            names = None
    if not isinstance(names, list):
        raise Invalid(f"{path} is no list of labels", hint='["cat", "dog"], or {"0": "cat", …}')
    return [str(x) for x in names]


def _pieces(path: Path) -> tuple[list[str], bool]:
    """Word pieces in order, and whether texts are in lower case."""
    text = _read(path)
    if path.suffix != ".json":
        pieces = text.splitlines()
        lower = not any(x[:1].isupper() for x in pieces)
    else:
        found = _json(path, text)
        model = found.get("model", {}) if isinstance(found, dict) else {}
        if model.get("type") != "WordPiece":
            raise Unsupported(
                f"{path} has a tokenizer of type {model.get('type')}, and the page knows WordPiece",
                hint="leave it out: the page then takes numbers of tokens",
            )
        pieces = sorted(model["vocab"], key=model["vocab"].get)
        lower = bool((found.get("normalizer") or {}).get("lowercase", True))
    if "[CLS]" not in pieces or "[SEP]" not in pieces:
        raise Invalid(f"{path} is no vocabulary of word pieces: [CLS] or [SEP] is missing")
    return pieces, lower


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise Invalid(f"{path} cannot be read: {problem}") from None


def _json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as problem:
        raise Invalid(f"{path} is not JSON: {problem}") from None
