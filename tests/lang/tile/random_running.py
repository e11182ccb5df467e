"""Running random kernels natively and step by step, comparing, and making what fails small."""

from __future__ import annotations

import itertools
import linecache
import re
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tilewright as tw
import tilewright.language as tl
from tests.generators import compiling
from tests.lang.tile.random_values import BOOL, FLOATS, dtype_of
from tests.lang.tile.random_writer import ArraySpec, Kernel, Statement
from tests.lang.tile.threads_running import on_gpu, run_threads, write_code
from tests.lang.tile.triton_judge import Abstains, interpreted
from tests.lang.tile.triton_judge import enabled as judged_by_triton
from tilewright.ir.types import DType, from_memory, to_memory
from tilewright.lang.tile import ir
from tilewright.lang.tile.front.frontend import translate
from tilewright.lang.tile.stepping.eager import interpret, run_eager
from tilewright.lang.tile.text import kernel_text, parse_kernel

GUARD = 4096  # bytes around every array that nobody may write to
PATTERN = 0xA5
LONGEST = 10.0  # seconds of a processor for compiling a kernel and running it once


class Array:
    """Memory of a launch with guards around it, seen as a dtype of the language."""

    def __init__(self, spec: ArraySpec, rng: np.random.Generator):
        element = dtype_of(spec.dtype).ir
        assert isinstance(element, DType)
        self.spec, self.element, self.dtype = spec, element, dtype_of(spec.dtype)
        size = np.dtype(element.memory).itemsize
        count = spec.high - spec.low + 1
        # The address that the kernel is given lies in what is allocated.
        lead = GUARD + max(0, spec.low) * size
        self.whole = np.full(lead + GUARD + count * size + 64, PATTERN, np.uint8)
        # It is a multiple of 16 bytes, or just not.
        start = lead + (-(self.whole.ctypes.data + lead - spec.low * size)) % 16
        start += 0 if spec.aligned else size
        self.span = slice(start, start + count * size)
        self.elements[:] = to_memory(_numbers(spec, element, count, rng), element)
        self.address = self.whole.ctypes.data + start - spec.low * size
        self.base = _at(self.whole, self.address, max(1, spec.high + 1), element)

    @property
    def elements(self) -> np.ndarray:
        return self.whole[self.span].view(self.element.memory)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    def data_ptr(self) -> int:
        return self.address

    def numel(self) -> int:
        return self.base.size

    def element_size(self) -> int:
        return self.base.itemsize

    def guards(self) -> np.ndarray:
        outside = np.ones(self.whole.shape, bool)
        outside[self.span] = False
        return np.flatnonzero(outside & (self.whole != PATTERN)) - self.span.start


