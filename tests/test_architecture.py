"""The house keeps its order: imports point one way, files stay small, no machine leaks in."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tilewright.base.collector import garbage_waits

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tilewright"

ORDER = (
    "base link ir ops rewrites graph superopt capture kernel lang llvm runtime targets tune driver "
    "language triton bench"
).split()
RANK = {folder: rank for rank, folder in enumerate(ORDER)}

# Modules that gather names for users, as the folders language/ and triton/ do: those above driver/
# may import them.
FACES = {"onnx", "te", "testing"}

HARD_DEPENDENCIES = {"numpy", "llvmlite", "rich"}
MAX_LINES = 600

# Spelled in pieces: this file is searched too. What may not stand before a path is looked at behind
# its first character: a pattern that begins with a letter of its own is found faster.
_TOPS = "|".join(("ho" + "me", "ro" + "ot", "Us" + "ers", "wo" + "rk", "mn" + "t"))
MACHINE_PATHS = re.compile(rf"/(?<![\w.<$}}*~-]/)(?:{_TOPS})/[\w.-]+")


def python_files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def parsed(path: Path) -> ast.Module:
    """Without collecting garbage meanwhile, which takes longer than to parse. Nothing keeps the
    tree: what is found in it is cached."""
    with garbage_waits():
        return ast.parse(path.read_text(), str(path))


HOLDS = (ast.stmt, ast.excepthandler, ast.match_case)  # what may have imports inside


def inside(node: ast.AST, everything: bool) -> Iterator[ast.AST]:
    """What is written in it; without `everything`, no expressions, which are most of a file."""
    return (x for x in ast.iter_child_nodes(node) if everything or isinstance(x, HOLDS))


def for_typing(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def mentions(path: Path, *words: str) -> bool:
    text = path.read_text()
    return any(word in text for word in words)


class Contents(NamedTuple):
    """Imports as (line, module, inside a function?), and names that a file needs at some time."""

    imports: tuple[tuple[int, str, bool], ...]
    names: frozenset[str]


@cache
def contents(path: Path) -> Contents:
    """`from a import b` is an import of `a.b`, so that importing a folder by name counts as
    importing from it. A literal handed to `import_module` or `__import__` is an import as well.
    Names are those of imports and all strings, but for what only type checkers see."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1] if path.is_relative_to(ROOT) else ()
    everything = mentions(path, "import_module", "__import__", '"tilewright', "'tilewright")
    imports: list[tuple[int, str, bool]] = []
    names: set[str] = set()

    def walk(node: ast.AST, local: bool, typing: bool) -> None:
        found: list[str] = []
        match node:
            case ast.Import():
                found = [name.name for name in node.names]
            case ast.ImportFrom():
                # One dot is the file's own package, each further dot one folder up.
                up = package[: len(package) - node.level + 1] if node.level else ()
                stem = ".".join((*up, *([node.module] if node.module else [])))
                found = [f"{stem}.{name.name}" for name in node.names]
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called)) if called in (
                "import_module",
                "__import__",
            ):
                if node.args and isinstance(node.args[0], ast.Constant):
                    found = [str(node.args[0].value)]
            case ast.Constant(value=str(text)) if not typing:
                names.add(text)
        for module in found:
            assert isinstance(node, ast.stmt | ast.expr)
            imports.append((node.lineno, module, local))
            if not typing:  # an import of a name is one of the module that has it
                names.add(module if module in modules() else module.rpartition(".")[0])
        later = local or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        checked = node.body if isinstance(node, ast.If) and for_typing(node.test) else ()
        for child in inside(node, everything):
            walk(child, later, typing or child in checked)

    walk(parsed(path), False, False)
    return Contents(tuple(imports), frozenset(names))


