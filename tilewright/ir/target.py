"""Target: what the compiler knows about a machine, as data.

A target prints to text and parses back; instances live in targets/, one folder per architecture.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from functools import cached_property

from tilewright.base.errors import Invalid, require
from tilewright.ir.product import Product, TileShape


@dataclass(frozen=True)
class Grid:
    """What a machine that runs blocks of threads has beyond a processor's numbers. `ptx` is the
    version of its assembly language times ten, `has` names groups of instructions (llvm/nvvm.py
    lists them), `bandwidth` is that of its memory in GB/s."""

    capability: int
    ptx: int
    has: tuple[str, ...] = ()
    multiprocessors: int = 1
    warp: int = 32
    block_threads: int = 1024
    threads: int = 2048
    blocks: int = 32
    registers: int = 65536
    thread_registers: int = 255
    block_shared: int = 48 * 1024
    shared: int = 48 * 1024
    bandwidth: int = 1000

    @property
    def copies_in_background(self) -> bool:
        """Can threads copy into shared memory without waiting for what they copy?"""
        return "cp.async" in self.has

    @property
    def copies_tiles(self) -> bool:
        """Is there an engine that copies tiles of matrices by itself?"""
        return "tma" in self.has

    @property
    def rounds_factors(self) -> bool:
        """Are there instructions for products of float32 that is rounded first?"""
        return "mma.tf32" in self.has

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            positive = not isinstance(value, int) or value > 0
            require(positive, f"{field.name} of a grid must be positive, not {value}")


@dataclass(frozen=True)
class Target:
    """A machine to compile for. Sizes are bytes; `features` are LLVM's, such as `+avx2`, and with a
    point in their names, such as `+engine.vectors32`, what LLVM does not know and programs ask."""

    name: str
    triple: str
    cpu: str
    features: tuple[str, ...] = ()
    vector_bits: int = 128
    vector_registers: int = 16
    has_fma: bool = False
    # Native arithmetic in half precision, not only conversion.
    has_f16: bool = False
    # Instructions that convert between half and single precision; without, integers do it.
    converts_f16: bool = True
    # Instructions that round floats to whole numbers; and does LLVM have code for maxima of float64
    # that distinguish zeros? Without, a few other instructions do it.
    rounds: bool = True
    f64_maximum: bool = True
    # Maxima of vectors of floats, in which NaN stays, in a few instructions. Without, a comparison
    # gives those with a constant.
    maximum: bool = True
    # Conversions of vectors to integers that give the nearest one where a number does not fit.
    saturates: bool = True
    # Instructions that convert to bfloat16, and loads and stores that leave lanes out by a mask.
    has_bf16: bool = False
    has_masks: bool = False
    masked_bytes: int = 4  # of the smallest elements that these masks are for
    # Instructions that read each lane of a vector from a place of its own, and are worth taking.
    gathers: bool = False
    # LLVM's calling convention in which callees preserve vector registers, if there is one.
    vector_convention: str = ""
    l1: int = 32 * 1024
    l2: int = 512 * 1024
    l3: int = 8 * 1024**2
    cache_line: int = 64
    cores: int = 1
    # Bytes of one local buffer that may live on the stack (kernel/legal/memory.py).
    stack: int = 256 * 1024
    pointer_bits: int = 64
    # For estimates (kernel/cost.py, graph/cost.py): multiply-adds of a cycle and cycles of each,
    # loads and instructions of a cycle, bytes of a cycle into the first, second and third cache,
    # cycles to hand a loop to threads and to wait for its end.
    fma_pipes: int = 2
    fma_latency: int = 4
    load_ports: int = 2
    issue: int = 4
    l2_bandwidth: int = 24
    l3_bandwidth: int = 10
    memory_bandwidth: int = 7
    region: int = 8000
    mhz: int = 3000
    # Operands that no cache holds are prefetched so many iterations ahead; 0: never.
    prefetch: int = 1
    # Were these numbers measured, and schedules ranked by them found to be no slower?
    rated: bool = False
    # Instructions that default schedules multiply with, the best first; targets/ declares them.
    products: tuple[Product, ...] = ()
    # Register tiles for sums in vectors, the widest first; ir/register_tile.py takes one.
    tiles: tuple[TileShape, ...] = (TileShape(6, 2, 6), TileShape(14, 1, 8))
    # Of a GPU: its blocks and threads. A processor has none.
    grid: Grid | None = None

    def __post_init__(self):
        for field in ("name", "triple", "cpu"):
            value = getattr(self, field)
            require(
                value and not any(c.isspace() for c in value),
                f"a target's {field} is one word, not {value!r}",
            )
        counts = "vector_bits vector_registers cores pointer_bits cache_line fma_pipes fma_latency"
        rates = "load_ports issue l2_bandwidth l3_bandwidth memory_bandwidth region mhz stack"
        for field in f"{counts} {rates}".split():
            require(getattr(self, field) > 0, f"{field} of target {self.name} must be positive")
        ahead = f"prefetch of target {self.name} is {self.prefetch}, fewer than no iterations"
        require(self.prefetch >= 0, ahead)
        for feature in self.features:
            require(
                feature[:1] in ("+", "-") and len(feature) > 1 and "," not in feature,
                f"feature {feature!r} of target {self.name} should read +name or -name",
            )
        require(self.tiles, f"target {self.name} needs a register tile, such as 6x2:6")
        widths = [t.vectors for t in self.tiles]
        require(
            widths == sorted(set(widths), reverse=True),
            f"register tiles of target {self.name} go from many vectors to few, each number once",
        )
        for t in self.tiles:
            require(
                max(t.rows, t.most) * t.vectors < self.vector_registers,
                f"the register tile {t.text()} of target {self.name} does not fit its "
                f"{self.vector_registers} registers",
            )

    @property
    def arch(self) -> str:
        """The architecture, as the first part of the triple: x86_64, aarch64, …"""
        return self.triple.split("-")[0]

    @property
    def instructions(self) -> tuple[str, ...]:
        """Names of the products' instructions, the best first."""
        return tuple(p.instruction for p in self.products)

    @property
    def scratch(self) -> int:
        """Bytes of what one thread stores in one loop and reads in the next: they should stay in
        its second cache, together with what else is read, and on its stack."""
        return min(self.l2 // 2, self.stack)

    @property
    def flops_per_cycle(self) -> int:
        """Additions and multiplications of float32 that one core does in a cycle."""
        return self.lanes(32) * self.fma_pipes * (2 if self.has_fma else 1)

    def lanes(self, bits: int) -> int:
        """Elements of `bits` that fill one vector register; 1 when wider than the register."""
        require(bits > 0, f"an element has a positive number of bits, not {bits}")
        return max(1, self.vector_bits // bits)

    def has(self, feature: str) -> bool:
        """Whether an LLVM feature such as `avx512f` is switched on, or a GPU has such a group of
        instructions."""
        own = self.grid.has if self.grid is not None else ()
        return f"+{feature}" in self.features or feature in own

    def feature_string(self) -> str:
        """The features as LLVM's target machine takes them."""
        return ",".join(f for f in self.features if "." not in f)

    def codegen_key(self) -> str:
        """What decides the machine code of a given LLVM text; cores and caches do not."""
        return f"{self.triple} {self.cpu} {self.feature_string()}"

    def key(self) -> str:
        """A short identity of everything but the name, for caches of schedules and plans."""
        return self._key

    @cached_property
    def _key(self) -> str:
        return _hashed(self.text().partition("\n")[2])

    def machine_key(self) -> str:
        """A short identity of what runs the code, whatever is estimated of it: times that were
        measured on a machine stay true when its numbers for estimates change."""
        grid = "\n".join(_grid_lines(self.grid)) if self.grid is not None else ""
        runs = f"{self.triple} {self.cpu} {','.join(self.features)}"
        return _hashed(f"{runs}\n{self.cores} cores\n{grid}")

    def text(self) -> str:
        """The printed form: `target NAME`, then one line per field."""
        lines = [f"target {self.name}"]
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if field.name == "grid":
                lines += _grid_lines(value) if value is not None else []
            else:
                lines.append(f"  {field.name} {_show(value)}".rstrip())
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return self.text()

    @classmethod
    def parse(cls, text: str) -> Target:
        """The inverse of `text`; fields that are left out have their defaults."""
        numbered = [
            (number, line.strip())
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#")
        ]
        head = numbered[0][1].split() if numbered else []
        require(len(head) == 2 and head[0] == "target", "a target's text begins `target NAME`")
        kinds = {field.name: str(field.type) for field in fields(cls)[1:] if field.name != "grid"}
        kinds |= {f"grid.{field.name}": str(field.type) for field in fields(Grid)}
        values: dict = {}
        for number, line in numbered[1:]:
            name, _, value = line.partition(" ")
            known = ", ".join(kinds)
            require(name in kinds, f"a target has no field {name!r}", where=number, hint=known)
            values[name] = _read(kinds[name], value.strip(), f"line {number}")
        own = {k: v for k, v in values.items() if not k.startswith("grid.")}
        grid = {k.removeprefix("grid."): v for k, v in values.items() if k not in own}
        needed = ["triple", "cpu", *(("grid.capability", "grid.ptx") if grid else ())]
        missing = [name for name in needed if name not in values]
        require(not missing, f"the text of target {head[1]} lacks {', '.join(missing)}")
        return cls(head[1], **own, grid=Grid(**grid) if grid else None)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _grid_lines(grid: Grid) -> list[str]:
    shown = ((f.name, _show(getattr(grid, f.name))) for f in fields(grid))
    return [f"  grid.{name} {value}".rstrip() for name, value in shown]


def _show(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        between = ", " if any(isinstance(x, Product) for x in value) else ","
        return between.join(x if isinstance(x, str) else x.text() for x in value)
    return str(value)


_PARTS = {"tuple[Product, ...]": Product.parse, "tuple[TileShape, ...]": TileShape.parse}


def _read(kind: str, value: str, where: str) -> object:
    if kind == "str":
        return value
    if kind.startswith("tuple"):
        parts = [part.strip() for part in value.split(",") if part.strip()]
        read = _PARTS.get(kind)
        return tuple(parts) if read is None else tuple(read(part, where) for part in parts)
    if kind == "bool":
        require(value in ("yes", "no"), f"{value!r} should be yes or no", where=where)
        return value == "yes"
    try:
        return int(value)
    except ValueError:
        raise Invalid(f"{value!r} should be a whole number", where=where) from None
