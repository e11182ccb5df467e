"""From cases to kernels: which of a library's kernels are right, and what became of the others."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from tests.suites.wild_libraries import Library
from tests.suites.wild_runs import Case, Ran

SOMETIMES = "sometimes: "  # how the reason begins where what else ran decides

# The worst that became of a kernel in any case is what is said of it.
RESULTS = ("wrong", "crashed", "slow", "refused", "gpu", "right", "not judged", "not reached")

FAILURES = ("wrong", "crashed", "slow", "refused")

# Refusals that name what only a GPU has.
GPU_ONLY = re.compile(
    r"inline assembly|inline_asm|PTX|gluon|tma|tensor memory|mbarrier|warp.?special|cluster|nvshmem"
    r"|shared memory|symmetric memory|without warps|tl\.extra\.cuda",
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
    if result in ("refused", "gpu", "crashed", "slow") and case.kernels:
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
    launched = {name for text in files.values() for name in launched_by(text)}
    for file, text in files.items():
        for name in sorted(kernels_of(text) & launched):
            yield f"{file.relative_to(checkout)}:{name}"


def launched_by(text: str) -> set[str]:
    """Names that a file puts a grid behind: `name[grid]`, `wrapped(name)[grid]`, `other[grid]` after
    `other = name if … else third`, or that it gives to `.run(` and `.warmup(`."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return set()
    found = set(re.findall(r"\b(\w+)\.(?:run|warmup)\(", text))
    others: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            found |= _last_names(node.value)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            others.setdefault(node.targets[0].id, set()).update(_last_names(node.value))
    for _ in range(2):
        found |= {name for other in found for name in others.get(other, ())}
    return found


def _last_names(node: ast.expr) -> set[str]:
    """What an expression may be: a name, one of two, or a function that was given it."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
        case ast.IfExp(body=body, orelse=orelse):
            return _last_names(body) | _last_names(orelse)
        case ast.Call(args=args):
            return {name for x in args for name in _last_names(x)}
    return set()


def kernels_of(text: str) -> set[str]:
    """The functions for the device that a file defines."""
    if "jit" not in text:
        return set()
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return set()
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
    return ast.unparse(node) in ("triton.jit", "jit", "tl.jit", "triton_jit")
