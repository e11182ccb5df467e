"""Stages as files: every form a program takes can be written, edited and put back.

TILEWRIGHT_DUMP=dir writes one folder per program, named after the graph and a digest of its text:

    main-1f0c3a52/
      passes.list                           the passes, in order
      00-input.tw  01-Simplify.tw  …        the graph after each pass
      08-clusters.txt                       what fuses with what, why not more, where values live
      09-k_….group .trace .nest .legal .ll .s    one number per distinct kernel
      12-entry.ll                           the function that calls them
      weights/                              the same for what is computed once from weights
      stages.json                           digests of the files as they were written

A tile kernel has a folder of its own (driver/tile/tile_stages.py).

TILEWRIGHT_RESUME=dir reads such a folder back: a file that differs from its digest replaces what
the compiler would have made at that stage, and compilation goes on from there. Files that were
not edited are ignored, so an edited graph is not overruled by the stages that once followed it.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tilewright.base import knobs
from tilewright.base.errors import Invalid, TilewrightError
from tilewright.base.events import Log
from tilewright.graph.cluster import Cluster, Fused
from tilewright.graph.memory import Plan
from tilewright.ir.node import Constant, Graph, Input, Node
from tilewright.ir.pipeline import Pipeline
from tilewright.ir.target import Target
from tilewright.ir.text import parse_graph, print_graph, type_text
from tilewright.kernel.check import verify
from tilewright.kernel.group import Buffer, Group
from tilewright.kernel.legal import check_legal, legalise
from tilewright.kernel.nest import Nest, Work, start
from tilewright.kernel.step import Trace, apply, parse_trace, print_trace
from tilewright.kernel.text import group_text, nest_text, parse_group, parse_nest
from tilewright.llvm.objects import assembly, compile_object

DIGESTS = "stages.json"
LIST = "passes.list"
T = TypeVar("T")


@dataclass
class Stages:
    """The files of one program: where they are written, and which edited ones replace a stage."""

    folder: Path | None = None
    edits: dict[str, Path] = field(default_factory=dict)
    log: Log = field(default_factory=Log)

    def __post_init__(self) -> None:
        self.count = 0
        self.digests: dict[str, str] = {}
        self._lock = threading.Lock()

    @staticmethod
    def of(graph: Graph, log: Log, dump: Path | None = None, resume: Path | None = None) -> Stages:
        """As the options, or else TILEWRIGHT_DUMP and TILEWRIGHT_RESUME, say."""
        return Stages.named(lambda: program_folder(graph), log, dump, resume)

    @staticmethod
    def named(
        folder: Callable[[], str], log: Log, dump: Path | None = None, resume: Path | None = None
    ) -> Stages:
        """The same for any program that has a folder of its own."""
        dump = Path(dump) if dump is not None else knobs.dump.get()
        resume = Path(resume) if resume is not None else knobs.resume.get()
        if dump is None and resume is None:
            return Stages()
        if dump is not None and resume is not None and dump.resolve() == resume.resolve():
            raise Invalid(
                f"stages cannot be read from and written to the same directory, {dump}",
                hint=f"give {knobs.dump.name} another directory than {knobs.resume.name}",
            )
        name = folder()
        stages = Stages(dump and dump / name, log=log)
        if resume is not None:
            if not resume.is_dir():
                raise Invalid(
                    f"there is no directory {resume} to resume from",
                    hint=f"write one with {knobs.dump.name}={resume}",
                )
            stages.edits = edited_files(resume / name)
            if not stages.edits:
                log.add("resume", f"nothing was edited in {resume / name}", detail=True)
        return stages

    def inside(self, name: str) -> Stages:
        """The stages of a program that belongs to this one, in a folder below."""
        below = {
            key.removeprefix(f"{name}/"): path
            for key, path in self.edits.items()
            if key.startswith(f"{name}/")
        }
        return Stages(self.folder and self.folder / name, below, self.log)

    @property
    def active(self) -> bool:
        return self.folder is not None or bool(self.edits)

    def number(self) -> int:
        self.count += 1
        return self.count - 1

    # ---- the stages of a program; those of a kernel follow below

    def pipeline(self, made: Pipeline) -> Pipeline:
        """The list of passes, or the edited one in its place. Edited graphs are of its stages."""
        edited = self.edited(LIST, Pipeline.parse)
        made = edited if edited is not None else made
        self.write(LIST, lambda: ",\n".join(map(str, made)) + "\n")
        stages = ("input", *(p.name for p in made), "main")
        files = [f"{k:02}-{name}.tw" for k, name in enumerate(stages)]
        for key, path in self.edits.items():
            if re.fullmatch(r"\d+-\w+\.tw", key) and key not in files:
                raise Invalid(
                    f"{path.name} is edited, and the passes of this compile have no such stage",
                    where=path,
                    hint=f"edit one of {', '.join(files)}, or dump the stages again",
                )
        return made

    def graph(self, name: str, graph: Graph) -> Graph:
        """A graph after the pass `name`, or the edited one in its place."""
        if not self.active:
            return graph
        file = f"{self.number():02}-{name}.tw"
        edited = self.edited(file, parse_graph)
        if edited is not None:
            _same_interface(edited, graph, self.edits[file])
            graph = edited
        self.write(file, lambda: print_graph(graph) + "\n")
        return graph

    def clusters(self, fused: Fused, plan: Plan, kernel: Callable[[Cluster], str | None]) -> None:
        """What fusion and the memory plan decided: to be read, not edited."""
        file = f"{self.number():02}-clusters.txt"
        self.write(file, lambda: clusters_text(fused, plan, kernel))

    def entry(self, text: str) -> str:
        file = f"{self.number():02}-entry.ll"
        text = self.edited(file, str) or text
        self.write(file, lambda: text)
        return text

    def tasks(self, text: str, target: Target, graph: Callable[[], str]) -> bytes:
        """The PTX of a program that is one kernel; its task graph is to be read, not edited."""
        self.write("tasks.txt", graph)
        text = self.edited("tasks.ll", str) or text
        self.write("tasks.ll", lambda: text)
        made = self.edited("tasks.ptx", str) or assembly(text, target)
        self.write("tasks.ptx", lambda: made)
        return made.encode()

    def kernel(self, symbol: str) -> KernelStages:
        return KernelStages(self, f"{self.number():02}-{symbol}", symbol)

    def close(self) -> None:
        """Leave the digests by which an edited file is recognised."""
        if self.folder is not None:
            self._put(DIGESTS, json.dumps(dict(sorted(self.digests.items())), indent=1) + "\n")

    # ---- files

    def edited(self, file: str, parse: Callable[[str], T]) -> T | None:
        """The file that the user edited in place of a stage."""
        path = self.edits.get(_key(file))
        if path is None:
            return None
        with naming(path):
            made = parse(path.read_text())
        self.log.add("resume", f"{file} is taken from an edited file", where=path)
        return made

    def write(self, file: str, text: Callable[[], str]) -> None:
        if self.folder is not None:
            content = text()
            self._put(file, content)
            with self._lock:
                self.digests[file] = _digest(content)

    def _put(self, file: str, content: str) -> None:
        assert self.folder is not None
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / file).write_text(content)
        except OSError as why:
            raise Invalid(
                f"the stage {file} cannot be written to {self.folder}: {why.strerror or why}",
                hint=f"give {knobs.dump.name} a directory that can be written",
            ) from None


@dataclass(frozen=True)
class KernelStages:
    """The stages of one kernel. Each method takes what the compiler makes and returns it, or the
    edited form."""

    stages: Stages
    stem: str
    symbol: str

    @property
    def dumping(self) -> bool:
        return self.stages.folder is not None

    @property
    def is_edited(self) -> bool:
        return any(f"{self.symbol}.{kind}" in self.stages.edits for kind in FORMS)

    def group(self, made: Group) -> Group:
        g = self._edited("group", parse_group)
        if g is None:
            g = made
        else:
            self._same_arguments(g.buffers, made.buffers, "group")
            if g.dims() != made.dims():
                raise Invalid(
                    f"the edited group depends on {g.dims()}, the program gives {made.dims()}",
                    where=self._path("group"),
                )
            g = replace(g, name=self.symbol)
        self._write("group", lambda: group_text(g))
        return g

    def schedule(self, group: Work, choose: Callable[[], tuple[Trace, Nest]]) -> tuple[Trace, Nest]:
        """The trace and the nest, `choose`n unless the user wrote them."""
        trace = self._edited("trace", parse_trace)
        if trace is None:
            trace, nest = choose()
        else:
            with naming(self._path("trace")):
                nest = apply(start(group), trace)
        self._write("trace", lambda: print_trace(trace))
        written = self._edited("nest", parse_nest)
        if written is not None:
            self._same_arguments(written.buffers, nest.buffers, "nest")
            nest = replace(written, name=self.symbol)
        self._write("nest", lambda: nest_text(nest))
        return trace, nest

    def legal(self, nest: Nest, target: Target) -> Nest:
        """The nest as the target takes it (kernel/legal/)."""
        made = legalise(nest, target)
        written = self._edited("legal", parse_nest)
        if written is not None:
            self._same_arguments(written.buffers, made.buffers, "legal")
            made = replace(written, name=self.symbol)
            with naming(self._path("legal")):
                verify(made)
                check_legal(made, target)
        self._write("legal", lambda: nest_text(made))
        return made

    def compiled(self, text: str, target: Target) -> bytes:
        """The object of the kernel's LLVM text."""
        text = self.emitted(text, target)
        with naming(self._path("ll")):
            return compile_object(text, target)

    def ptx(self, text: str, target: Target) -> bytes:
        """The PTX of the kernel's LLVM text, for a GPU."""
        text = self._edited("ll", str) or text
        self._write("ll", lambda: text)
        with naming(self._path("ll")):
            made = assembly(text, target)
        made = self._edited("ptx", str) or made
        self._write("ptx", lambda: made)
        return made.encode()

    def emitted(self, text: str, target: Target) -> str:
        written = self._edited("ll", str)
        if written is not None:
            text = written
            if not re.search(rf"^define void @{re.escape(self.symbol)}\(", text, re.M):
                raise Invalid(
                    f"the edited LLVM text does not define {self.symbol}", where=self._path("ll")
                )
        self._write("ll", lambda: text)
        with naming(self._path("ll")):
            self._write("s", lambda: assembly(text, target))
        return text

    def errors(self, kind: str) -> AbstractContextManager[None]:
        """Errors inside are about an edited file, if there is one."""
        return naming(self._path(kind))

    def _path(self, kind: str) -> Path | None:
        return self.stages.edits.get(f"{self.symbol}.{kind}")

    def _edited(self, kind: str, parse: Callable[[str], T]) -> T | None:
        return self.stages.edited(f"{self.stem}.{kind}", parse)

    def _write(self, kind: str, text: Callable[[], str]) -> None:
        self.stages.write(f"{self.stem}.{kind}", text)

    def _same_arguments(self, new: tuple[Buffer, ...], old: tuple[Buffer, ...], kind: str) -> None:
        arguments = [[b for b in x if b.scope in ("in", "out")] for x in (new, old)]
        if arguments[0] != arguments[1]:
            raise Invalid(
                f"the edited {kind} has other inputs or outputs than the program gives to "
                f"{self.symbol}",
                where=self._path(kind),
                hint="keep its in and out lines as they were written",
            )


