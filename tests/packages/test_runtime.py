"""The runtime of packages in plain Python: results, arrays of all kinds, threads, imports."""

from __future__ import annotations

import array
import ast
import gc
import os
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright_runtime
from tests.packages import made
from tests.seeds import drawn
from tilewright.base.errors import Invalid
from tilewright.driver.export.api import c_header
from tilewright.ir.types import TENSOR_DTYPES
from tilewright_runtime import PackageError, load
from tilewright_runtime.arrays import DTYPES, read
from tilewright_runtime.sentences import SENTENCES

RUNTIME = made.ROOT / "runtime"


class Elsewhere:
    """An array of a GPU, as far as it is looked at."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self) -> None:
        raise AssertionError("not asked for")


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and np.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("suffix", ["", ".twp"])
def test_it_computes(suffix: str) -> None:
    with load(made.package(suffix), verify=True, threads=2) as net:
        assert net.name == "network" and net.dims == {"batch": (1, 64)} and net.threads == 2
        assert repr(net.inputs[0]) == "x: f32[batch, 64]"
        assert net.outputs[0].shape == ("batch", 10) and net.manifest["format"] == 1
        for count in (1, 2, 7, 33, 64):
            x = made.rows(count, count)
            y = net(x)
            assert close(y, made.expected(x))
            assert (net(x=x) == y).all() and (net.run(None, {"x": x})[0] == y).all()
        assert net.dims_of({"x": made.rows(5)}) == {"batch": 5}
    assert y.shape == (64, 10)  # results stay
    with pytest.raises(PackageError, match="is closed"):
        net(x)


def test_packages_share_one_pool() -> None:
    with load(made.package()) as net, load(made.narrow()) as other:
        net.set_threads(2)
        assert other.threads == 2
        other.set_threads(1)
        assert net.threads == 1
        x = made.rows(4)
        assert close(net(x), made.expected(x)) and other(x).shape == (4, 10)


def test_a_copy_of_the_weights(tmp_path: Path) -> None:
    """The file is not read any more, and not mapped."""
    path, x = tmp_path / "net.twp", made.rows(4)
    shutil.copy(made.package(), path)
    with load(path, copy_weights=True, verify=True) as net:
        assert str(path) not in Path("/proc/self/maps").read_text()
        path.write_bytes(bytes(path.stat().st_size))
        assert close(net(x), made.expected(x))


def test_a_saved_program_has_no_such_options(tmp_path: Path) -> None:
    (tmp_path / "program.tw").write_bytes(b"program")
    with pytest.raises(Invalid, match="is no package, and only packages are loaded with threads"):
        tw.load(tmp_path / "program.tw", copy_weights=True)


def test_weights_in_16_bits() -> None:
    x = made.rows(4)
    with load(made.narrow(), verify=True) as net:
        assert np.allclose(net(x), made.expected(x), atol=0.05)
        assert (net(x) == net(x)).all()


def test_several_outputs_and_a_check_of_data() -> None:
    with load(made.table()) as net:
        which, more = np.array([3, 9]), np.array([True, False])
        found = net(which, more=more)
        assert found[0].tolist() == [[12, 13, 14, 15], [36, 37, 38, 39]]
        assert found[1].tolist() == [4, 9] and found[1].dtype == np.int64
        assert [t.name for t in net.outputs] == ["found", "next"]
        feed = {"more": more, "which": which}
        assert net.run(["next"], feed)[0].tolist() == [4, 9]
        with pytest.raises(PackageError, match="there is no output 'last': they are found, next"):
            net.run(["last"], feed)
        with pytest.raises(PackageError) as problem:
            net(np.array([3, 12]), more)
        assert problem.value.code == "CHECK"
        assert str(problem.value) == "index 12 is out of bounds for dimension 0 with size 10"
        assert net(which, more)[1].tolist() == [4, 9]


def test_arrays_of_all_kinds() -> None:
    x = made.rows(6)
    wide = np.zeros((12, 128), np.float32)
    wide[::2, ::2] = x
    odd = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(6, 64)
    given = {
        "numpy": x,
        "strides": wide[::2, ::2],
        "columns": np.asfortranarray(x),
        "backwards": x[::-1].copy()[::-1],
        "unaligned": odd,
        "torch": torch.from_numpy(x),
        "torch's strides": torch.from_numpy(wide)[::2, ::2],
        "torch's columns": torch.from_numpy(np.asfortranarray(x)),
        "memoryview": x.data,
        "strides of memory": wide[:, :64].copy().data[::2],
        "read only": memoryview(x.tobytes()).cast("f", (6, 64)),
        "array": memoryview(array.array("f", x.ravel().tolist())).cast("B").cast("f", (6, 64)),
    }
    with load(made.package()) as net:
        for kind, a in given.items():
            first = wide[::2, :64] if kind == "strides of memory" else x
            assert close(net(a), made.expected(first.copy())), kind


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_dtypes(dtype: str) -> None:
    """Each is known by what numpy, torch and buffers call it."""
    item, text, letter = DTYPES[dtype]
    of_letter: Any = letter
    long = {"bf16": "bfloat16", "bool": "bool"}.get(
        dtype, dtype.replace("f", "float").replace("i", "int").replace("u", "uint")
    )
    a = np.zeros(3, text)
    assert read(a, "x", dtype).dtype == dtype and a.itemsize == item
    if hasattr(torch, long):
        found = read(torch.zeros(3, dtype=getattr(torch, long)), "x", dtype)
        assert (found.dtype, found.shape) == (dtype, (3,))
    buffer = memoryview(bytes(3 * item)).cast(of_letter)
    assert read(buffer, "x", dtype).dtype == dtype
    if dtype == "bf16":
        assert read(np.zeros(3, ml_dtypes.bfloat16), "x", dtype).dtype == dtype
        assert read(a, "x", "u16").dtype == "u16"


def test_every_dtype_of_tensors_is_known() -> None:
    assert TENSOR_DTYPES.keys() <= DTYPES.keys()
    assert all(DTYPES[name][0] == d.bytes for name, d in TENSOR_DTYPES.items())


@pytest.mark.parametrize(
    ("code", "arguments", "sentence"),
    [
        ("INPUTS", [], "the package has 1 inputs, and 0 were given"),
        ("INPUTS", [made.rows(1)] * 2, "the package has 1 inputs, and 2 were given"),
        ("DTYPE", [np.zeros((1, 64))], "x is of dtype f32, and f64 was given"),
        ("DTYPE", [np.zeros((1, 64), ">f4")], "x is of dtype f32, and >f4 was given"),
        ("DTYPE", [torch.zeros(1, 64).to(torch.complex64)], "x is of dtype f32, and"),
        ("SHAPE", [made.rows(1)[0]], "x has the shape [batch, 64], and [64] was given"),
        ("SHAPE", [made.rows(2)[:, 1:]], "x has the shape [batch, 64], and [2, 63] was given"),
        ("BOUNDS", [made.rows(65)], "the dim batch is 65, and the package is for 1 to 64"),
        ("BOUNDS", [made.rows(0)], "the dim batch is 0, and the package is for 1 to 64"),
        ("ARGUMENT", [[[1.0]]], "x is a list, and an array is needed"),
        ("ARGUMENT", [torch.zeros(1, 64).requires_grad_()], "x cannot be read"),
        ("ARGUMENT", [torch.zeros(1, 64, device="meta")], "x cannot be read"),
        ("ARGUMENT", [Elsewhere()], "x is not in the processor's memory: copy it there"),
    ],
)
def test_calls_that_are_refused(code: str, arguments: list[object], sentence: str) -> None:
    with load(made.package()) as net:
        with pytest.raises(PackageError) as problem:
            net(*arguments)
        assert problem.value.code == code and sentence in str(problem.value)


def test_names_that_are_refused() -> None:
    with load(made.package()) as net:
        for named, sentence in (
            ({"y": 1}, "there is no input 'y': they are x"),
            ({}, "the package has 1 inputs, and 0 were given"),
        ):
            with pytest.raises(PackageError, match=sentence):
                net.run(None, named)
        with pytest.raises(PackageError, match="x is given twice"):
            net(made.rows(1), x=made.rows(1))
        wrong: list[Any] = [0, 1025, "2"]
        for count in wrong:
            with pytest.raises(PackageError, match="between 1 and 1024"):
                net.set_threads(count)


def test_many_threads_call_one_package() -> None:
    with load(made.package()) as net:
        inputs = [made.rows(1 + k % 9, k) for k in range(16)]
        right = [made.expected(x) for x in inputs]

        def work(k: int) -> bool:
            return all(close(net(inputs[j % 16]), right[j % 16]) for j in range(k, k + 40))

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(work, range(8)))
        # Closing waits for calls that are under way.
        failed: list[Exception] = []

        def until_closed() -> None:
            try:
                while True:
                    assert close(net(inputs[3]), right[3])
            except PackageError as problem:
                failed.append(problem)

        callers = [threading.Thread(target=until_closed) for _ in range(4)]
        for t in callers:
            t.start()
        net.close()
        for t in callers:
            t.join()
    assert len(failed) == 4 and all("is closed" in str(f) for f in failed)


@pytest.mark.parametrize("count", drawn([25, 1000], quick=1))
def test_loads_leave_nothing_behind(count: int) -> None:
    def once() -> None:
        with load(made.package()) as net:
            net(made.rows(2))
        load(made.package(""))(made.rows(2))  # closed with its last user

    def held() -> tuple[int, int]:
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("memfd:tilewright")

    once()
    gc.collect()
    before = held()
    for _ in range(count):
        once()
    gc.collect()
    assert held() == before


def test_where_memory_without_a_name_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with load(made.package()) as net:
        assert close(net(made.rows(2)), made.expected(made.rows(2)))


def test_a_forked_child_goes_on() -> None:
    with load(made.package(), threads=2) as net:
        x = made.rows(32)
        right = made.expected(x)
        assert close(net(x), right)
        child = os.fork()
        if child == 0:
            os._exit(0 if close(net(x), right) else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert close(net(x), right)


PLAIN = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
"""


