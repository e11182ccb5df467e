"""A package that is loaded: what it takes and gives, and calls of it."""

from __future__ import annotations

import ctypes
import os
from _thread import allocate_lock

from tilewright_runtime import machine
from tilewright_runtime.arrays import DTYPES, Memory, copied, empty, read
from tilewright_runtime.files import Files
from tilewright_runtime.manifest import parsed
from tilewright_runtime.native import LINE, Library, Mapped, allocate, free, of_process
from tilewright_runtime.sentences import PackageError
from tilewright_runtime.signature import require_signature

try:  # hashlib would load OpenSSL
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MAX_THREADS = 1024
_MAX_RANK = 16
_SPIN_NS = 100_000  # that an idle thread waits before it sleeps
_KNOWN_SIZES = 256  # combinations of shapes whose sizes are kept


class Tensor:
    """An input or output. A dim of `shape` is a size, the name of a dim, or an expression of
    names, as text."""

    __slots__ = ("dtype", "name", "shape")

    def __init__(self, name: str, dtype: str, shape: tuple[int | str, ...]):
        self.name, self.dtype, self.shape = name, dtype, shape

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype}{_shown(self.shape)}"


def _shown(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, shape))}]"


class _Sizes:
    """What the shapes of inputs determine."""

    __slots__ = ("dims", "outputs", "values", "workspace")

    def __init__(self, values: tuple[int, ...], outputs: list[tuple[int, ...]], workspace: int):
        self.values, self.outputs, self.workspace = values, outputs, workspace
        self.dims = (ctypes.c_int64 * max(1, len(values)))(*values)


def load(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    verify: bool = False,
    public_key: object = None,
    copy_weights: bool = False,
) -> Package:
    """Load a package, a folder or a file `name.twp`, to call it.

    A package holds native code, which runs in this process: load only what you trust. Checksums of
    code are always compared before any of it can run; `verify` compares that of the weights too,
    which reads all of them. `public_key` (PEM, as bytes or the path of a file) takes only packages
    that were signed with its private key, and verifies all. `threads` is how many share the work of
    a call, in all packages of the process. Weights are mapped from the file and read when they are
    touched; `copy_weights` reads them to memory of this process, in large pages, which takes longer
    once and makes calls that mostly read weights a little faster.
    """
    files = Files(path)
    try:
        text = files.manifest()
        if public_key is not None:
            require_signature(files, text, public_key)
        package = Package(files, text, verify or public_key is not None, copy_weights)
    finally:
        files.close()
    if threads is not None:
        package.set_threads(threads)
    return package


