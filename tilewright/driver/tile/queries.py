"""Attributes of Triton's `JITFunction` and `CompiledKernel` that libraries read, answered from
ours."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

from tilewright.base.errors import Unsupported
from tilewright.base.source import parse_module
from tilewright.lang.tile.front.functions import TileFunction
from tilewright.lang.tile.language.types import constexpr_type
from tilewright.targets import host


class FunctionQueries(TileFunction):
    """Attributes of a decorated function."""

    kernels: dict[Any, Any]
    kernel = None  # the latest binary, in old versions

    @property
    def module(self) -> str:
        return self.fn.__module__

    # Code that generates the text of a kernel sets its file and line; messages then point there.

    @property
    def file_name(self) -> str:
        return self.file

    @file_name.setter
    def file_name(self, file: str) -> None:
        self.file = file

    @property
    def def_file_line_number(self) -> int:
        return self.line

    @def_file_line_number.setter
    def def_file_line_number(self, line: int) -> None:
        self.line = line
        self._hash = None

    @property
    def def_file_col_number(self) -> int:
        return self.column

    @def_file_col_number.setter
    def def_file_col_number(self, column: int) -> None:
        self.column = column

    @cached_property
    def raw_src(self) -> list[str]:
        """The lines of the file, decorators included."""
        return inspect.getsourcelines(self.fn)[0]

    @cached_property
    def starting_line_number(self) -> int:
        return inspect.getsourcelines(self.fn)[1]

    # As they were given, names or numbers: a kernel with other parameters may be made with them.
    do_not_specialize: list[int | str]
    do_not_specialize_on_alignment: list[int | str]

    @property
    def used_global_vals(self) -> dict[tuple[str, int], tuple[Any, Any]]:
        """Globals that the kernel was made with, by name and namespace."""
        self.hash()
        return {(name, id(names)): (value, names) for names, name, value in self._used}

    @property
    def type(self) -> Any:
        return constexpr_type(self)

    @property
    def device_caches(self) -> Mapping[int, tuple[Any, ...]]:
        """The kernels that were made, by device: there is one."""
        return defaultdict(lambda: (self.kernels, None, None, None, None))

    @property
    def cache(self) -> Mapping[int, dict[Any, Any]]:
        return defaultdict(lambda: self.kernels)

    def is_gluon(self) -> bool:
        return False

    def get_capture_scope(self) -> Mapping[str, Any]:
        """Names that the function sees outside itself."""
        return {**self.fn.__globals__, **inspect.getclosurevars(self.fn).nonlocals}

    def parse(self) -> ast.Module:
        return parse_module(self.source)

    def preload(self, specialization_data: str) -> Any:
        raise Unsupported(
            f"{self.name}.preload: Triton's record of a kernel is for a GPU",
            hint="kernels are cached on disk by themselves: launch it",
        )


class KernelQueries:
    """Attributes of a compiled kernel."""

    function: Any
    name: str
    signature: Mapping[str, str]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]

    # A CPU has no registers to share out between programs: one each, and no shared memory but a
    # token byte, so that quotients are defined.
    n_regs = 1
    n_spills = 0
    n_max_threads = 1024
    shared = 1
    cluster_dims = (1, 1, 1)
    module = None
    packed_metadata = ()
    metadata_group: Mapping[str, str] = {}
    launch_enter_hook = launch_exit_hook = None

    @cached_property
    def metadata(self) -> SimpleNamespace:
        answers = {
            "num_warps": 4,
            "num_stages": 3,
            "num_ctas": 1,
            "cluster_dims": self.cluster_dims,
            "shared": self.shared,
            "name": self.name,
            "hash": self.hash,
            "tmem_size": 0,
            "global_scratch_size": 0,
            "global_scratch_align": 1,
            "profile_scratch_size": 0,
            "target": SimpleNamespace(backend="cpu", arch=host().arch, warp_size=1),
        }
        return SimpleNamespace(**{**answers, **self.options})

    @property
    def num_warps(self) -> int:
        return self.metadata.num_warps

    @property
    def num_stages(self) -> int:
        return self.metadata.num_stages

    @property
    def num_ctas(self) -> int:
        return self.metadata.num_ctas

    @property
    def hash(self) -> str:
        """Identifies a kernel: by its function, and by what it was made for."""
        shown = ",".join(f"{n}:{t}" for n, t in self.signature.items())
        constants = ",".join(f"{n}={v}" for n, v in self.constants.items())
        return sha256(f"{self.function.hash()} {shown} {constants}".encode()).hexdigest()

    @property
    def src(self) -> SimpleNamespace:
        """What it was made of."""
        return SimpleNamespace(
            fn=self.function,
            name=self.name,
            signature=self.signature,
            constants=self.constants,
            constexprs=self.constants,
        )

    @property
    def kernel(self) -> str:
        """The code, as text."""
        return self.asm["asm"]  # type: ignore[attr-defined]

    def launch_metadata(self, grid: Any, stream: Any, *args: Any) -> None:
        """None: there are no listeners to launches here."""

    def run(self, x: int, y: int, z: int, stream: Any, function: Any, *rest: Any) -> None:
        """As Triton's launcher is called: after the handles, four things for its hooks, then the
        arguments in order, with or without those that are constants."""
        args = rest[4:]
        parameters = self.function.parameters
        if len(args) < len(parameters):
            given = iter(args)
            args = tuple(
                self.constants[p.name] if p.is_constexpr else next(given) for p in parameters
            )
        self.function[(x, y, z)](*args)

    def _init_handles(self) -> None:
        """Triton loads its binary here; ours is loaded already."""
