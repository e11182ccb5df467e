"""The code that is emitted for a GPU, run on this processor: LLVM text with its threads as threads.

What the executor of nests cannot see is seen here: guards, shuffles, where private parts lie, how
results are combined. Blocks run one after the other; the threads of a block are real ones that meet
at barriers. Slow: for small sizes.
"""

from __future__ import annotations

import _thread
import ctypes
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product as product_of
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.gpu.emulate_additions import Additions
from tests.gpu.emulate_bounds import BESIDE, Arenas, with_bounds
from tests.gpu.emulate_warps import (
    NUMBERS,
    PATIENCE,
    Arrivals,
    Copies,
    described,
    group_product,
    matrices,
    product,
    with_structures,
)
from tilewright import targets
from tilewright.ir import dim as D
from tilewright.ir.target import Target
from tilewright.ir.types import from_memory, to_memory
from tilewright.kernel.legal import legalise
from tilewright.kernel.nest import Nest
from tilewright.llvm.bulk_copies import MAP
from tilewright.llvm.grid import emit_kernels
from tilewright.llvm.launch import Kernels, Launch, blocks_of, scratch_bytes
from tilewright.llvm.objects import compile_object
from tilewright.runtime.library import Library

WARP = 32
# Without instructions for bfloat16, which this processor may lack.
PLAIN = targets.get("cuda:75")
CANARY = 0xA5
LARGEST = 256 << 10  # bytes of shared memory
STACK = 1 << 20  # bytes of each thread: a block may have a thousand


# An atomic update as an instruction of a GPU.
_UPDATE = re.compile(
    r"(%[\w.]+) = call (\w+) asm sideeffect "
    r'"atom\.global\.gpu\.(\w+)\.(\w+)(?:\.noftz)?\.(bf|\w)\d+ \$0, \[\$1\], \$2;", '
    r'"[^"]*"\(ptr (%[\w.]+), \w+ ([^)]*)\)'
)

# One whose result nobody needs.
_RELEASE = re.compile(
    r'call void asm sideeffect "red\.release\.gpu\.global\.add\.u32 \[\$0\], \$1;", "[^"]*"'
    r"\(ptr addrspace\(1\) %([\w.]+), i32 (%[\w.]+)\)"
)

# Additions to neighbours, at an address that is a multiple of all of them.
_ADDITIONS = re.compile(
    r'( *)call void asm sideeffect "red\.relaxed\.gpu\.global\.add\.v(\d)\.f32 [^"]*", "[^"]*"'
    r"\(ptr (%[\w.]+), ([^)]*)\)"
)


def _added(m: re.Match[str]) -> str:
    indent, count, place, values = m.groups()
    size = 4 * int(count)
    lines = [f"{indent}call void @tw_touched(ptr {place}, i64 {size}, i64 {size}, i1 false)"]
    for k, x in enumerate(values.split(", ")):
        at = f"{place}.{k}"
        lines.append(f"{indent}{at} = getelementptr float, ptr {place}, i64 {k}")
        lines.append(f"{indent}{at}.old = atomicrmw fadd ptr {at}, {x} monotonic")
    return "\n".join(lines)


def _updated(m: re.Match[str]) -> str:
    made, kind, order, name, sign, place, value = m.groups()
    name = {"exch": "xchg", "add": "fadd" if sign in ("f", "bf") else "add"}.get(name, name)
    name = f"u{name}" if sign == "u" and name in ("max", "min") else name
    order = {"relaxed": "monotonic"}.get(order, order)
    if kind != "i16":
        return f"{made} = atomicrmw {name} ptr {place}, {kind} {value} {order}"
    half = {"f": "half", "bf": "bfloat"}[sign]
    return (  # bits are given and taken
        f"{made}.x = bitcast i16 {value} to {half}\n"
        f"  {made}.old = atomicrmw fadd ptr {place}, {half} {made}.x {order}\n"
        f"  {made} = bitcast {half} {made}.old to i16"
    )


