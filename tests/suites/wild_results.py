"""From cases to kernels: which of a library's kernels are right, and what became of the others."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tests.suites.wild_libraries import Library
from tests.suites.wild_runs import Case, Ran

SOMETIMES = "sometimes: "  # how the reason begins where what else ran decides
TRITON_TOO = "Triton refuses it too: "  # and where a kernel is for versions before 3.0

# The worst that became of a kernel in any case is what is said of it.
# A kernel for old versions of Triton is apart unless it is right in another case.
RESULTS = ("wrong", "crashed", "slow", "refused", "gpu", "right", "apart", "not judged")
RESULTS += ("not reached",)

FAILURES = ("wrong", "crashed", "slow", "refused")

# Refusals that name what only a GPU has.
GPU_ONLY = re.compile(
    r"inline assembly|inline_asm|PTX|gluon|\btma|tensor memory|mbarrier|warp.?special|cluster"
    r"|nvshmem|shared memory|symmetric memory|without warps|tl\.extra\.cuda",
    re.IGNORECASE,
)


@dataclass
class Verdict:
    """A kernel, and the case that decided."""

    kernel: str
    result: str
    why: str = ""
    case: str = ""


@dataclass
class Judged:
    library: str
    seconds: float
    verdicts: list[Verdict]
    cases: Counter[str]
    problems: list[tuple[str, str, str]] = field(default_factory=list)  # case, result, why
    broken: Mapping[str, str] = field(default_factory=dict)
    expected: list[tuple[str, str]] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        return Counter(v.result for v in self.verdicts)

    @property
    def share(self) -> float | None:
        """Of the kernels that a case decided about and that need no GPU: those that are right."""
        counts = self.counts
        tried = sum(counts[r] for r in ("right", "wrong", "crashed", "slow", "refused"))
        return counts["right"] / tried if tried else None


def judge(
    library: Library, checkout: Path, ran: Ran, expected: Mapping[str, str], whole: bool
) -> Judged:
    """`whole`: all cases were run, so that an expected one that is not among them is a mistake."""
    found: dict[str, Verdict] = {}
    judged = Judged(library.name, ran.seconds, [], Counter(), broken=ran.broken)

    def decide(key: tuple[str, str], result: str, case: Case) -> None:
        name = kernel_name(key, checkout)
        old = found.get(name)
        if old is None or RESULTS.index(result) < RESULTS.index(old.result):
            found[name] = Verdict(name, result, case.why, case.name)

    for case in ran.cases:
        judged.cases[case.result] += 1
        reason = reason_of(case.name, expected)
        sometimes = reason is not None and reason.startswith(SOMETIMES)
        result = case.result
        if result == "refused" and GPU_ONLY.search(case.why):
            result = "gpu"
        elif result == "refused" and reason is not None and reason.startswith(TRITON_TOO):
            result = "apart"
        if reason is not None:
            if result == "right" and not sometimes:
                problem = f"expected to fail, and passes: {reason}"
                judged.problems.append((case.name, "unexpected pass", problem))
            elif result != "right":
                judged.expected.append((case.name, reason))
        elif result in FAILURES or (result == "not run" and case.name.startswith("drive_")):
            # Tests of others may ask for what is not here; our drivers are written for here.
            judged.problems.append((case.name, result, case.why))
        _attribute(case, result, reason, decide)
    if whole:
        names = {case.name for case in ran.cases}
        own = [p for p in expected if p.split("::")[0] in {n.split("::")[0] for n in names}]
        for pattern in own:
            if not any(matches(n, pattern) for n in names):
                judged.problems.append((pattern, "unknown case", "no case has this name"))
    for name in catalogue(library, checkout):
        found.setdefault(name, Verdict(name, "not reached", "no case launches it"))
    judged.verdicts = sorted(found.values(), key=lambda v: v.kernel)
    return judged


def _attribute(
    case: Case,
    result: str,
    reason: str | None,
    decide: Callable[[tuple[str, str], str, Case], None],
) -> None:
    """Who is to blame: a refusal is about the last kernel launched, a wrong result about all."""
    if result in ("refused", "gpu", "apart", "crashed", "slow") and case.kernels:
        for key in case.kernels[:-1]:
            decide(key, "not judged", case)
        decide(case.kernels[-1], result, case)
        return
    known = result == "wrong" and reason is not None
    for key in case.kernels:
        good = result in ("right", "wrong") and not known
        decide(key, result if good else "not judged", case)


def reason_of(case: str, expected: Mapping[str, str]) -> str | None:
    return next((reason for p, reason in expected.items() if matches(case, p)), None)


def matches(case: str, pattern: str) -> bool:
    # Brackets are part of the names of cases, not of the pattern.
    return fnmatchcase(case, pattern.replace("[", "[[]"))


def kernel_name(key: tuple[str, str], checkout: Path) -> str:
    path, name = Path(key[0]), key[1]
    if path.is_relative_to(checkout):
        return f"{path.relative_to(checkout)}:{name}"
    return f"generated:{name}"


# ---- which kernels there are


def catalogue(library: Library, checkout: Path) -> Iterator[str]:
    """The kernels that a library launches: functions for the device that only other such functions
    call are parts of them. Who launches a kernel may be another file."""
    files: dict[Path, str] = {}
    for folder in library.kernels:
        for file in sorted((checkout / folder).rglob("*.py")):
            if not any(word in str(file.relative_to(checkout)) for word in library.apart):
                files[file] = file.read_text(errors="replace")
    defined = {file: kernels_of(text) for file, text in files.items()}
    known = {name for names in defined.values() for name in names}
    # Reading is the most of the work: only what mentions a kernel, or another name of one, is read.
    trees = {
        file: _parsed(text)
        for file, text in files.items()
        if defined[file] or "triton" in text or known & set(re.findall(r"\w+", text))
    }
    shared = {name: of for tree in trees.values() for name, of in _names_for(tree.body).items()}
    launched = {name for tree in trees.values() for name in launched_by(tree, shared)}
    for file, names in defined.items():
        for name in sorted(names & launched):
            yield f"{file.relative_to(checkout)}:{name}"


def launched_by(tree: ast.Module, shared: Mapping[str, set[str]]) -> Iterator[str]:
    """Names that a file puts a grid behind: `name[grid]`, `wrapped(name)[grid]`, or `other[grid]`
    after `other = name if … else third`; or that it calls `.run` of. `shared` says what names of
    modules stand for."""
    nodes = list(ast.walk(tree))
    names = {**shared, **_names_for(nodes)}
    left: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Subscript):
            left |= _may_be(node.value)
        elif isinstance(node, ast.Attribute) and node.attr in ("run", "warmup"):
            left |= _may_be(node.value)
    found: set[str] = set()
    while left:
        name = left.pop()
        found.add(name)
        left |= names.get(name, set()) - found
    yield from found


def _names_for(nodes: Iterable[ast.AST]) -> dict[str, set[str]]:
    """What is assigned to each name."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found.setdefault(node.targets[0].id, set()).update(_may_be(node.value))
    return found


def _may_be(node: ast.expr) -> set[str]:
    """The names that an expression may stand for: one of two, or what a function was given."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
        case ast.IfExp(body=body, orelse=orelse):
            return _may_be(body) | _may_be(orelse)
        case ast.Call(args=args):
            return {name for x in args for name in _may_be(x)}
    return set()


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])


def kernels_of(text: str) -> set[str]:
    """The functions for the device that a file defines."""
    if "jit" not in text:
        return set()
    tree = _parsed(text)
    decorated = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list))
    }
    called = {  # name = triton.jit(name)
        ast.unparse(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _is_jit(node) and node.args
    }
    return decorated | called


def _is_jit(decorator: ast.expr) -> bool:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    match node:
        case ast.Name(id="jit" | "triton_jit"):
            return True
        case ast.Attribute(value=ast.Name(id="triton" | "tl"), attr="jit"):
            return True
    return False