# Forms of a kernel that can be edited, in the order in which they are made.
FORMS = ("group", "trace", "nest", "legal", "ll", "ptx")


def program_folder(graph: Graph) -> str:
    """The same program has the same folder in every run, wherever its source lies."""
    return folder_name(graph.name or "graph", print_graph(graph, places=False))


def folder_name(name: str, text: str) -> str:
    """A name, and a digest that distinguishes programs of that name."""
    plain = re.sub(r"[^\w.-]", "_", name)
    return f"{plain}-{_digest(text)[:8]}"


def edited_files(folder: Path) -> dict[str, Path]:
    """Files below a program's folder that are not as they were written."""
    out: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name == DIGESTS or path.suffix in (".txt", ".s"):
            continue
        if _digest(path.read_text()) == _digests_of(path.parent).get(path.name):
            continue
        out[(path.parent.relative_to(folder) / _key(path.name)).as_posix()] = path
    return out


def _key(file: str) -> str:
    """Graphs are known by number and name; kernels by symbol, since an edit further up may have
    changed their number."""
    number, _, rest = file.partition("-")
    return rest if number.isdigit() and rest.startswith("k_") else file


def _digests_of(folder: Path) -> dict[str, str]:
    path = folder / DIGESTS
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text())
    except ValueError:
        raise Invalid(
            "the digests of written stages are not readable", where=path, hint="dump them again"
        ) from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def naming(path: Path | None) -> Iterator[None]:
    """Errors inside are about this file, and say so."""
    try:
        yield
    except TilewrightError as error:
        if path is not None:
            error.where = f"{path}" + (f", {error.where}" if error.where else "")
        raise


