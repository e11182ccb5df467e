"""Programs in files: saved, loaded where there is no torch, and refused in words where they are not
as they were written."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright import ops, targets
from tilewright.driver.program.saved import saved_program
from tilewright.ir import dim as D
from tilewright.ir.node import Graph, input
from tilewright.ir.types import TensorType, bf16, f32, i64
from tilewright.runtime.program_file import FORMAT, SavedProgram, read_program, write_program

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def mlp(rows: D.Dim = 5) -> Graph:
    x = input("x", TensorType(f32, (rows, 8)))
    w = input("w", TensorType(f32, (8, 24)), "weight")
    b = input("b", TensorType(f32, (24,)), "weight")
    return Graph("mlp", (w, b, x), (ops.relu(ops.add(ops.matmul(x, w), b)),))


def right(w: np.ndarray, b: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.maximum(x.astype(np.float64) @ w + b, 0)


# ---- programs of graphs


@pytest.mark.parametrize("weights", ["inside", "beside"])
@pytest.mark.parametrize("own", [False, True])
def test_a_graph_with_weights(weights: str, own: bool, tmp_path: Path) -> None:
    """Weights that belong to the file are packed in it; others are arguments like any."""
    w, b = normal(8, 24), normal(24)
    n = D.sym("n", 1, 4096)
    program = tw.compile_graph(mlp(n))
    tw.save(program, tmp_path / "m", weights=weights, values={"w": w, "b": b} if own else None)
    again = tw.load(tmp_path / "m")
    assert (again.data.prologue is None) == own
    assert (tmp_path / "m.weights").exists() == (weights == "beside")
    for size in (1, 7, 300):
        x = normal(size, 8)
        got = again(x=x) if own else again(w, b, x)
        np.testing.assert_allclose(got, right(w, b, x), rtol=1e-5, atol=1e-5)
        if not own:  # other values in the same memory
            w *= 2
            np.testing.assert_allclose(again(w, b, x), right(w, b, x), rtol=1e-5, atol=1e-5)


def test_several_results_views_and_dtypes(tmp_path: Path) -> None:
    x = input("not a name", TensorType(bf16, (4, 6)))
    k = input("k", TensorType(i64, (4,)))
    tw.save(tw.compile_graph(Graph("g", (x, k), (ops.add(x, x), ops.add(k, k)))), tmp_path / "g")
    g = tw.load(tmp_path / "g")
    given = torch.randn(6, 4).bfloat16().T  # by columns: copied on the way in
    twice, numbers = g(given, np.arange(8, dtype=np.int64)[::-2])
    assert torch.equal(torch.from_dlpack(twice), given + given)
    np.testing.assert_array_equal(np.asarray(twice), (given + given).float())
    np.testing.assert_array_equal(numbers, [14, 10, 6, 2])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda f, x, y: f(x), "the argument y is missing"),
        (lambda f, x, y: f(x, y, y), "too many positional arguments"),
        (lambda f, x, y: f(x, z=y), "unexpected keyword argument 'z'"),
        (lambda f, x, y: f(x, 3), "y is a int, not an array"),
        (lambda f, x, y: f(x, y.astype(np.float64)), "y is of f64, and f32 is needed"),
        (lambda f, x, y: f(x, y.astype("U1")), "y is of <U1, which no program takes"),
        (lambda f, x, y: f(x[0], y), "x has 1 axes, and 2 are needed"),
        (lambda f, x, y: f(x, y[1:]), r"y has shape \(20,\), and \(21,\) is needed"),
        (lambda f, x, y: f(x[:3], y), "n is 3, and the program is for multiples of 2"),
        (lambda f, x, y: f(normal(12, 8), y), "n is 12, .* at least 2 and at most 10"),
        (lambda f, x, y: f(torch.ones(4, 8, requires_grad=True), y), "x cannot be read: .*grad"),
    ],
)
def test_bad_calls_get_a_sentence(call: Callable[..., Any], words: str, two: Any) -> None:
    with pytest.raises(tw.Invalid, match=words):
        call(two, normal(4, 8), normal(21))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    n = D.sym("n", 2, 10, 2)
    x, y = input("x", TensorType(f32, (n, 8))), input("y", TensorType(f32, (n * 5 + 1,)))
    path = tmp_path_factory.mktemp("two") / "two"
    tw.save(tw.compile_graph(Graph("two", (x, y), (ops.exp(x), ops.neg(y)))), path)
    return tw.load(path)


def test_sizes_come_from_arguments(two: Any) -> None:
    x, y = normal(6, 8), normal(31)
    first, second = two(x, y)
    np.testing.assert_allclose(first, np.exp(x), rtol=1e-6)
    np.testing.assert_array_equal(second, -y)
    assert repr(two) == "LoadedProgram(two: x: f32[n, 8], y: f32[5*n+1])"


def test_only_inputs_become_its_own() -> None:
    program = tw.compile_graph(mlp())
    with pytest.raises(tw.Invalid, match="no input 'weight'"):
        saved_program(program, {"weight": normal(8, 24)})
    with pytest.raises(tw.Invalid, match=r"w is f32\[24,8\], and f32\[8,24\] is needed"):
        saved_program(program, {"w": normal(24, 8)})


# ---- files that are not as they were written


@pytest.fixture
def written(tmp_path: Path) -> Path:
    values = {"w": normal(8, 24), "b": normal(24)}
    tw.save(tw.compile_graph(mlp()), tmp_path / "m", values=values, weights="beside")
    return tmp_path / "m"


def test_a_damaged_file_is_refused(written: Path) -> None:
    whole = written.read_bytes()
    middle = len(whole) // 2
    broken = {
        "is cut off: 9 bytes are missing": whole[:-9],
        "was changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
        "is no program": b"PK" + whole,
        f"has format {FORMAT + 1}, and this version": whole.replace(
            f"program {FORMAT}".encode(), f"program {FORMAT + 1}".encode(), 1
        ),
        "holds a weights, not a program": written.with_name("m.weights").read_bytes(),
    }
    for words, data in broken.items():
        written.write_bytes(data)
        with pytest.raises(tw.Invalid, match=words):
            tw.load(written)
    with pytest.raises(tw.Invalid, match="cannot be read: No such file"):
        tw.load(written.with_name("nothing"))


def test_every_byte_counts(written: Path) -> None:
    whole = written.read_bytes()
    for at in RNG.integers(0, len(whole), 40):
        data = bytearray(whole)
        data[at] ^= 1 << int(RNG.integers(0, 8))
        written.write_bytes(data)
        with pytest.raises(tw.Invalid):
            tw.load(written)


def test_weights_that_are_not_there(written: Path) -> None:
    beside = written.with_name("m.weights")
    values = {"w": normal(8, 24), "b": normal(24)}
    other = written.with_name("other")
    tw.save(tw.compile_graph(mlp()), other, values=values, weights="beside")
    beside.write_bytes(other.with_name("other.weights").read_bytes())
    with pytest.raises(tw.Invalid, match="holds other weights than those"):
        tw.load(written)
    beside.unlink()
    with pytest.raises(tw.Invalid, match=r"needs its weights in .*m\.weights, which is not there"):
        tw.load(written)


def test_another_machine_is_named(tmp_path: Path) -> None:
    found = saved_program(tw.compile_graph(mlp()))
    here = targets.host().arch
    there = targets.get("arm64" if here == "x86_64" else "x86-64-v3")
    program = replace(found.program, target=there)
    write_program(SavedProgram(found.name, program, found.signature), tmp_path / "m", "0")
    with pytest.raises(tw.Invalid, match=f"is for another machine: code for {there.name}") as e:
        tw.load(tmp_path / "m")
    assert here in str(e.value) and "save it on a machine like this one" in str(e.value)
    assert read_program(tmp_path / "m").program.target == there  # it can still be looked at


# ---- functions and modules of torch


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.table, self.last = nn.Linear(6, 8), nn.Embedding(10, 8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, ids: torch.Tensor, scale: float = 1.0) -> dict[str, Any]:
        h = self.first(x).relu()
        y = self.last(h + self.table(ids).sum(1)) * scale
        return {"y": y, "rest": [h, h.T, (x.shape[0], None, "word")], "same": ids}


def inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 6), torch.randint(0, 10, (rows, 4))


def agree(got: dict[str, Any], want: dict[str, Any]) -> None:
    np.testing.assert_array_equal(got["y"], want["y"])
    for a, b in zip(got["rest"][:2], want["rest"][:2], strict=True):
        np.testing.assert_array_equal(a, b)
        assert [s // a.itemsize for s in a.strides] == list(b.stride())
    assert got["rest"][2] == want["rest"][2]


@pytest.mark.parametrize("own_weights", [False, True])
def test_a_module(own_weights: bool, tmp_path: Path) -> None:
    module = Net().eval()
    with torch.no_grad():
        x, ids = inputs(2)
        fast = tw.compile(module, x, ids, 2.0, own_weights=own_weights)
        tw.save(fast, tmp_path / "net")
        again = tw.load(tmp_path / "net")
        x, ids = inputs(2)
        got = again(x, ids.numpy(), scale=2.0)
        agree(got, fast(x, ids, 2.0))
        assert got["same"].dtype == np.int64
        with pytest.raises(tw.Invalid, match=r"scale is 3\.0, and the program was saved for 2\.0"):
            again(x, ids, 3.0)
        with pytest.raises(IndexError, match="index out of range in self"):
            again(x, ids + 10, 2.0)


@pytest.fixture(scope="module")
def any_size(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A module for any number of rows, and its file."""
    with torch.no_grad():
        fast = tw.compile(Net().eval(), *inputs(2), 2.0, dynamic=True)
    path = tmp_path_factory.mktemp("net") / "net"
    tw.save(fast, path)
    return fast, path


