"""LLVM text → optimised object code.

The text arrives tiled and vectorised, so the pass pipeline is short and nothing vectorises again.
Each compilation has a context of its own, and llvmlite's global lock is stepped around so that
kernels compile in parallel.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi

from tilewright.base.cache import Cache
from tilewright.base.errors import Invalid, TilewrightError, Unsupported
from tilewright.base.events import Log
from tilewright.ir.target import Target
from tilewright.llvm import nvvm

llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
llvm.initialize_native_asmparser()

LLVM_VERSION = ".".join(str(part) for part in llvm.llvm_version_info)

# Measured on vectorised kernels: SROA halves the time of a matmul whose accumulators are allocas,
# instruction combining pays for itself in the code generator, and O1 to O3 take three times as long
# to produce code of the same speed. Global DCE comes first so that unused helpers cost nothing.
PIPELINE = ("GlobalDCE", "AlwaysInliner", "SROA", "InstCombine", "SimplifyCFG")

# Only for modules with a loop that has the pragma: others have tiled loops that it would unroll.
UNROLLING = ("LoopUnroll", "InstCombine")

# Levels 1 to 3 select the same machine passes in the same time; 0 does not optimise, and takes a
# third of the time for the same text.
_CODEGEN_LEVEL, _QUICK_LEVEL = 2, 0

# Minor versions of llvmlite whose C functions were found to work without its lock.
_UNLOCKED_VERSIONS = ("0.50",)

_FUNCTIONS = """
    ContextCreate ContextDispose ParseAssembly DisposeModule SetTarget SetDataLayout VerifyModule
    GetTargetFromTriple CreateTargetMachine DisposeTargetMachine CreateTargetMachineData
    CopyStringRepOfTargetData DisposeTargetData TargetMachineEmitToMemory GetBufferStart
    GetBufferSize DisposeMemoryBuffer CreatePipelineTuningOptions DisposePipelineTuningOptions
    CreatePassBuilder DisposePassBuilder CreateNewModulePassManager DisposeNewModulePassManger
    RunNewModulePassManager DisposeString
""".split()

# Those that take milliseconds: Python runs other threads meanwhile, and has to give this one its
# turn again afterwards.
_LONG = ("ParseAssembly", "RunNewModulePassManager", "TargetMachineEmitToMemory")


def _bind() -> SimpleNamespace:
    """The C functions used here, with the signatures llvmlite declares.

    llvmlite takes one lock around every call although LLVM needs none between contexts. In known
    versions a second handle on the same library gives the same functions without the lock; nothing
    of llvmlite is changed, so other users in the process keep theirs. In other versions, or
    should the handle not open, the locked functions serve and compilation is merely serial.
    """
    names = [f"LLVMPY_{name}" for name in _FUNCTIONS]
    names += [f"LLVMPY_module_Add{name}Pass" for name in {*PIPELINE, *UNROLLING}]
    locked = {name: getattr(ffi.lib, name) for name in names}
    if ".".join(llvmlite.__version__.split(".")[:2]) not in _UNLOCKED_VERSIONS:
        return SimpleNamespace(parallel=False, **locked)
    try:
        kinds = {True: ctypes.CDLL, False: ctypes.PyDLL}
        library = {k: of(ffi.lib._name, handle=ffi.lib._handle) for k, of in kinds.items()}
        long = {f"LLVMPY_{name}" for name in _LONG}
        unlocked = {name: getattr(library[name in long], name) for name in names}
    except (OSError, AttributeError):
        return SimpleNamespace(parallel=False, **locked)
    for name, function in unlocked.items():
        function.argtypes = locked[name].argtypes
        function.restype = locked[name].restype
    return SimpleNamespace(parallel=True, **unlocked)


_c = _bind()


@dataclass(frozen=True)
class HostCpu:
    """This machine as LLVM describes it."""

    triple: str
    cpu: str
    features: tuple[str, ...]


@cache
def host_cpu() -> HostCpu:
    """What LLVM detects of the machine this process runs on."""
    found = llvm.get_host_cpu_features().flatten()
    return HostCpu(
        llvm.get_process_triple(),
        llvm.get_host_cpu_name(),
        tuple(feature for feature in found.split(",") if feature),
    )


def compiles_in_parallel() -> bool:
    """Whether threads compile at the same time, or take turns on llvmlite's lock."""
    return _c.parallel


def object_key(text: str, target: Target, quick: bool = False) -> str:
    """What identifies the object code of a text: the text, the target and this compiler."""
    passes = "quick" if quick else ",".join((*PIPELINE, *UNROLLING))
    return f"llvm {LLVM_VERSION} {passes}\n{target.codegen_key()}\n{text}"


def compile_object(text: str, target: Target, quick: bool = False) -> bytes:
    """The relocatable object of an LLVM module in text form. Safe to call from many threads.
    `quick`: without optimisation, for code that takes no time."""
    return _emit(text, target, as_object=True, quick=quick)