class Package:
    """Made by `load`. Many threads may call one package at once: a call keeps no state, and other
    Python threads run meanwhile."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    dims: dict[str, tuple[int, int | None]]  # lowest and highest value; None: any
    manifest: dict[str, Any]
    level: str  # the target whose code was taken

    def __init__(self, files: Files, text: bytes, verify: bool, copy_weights: bool):
        self.path = files.path
        self._lock, self._calls, self._open = allocate_lock(), 0, False
        self._spare: list[tuple[int, int]] = []  # workspaces that no call uses: bytes, address
        self._known: dict[tuple[tuple[int, ...], ...], _Sizes] = {}
        self.manifest = manifest = parsed(self.path, text)
        self._describe(manifest)
        level = self._choose(manifest)
        self._weights = self._mapped(files, verify)
        self._copy = 0  # where weights are that are not read from the file
        self._code: Library | None = None
        self._pool = None
        self._open = True  # what is mapped is given back by `close`
        try:
            if level.get("pool") is True:
                self._pool = _pool_of(self, files)
            self._load(files, level)
            self._unpack(copy_weights)
        except BaseException:
            self.close()
            raise

    # ---- the manifest

    def _no_package(self, why: str) -> PackageError:
        return PackageError("PACKAGE", self.path, why)

    def _lacks(self, what: str) -> PackageError:
        return self._no_package(f"its manifest lacks {what}")

    def _describe(self, manifest: dict[str, Any]) -> None:
        ins, outs = manifest.get("inputs"), manifest.get("outputs")
        dims, self._checks = manifest.get("dims"), manifest.get("checks")
        lists = (ins, outs, self._checks)
        if not isinstance(dims, dict) or not all(isinstance(x, list) for x in lists):
            raise self._lacks("inputs, outputs, dims or checks")
        self.name = str(manifest.get("name", ""))
        self.dims = {name: self._bounds(given) for name, given in dims.items()}
        self.inputs = tuple(map(self._tensor, ins or ()))
        self.outputs = tuple(map(self._tensor, outs or ()))
        self._places: list[tuple[int, int]] = []  # of dims: an input and its axis
        for name in self.dims:
            found = [(k, t.shape.index(name)) for k, t in enumerate(self.inputs) if name in t.shape]
            if not found:
                raise self._no_package("no input has an axis of some dim's size")
            self._places.append(found[0])
        self._extents = sum(len(t.shape) for t in (*self.inputs, *self.outputs))

    def _bounds(self, given: Any) -> tuple[int, int | None]:
        if isinstance(given, list) and len(given) >= 2 and type(given[0]) is int:
            if given[1] is None or type(given[1]) is int:
                return given[0], given[1]
        raise self._lacks("the bounds of a dim")

    def _tensor(self, given: Any) -> Tensor:
        found = given if isinstance(given, dict) else {}
        name, dtype, shape = found.get("name"), found.get("dtype"), found.get("shape")
        if type(name) is not str or type(dtype) is not str or not isinstance(shape, list):
            raise self._lacks("a name, dtype or shape")
        if len(shape) > _MAX_RANK:
            raise self._no_package("a tensor has too many axes")
        if dtype not in DTYPES:
            raise self._no_package("a dtype is unknown")
        if not all(type(n) is str or (type(n) is int and n >= 0) for n in shape):
            raise self._lacks("a size")
        return Tensor(name, dtype, tuple(shape))

    def _choose(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The first level that this machine runs: the best."""
        levels, here = manifest.get("levels"), machine.architecture()
        if not isinstance(levels, list) or not levels:
            raise self._lacks("levels")
        others: list[str] = []
        refused: tuple[str, str] | None = None
        for level in levels:
            found = level if isinstance(level, dict) else {}
            arch, self.level = found.get("architecture"), found.get("target", "")
            features = found.get("features")
            if type(arch) is not str or not self.level or not isinstance(features, dict):
                raise self._lacks("a target and its features")
            if arch != here:
                others += [] if arch in others else [arch]
                continue
            if not all(type(test) is str for test in features.values()):
                raise self._lacks("the test of a feature")
            missing = [name for name, test in features.items() if not machine.has(test)]
            if not missing:
                return found
            refused = self.level, ", ".join(missing)
        if refused is not None:
            raise PackageError("FEATURE", self.path, *refused)
        raise PackageError("ARCHITECTURE", self.path, ", ".join(others), here)

    # ---- files

    def _named(self, about: Any, what: str) -> tuple[str, int, str]:
        found = about if isinstance(about, dict) else {}
        name, size, digits = found.get("file"), found.get("bytes"), found.get("blake2b")
        if type(name) is not str or type(size) is not int or type(digits) is not str or size < 0:
            raise self._lacks(what)
        return name, size, digits

    def _mapped(self, files: Files, verify: bool) -> Mapped | None:
        name, size, digits = self._named(
            self.manifest.get("weights"), "the weights' file, bytes or checksum"
        )
        with files.open(name) as part:
            if part.size != size:
                raise PackageError("SIZE", self.path, name, part.size, size)
            if part.offset % LINE:
                raise self._no_package("its weights are not aligned")
            if not size:
                return None
            try:
                mapped = Mapped(part.fd, part.offset, size)
            except OSError as problem:
                raise PackageError("FILE", self.path, problem.strerror) from None
        if verify and blake2b(mapped.content, digest_size=32).hexdigest() != digits:
            mapped.close()
            raise PackageError("ALTERED", self.path, name)
        return mapped

    def loaded(self, files: Files, about: Any, everywhere: bool = False) -> Library:
        """A library of the package, after its checks."""
        name, size, digits = self._named(about, "a file, its bytes or its checksum")
        with files.open(name) as part:
            if part.size != size:
                raise PackageError("SIZE", self.path, name, part.size, size)
            content = part.read()
        if blake2b(content, digest_size=32).hexdigest() != digits:
            raise PackageError("ALTERED", self.path, name)
        try:
            return Library(content, everywhere)
        except OSError as problem:
            raise PackageError("LOAD", self.path, name, problem) from None

    def _load(self, files: Files, level: dict[str, Any]) -> None:
        self._code = code = self.loaded(files, level)
        numbers, table = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_void_p)
        address = ctypes.c_void_p
        try:
            self._workspace = code.function("tw_workspace", ctypes.c_int64, numbers)
            self._shapes = code.function("tw_shapes", None, numbers, numbers)
            self._run = code.function(
                "tw_run", ctypes.c_int32, address, table, table, numbers, address
            )
            self._results: Any = None  # the sizes of outputs after a call, where data decides some
            if isinstance(self.manifest.get("counted"), dict):
                self._results = code.function("tw_results", None, numbers, address, numbers)
        except AttributeError:
            why = "it has not the functions of a package"
            raise PackageError("LOAD", self.path, level["file"], why) from None
        self._at = None if self._weights is None else self._weights.address
        self._ins = ctypes.c_void_p * max(1, len(self.inputs))
        self._outs = ctypes.c_void_p * max(1, len(self.outputs))

    def _unpack(self, copy: bool) -> None:
        """Weights as calls read them, where that is not the file: it has them in fewer bits, or a
        copy was asked for."""
        size, mapped = self.manifest["weights"].get("unpacked"), self._weights
        narrow = type(size) is int and size >= 0
        if mapped is None or self._code is None or not (narrow or copy):
            return
        address = ctypes.c_void_p
        try:
            unpack = self._code.function("tw_unpack", None, address, address) if narrow else None
        except AttributeError:
            why = "it has no function to unpack weights"
            raise PackageError("LOAD", self.path, "its code", why) from None
        self._at = self._copy = allocate(size if narrow else mapped.size)
        if unpack is not None:
            unpack(mapped.address, self._copy)
        else:
            ctypes.memmove(self._copy, mapped.address, mapped.size)
        mapped.close()

    # ---- calls

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The outputs for inputs by position or name: one array, or a tuple of several."""
        if named:
            if len(inputs) > len(self.inputs):
                raise PackageError("INPUTS", len(self.inputs), len(inputs) + len(named))
            for t, x in zip(self.inputs, inputs):
                if t.name in named:
                    raise PackageError("ARGUMENT", f"the input {t.name} is given twice")
                named[t.name] = x
            inputs = self._ordered(named)
        found = self._called(inputs)
        return found[0] if len(found) == 1 else tuple(found)

    def run(self, names: Sequence[str] | None, inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs with these names, or all, for inputs by name."""
        found = self._called(self._ordered(inputs))
        if names is None:
            return found
        by_name = {t.name: x for t, x in zip(self.outputs, found)}
        for name in names:
            if name not in by_name:
                raise PackageError(
                    "ARGUMENT", f"there is no output {name!r}: they are {', '.join(by_name)}"
                )
        return [by_name[name] for name in names]

    def dims_of(self, inputs: Mapping[str, Any]) -> dict[str, int]:
        """The values of dims for these inputs, which are checked as a call does."""
        self._begin()
        try:
            sizes = self._checked(self._ordered(inputs))[1]
        finally:
            self._end()
        return dict(zip(self.dims, sizes.values))

    def set_threads(self, count: int) -> None:
        """How many threads share the work of a call, the caller's included: for all packages of
        the process. A package that has nothing to share runs in the caller's thread."""
        if type(count) is not int or not 1 <= count <= MAX_THREADS:
            raise PackageError(
                "ARGUMENT", f"the number of threads must be between 1 and {MAX_THREADS}"
            )
        if self._pool is not None:
            self._pool.resize(count)

    @property
    def threads(self) -> int:
        return 1 if self._pool is None else self._pool.threads()

    def close(self) -> None:
        """Gives back code and weights, after the calls that are under way. Results stay."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            idle = self._calls == 0
        if idle:
            self._unload()

    def __enter__(self) -> Package:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.close()

    def __repr__(self) -> str:
        takes, gives = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"<package {self.name} ({takes}) -> ({gives}), {self.level}>"

    def _unload(self) -> None:
        if self._code is not None:
            self._code.close()
        if self._weights is not None:
            self._weights.close()
        if self._copy:
            free(self._copy)
        while self._spare:
            free(self._spare.pop()[1])

    def _begin(self) -> None:
        with self._lock:
            if not self._open:
                raise PackageError("ARGUMENT", f"the package {self.path} is closed")
            self._calls += 1

    def _end(self) -> None:
        with self._lock:
            self._calls -= 1
            last = not self._open and self._calls == 0
        if last:
            self._unload()

    def _ordered(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        for name in inputs:
            if not any(name == t.name for t in self.inputs):
                known = ", ".join(t.name for t in self.inputs)
                raise PackageError("ARGUMENT", f"there is no input {name!r}: they are {known}")
        if len(inputs) != len(self.inputs):
            raise PackageError("INPUTS", len(self.inputs), len(inputs))
        return tuple(inputs[t.name] for t in self.inputs)

    def _checked(self, inputs: Sequence[Any]) -> tuple[list[Memory], _Sizes]:
        if len(inputs) != len(self.inputs):
            raise PackageError("INPUTS", len(self.inputs), len(inputs))
        given = [read(x, t.name, t.dtype) for t, x in zip(self.inputs, inputs)]
        for t, m in zip(self.inputs, given):
            if m.dtype != t.dtype:
                raise PackageError("DTYPE", t.name, t.dtype, m.dtype)
        key = tuple(m.shape for m in given)
        sizes = self._known.get(key)
        if sizes is None:
            sizes = self._sizes(key)
            if len(self._known) >= _KNOWN_SIZES:
                self._known.clear()
            self._known[key] = sizes
        return given, sizes

    def _sizes(self, shapes: tuple[tuple[int, ...], ...]) -> _Sizes:
        """Checks the shapes of inputs against all dims and their bounds."""
        for t, shape in zip(self.inputs, shapes):
            if len(shape) != len(t.shape):
                raise PackageError("SHAPE", t.name, _shown(t.shape), _shown(shape))
        values = tuple(shapes[k][axis] for k, axis in self._places)
        for (name, (low, high)), value in zip(self.dims.items(), values):
            if value < low or (high is not None and value > high):
                within = f"{low} or more" if high is None else f"{low} to {high}"
                raise PackageError("BOUNDS", name, value, within)
        sizes = _Sizes(values, [], 0)
        extents = (ctypes.c_int64 * max(1, self._extents))()
        self._shapes(sizes.dims, extents)
        at = 0
        for t, shape in zip(self.inputs, shapes):
            if list(shape) != extents[at : at + len(shape)]:
                raise PackageError("SHAPE", t.name, _shown(t.shape), _shown(shape))
            at += len(shape)
        for t in self.outputs:
            sizes.outputs.append(tuple(extents[at : at + len(t.shape)]))
            at += len(t.shape)
        sizes.workspace = self._workspace(sizes.dims)
        return sizes

    def _called(self, inputs: Sequence[Any]) -> list[Any]:
        self._begin()
        try:
            given, sizes = self._checked(inputs)
            made = [empty(t.dtype, shape) for t, shape in zip(self.outputs, sizes.outputs)]
            workspace = self._taken(sizes.workspace)
            failed = self._run(
                self._at,
                self._ins(*(m.address for m in given)),
                self._outs(*(address for address, _ in made)),
                sizes.dims,
                workspace,
            )
            why = self._told(failed, workspace) if failed else ""
            if self._results is not None and not failed:
                made = self._trimmed(made, sizes, workspace)
            self._spare.append((sizes.workspace, workspace))
        finally:
            self._end()
        if failed:
            raise PackageError("CHECK", why)
        return [array for _, array in made]

    def _trimmed(
        self, made: list[tuple[int, Any]], sizes: _Sizes, workspace: int
    ) -> list[tuple[int, Any]]:
        """Results in arrays of their own size, which the call decided: each is at the beginning of
        memory for the most that there may be."""
        extents = (ctypes.c_int64 * max(1, self._extents))()
        self._results(sizes.dims, workspace, extents)
        found, at = [], 0
        for t, (address, array), most in zip(self.outputs, made, sizes.outputs):
            shape = tuple(extents[at : at + len(most)])
            at += len(most)
            found.append((address, array) if shape == most else copied(t.dtype, shape, address))
        return found

    def _taken(self, size: int) -> int:
        """Memory to work in, that of a call before where it is of this size."""
        try:
            had, address = self._spare.pop()
        except IndexError:
            return allocate(size)
        if had == size:
            return address
        free(address)
        return allocate(size)

    def _told(self, number: int, workspace: int) -> str:
        """What the check that failed has to say, of the integers that the call left."""
        checks = self._checks if isinstance(self._checks, list) else []
        about = checks[number - 1] if number <= len(checks) else None
        words = about.get("words") if isinstance(about, dict) else None
        if type(words) is not str:
            return "a check of the data failed"
        index, size = (ctypes.c_int64 * 2).from_address(workspace + number * LINE)
        index -= index > 0
        return words.replace("{index}", str(index)).replace("{size}", str(size))


class _Pool:
    """The threads of the process that all packages share. Its code is never unloaded."""

    def __init__(self, library: Library | None):
        def function(name: str, result: object, *arguments: object) -> Any:
            found = (
                of_process(name, result, *arguments)
                if library is None
                else library.function(name, result, *arguments)
            )
            if found is None:
                raise AttributeError(name)
            return found

        self.resize = function("tw_pool_resize", None, ctypes.c_int64)
        self.threads = function("tw_pool_threads", ctypes.c_int64)
        if library is not None:
            reset = function("tw_pool_reset", None)
            reset()
            function("tw_pool_set_spin", None, ctypes.c_int64)(_SPIN_NS)
            self.resize(min(MAX_THREADS, len(os.sched_getaffinity(0))))
            os.register_at_fork(after_in_child=reset)


_pools: list[_Pool] = []
_pools_lock = allocate_lock()


def _pool_of(package: Package, files: Files) -> _Pool:
    """The pool of the process: one that is there, else the package's."""
    with _pools_lock:
        if not _pools:
            library = None
            if of_process("tw_parallel", None) is None:
                here = machine.architecture()
                known = package.manifest.get("pool")
                own = known.get(here) if isinstance(known, dict) else None
                if own is None:
                    raise package._lacks(f"the pool of threads for {here}")
                library = package.loaded(files, own, everywhere=True)
            try:
                _pools.append(_Pool(library))
            except AttributeError:
                why = "it has not the functions of one"
                raise PackageError("LOAD", package.path, "the pool", why) from None
        return _pools[0]