def test_a_module_over_symbolic_sizes(any_size: tuple[Any, Path]) -> None:
    fast, path = any_size
    again = tw.load(path)
    with torch.no_grad():
        for rows in (3, 2, 300, 1):
            given = *inputs(rows), rows / 8
            agree(again(*given), fast(*given))


def test_numbers_of_sizes(tmp_path: Path) -> None:
    def scaled(x: torch.Tensor, k: int) -> torch.Tensor:
        return x * x.shape[0] ** -0.5 + torch.arange(k) / (x.shape[1] + k)

    fast = tw.compile(scaled, torch.randn(4, 7), 7, dynamic=True)
    tw.save(fast, tmp_path / "f")
    again = tw.load(tmp_path / "f")
    for rows, columns in ((4, 7), (9, 5)):
        x = torch.randn(rows, columns)
        torch.testing.assert_close(torch.from_dlpack(again(x, columns)), scaled(x, columns))
    with pytest.raises(tw.Invalid, match="k is a float, and an integer is needed"):
        again(x, 2.0)


def test_which_of_several(tmp_path: Path) -> None:
    fast = tw.compile(lambda x: torch.relu(x) * 2, dynamic=False)
    with pytest.raises(tw.Invalid, match="was compiled 0 times"):
        tw.save(fast, tmp_path / "f")
    small, large = torch.randn(3), torch.randn(5)
    for x in (small, large):
        fast(x)
    with pytest.raises(tw.Invalid, match=r"was compiled 2 times\n.*example arguments"):
        tw.save(fast, tmp_path / "f")
    tw.save(fast, tmp_path / "f", large)
    np.testing.assert_array_equal(tw.load(tmp_path / "f")(large), fast(large))
    with pytest.raises(tw.Invalid, match="not compiled for these"):
        tw.save(fast, tmp_path / "f", torch.randn(3, 3))


