"""Stages of a tile kernel as files: written, edited and put back like those of a program.

    add-1f0c3a52/
      add.ttir      the kernel as tile IR (lang/tile/text.py)
      add.lowered   its naive nest
      add.trace     the steps of its schedule, how threads share the grid among them
      add.nest      the nest after them
      add.legal     the same as the target takes it
      add.ll  .s    LLVM text, assembly
      stages.json   digests of the files as they were written

TILEWRIGHT_DUMP and TILEWRIGHT_RESUME say where (driver/program/stages.py). Kernels that are written
or edited are not in the disk cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tilewright.base.errors import Invalid
from tilewright.base.events import Log
from tilewright.driver.program.stages import KernelStages, Stages, folder_name, naming
from tilewright.ir.target import Target
from tilewright.kernel.check import verify
from tilewright.kernel.nest import WAITS, Loop, Nest, Report, Work, holds, walk
from tilewright.kernel.step import Trace
from tilewright.kernel.text import nest_text, parse_nest
from tilewright.lang.tile.ir import Kernel
from tilewright.lang.tile.lowering.state import Aliasing, Lowered
from tilewright.lang.tile.text import kernel_text, parse_kernel


def tile_stages(kernel: Kernel, aliasing: Aliasing, wraps: bool, log: Log) -> TileStages:
    """The stages of a kernel, for arguments that overlap in memory as described."""

    def folder() -> str:
        return folder_name(
            kernel.name, f"{kernel_text(kernel, places=False)}{aliasing}{wraps or ''}"
        )

    return TileStages(Stages.named(folder, log), kernel.name, kernel.name)


@dataclass(frozen=True)
class TileStages(KernelStages):
    def tiles(self, made: Kernel) -> Kernel:
        """The kernel, or the edited one in its place."""
        edited = self._edited("ttir", parse_kernel)
        if edited is not None:
            given = [[(a.name, a.type) for a in k.arguments] for k in (edited, made)]
            if given[0] != given[1]:
                shown = ", ".join(f"{name}: {type}" for name, type in given[1])
                raise Invalid(
                    f"the edited kernel has other arguments than {made.name} is launched with",
                    where=self._path("ttir"),
                    hint=f"they are {shown}",
                )
            # What a launch was specialised on holds, whatever the text says.
            made = replace(edited, name=made.name, divisors=made.divisors, positive=made.positive)
        self._write("ttir", lambda: kernel_text(made))
        return made

    def lowered(self, made: Lowered) -> Lowered:
        """What lowering gives, perhaps with an edited nest."""
        edited = self._edited("lowered", parse_nest)
        if edited is not None:
            self._fits(edited, made, "lowered")
            made = replace(made, nest=replace(edited, name=made.nest.name))
        self._write("lowered", lambda: nest_text(made.nest))
        return made

    def scheduled(
        self, lowered: Lowered, choose: Callable[[], tuple[Trace, Nest]]
    ) -> tuple[Trace, Nest]:
        work: Work = lowered.nest
        trace, nest = self.schedule(work, choose)
        if self._path("nest") is not None:
            self._fits(nest, lowered, "nest")
        self._runs(nest)
        return trace, nest

    def legalised(self, lowered: Lowered, nest: Nest, target: Target) -> Nest:
        legal = self.legal(nest, target)
        if self._path("legal") is not None:
            self._fits(legal, lowered, "legal")
            self._runs(legal)
        return legal

    def _fits(self, n: Nest, made: Lowered, kind: str) -> None:
        """Check that an edited nest is valid, and takes what a launch passes."""
        path = self._path(kind)
        self._same_arguments(n.buffers, made.nest.buffers, kind)
        if n.dims != made.nest.dims:
            raise Invalid(
                f"the edited {kind} has other dims than a launch of {self.symbol} gives",
                where=path,
                hint=f"they are {', '.join(d.name for d in made.nest.dims)}",
            )
        reports = [s for s, _ in walk(n.body) if isinstance(s, Report)]
        known = {(s.kind, k) for k, s in enumerate(made.sites)}
        for r in reports:
            if (r.kind, r.site) not in known:
                shown = ", ".join(f"{what} {k}" for what, k in sorted(known)) or "none"
                what = (
                    f"the edited {kind} reports {r.kind} {r.site}, which the kernel does not have"
                )
                raise Invalid(what, where=path, hint=f"it has {shown}")
        with naming(path):
            verify(n)

    def _runs(self, n: Nest) -> None:
        """Programs that wait for each other have to run at the same time."""
        if not holds(n, WAITS):
            return
        for s in n.body:
            if isinstance(s, Loop) and WAITS in s.marks and (s.kind, s.grain) != ("parallel", 1):
                raise Invalid(
                    f"programs of {self.symbol} wait for each other, and {s.name} is {s.kind}",
                    where=self._path("nest") or self._path("trace"),
                    hint=f"Parallel({s.name!r}, 1) in its trace lets all of them run",
                )