def _same_interface(new: Graph, old: Graph, path: Path) -> None:
    """The program around an edited graph still gives it these inputs and takes these outputs."""
    what = None
    if new.inputs != old.inputs:
        what = "inputs"
    elif [o.type for o in new.outputs] != [o.type for o in old.outputs]:
        what = "types of outputs"
    if what:
        raise Invalid(
            f"the edited graph has other {what} than the program it stands for",
            where=path,
            hint="keep the first line and the number and types of what is returned",
        )


# ---- clusters as text


def clusters_text(fused: Fused, plan: Plan, kernel: Callable[[Cluster], str | None]) -> str:
    """Clusters with their operators, then refusals, then memory, in the names of the graph."""
    names = node_names(fused.graph)
    count = len(fused.clusters)
    lines = [f"{count} cluster" + "s" * (count != 1)]
    for k, c in enumerate(fused.clusters):
        symbol = kernel(c)
        lines += ["", f"cluster {k}: {c.kind}" + (f", kernel {symbol}" if symbol else "")]
        lines += [f"  {_node_line(n, names)}" for n in c.nodes]
        lines.append(f"  stores {', '.join(f'{names[o]} {_where(o, plan)}' for o in c.outputs)}")
    if fused.refusals:
        lines += ["", "not fused:"]
        lines += [
            f"  {names.get(r.producer, '?')} | {names.get(r.consumer, '?')}  {r}"
            + (f"  ({r.where})" if r.where else "")
            for r in fused.refusals
        ]
    return "\n".join([*lines, "", str(plan)]) + "\n"


def node_names(graph: Graph) -> dict[Node, str]:
    """The names that the graph's own text uses."""
    names: dict[Node, str] = {n: n.op.label for n in graph.inputs if isinstance(n.op, Input)}
    for n in graph.nodes():
        if n not in names:
            names[n] = f"%{len(names) - len(graph.inputs)}"
    return names


def _node_line(n: Node, names: dict[Node, str]) -> str:
    op = "literal" if isinstance(n.op, Constant) else str(n.op)
    operands = ", ".join(names.get(x, "?") for x in n.inputs)
    return f"{names.get(n, '?')}: {type_text(n.type)} = {op}({operands})"


def _where(n: Node, plan: Plan) -> str:
    kind, at = plan.where(n)
    over = f" over {plan.in_place[n].op.name}" if n in plan.in_place else ""
    if isinstance(at, tuple):
        owner = at[0].op if isinstance(at[0], Node) else f"output {at[0]}"
        return f"(over {owner} from byte {at[1]})"
    return f"(output {at}{over})" if kind == "output" else f"({kind} {at}{over})"