def cached_object(text: str, target: Target, log: Log | None = None, quick: bool = False) -> bytes:
    """The same, out of the cache where it was compiled before."""
    cache, key = Cache.from_knobs(log), object_key(text, target, quick)
    image = cache.get("object", key)
    if image is None:
        image = compile_object(text, target, quick)
        cache.put("object", key, image)
    return image


def compile_objects(texts: Sequence[str], target: Target, jobs: int) -> list[bytes]:
    """The objects of many modules, `jobs` at a time, in the order of the texts."""
    jobs = min(jobs, len(texts)) if compiles_in_parallel() else 1
    if jobs <= 1:
        return [compile_object(text, target) for text in texts]
    with ThreadPoolExecutor(jobs, thread_name_prefix="tilewright-compile") as pool:
        return list(pool.map(lambda text: compile_object(text, target), texts))


def assembly(text: str, target: Target) -> str:
    """The assembly of an optimised module: of a GPU, the PTX that its driver takes."""
    return _emit(text, target, as_object=False).decode()


def cached_ptx(text: str, target: Target, log: Log | None = None) -> str:
    """The PTX of a module, out of the cache where it was compiled before."""
    cache, key = Cache.from_knobs(log), object_key(text, target)
    found = cache.get("ptx", key)
    if found is None:
        found = _emit(text, target, as_object=False)
        cache.put("ptx", key, found)
    return found.decode()


def _emit(text: str, target: Target, *, as_object: bool, quick: bool = False) -> bytes:
    _refuse_what_would_abort(text, target)
    if target.grid is not None and as_object:
        raise Invalid(f"there are no objects for {target.name}", hint="its code is PTX")
    with ExitStack() as owned:
        context = _c.LLVMPY_ContextCreate()
        owned.callback(_c.LLVMPY_ContextDispose, context)
        level = _QUICK_LEVEL if quick else _CODEGEN_LEVEL
        machine = owned.enter_context(_machine_of(target, level))
        module = _parse(text, context, owned)
        _c.LLVMPY_SetTarget(module, target.triple.encode())
        _c.LLVMPY_SetDataLayout(module, _data_layout(machine))
        message = _Message()
        if _c.LLVMPY_VerifyModule(module, message.out):
            raise Invalid(f"the LLVM module is not well formed: {message.take()}")
        if not quick:
            unrolls = '!"llvm.loop.unroll.count"' in text
            _optimise(module, machine, (*PIPELINE, *UNROLLING) if unrolls else PIPELINE)
        return _machine_code(module, machine, as_object)


class _Message:
    """A string that LLVM may return: read once, then freed."""

    def __init__(self):
        self._pointer = ctypes.c_char_p(None)
        self.out = ctypes.byref(self._pointer)

    def take(self) -> str:
        text = (self._pointer.value or b"").decode(errors="replace").strip()
        if self._pointer:
            _c.LLVMPY_DisposeString(self._pointer)
        return text


# Target machines that are not in use, by what they were made of. LLVM takes a millisecond to make
# one and to learn the features of its processor, a fifth of what a small kernel takes. Each serves
# one thread at a time.
_idle: dict[tuple[str, int], list[Any]] = {}


@contextmanager
def _machine_of(target: Target, level: int) -> Iterator[Any]:
    idle = _idle.setdefault((target.codegen_key(), level), [])
    try:
        machine = idle.pop()
    except IndexError:
        machine = _target_machine(target, level)
    try:
        yield machine
    except BaseException:  # its state is unknown after an error
        _c.LLVMPY_DisposeTargetMachine(machine)
        raise
    idle.append(machine)


def _target_machine(target: Target, level: int) -> Any:
    message = _Message()
    found = _c.LLVMPY_GetTargetFromTriple(target.triple.encode(), message.out)
    if not found:
        raise Unsupported(
            f"LLVM cannot compile for {target.triple}: {message.take()}",
            hint=f"check the triple of target {target.name}",
        )
    known = _ARCHITECTURES.get(target.arch)
    always = known.features if known is not None else ()
    features = ",".join(filter(None, (*always, target.feature_string())))
    machine = _c.LLVMPY_CreateTargetMachine(
        found,
        target.triple.encode(),
        target.cpu.encode(),
        features.encode(),
        level,
        # Position independent and small: the loader places a whole object in one reservation and
        # reaches other symbols through its own stubs and table.
        (known.relocation if known is not None else "pic").encode(),
        (known.code_model if known is not None else "small").encode(),
        0,
        0,
        (known.abi if known is not None else "").encode(),
    )
    if not machine:
        raise Unsupported(f"LLVM made no target machine for target {target.name}")
    return machine


def _data_layout(machine) -> bytes:
    data = _c.LLVMPY_CreateTargetMachineData(machine)
    message = _Message()
    try:
        _c.LLVMPY_CopyStringRepOfTargetData(data, message.out)
        return message.take().encode()
    finally:
        _c.LLVMPY_DisposeTargetData(data)