def for_processor(text: str) -> str:
    """The module for this processor: one address space, and calls where a GPU has registers."""
    text = re.sub(
        r"= external addrspace\(3\) global \[0 x i8\]",
        f"= global [{LARGEST + BESIDE} x i8] undef",
        text,
    )
    text = re.sub(r'\n *call void asm sideeffect "(cp.async.bulk.)?prefetch[^\n]*', "", text)
    text = _RELEASE.sub(r"%released.\1 = atomicrmw add ptr addrspace(1) %\1, i32 \2 release", text)
    text = text.replace(MAP, "ptr")
    text = re.sub(r" ?addrspace\(\d\)", "", text)
    text = re.sub(
        r"addrspacecast \((ptr [^)]*(?:\([^)]*\))?) to ptr\)", r"bitcast (\1 to ptr)", text
    )
    text = text.replace("addrspacecast ptr", "bitcast ptr").replace("define ptx_kernel", "define")
    text = re.sub(r"\brange\(i32 [^)]*\) ", "", text)
    text = text.replace('syncscope("device") ', "")
    text = _UPDATE.sub(_updated, text)
    text = _ADDITIONS.sub(_added, text)
    text = re.sub(r"@llvm\.nvvm\.([\w.]+)", lambda m: "@nvvm_" + m[1].replace(".", "_"), text)
    return with_bounds(with_structures(text) + (_TO_BF16 if "fptrunc" in text else ""))


# LLVM calls it where the processor has no instruction; older libraries of compilers lack it.
_TO_BF16 = """
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %high = lshr i32 %bits, 16
  %odd = and i32 %high, 1
  %half = add i32 %odd, 32767
  %sum = add i32 %bits, %half
  %near = lshr i32 %sum, 16
  %quiet = or i32 %high, 64
  %nan = fcmp uno float %x, %x
  %code = select i1 %nan, i32 %quiet, i32 %near
  %short = trunc i32 %code to i16
  %y = bitcast i16 %short to bfloat
  ret bfloat %y
}
"""


