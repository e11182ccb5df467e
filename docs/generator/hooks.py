"""What `mkdocs build` calls: adds the generated pages to those that are files."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # mkdocs is a program of its own, which does not look here

from docs.generator import (  # noqa: E402
    operators,
    options,
    reference,
    rules,
    steps,
    switches,
    targets,
    tutorials,
)

CATALOGUES: dict[str, Callable[[], str]] = {
    "catalogues/operators.md": operators.page,
    "catalogues/rules.md": rules.page,
    "catalogues/steps.md": steps.page,
    "catalogues/targets.md": targets.page,
    "catalogues/options.md": options.page,
    "catalogues/environment.md": switches.variables,
    "catalogues/command-line.md": switches.commands,
}
# Files of the repository that are pages of the site as well.
ROOT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")
INSIDE = "Inside the compiler"


def on_config(config: MkDocsConfig) -> None:
    """Documents in docs/ that the navigation does not name stand with those about the inside."""
    named = set(re.findall(r"[\w/.-]+\.md", str(config.nav)))
    found = sorted(p.name for p in (ROOT / "docs").glob("*.md") if p.name not in named)
    for part in config.nav or []:
        if isinstance(part, dict) and INSIDE in part:
            part[INSIDE].extend(found)


def on_files(files: Files, config: MkDocsConfig) -> None:
    def add(uri: str, content: str | bytes) -> None:
        files.append(File.generated(config, uri, content=content))

    for uri, make in CATALOGUES.items():
        add(uri, make())
    for face in reference.FACES:
        add(reference.uri(face), reference.page(face))
    for name in ROOT_PAGES:
        add(name.lower(), linked((ROOT / name).read_text()))
    for t in tutorials.TUTORIALS:
        made = tutorials.output(t) if runs_tutorials(config) else None
        add(t.uri, tutorials.page(t, made))
        for name, data in made.pictures.items() if made else ():
            add(f"tutorials/{name}", data)


def runs_tutorials(config: MkDocsConfig) -> bool:
    extra: dict[str, Any] = dict(config.extra)
    return bool(extra.get("run_tutorials", True))


def linked(text: str) -> str:
    """Links between files of the root, as links between pages of the site."""
    for name in ROOT_PAGES:
        text = text.replace(f"({name})", f"({name.lower()})")
    return text.replace("](docs/", "](")
