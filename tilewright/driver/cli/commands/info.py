"""`tilewright info`: what a package holds, without running any of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.driver.cli.command import Command
from tilewright.driver.export.info import Info, info
from tilewright.driver.looking.shown import Column, Shown
from tilewright.driver.looking.tables import bytes_text


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("package", type=Path, metavar="PACKAGE", help="a folder, or NAME.twp")
    parser.add_argument("--verify", action="store_true", help="compare all checksums")


def _info(given: argparse.Namespace, out: Shown) -> int:
    found = info(given.package, given.verify)
    m = found.manifest
    out.put(manifest=m, verified=found.verified)
    out.say(f"{m.get('name')}: a package of tilewright {_versions(m)}")
    tensors = [{"kind": kind, **x} for kind in ("inputs", "outputs") for x in m[kind]]
    out.table("", tensors, _TENSORS)
    if m["dims"]:
        rows = [{"dim": k, "low": v[0], "high": v[1]} for k, v in m["dims"].items()]
        out.table("", rows, _DIMS)
    for name, most in m.get("counted", {}).items():
        out.say(f"data decides {name}, which is at most {most}")
    for check in m["checks"]:
        out.say(f"checked in each call: {check['words']}")
    for name, value in m["specialised"].items():
        out.say(f"made for one value of {name}: {str(value)[:60]}")
    options = ", ".join(f"{k} {v}" for k, v in m["options"].items())
    out.say(f"options: {options}")
    out.table("files", [_file(f, found) for f in found.files], _FILES)
    for level in m["levels"]:
        out.say(f"{level['target']} needs {', '.join(level['features']) or 'any such processor'}")
    for name, library in found.libraries.items():
        out.say(
            f"{name}: gives {', '.join(library.exports)}; takes {', '.join(library.imports)}; "
            f"needs {', '.join(library.needed) or 'no library by name'}; "
            f"is mapped {', '.join(library.rights)}"
        )
    for name, module in found.modules.items():
        takes = ", ".join(module.imports) or "nothing"
        out.say(f"{name}: gives {', '.join(module.exports)}; takes {takes}")
    out.put(libraries=found.libraries, modules=found.modules, problems=found.problems)
    for problem in found.problems:
        out.say(f"wrong: {problem}", "bold red")
    if found.verified and not found.problems:
        out.say("all checksums are those of the manifest", "green")
    return 1 if found.problems else 0


def _versions(m: Mapping[str, Any]) -> str:
    versions = m.get("versions", {})
    return f"{versions.get('tilewright')}, LLVM {versions.get('llvm')}, format {m['format']}"


def _file(f: Any, found: Info) -> dict[str, Any]:
    return {"name": f.name, "bytes": f.bytes, "purpose": f.purpose, "problem": f.problem}


_TENSORS: dict[str, Column] = {
    "": lambda r: r["kind"][:-1],
    "name": "name",
    "type": lambda r: f"{r['dtype']}[{', '.join(map(str, r['shape']))}]",
}
_DIMS: dict[str, Column] = {
    "dim": "dim",
    "at least": "low",
    "at most": lambda r: "–" if r["high"] is None else str(r["high"]),
}
_FILES: dict[str, Column] = {
    "file": "name",
    "size": lambda r: bytes_text(r["bytes"]),
    "": "purpose",
}

COMMAND = Command(
    _arguments,
    _info,
    ("info net.twp", "info net --verify", "info net.twp --json"),
)