def _power_of_two(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(_flushed(np.exp2(np.float64(x))))


def _exact_power_of_two(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(np.exp2(np.float64(x))))


def _quotient(x: float, y: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(np.float64(x) / np.float64(y)))


def _reciprocal(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(_flushed(1 / np.float64(x)))


def _inverse_root(x: float) -> float:
    with np.errstate(all="ignore"):
        return float(np.float32(1 / np.sqrt(np.float64(x))))


def _to_bf16(x: float) -> float:
    """A bfloat16 is returned where a float is, in its lower half."""
    bits = int(np.float32(x).view(np.uint32))
    code = bits >> 16 | 64 if x != x else bits + 0x7FFF + (bits >> 16 & 1) >> 16
    return float(np.uint32(code).view(np.float32))


def _flushed(x: np.float64) -> np.float32:
    """The nearest float32; zero where that is not a normal number."""
    near = np.float32(x)
    return near if not abs(near) < np.finfo(np.float32).tiny else np.float32(0)


class Meeting:
    """A barrier. Each thread waits for a lock of its own, which it brings with it: threading's
    barriers have all of them queue for one, twice, and here that is most of the work."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.lock = threading.Lock()
        self.waiting: list[threading.Lock] = []

    def wait(self, mine: threading.Lock) -> bool:
        """Is this thread the last one? All the others are waiting then, until it says `go`."""
        with self.lock:
            last = len(self.waiting) == self.count - 1
            if not last:
                self.waiting.append(mine)
        if not last:
            assert mine.acquire(timeout=PATIENCE), "a thread waits for others that do not come"
        return last

    def go(self) -> None:
        waiting, self.waiting = self.waiting, []
        for x in waiting:
            x.release()


class Functions(Mapping[str, int]):
    """Addresses of functions for emitted code, each made when it is asked for: there are more than
    a thousand, and few are called."""

    def __init__(self) -> None:
        self.given: dict[str, Callable[[], Any]] = {}
        self.made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> int:
        if name not in self.made:
            self.made[name] = self.given[name]()
        return ctypes.cast(self.made[name], ctypes.c_void_p).value or 0

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)

    def __len__(self) -> int:
        return len(self.given)


class Threads:
    """The threads of one block, and what they ask of the machine."""

    def __init__(self) -> None:
        self.mine = threading.local()
        self.size = (1, 1, 1)
        self.barriers = [Meeting(1)]  # of the blocks that run
        self.together = Meeting(1)  # of the cluster
        self.warps: list[Meeting] = []
        self.groups: list[Meeting] = []  # of four warps
        self.named: dict[tuple[int, int, int], Meeting] = {}
        self.few: dict[tuple[int, int], Meeting] = {}  # threads of a warp
        self.lock = threading.Lock()
        self.values: list[Any] = []
        self.functions = Functions()
        self.arenas = Arenas()
        self.failed: list[BaseException] = []

    def symbols(self) -> Mapping[str, int]:
        """Addresses of the functions that emitted code calls."""
        if self.functions:
            return self.functions

        def give(name: str, result: Any, arguments: tuple[Any, ...], f: Callable[..., Any]) -> None:
            def kept(*given: Any) -> Any:
                try:
                    return f(*given)
                except BaseException as e:  # which would be lost on its way through native code
                    self.failed.append(e)
                    raise

            self.functions.given[name] = lambda: ctypes.CFUNCTYPE(result, *arguments)(kept)

        self.functions.given["tw_arenas"] = lambda: self.arenas.table
        self.arenas.symbols(give)
        number = ctypes.c_int32
        for k, axis in enumerate("xyz"):
            give(f"nvvm_read_ptx_sreg_tid_{axis}", number, (), lambda k=k: self.mine.thread[k])
            give(f"nvvm_read_ptx_sreg_ctaid_{axis}", number, (), lambda k=k: self.mine.block[k])
        give("nvvm_barrier_cta_sync_aligned_all", None, (number,), lambda _: self._wait())
        give("nvvm_barrier_cluster_arrive_relaxed_aligned", None, (), lambda: None)
        released = lambda: self.arrivals.release(self.mine.number)  # noqa: E731
        give("nvvm_barrier_cluster_arrive_aligned", None, (), released)
        give("nvvm_barrier_cluster_wait_aligned", None, (), lambda: self._meet(self.together))
        name = "nvvm_barrier_cta_sync_aligned_count"
        give(name, None, (number, number), lambda k, n: self._meet(self._some(k, n)))
        name = "nvvm_bar_warp_sync"
        give(name, None, (number,), self._warp_wait)
        for name, t in (("f32", ctypes.c_float), ("i32", number)):
            give(f"nvvm_shfl_sync_bfly_{name}", t, (number, t, number, number), self._exchanged)
        single = ctypes.c_float
        give("nvvm_ex2_approx_ftz_f", single, (single,), _power_of_two)
        give("nvvm_ex2_approx_f", single, (single,), _exact_power_of_two)
        give("nvvm_div_full", single, (single, single), _quotient)
        give("nvvm_rcp_approx_ftz_f", single, (single,), _reciprocal)
        give("nvvm_rsqrt_approx_f", single, (single,), _inverse_root)
        # What a processor without bfloat16 calls, which is not in every system's libraries.
        give("__truncsfbf2", single, (single,), _to_bf16)
        address = ctypes.c_void_p
        for name, deep in (("bf16", 16), ("f32_f32", 16), ("s8", 32), ("tf32", 8)):
            f = partial(self._together, partial(product, kind=name))
            give(f"emulated_mma_m16n8k{deep}_row_col_{name}", None, (address, address), f)
        for how in ("", "_trans"):
            f = partial(self._together, partial(matrices, turned=bool(how)))
            name = f"emulated_ldmatrix_sync_aligned_m8n8_x4{how}_b16_p3"
            give(name, None, (address, address), f)
        for columns in range(8, 257, 8):
            for kind, order in product_of(NUMBERS, map("".join, product_of("01r", "01"))):
                f = partial(group_product, columns=columns, kind=kind, order=order)
                f = partial(self._together, f, team=4 * WARP)
                deep = 16 if kind in ("bf16", "f16") else 32
                name = f"emulated_wgmma_m64n{columns}k{deep}_{kind}_{order}"
                give(name, None, (address, address), f)
        orders = ("00", "01", "10", "11")
        few = product_of((64, 128), ("bf16", "f16"), orders, (16, 32))
        for columns, kind, order, steps in few:
            f = partial(group_product, columns=columns, kind=kind, order=order, steps=steps)
            f = partial(self._together, f, team=4 * WARP)
            name = f"emulated_wgmma_m64n{columns}k16_{kind}_{order}_{steps}"
            give(name, None, (address, address), f)
        for size in (4, 8, 16):
            kind = "cg" if size == 16 else "ca"
            name = f"nvvm_cp_async_{kind}_shared_global_{size}"
            f = lambda to, of, size=size: self.copies().ask(to, of, size, size)  # noqa: E731
            give(name, None, (address, address), f)
            part = lambda to, of, read, size=size: self.copies().ask(to, of, size, read)  # noqa: E731
            give(f"{name}_s", None, (address, address, number), part)
        self.arrivals = Arrivals()
        give("nvvm_mbarrier_init", None, (address, number), self._begin)
        give("nvvm_mbarrier_arrive_at", None, (address, number), self._arrive_at)
        give("nvvm_mbarrier_arrive", None, (address,), self.arrivals.arrive)
        give("nvvm_mbarrier_expect_tx", None, (address, number), self.arrivals.expect)
        give("nvvm_mbarrier_try_wait", None, (address, number), self.arrivals.wait)
        for axes in (2, 3, 4, 5):
            kinds = (address, address, *[number] * axes, address)
            give(f"nvvm_bulk_tensor_{axes}d", None, kinds, self.arrivals.copy)
            to_all = lambda *x: self.arrivals.copy_to_all(self.mine.rank, *x)  # noqa: E731
            name = f"nvvm_bulk_tensor_{axes}d_to_all"
            give(name, None, (*kinds, ctypes.c_int16), to_all)
        single4 = (address, *[single] * 4)
        give("nvvm_staged", None, single4, lambda *x: self.additions().store(*x))
        give("nvvm_bulk_add", None, (address, address, number), lambda *x: self.additions().add(*x))
        give("nvvm_bulk_commit", None, (), lambda: self.additions().commit())
        give("nvvm_bulk_wait", None, (number,), lambda k: self.additions().wait(k))
        give("nvvm_bulk_fence", None, (), lambda: self.additions().fence())
        give("nvvm_cp_async_commit_group", None, (), lambda: self.copies().commit())
        give("nvvm_cp_async_wait_group", None, (number,), lambda k: self.copies().wait(k))
        return self.functions

    def copies(self) -> Copies:
        """Those of the running thread."""
        return self.mine.copies

    def additions(self) -> Additions:
        return self.mine.additions

    def _together(
        self, f: Callable[[list[int]], list[bytes]], given: int, into: int, team: int = WARP
    ) -> None:
        """An instruction of a whole warp, or of a group of four: `f` has what all its threads give,
        by address, and says what each of them gets."""
        me = self.mine.number
        warp = (self.warps if team == WARP else self.groups)[me // team]
        first = me - me % team
        self.values[me] = given, into
        if warp.wait(self.mine.lock):
            addresses, places = zip(*self.values[first : first + team], strict=True)
            for place, result in zip(places, f(list(addresses)), strict=True):
                ctypes.memmove(place, result, len(result))
            warp.go()

    def _meet(self, of: Meeting) -> None:
        if of.wait(self.mine.lock):
            of.go()

    def _wait(self) -> None:
        self._meet(self.barriers[self.mine.rank])

    def _begin(self, at: int, count: int) -> None:
        self.arrivals.begin(at, self.mine.rank, count)

    def _arrive_at(self, at: int, block: int) -> None:
        self.arrivals.arrive_at(self.mine.rank, at, block, self.mine.number)

    def _warp_wait(self, mask: int) -> None:
        """Threads of a warp wait for each other: all, or the first ones of the only one."""
        all_ = mask == -1
        few = None if all_ else self._few(mask.bit_count())
        self._meet(few or self.warps[self.mine.number // WARP])

    def _some(self, number: int, count: int) -> Meeting:
        """A barrier by its number, of so many threads."""
        with self.lock:
            key = self.mine.rank, number, count
            return self.named.setdefault(key, Meeting(count))

    def _few(self, count: int) -> Meeting:
        """A barrier of so many threads of the only warp."""
        with self.lock:
            return self.few.setdefault((self.mine.rank, count), Meeting(count))

    def _exchanged(self, mask: int, x: Any, step: int, last: int) -> Any:
        assert mask == -1 and last == WARP - 1
        me = self.mine.number
        warp = self.warps[me // WARP]
        self.values[me] = x
        if warp.wait(self.mine.lock):
            first = me - me % WARP
            self.values[first : first + WARP] = [
                self.values[k ^ step] for k in range(first, first + WARP)
            ]
            warp.go()
        return self.values[me]

    def run(
        self,
        functions: list[Any],
        launch: Launch,
        blocks: Sequence[tuple[int, ...]],
        args: list[Any],
    ) -> None:
        """The blocks of a cluster, each by its own copy of the code, which has its own memory."""
        x, y, z = launch.threads
        each = x * y * z
        count = each * len(blocks)
        wide = -(-each // (4 * WARP)) * 4 * WARP  # numbers of a block, in whole groups
        assert len(blocks) == 1 or each % WARP == 0
        self.barriers = [Meeting(each) for _ in blocks]
        self.together = Meeting(count)
        sizes = [max(1, min(WARP, each - k)) for k in range(0, wide, WARP)]
        self.warps = [Meeting(size) for _ in blocks for size in sizes]
        self.groups = [Meeting(4 * WARP) for _ in range(wide * len(blocks) // 4 // WARP)]
        self.values = [None] * (wide * len(blocks))
        self.arrivals.start()
        running = [each] * len(blocks)  # threads
        failed = self.failed
        failed.clear()
        ended: list[int] = []
        over = threading.Event()

        def one(n: int) -> None:
            rank, k = divmod(n, each)
            self.mine.number, self.mine.rank = rank * wide + k, rank
            self.mine.block = blocks[rank]
            self.mine.thread = (k % x, k // x % y, k // (x * y))
            self.mine.copies, self.mine.lock = Copies(), threading.Lock()
            self.mine.additions = Additions(self.arenas.look)
            self.mine.lock.acquire()
            try:
                functions[rank](*args)
                self.mine.additions.end()
                with self.lock:
                    running[rank] -= 1
                if not running[rank]:
                    self.arrivals.end(rank)
            except BaseException as e:
                failed.append(e)
            ended.append(n)
            if len(ended) == count:
                over.set()

        usual = threading.stack_size(STACK)
        for k in range(count):  # without what else threading's threads do to start and end
            _thread.start_new_thread(one, (k,))
        threading.stack_size(usual)
        in_time = over.wait(4 * PATIENCE)
        assert in_time and not failed, f"threads failed: {failed}"

    def one_by_one(
        self, function: Any, launch: Launch, block: tuple[int, ...], args: list[Any]
    ) -> None:
        """The same of threads that do not wait for each other, which is much quicker."""
        x, y, z = launch.threads
        self.mine.block, self.mine.rank = block, 0
        self.failed.clear()
        for k in range(x * y * z):
            self.mine.number, self.mine.thread = k, (k % x, k // x % y, k // (x * y))
            function(*args)
        assert not self.failed, f"threads failed: {self.failed}"


def run(
    nest: Nest,
    arrays: Mapping[str, np.ndarray],
    dims: Mapping[str, int] | None = None,
    target: Target = PLAIN,
    alignment: int = 16,
) -> dict[str, np.ndarray]:
    """The outputs by name, like kernel.interpret.run."""
    made = emit_kernels(legalise(nest, target), target, alignment)
    return run_kernels(made, arrays, dict(dims or {}), alignment)


class Loaded:
    """Kernels on this processor, in place of runtime/cuda/kernels.py's."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.threads = Threads()
        image = compile_object(for_processor(kernels.text), targets.host(), quick=True)
        symbols = self.threads.symbols()
        most = max(x.cluster for x in kernels.launches)
        self.libraries = [Library([image], symbols) for _ in range(most)]

    def planned(self, sizes: dict[str, int]) -> list[SimpleNamespace]:
        """The launches for given sizes."""
        dims = [sizes[d] for d in self.kernels.dims]
        return [
            SimpleNamespace(
                launch=SimpleNamespace(again=partial(self.launch, x)),
                arguments=x.arguments,
                dims=dims,
                blocks=blocks_of(x, sizes),
            )
            for x in self.kernels.launches
        ]

    def launch(
        self, x: Launch, parameters: list[int], blocks: tuple[int, int, int], stream: int = 0
    ) -> None:
        kinds = [ctypes.c_void_p] * len(x.arguments) + [ctypes.c_int64] * len(self.kernels.dims)
        kinds += [ctypes.c_void_p] * len(x.boxes)
        sizes = dict(zip(self.kernels.dims, parameters[len(x.arguments) :], strict=True))
        maps = [
            described(
                m.item,
                *m.described(parameters[x.arguments.index(m.buffer)], sizes),
                m.box,
                m.swizzle,
            )
            for m in x.boxes
        ]
        parameters = [*parameters, *(m.ctypes.data for m in maps)]
        made = ctypes.CFUNCTYPE(None, *kinds)
        functions = [made(y.address(x.symbol)) for y in self.libraries[: x.cluster]]
        for k, y in enumerate(self.libraries[: x.cluster] if x.shared else ()):
            name = f"{x.symbol}_shared"
            self.threads.arenas.put(f"{name} {k}", y.address(name), x.shared, 0)
        gx, gy, gz = blocks
        places = [(k % gx, k // gx % gy, k // (gx * gy)) for k in range(gx * gy * gz)]
        for k in range(0, len(places), x.cluster):
            self.threads.run(functions, x, places[k : k + x.cluster], parameters)


def run_kernels(
    made: Kernels, arrays: Mapping[str, np.ndarray], sizes: dict[str, int], alignment: int
) -> dict[str, np.ndarray]:
    memory: dict[str, tuple[np.ndarray, int, int]] = {}
    for b in (*made.arguments, *made.scratch):
        size = scratch_bytes(b, sizes)
        raw = np.full(size + 512 + 2 * BESIDE, CANARY, np.uint8)
        off = max(alignment, b.dtype.bytes) if alignment < 16 else 0
        start = -raw.ctypes.data % 256 + BESIDE + off
        if b.name in arrays:
            laid = arrays[b.name] if b.packed_as is None else b.packed_as.map.pack(arrays[b.name])
            given = to_memory(np.ascontiguousarray(laid), b.dtype)
            raw[start : start + size] = np.frombuffer(given.tobytes(), np.uint8)
        if b.scope == "counter":
            raw[start : start + size] = 0
        memory[b.name] = raw, start, size
    loaded = Loaded(made)
    for name, (raw, start, size) in memory.items():
        loaded.threads.arenas.put(name, raw.ctypes.data + start, size)
    for p in loaded.planned(sizes):
        places = [memory[x] for x in p.arguments]
        p.launch.again([*(raw.ctypes.data + start for raw, start, _ in places), *p.dims], p.blocks)
    out: dict[str, np.ndarray] = {}
    for b in made.scratch:
        raw, start, size = memory[b.name]
        left = b.scope == "counter" and raw[start : start + size].any()
        assert not left, f"the counter {b.name} is not zero at the end"
    for b in made.arguments:
        raw, start, size = memory[b.name]
        edges = np.concatenate([raw[:start], raw[start + size :]])
        assert (edges == CANARY).all(), f"the code writes outside {b.name}"
        if b.scope == "out":
            shape = tuple(int(D.evaluate(d, sizes)) for d in b.shape)
            elements = raw[start : start + size].view(b.dtype.memory).reshape(shape)
            out[b.name] = from_memory(elements, b.dtype)
    return out