def folder_of(path: Path) -> str | None:
    """The folder a file of the package belongs to; None for the package's own `__init__`."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def violation(folder: str, module: str) -> str | None:
    """Why a file of `folder` may not import `module`, or None."""
    parts = module.split(".")
    if parts[0] != "tilewright":
        return None
    target = parts[1] if len(parts) > 1 else None
    if target in FACES and RANK[folder] > RANK["driver"]:
        return None
    if target not in RANK:
        return "takes it from the package's own face, which stands above every folder"
    if RANK[target] > RANK[folder]:
        return f"points up: {target}/ stands above {folder}/"
    return None


def test_every_folder_has_its_place() -> None:
    found = {p.parent.relative_to(PACKAGE).parts[0] for p in PACKAGE.rglob("*/*.py")}
    assert found <= set(ORDER), (
        f"folders without a place in the order: {sorted(found - set(ORDER))}"
    )


def test_imports_point_one_way() -> None:
    wrong = []
    for path in python_files("tilewright"):
        folder = folder_of(path)
        if folder is None or folder not in RANK:
            continue
        for line, module, _ in contents(path).imports:
            if why := violation(folder, module):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}: {why}")
    order = " ".join(ORDER)
    assert not wrong, f"a folder imports itself and those before it ({order}):\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("folder", "module", "refused"),
    [
        ("ir", "tilewright.ops.softmax", True),
        ("ops", "tilewright.ir.node", False),
        ("ops", "tilewright.ops.core", False),
        ("base", "tilewright.compile", True),
        ("ir", "numpy", False),
    ],
)
def test_the_check_itself(folder: str, module: str, refused: bool) -> None:
    assert (violation(folder, module) is not None) == refused


@cache
def modules() -> Mapping[str, Path]:
    found = {}
    for path in python_files("tilewright"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def needed(path: Path) -> frozenset[str]:
    """The modules a file needs sooner or later: imported, or named by a string and loaded late."""
    return contents(path).names & modules().keys()


def cycles(edges: Mapping[str, Set[str]]) -> list[list[str]]:
    """Modules that need each other: what is left when all that need nothing left are taken away,
    from both ends."""
    left = {m: set(needs) for m, needs in edges.items()}
    while True:
        wanted = set().union(*left.values()) if left else set()
        free = {m for m, needs in left.items() if not needs or m not in wanted}
        if not free:
            return [[m, *sorted(needs)] for m, needs in sorted(left.items())]
        left = {m: needs - free for m, needs in left.items() if m not in free}


def test_modules_do_not_need_each_other() -> None:
    known = modules()
    # The package's own face names everything.
    edges = {m: needed(path) - {m, "tilewright"} for m, path in known.items() if m != "tilewright"}
    found = cycles(edges)
    assert not found, "modules that need each other, late imports counted:\n" + "\n".join(
        f"{m} needs {', '.join(needs)}" for m, *needs in found
    )


def test_the_check_of_cycles_itself(tmp_path: Path) -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"b"}, "b": {"a"}, "c": {"a"}}) == [["a", "b"], ["b", "a"]]
    file = tmp_path / "late.py"
    file.write_text('LATE = "tilewright.driver.cli"\nimport tilewright.base.knobs\n')
    assert needed(file) == {"tilewright.driver.cli", "tilewright.base.knobs"}


# The folders inside driver/, in the order in which they may import each other; files that lie in
# driver/ itself stand above, but for `api`: `te` and `looking` load the side of torch through it.
DRIVER = tuple("program weights tile onnx torch api saving te learning looking export cli".split())


def test_imports_inside_driver_point_one_way() -> None:
    known = modules()
    wrong = []
    for module, path in known.items():
        parts = module.split(".")
        if parts[:2] != ["tilewright", "driver"] or len(parts) < 3:
            continue
        assert parts[2] in DRIVER, f"{module} has no place in the order of driver/"
        for other in sorted(needed(path)):
            there = other.split(".")
            if there[:2] == ["tilewright", "driver"] and len(there) > 2:
                if DRIVER.index(there[2]) > DRIVER.index(parts[2]):
                    wrong.append(f"{module} needs {other}")
    assert not wrong, f"driver/ is in the order {' '.join(DRIVER)}:\n" + "\n".join(wrong)


def test_local_imports_are_optional_third_parties() -> None:
    wrong = []
    for path in python_files("tilewright"):
        for line, module, local in contents(path).imports:
            top = module.split(".")[0]
            ours = top == "tilewright" or top in HARD_DEPENDENCIES
            if local and (ours or top in sys.stdlib_module_names):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module} inside a function")
    assert not wrong, "only optional third parties are imported late:\n" + "\n".join(wrong)


def test_import_needs_hard_dependencies_only() -> None:
    """`import tilewright` works where torch and every other extra is missing."""
    allowed = sorted(HARD_DEPENDENCIES | {"tilewright"})
    program = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {{"torch", "transformers", "onnx", "scipy", "z3"}}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (only {allowed} are hard)")
sys.meta_path.insert(0, Refuse())
import tilewright
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_files_stay_small() -> None:
    sizes = {
        p: p.read_text().count("\n")
        for p in python_files("tilewright", "tests", "docs", "examples")
    }
    long = [f"{p.relative_to(ROOT)}: {n} lines" for p, n in sizes.items() if n > MAX_LINES]
    assert not long, f"a file over {MAX_LINES} lines is two ideas; find the seam:\n" + "\n".join(
        long
    )


def test_no_machine_paths() -> None:
    texts = [
        p
        for suffix in ("py", "md", "toml", "json", "txt", "cfg")
        for folder in ("tilewright", "tests", "docs", "examples")
        for p in (ROOT / folder).rglob(f"*.{suffix}")
    ] + [p for p in ROOT.glob("*.*") if p.suffix in (".md", ".toml")]
    wrong = [
        f"{p.relative_to(ROOT)}:{number}: {found.group()}"
        for p in texts
        for text in [p.read_text()]
        for found in MACHINE_PATHS.finditer(text)
        for number in [text.count("\n", 0, found.start()) + 1]
    ]
    assert not wrong, "absolute paths of one machine:\n" + "\n".join(wrong)