class Remembers(nn.Module):
    latest: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        self.latest = y
        return y * 2


class Collects(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        self.all.append(y)
        return y * 2


@dataclass
class Output(OrderedDict):
    """A result as libraries have it: an object and a dictionary at once."""

    first: Any = None

    def __post_init__(self) -> None:
        OrderedDict.__setitem__(self, "first", self.first)


class Answers(nn.Module):
    busy = False

    def forward(self, x: torch.Tensor) -> Output:
        self.busy = True
        y = torch.relu(x)
        self.busy = False
        return Output(first=y)


def test_objects_as_results(tmp_path: Path) -> None:
    x = torch.randn(3)
    tw.save(tw.compile(Answers(), x), tmp_path / "f")
    got = tw.load(tmp_path / "f")(x)
    assert list(got) == ["first"]
    np.testing.assert_array_equal(got["first"], torch.relu(x))


def changes(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def in_torch(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvalsh(x @ x.T) + 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (Remembers(), "changes latest of a Remembers"),
        (Collects(), "changes the content of a list"),
        (changes, "leaves its arguments as they are"),
        (in_torch, r"eigh.* runs in torch"),
    ],
)
def test_what_cannot_be_saved(function: Any, words: str, tmp_path: Path) -> None:
    fast = tw.compile(function, torch.ones(3, 3))
    with pytest.raises(tw.Unsupported, match=words):
        tw.save(fast, tmp_path / "f")
    assert not list(tmp_path.iterdir())
    state = [*vars(function).get("all", []), vars(function).get("latest")]
    assert not [x for x in state if isinstance(x, torch.Tensor) and x.is_meta], "it is as it was"


def test_only_what_was_compiled(tmp_path: Path) -> None:
    with pytest.raises(tw.Invalid, match="a function cannot be saved"):
        tw.save(changes, tmp_path / "f")
    with pytest.raises(tw.Invalid, match="weights='elsewhere'"):
        tw.save(tw.compile_graph(mlp()), tmp_path / "f", weights="elsewhere")
    with pytest.raises(tw.Invalid, match="cannot be written"):
        tw.save(tw.compile_graph(mlp()), tmp_path / "missing" / "f")


PROGRAM = """
import json, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "sympy"):
            raise ModuleNotFoundError(f"No module named {name!r}")
sys.meta_path.insert(0, Refuse())
import numpy as np
import tilewright as tw
f = tw.load(sys.argv[1])
data = np.load(sys.argv[2])
np.save(sys.argv[3], f(data["x"], data["ids"], 0.5)["y"])
print(json.dumps([m for m in sys.modules if m.startswith("tilewright.")]))
"""


def test_without_torch(any_size: tuple[Any, Path], tmp_path: Path) -> None:
    """In a process that has none; the compiler is not loaded either."""
    fast, path = any_size
    x, ids = inputs(6)
    np.savez(tmp_path / "data.npz", x=x.numpy(), ids=ids.numpy())
    with torch.no_grad():
        want = fast.original(x, ids, 0.5)["y"]
    files = [str(path), *(str(tmp_path / name) for name in ("data.npz", "out.npy"))]
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *files], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    np.testing.assert_allclose(np.load(files[2]), want, rtol=1e-4, atol=1e-5)
    loaded = json.loads(run.stdout)
    compiler = ("tilewright.graph", "tilewright.ops", "tilewright.rewrites", "tilewright.capture")
    assert not [m for m in loaded if m.startswith(compiler)]
    assert {"tilewright.llvm.emit", "tilewright.driver.program.compile"}.isdisjoint(loaded)


def test_calls_from_several_threads(tmp_path: Path) -> None:
    w, b = normal(8, 24), normal(24)
    tw.save(tw.compile_graph(mlp(D.sym("n", 1, 64))), tmp_path / "m", values={"w": w, "b": b})
    again = tw.load(tmp_path / "m")
    given = [normal(1 + k % 60, 8) for k in range(64)]
    with ThreadPoolExecutor(4) as threads:
        for x, got in zip(given, threads.map(again, given), strict=True):
            np.testing.assert_allclose(got, right(w, b, x), rtol=1e-5, atol=1e-5)