def python(program: str, refused: str, **environment: str) -> str:
    text = PLAIN.replace("REFUSED", repr(refused.split())) + program
    found = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        cwd="/",  # not where the source lies
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_without_numpy() -> None:
    """The runtime alone, with nothing but Python: memoryviews in and out."""
    x = made.rows(2)
    out = python(
        f"""
import array
import tilewright_runtime as twr
assert "torch" not in sys.modules and "asyncio" not in sys.modules
with twr.load({str(made.package())!r}) as net:
    x = memoryview(array.array("f", {x.ravel().tolist()!r})).cast("B").cast("f", (2, 64))
    y = net(x)
    assert type(y) is memoryview and y.shape == (2, 10) and y.format == "f"
    print(y.tolist())
""",
        "numpy torch llvmlite tilewright typing zipfile hashlib json re",
        PYTHONPATH=str(RUNTIME),
    )
    assert close(np.array(ast.literal_eval(out), np.float32), made.expected(x))


def test_tilewright_loads_packages_without_its_compiler() -> None:
    out = python(
        f"""
import tilewright as tw
net = tw.load({str(made.package())!r})
print(net, "numpy" in sys.modules)
from tilewright.driver.cli import main
assert main(["serve", "none.twp"]) == 2
assert main(["verify", {str(made.package())!r}]) == 0
""",
        "torch llvmlite",
    )
    assert out.startswith("<package network (x: f32[batch, 64]) -> ") and "False" in out


