"""Tutorials as pages: their text and code, and what they printed and drew when they were run."""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from docs.generator.pieces import block, details
from tilewright.base.cache import Cache
from tilewright.base.errors import Invalid

ROOT = Path(__file__).resolve().parents[2]
WIDTH = "140"  # of what tutorials print: loops are not folded, a page scrolls


@dataclass(frozen=True)
class Tutorial:
    """A Python file of docs/, how it is run for its page, and the pictures that this draws."""

    path: str  # below docs/
    title: str
    arguments: tuple[str, ...] = ()  # PICTURES stands for the folder of pictures
    pictures: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return Path(self.path).stem

    @property
    def uri(self) -> str:
        return f"tutorials/{self.name}.md"

    @property
    def source(self) -> str:
        return (ROOT / "docs" / self.path).read_text()


TOUR = Tutorial("tour.py", "A tour of the compiler")
TUTORIALS = (
    TOUR,
    Tutorial(
        "tutorials/matmul.py",
        "A fast matrix product",
        ("--loops", "--plot", "PICTURES/matmul.svg"),
        ("matmul.svg",),
    ),
    Tutorial(
        "tutorials/conv_softmax.py",
        "Convolution and softmax",
        ("--loops", "--plot", "PICTURES/conv_softmax.svg"),
        ("conv_softmax.svg",),
    ),
    Tutorial("tutorials/tile_kernels.py", "Kernels over tiles"),
)


@dataclass(frozen=True)
class Output:
    """What a run left behind."""

    text: str
    machine: str
    pictures: Mapping[str, bytes] = field(default_factory=dict)


# ---- running


def output(t: Tutorial) -> Output:
    """The output of a tutorial: out of the compiler's disk cache, or of a run now.

    The cache is keyed by the compiler's source, so that an output never belongs to other code.
    """
    cache, key = Cache.from_knobs(), f"{t!r}\n{platform.platform()}\n{t.source}"
    found = cache.get("docs", key)
    if found is None:
        made = run(t)
        drawn = {name: b64encode(data).decode() for name, data in made.pictures.items()}
        payload = {"text": made.text, "machine": made.machine, "pictures": drawn}
        cache.put("docs", key, json.dumps(payload).encode())
        return made
    stored = json.loads(found)
    stored["pictures"] = {name: b64decode(data) for name, data in stored["pictures"].items()}
    return Output(**stored)


def run(t: Tutorial) -> Output:
    """Run the tutorial in a process of its own. One that fails is an error of the site."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [a.replace("PICTURES", folder) for a in t.arguments]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        # A width that rich would otherwise take from a terminal, and no colours.
        more = {"PYTHONPATH": path, "COLUMNS": WIDTH, "TERM": "dumb"}
        done = subprocess.run(
            [sys.executable, f"docs/{t.path}", *arguments],
            cwd=ROOT,
            env={**os.environ, **more},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Invalid(f"docs/{t.path} failed while the site was built:\n{done.stderr}")
        pictures = {name: Path(folder, name).read_bytes() for name in t.pictures}
    return Output(done.stdout.replace(f"{ROOT}/", ""), machine(), pictures)


def machine() -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = platform.python_version()
    return f"{platform.system()} on {platform.machine()}, {cores} cores, Python {python}"


# ---- the page


@dataclass
class Section:
    title: str
    text: str
    code: str


def page(t: Tutorial, made: Output | None) -> str:
    """The page; without an output, the text and the code alone."""
    body = tour(t, made) if t is TOUR else annotated(t, made)
    if made is None:
        note = "This page was built without running the tutorial, so it shows no output."
    else:
        note = f"Output of a run while this page was built: {made.machine}."
        note += " Times are that machine's, whatever else it was doing."
    return "\n".join([f"# {t.title}\n", f'!!! note ""\n    {note}\n', body])


def tour(t: Tutorial, made: Output | None) -> str:
    """The tour prints its own text: headings, prose, and what is shown indented."""
    source = details("The program of this page", block(t.source, "python"))
    if made is None:
        return source
    parts = re.split(r"^=== (.*) ===$", made.text, flags=re.M)
    out = [parts[0].strip() + "\n"]
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        out += [f"## {title}\n", fenced(text)]
    return "\n".join([*out, source])


def fenced(text: str) -> str:
    """Text whose indented lines are shown as code."""
    out: list[str] = []
    for inside, lines in runs(text.strip("\n").splitlines()):
        body = "\n".join(line.removeprefix("    ") for line in lines)
        out.append(block(body) if inside else body.strip() + "\n")
    return "\n".join(out)


def runs(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Neighbouring lines that are indented, or not; empty lines go with what they stand in."""
    section: list[str] = []
    inside = False
    for line in lines:
        now = inside if not line.strip() else line.startswith("    ")
        if now != inside and any(x.strip() for x in section):
            yield inside, section
            section = []
        inside = now
        section.append(line)
    if any(x.strip() for x in section):
        yield inside, section


def annotated(t: Tutorial, made: Output | None) -> str:
    """Sections of the source, each followed by the part of the output that belongs to it."""
    doc = ast.get_docstring(ast.parse(t.source)) or ""
    chunks = printed(made.text) if made else []
    out = [doc + "\n"]
    for s in sections(t.source):
        if s.title:
            out.append(f"## {s.title}\n")
        if s.text:
            out.append(s.text + "\n")
        if s.code:
            shown = block(s.code, "python")
            out.append(shown if s.title else details("Imports and helpers", shown))
        mine = [c for c in chunks if belongs(c[0], s)]
        chunks = [c for c in chunks if c not in mine]
        out += [printed_part(title, text) for title, text in mine]
    out.append("## What it measured\n" if t.pictures and made else "")
    out += [block(text) for _, text in chunks if text]
    out += [f"![What the steps cost]({name})\n" for name in t.pictures if made]
    return "\n".join(out)


def printed_part(title: str, text: str) -> str:
    lines = text.count("\n") + 1
    if lines > 24:
        return details(f"Output ({lines} lines): {title}", block(text))
    return block(text, "text", f"Output: {title}")


def sections(source: str) -> Iterator[Section]:
    """The parts of a tutorial: `# ---- Title`, a comment that explains, and code."""
    tree = ast.parse(source)
    first = tree.body[0].end_lineno if ast.get_docstring(tree) else 0
    body = "\n".join(source.splitlines()[first or 0 :])
    parts = re.split(r"^# ---- (.*)$", body, flags=re.M)
    yield Section("", "", parts[0].strip("\n"))
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        lines = text.strip("\n").splitlines()
        comment = 0
        while comment < len(lines) and lines[comment].startswith("#"):
            comment += 1
        prose = "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:comment])
        yield Section(title, prose.strip("\n"), "\n".join(lines[comment:]).strip("\n"))


def printed(text: str) -> list[tuple[str, str]]:
    """The output cut at its rules, lines such as `1. a title ─────`: (title, text)."""
    parts = re.split(r"^(?:─+ )?([^\n│┃─]+?) ─{3,}$", text, flags=re.M)
    found = [("", parts[0].strip("\n"))] if parts[0].strip() else []
    return found + [(a, b.strip("\n")) for a, b in zip(parts[1::2], parts[2::2], strict=True)]


def belongs(title: str, s: Section) -> bool:
    """Is it the output of a section: by its number, or by a function that the section defines?"""
    if number := re.match(r"(\d+)\. ", title):
        return s.title.startswith(number.group())
    name = title.split(":")[0]
    return bool(s.title) and name.isidentifier() and f"\ndef {name}(" in f"\n{s.code}"