def _parse(text: str, context, owned: ExitStack):
    message = _Message()
    module = _c.LLVMPY_ParseAssembly(context, text.encode(), message.out)
    if module:
        owned.callback(_c.LLVMPY_DisposeModule, module)
    problem = message.take()
    if problem or not module:
        raise _parse_error(problem, text)
    return module


def _parse_error(problem: str, text: str) -> TilewrightError:
    """LLVM's error with the offending line, without the invented file name."""
    found = re.match(r"<string>:(\d+):(\d+): error: ([^\n]*)", problem)
    if not found:
        return Invalid(f"the LLVM text does not parse: {problem}")
    number, _, reason = found.groups()
    lines = text.splitlines()
    line = lines[int(number) - 1].strip() if int(number) <= len(lines) else "the end of the text"
    return Invalid(f"the LLVM text does not parse: {reason}", where=f"line {number}: {line}")


def _optimise(module, machine, wanted: Sequence[str]) -> None:
    with ExitStack() as owned:
        options = _c.LLVMPY_CreatePipelineTuningOptions()
        owned.callback(_c.LLVMPY_DisposePipelineTuningOptions, options)
        builder = _c.LLVMPY_CreatePassBuilder(machine, options)
        owned.callback(_c.LLVMPY_DisposePassBuilder, builder)
        passes = _c.LLVMPY_CreateNewModulePassManager()
        owned.callback(_c.LLVMPY_DisposeNewModulePassManger, passes)
        for name in wanted:
            getattr(_c, f"LLVMPY_module_Add{name}Pass")(passes)
        _c.LLVMPY_RunNewModulePassManager(passes, module, builder)


def _machine_code(module, machine, as_object: bool) -> bytes:
    message = _Message()
    buffer = _c.LLVMPY_TargetMachineEmitToMemory(machine, module, int(as_object), message.out)
    if not buffer:
        raise TilewrightError(f"LLVM emitted no code: {message.take()}")
    try:
        start = _c.LLVMPY_GetBufferStart(buffer)
        return ctypes.string_at(start, _c.LLVMPY_GetBufferSize(buffer))
    finally:
        _c.LLVMPY_DisposeMemoryBuffer(buffer)


# Text of an assembler; an empty one, which only keeps a value in its place, needs none.
_INLINE_ASSEMBLY = re.compile(
    r'^\s*module\s+asm\s+"|\bcall\b[^\n;]*\basm\s+(?:\w+\s+)*"(?!")', re.M
)
_INTRINSIC = re.compile(
    r"@llvm\.(x86|aarch64|arm|riscv|wasm|nvvm|amdgcn|r600|ppc|s390|hexagon|mips|loongarch|spv|bpf"
    r"|dx|ve|xcore)\."
)


@dataclass(frozen=True)
class _Architecture:
    """What LLVM's code generator for an architecture is like."""

    prefix: str  # of its intrinsics: @llvm.x86.…
    features: tuple[str, ...] = ()  # without which it may abort the process
    grid: bool = False  # for blocks of threads
    # Where code and data may lie, and the calling convention, where the triple does not say it.
    relocation: str = "pic"
    code_model: str = "small"
    abi: str = ""


_ARCHITECTURES = {
    # A processor's name decides about 64 bits, and one that LLVM does not know has none.
    "x86_64": _Architecture("x86", ("+64bit",)),
    "i386": _Architecture("x86"),
    "i686": _Architecture("x86"),
    "aarch64": _Architecture("aarch64"),
    "arm64": _Architecture("aarch64"),
    "armv7": _Architecture("arm"),
    "armv7l": _Architecture("arm"),
    # Small means the lowest 2 GiB there, medium anywhere.
    "riscv64": _Architecture("riscv", code_model="medium", abi="lp64d"),
    "riscv32": _Architecture("riscv"),
    # A module has one memory of its own: its addresses are known when it is linked.
    "wasm32": _Architecture("wasm", relocation="static"),
    "wasm64": _Architecture("wasm", relocation="static"),
    "nvptx64": _Architecture("nvvm", grid=True),
}


def _refuse_what_would_abort(text: str, target: Target) -> None:
    """LLVM ends the process, without an error to catch, on code of another architecture."""
    known = _ARCHITECTURES.get(target.arch)
    for found in _INTRINSIC.finditer(text):
        if known is None or found.group(1) != known.prefix:
            raise Invalid(
                f"an intrinsic of {found.group(1)} cannot be compiled for {target.arch}",
                where=_line_of(text, found.start()),
            )
    if target.grid is not None or (known is not None and known.grid):
        nvvm.check_target(target)
        for what, where in nvvm.faults(text, target):
            raise Invalid(what, where=_line_of(text, where))
        return
    native = host_cpu().triple.split("-")[0]
    if target.arch != native and (found := _INLINE_ASSEMBLY.search(text)):
        raise Invalid(
            f"inline assembly for {target.arch} can only be compiled on such a machine, "
            f"and this one is {native}",
            where=_line_of(text, found.start()),
        )


def _line_of(text: str, position: int) -> str:
    number = text.count("\n", 0, position) + 1
    return f"line {number}: {text.splitlines()[number - 1].strip()}"