def test_it_stands_alone() -> None:
    """Its files import Python's own modules, and two others where these are asked for; and parse
    with the oldest Python that is promised."""
    allowed = {*sys.stdlib_module_names, "tilewright_runtime", "numpy", "cryptography"}
    for path in sorted((RUNTIME / "tilewright_runtime").glob("*.py")):
        tree = ast.parse(path.read_text(), feature_version=(3, 10))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [x.name for x in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed, (path, name)


@pytest.mark.slow
def test_it_is_a_distribution_of_its_own(tmp_path: Path) -> None:
    shutil.copytree(RUNTIME, tmp_path / "runtime")
    options = ["-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    pip = [sys.executable, "-m", "pip", "wheel", *options, str(tmp_path / "runtime")]
    subprocess.run(pip, check=True)
    (wheel,) = tmp_path.glob("tilewright_runtime-*.whl")
    load_it = f"import tilewright_runtime as t; print(t.load({str(made.package())!r}), t.__file__)"
    out = python(load_it, "tilewright numpy", PYTHONPATH=str(wheel))  # a wheel is a zip
    assert "<package network" in out and wheel.name in out


def test_it_is_the_same_code() -> None:
    assert Path(tilewright_runtime.__file__).resolve().is_relative_to(RUNTIME)


def test_sentences_are_those_of_c() -> None:
    text = c_header()
    for k, (name, words) in enumerate(SENTENCES.items(), 1):
        assert f"TW_ERROR_{name} = {k}" in text and words.replace("%d", "%lld") in text