def _at(whole: np.ndarray, address: int, count: int, element: DType) -> np.ndarray:
    """Elements from an address on, as many as the buffer has."""
    first = address - whole.ctypes.data
    size = np.dtype(element.memory).itemsize
    first = min(max(first, 0), whole.size - size)
    count = min(count, (whole.size - first) // size)
    return whole[first : first + count * size].view(element.memory)


def _numbers(spec: ArraySpec, element: DType, n: int, rng: np.random.Generator) -> np.ndarray:
    low, high, grain = spec.fill
    if np.isinf(high):
        numbers = rng.integers(-4, 4, n, endpoint=True).astype(np.float64)
        rare = rng.choice([np.inf, -np.inf, np.nan], n)
        return np.where(rng.random(n) < 0.2, rare, numbers)
    if spec.dtype == BOOL:
        return rng.integers(0, 2, n).astype(bool)
    if spec.dtype not in FLOATS:
        kind = np.dtype(element.numpy)
        return rng.integers(int(low), int(high), n, dtype=kind, endpoint=True)
    if grain is None:
        return rng.uniform(low, high, n)
    return rng.integers(round(low / grain), round(high / grain), n, endpoint=True) * grain


@dataclass(frozen=True)
class Failure:
    kind: str  # what shrinking has to keep
    text: str


def launched(k: Kernel, how: str) -> dict[str, Array]:
    """The arrays of a kernel after it ran: natively, step by step, its translation so, on threads,
    on a GPU, or by Triton's interpreter."""
    rng = np.random.default_rng(k.seed)
    arrays = {n: Array(s, rng) for n, s in k.arrays.items()}
    if how == "triton":
        interpreted(k, arrays)
        return arrays
    f = compiled(k)
    given = {n: arrays.get(n, k.numbers.get(n)) for n in k.parameters}
    if how == "native":
        with compiling():  # and running, which takes little time in comparison it
            f[k.grid](**given)
        return arrays
    grid = (*k.grid, 1, 1)[:3]
    about = f._described(tuple(given[n] for n in f.arg_names))
    if how == "cuda":
        on_gpu(f, k, arrays)
        return arrays
    warps = (4, 1, 2, 8)[k.seed % 4]
    if how == "lowered":
        write_code(translate(f, about), warps)
        raise Abstains("its code for a GPU is written, and not run")
    if how == "threads":
        values = [_memory(x) for n, x in given.items() if about[n].element is not None]
        run_threads(translate(f, about), grid, values, warps)
        return arrays
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "stepping":
            run_eager(f, grid, given, about)
        else:
            values = [x for n, x in given.items() if about[n].element is not None]
            made = translate(f, about)
            assert parse_kernel(kernel_text(made)) == made, "its text is another kernel"
            interpret(made, grid, values)
    return arrays


def _memory(x: Any) -> Any:
    """An array as the elements that a pointer reaches, and which of them it points to."""
    return (x.elements, -x.spec.low) if isinstance(x, Array) else x


def translated(k: Kernel) -> ir.Kernel:
    rng, f = np.random.default_rng(k.seed), compiled(k)
    arrays = {n: Array(s, rng) for n, s in k.arrays.items()}
    given = {n: arrays.get(n, k.numbers.get(n)) for n in k.parameters}
    return translate(f, f._described(tuple(given[n] for n in f.arg_names)))


def compiled(k: Kernel) -> Any:
    source = k.source()
    name = f"<random kernel {k.seed}: {hash(source)}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {"tw": tw, "tl": tl, "libdevice": tl.extra.libdevice}
    exec(compile(source, name, "exec"), scope)
    return scope["kernel"]


def failure(k: Kernel, others: tuple[str, ...] = ()) -> Failure | None:
    """What is wrong with a kernel, if anything is. Every fifth is also translated and its
    translation run step by step; all are run by Triton's interpreter where it is installed. Or it
    is run step by step and in other ways that are named."""
    ran: dict[str, dict[str, Array]] = {}
    ways = ["stepping", "native"]
    ways += ["translated"] if k.seed % 5 == 0 else []
    ways += ["triton"] if judged_by_triton() else []
    ways = ["stepping", *others] if others else ways
    for how in list(ways):
        began = time.process_time()
        try:
            ran[how] = launched(k, how)
        except Abstains:
            ways.remove(how)
            continue
        except Exception as problem:
            return Failure(f"{how}: {type(problem).__name__} {_head(problem)}", str(problem))
        took = time.process_time() - began
        if how == "native" and took > LONGEST:
            return Failure("native slow", f"compiling and running took {took:.1f} s")
        for name, a in ran[how].items():
            if len(a.guards()):
                text = f"{how}: {name} is written outside, at byte {a.guards()[0]}"
                return Failure(f"{how} outside", text)
    for how in ways[1:]:
        for name, spec in k.arrays.items():
            error = k.errors.get(name, 0.0)
            problem = _difference(ran["stepping"][name], ran[how][name], error, spec, how)
            if problem:
                return Failure(f"{how} differs", f"{name}: {problem}")
    return None


def _head(problem: Exception) -> str:
    return re.sub(r"\d+", "#", str(problem).splitlines()[0] if str(problem) else "")[:50]


def _difference(want: Array, got: Array, error: float, spec: ArraySpec, how: str) -> str:
    a, b = (from_memory(x.elements, x.element) for x in (want, got))
    if not spec.output:
        same = want.whole == got.whole
        return "" if same.all() else "an input is changed"
    if want.element.is_float:
        a, b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(invalid="ignore"):
            bad = ~((np.abs(a - b) <= error) | (a == b) | (np.isnan(a) & np.isnan(b)))
    else:
        bad = a != b
    if not bad.any():
        return ""
    at = int(np.flatnonzero(bad)[0])
    return (
        f"{spec.dtype} [{at + spec.low}] is {b[at]!r} {how} and {a[at]!r} stepping "
        f"({int(bad.sum())} of {bad.size} differ; {error:.3g} allowed)"
    )


# ---- smaller


def shrunk(k: Kernel, kind: str, tries: int = 300, others: tuple[str, ...] = ()) -> Kernel:
    """The smallest kernel found that fails in the same way: without statements, with smaller
    shapes."""
    going = True
    while going and tries > 0:
        going = False
        for smaller in itertools.chain(_without(k), _halved(k)):
            tries -= 1
            if tries <= 0:
                break
            found = failure(smaller, others)
            if found is not None and found.kind == kind:
                k, going = smaller, True
                break
    return k


def _without(k: Kernel) -> Iterator[Kernel]:
    """One statement less, with those that need what it defines."""
    paths = list(_paths(k.body))
    for path in reversed(paths):
        body = _copy(k.body)
        gone = _remove(body, path)
        if re.fullmatch(r"\w+ \+= 1", gone.text):
            continue  # that ends a loop
        names = set(re.findall(r"^(\w+)(?=(?:, \w+)* [-+*]?= )", gone.text))
        names |= set(re.findall(r"^\w+, (\w+) = ", gone.text))
        while names:
            names = _drop_users(body, names, body)
        yield _used(replace(k, body=body))
        if gone.body:
            body = _copy(k.body)
            _remove(body, path, gone.body)
            yield _used(replace(k, body=body))


def _paths(body: list[Statement], prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for n, s in enumerate(body):
        yield (*prefix, n)
        for part in ("body", "orelse"):
            inner = getattr(s, part)
            if inner:
                yield from _paths(inner, (*prefix, n, part))


def _copy(body: list[Statement]) -> list[Statement]:
    return [
        Statement(s.text, *(None if b is None else _copy(b) for b in (s.body, s.orelse)))
        for s in body
    ]


def _remove(
    body: list[Statement], path: tuple[Any, ...], instead: list[Statement] | None = None
) -> Statement:
    body, n = _at_path(body, path)
    gone = body[n]
    body[n : n + 1] = _copy(instead or [])
    return gone


def _at_path(body: list[Statement], path: tuple[Any, ...]) -> tuple[list[Statement], int]:
    """The list that a statement is in, and where."""
    *around, n = path
    for k in range(0, len(around), 2):
        body = getattr(body[around[k]], around[k + 1])
    return body, n


def _drop_users(body: list[Statement], names: set[str], root: list[Statement]) -> set[str]:
    """Statements that name what is nowhere defined any more; what they define in turn."""
    undefined = names - _defined(root)
    more: set[str] = set()
    for s in list(body):
        if undefined & set(re.findall(r"[A-Za-z_]\w*", s.text)):
            body.remove(s)
            more |= set(re.findall(r"^(\w+)(?=(?:, \w+)* [-+*]?= )", s.text))
            more |= set(re.findall(r"^\w+, (\w+) = ", s.text))
        else:
            for inner in (s.body, s.orelse):
                if inner:
                    more |= _drop_users(inner, names, root)
    return more


def _defined(body: list[Statement]) -> set[str]:
    found: set[str] = set()
    for s in body:
        found |= set(re.findall(r"^(\w+)(?=(?:, \w+)* = )", s.text))
        found |= set(re.findall(r"^\w+, (\w+) = ", s.text))
        for inner in (s.body, s.orelse):
            found |= _defined(inner or [])
    return found


def _halved(k: Kernel) -> Iterator[Kernel]:
    """A size that occurs, halved wherever it occurs."""
    text = k.source()
    for n in sorted({int(x) for x in re.findall(r"\b\d+\b", text)}, reverse=True):
        if n < 2 or n & (n - 1):
            continue
        body = _copy(k.body)
        for path in _paths(body):
            _rename(body, path, str(n), str(n // 2))
        yield replace(k, body=body)
    if k.grid != (1,):
        yield replace(k, grid=(1,) * len(k.grid))


def _rename(body: list[Statement], path: tuple[Any, ...], old: str, new: str) -> None:
    inside, n = _at_path(body, path)
    s = inside[n]
    s.text = re.sub(rf"(?<![\w.]){old}(?![\w.])", new, s.text)


def _used(k: Kernel) -> Kernel:
    """Only the arguments and functions that the body names."""
    body = "\n".join(line for s in k.body for line in s.lines(0))
    words = set(re.findall(r"[A-Za-z_]\w*", body))
    helpers = [h for h in k.helpers if re.findall(r"def (\w+)", h)[0] in words]
    keep = {n: a for n, a in k.parameters.items() if n in words}
    return replace(
        k,
        helpers=helpers,
        parameters=keep,
        arrays={n: s for n, s in k.arrays.items() if n in keep},
        numbers={n: v for n, v in k.numbers.items() if n in keep},
    )


def described(k: Kernel, found: Failure) -> str:
    arrays = "\n".join(f"  {n}: {s}" for n, s in k.arrays.items())
    return (
        f"seed {k.seed}, grid {k.grid}: {found.kind}\n{found.text}\n\n{k.source()}\n"
        f"numbers {k.numbers}\n{arrays}"
    )


def runnable(k: Kernel) -> str:
    """A file that runs a kernel again, from the root of the repository, and says what is wrong."""
    text = "\n".join(f"# {line}" for line in k.source().splitlines())
    return (
        f"{text}\n\nfrom math import inf\n\nimport tilewright.language\n"
        "from tests.lang.tile.random_running import failure\n"
        "from tests.lang.tile.random_writer import ArraySpec, Kernel, Statement\n\n"
        f"kernel = {k!r}\nprint(failure(kernel))\n"
    )
