"""Packages, called through the C header: right at every size, and refused with a sentence."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

import tilewright as tw
import tilewright_runtime
from tests.export.harness import (
    QUICK,
    Failed,
    Package,
    built,
    called,
    caller,
    judge,
    library,
    require_only_libc,
    results,
    written,
)
from tilewright.base.errors import Invalid, Unsupported
from tilewright.driver.export.manifest import checksum, in_lanes
from tilewright.driver.export.sentences import SENTENCES
from tilewright_runtime.checksums import Blake2bp

CODES = dict(enumerate(SENTENCES, 1))


class Net(nn.Module):
    """A product large enough for threads, a norm, indices that are checked, results by name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(24, 320), nn.BatchNorm1d(320)
        self.last, self.table = nn.Linear(320, 8), nn.Embedding(10, 8)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.last(self.norm(self.first(x)).relu())
        return {"y": y, "z": self.table(ids).sum(1) + y[:1]}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(torch.softmax(q @ k.transpose(1, 2) / 4, -1) @ v) + x


BATCH = Dim("batch", min=1, max=128)


def inputs_of(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(batch)
    return torch.randn(batch, 24), torch.randint(0, 10, (2, 3))


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def folder(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The net as a folder, with two levels; and as a file beside it."""
    path = tmp_path_factory.mktemp("packages") / "net"
    dynamic = {"x": {0: BATCH}, "ids": None}
    for target, to in ((["arm64", "host", "x86-64"], path), ("host", path.with_suffix(".twp"))):
        tw.export(net, *inputs_of(5), path=to, target=target, dynamic=dynamic)
    return path


@pytest.mark.parametrize("suffix", ["", ".twp"])
def test_one_package_at_many_sizes(net: Net, folder: Path, suffix: str) -> None:
    package = Package(folder.with_suffix(suffix), flags=3 if suffix else 1)
    assert package.inputs == [("x", "f32", ["batch", "24"]), ("ids", "i64", ["2", "3"])]
    assert package.outputs == [("y", "f32", ["batch", "8"]), ("z", "f32", ["2", "8"])]
    assert package.level == "host"
    for batch in (1, 2, 7, 33, 128):
        given = inputs_of(batch)
        judge(net, given, package(*(x.numpy() for x in given)))
    package.close()


def test_batch_and_length_of_an_exported_program(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Attention().eval()
    dims = {"x": {0: Dim("batch", max=64), 1: Dim("length", min=2, max=512)}}
    exported = torch.export.export(model, (torch.randn(2, 9, 16),), dynamic_shapes=dims)
    torch.export.save(exported, tmp_path / "a.pt2")
    tw.export(tmp_path / "a.pt2", path=tmp_path / "a.twp")
    package = Package(tmp_path / "a.twp")
    assert package.inputs == [("x", "f32", ["x_0", "x_1", "16"])], "torch keeps no names of dims"
    for batch, length in ((1, 2), (3, 17), (2, 64), (4, 128), (5, 333)):
        x = torch.randn(batch, length, 16)
        judge(model, [x], package(x.numpy()))
    package.close()


class Larger(nn.Module):
    """Interpolation, by a factor and to a size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return F.interpolate(y, size=(9, 11), mode="bilinear", align_corners=True)


def test_interpolation(tmp_path: Path) -> None:
    """torch.export has other overloads of it than Dynamo's graphs."""
    model, x = Larger(), torch.randn(2, 3, 4, 5)
    tw.export(model, x, path=tmp_path / "a.twp")
    package = Package(tmp_path / "a.twp")
    judge(model, [x], package(x.numpy()))
    package.close()


class Kinds(nn.Module):
    """Results that are inputs, weights, constants, views, twice the same, and of several dtypes."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 8))

    def forward(self, x: torch.Tensor, twice: torch.Tensor, n: int = 3) -> tuple[Any, ...]:
        y = x + twice[::2]
        some = x, y, y, self.w, y.t(), x.sum(), x > 0, x.argmax(1)
        return *some, torch.ones(3), {"deep": y * n, "none": None}


def test_results_of_all_kinds(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model, b = Kinds().eval(), Dim("b", min=0, max=50)
    given = torch.randn(3, 5), torch.randn(6, 5)
    made = tw.export(model, *given, path=tmp_path / "p", dynamic=({0: b}, {0: 2 * b}))
    assert [x["shape"] for x in made.manifest["inputs"]] == [["b", 5], ["2*b", 5]]
    assert made.manifest["outputs"][-1]["name"] == "output9.deep"
    package = Package(tmp_path / "p")
    for n in (0, 1, 5):
        xs = torch.randn(n, 5), torch.randn(2 * n, 5)
        judge(model, xs, package(*(x.numpy() for x in xs)))
    with pytest.raises(Failed, match=r"twice has the shape \[2\*b, 5\], and \[5, 5\] was given"):
        package(np.zeros((2, 5), np.float32), np.zeros((5, 5), np.float32))
    package.close()


ZEROS = (np.zeros((3, 24), np.float32), np.zeros((2, 3), np.int64))
CALLS: dict[str, tuple[list[np.ndarray], str]] = {
    "INPUTS": ([ZEROS[0]], "the package has 2 inputs, and 1 were given"),
    "DTYPE": ([ZEROS[0].astype(np.float64), ZEROS[1]], "x is of dtype f32, and f64 was given"),
    "SHAPE": (
        [np.zeros((3, 25), np.float32), ZEROS[1]],
        "x has the shape [batch, 24], and [3, 25] was given",
    ),
    "BOUNDS": (
        [np.zeros((129, 24), np.float32), ZEROS[1]],
        "the dim batch is 129, and the package is for 1 to 128",
    ),
    "CHECK": ([ZEROS[0], ZEROS[1] + 10], "index out of range in self"),
}


def test_calls_that_do_not_fit(folder: Path) -> None:
    package = Package(folder)
    for name, (arrays, text) in CALLS.items():
        with pytest.raises(Failed) as caught:
            package(*arrays)
        assert (CODES[caught.value.code], str(caught.value)) == (name, text)
    with pytest.raises(Failed, match=r"x has the shape \[batch, 24\], and \[3\] was given"):
        package(ZEROS[0][:, 0], ZEROS[1])
    assert package(*ZEROS)[0].shape == (3, 8)
    package.close()


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    def edit(path: Path) -> None:
        manifest = json.loads((path / "manifest.json").read_text())
        change(manifest)
        (path / "manifest.json").write_text(json.dumps(manifest))

    return edit


def flipped(name: str) -> Callable[[Path], object]:
    def edit(path: Path) -> None:
        raw = bytearray((path / name).read_bytes())
        raw[len(raw) // 2] ^= 1
        (path / name).write_bytes(raw)

    return edit


def cut(name: str) -> Callable[[Path], object]:
    return lambda path: os.truncate(path / name, (path / name).stat().st_size - 1)


def only(architecture: str) -> Callable[[dict[str, Any]], object]:
    def change(m: dict[str, Any]) -> None:
        m["levels"] = [x for x in m["levels"] if x["architecture"] == architecture]

    return change


def with_text(text: str) -> Callable[[Path], object]:
    return lambda path: (path / "manifest.json").write_text(text)


def lacking(m: dict[str, Any]) -> None:
    for level in m["levels"]:
        level["features"] = {"warp drive": "hwcap:63 cpuid:7:0:ecx:31"}


def pointing(m: dict[str, Any]) -> None:
    for level in m["levels"]:
        level["file"] = "../net/code/host.so"


BROKEN: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "code is altered": (flipped("code/host.so"), "ALTERED", "code/host.so is not the file that"),
    "code is cut": (cut("code/host.so"), "SIZE", "the file is truncated or another one"),
    "weights are cut": (cut("weights.bin"), "SIZE", "weights.bin has"),
    "weights are altered": (flipped("weights.bin"), "ALTERED", "weights.bin is not the file"),
    "weights are gone": (lambda p: (p / "weights.bin").unlink(), "FILE", "No such file"),
    "another machine": (edited(only("strange")), "PACKAGE", "its manifest lacks levels"),
    "a feature": (edited(lacking), "FEATURE", "needs warp drive, which this processor lacks"),
    "a path outside": (edited(pointing), "OUTSIDE", "outside of the package"),
    "a newer format": (edited(lambda m: m.update(format=3)), "FORMAT", "of format 3, and this"),
    "no JSON": (
        with_text('{"format": 1, '),
        "PACKAGE",
        "its manifest is not JSON: a key is missing",
    ),
    "text behind": (with_text("{} x"), "PACKAGE", "not one JSON object"),
    "nested deeply": (with_text("[" * 1000), "PACKAGE", "nested too deeply"),
    "no inputs": (edited(lambda m: m.pop("inputs")), "PACKAGE", "lacks inputs"),
    "a strange dtype": (
        edited(lambda m: m["inputs"][0].update(dtype="f31")),
        "PACKAGE",
        "a dtype is unknown",
    ),
    "a dim of no input": (
        edited(lambda m: m["dims"].update(other=[1, 2])),
        "PACKAGE",
        "no input has an axis of some dim's size",
    ),
    "a link": (
        lambda p: ((p / "code/host.so").rename(p / "x"), (p / "code/host.so").symlink_to("../x")),
        "FILE",
        "code/host.so cannot be read",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_damaged_packages(folder: Path, tmp_path: Path, case: str) -> None:
    """Each is refused with its sentence, before anything of it is mapped executable."""
    damage, name, words = BROKEN[case]
    path = tmp_path / "net"
    shutil.copytree(folder, path)
    damage(path)
    Package(folder)  # the pool of threads stays
    before = _mapped()
    with pytest.raises(Failed) as caught:
        Package(path, flags=1)
    assert CODES[caught.value.code] == name and words in str(caught.value)
    assert _mapped() == before


def _mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:tilewright")


@pytest.mark.parametrize("kind", ["blake2b", "blake2bp", "blake2bp by vectors"])
def test_checksums_of_all_lengths(kind: str) -> None:
    """Those of the header, with a processor's vectors where it has them, are Python's."""
    rng = np.random.default_rng(0)
    name, *vectors = kind.split(" by ")
    is_sum = getattr(library(), f"test_{name}")
    by = () if name == "blake2b" else (ctypes.c_int(len(vectors)),)
    for size in (*range(1100), 4095, 4096, 100_003):
        data = rng.bytes(size)
        digits = (checksum(data) if name == "blake2b" else in_lanes(data)).encode()
        found = is_sum(data, ctypes.c_size_t(size), digits, *by)
        if vectors and found < 0:
            pytest.skip("this processor has no such vectors")
        assert found == 1, size
        other = digits[:-1] + (b"0" if digits[-1:] != b"0" else b"1")
        assert is_sum(data, ctypes.c_size_t(size), other, *by) == 0, size


def test_the_checksum_in_lanes_is_blake2bp() -> None:
    """What its authors' library gives; in pieces it is the same."""
    known = (
        "b91a6b66ae87526c400b0a8b53774dc65284ad8f6575f8148ff93dff943a6ecd"
        "8362130f22d6dae633aa0f91df4ac89aaff31d0f1b923c898e82025dedbdad6e"
    )
    assert in_lanes(b"abc") == known
    data, digest = bytes(range(256)) * 9, Blake2bp()
    for at in range(0, len(data), 700):
        digest.update(data[at : at + 700])
    assert digest.hexdigest() == in_lanes(data)


@pytest.mark.parametrize("kind", ["blake2b", "blake2bp", "sha256"])
def test_both_checksums_of_code_are_verified(folder: Path, tmp_path: Path, kind: str) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(folder, damaged)
    tilewright_runtime.verify(damaged)
    manifest = json.loads((damaged / "manifest.json").read_text())
    for level in manifest["levels"]:
        level[kind] = level[kind][::-1]
    (damaged / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(tilewright_runtime.PackageError, match=r"code/.*: its checksum differs"):
        tilewright_runtime.verify(damaged)


def test_code_of_other_machines_only(net: Net, tmp_path: Path) -> None:
    here = os.uname().machine
    other, arch = ("x86-64", "x86_64") if here == "aarch64" else ("arm64", "aarch64")
    tw.export(net, *inputs_of(5), path=tmp_path / "p", target=other)
    with pytest.raises(Failed, match=f"has code for {arch}, and this machine is {here}"):
        Package(tmp_path / "p")


def test_the_best_level_that_the_processor_has(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "net")
    edited(lambda m: m["levels"][0]["features"].update(more="hwcap:63 xcr0:1"))(tmp_path / "net")
    manifest = json.loads((folder / "manifest.json").read_text())
    here = [x["target"] for x in manifest["levels"] if x["architecture"] == os.uname().machine]
    assert len(here) == 2 and here[0] == "host"
    package = Package(tmp_path / "net")
    assert package.level == here[1]
    package.close()


def test_a_program_with_libc_only(net: Net, folder: Path, tmp_path: Path) -> None:
    given = inputs_of(33)
    files = written([x.numpy() for x in given], tmp_path)
    maps = called("maps", folder.with_suffix(".twp"), tmp_path / "out", 0, *files)
    judge(net, given, results(tmp_path / "out"))
    require_only_libc(maps, folder.with_suffix(".twp"))


class Halves(nn.Module):
    """A product of bfloat16, in instructions of tiles where the processor has them."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randint(-1, 2, (64, 24)).to(torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.bfloat16) @ self.w).float()


CALL = """
import sys, numpy, tilewright_runtime
tilewright_runtime.load(sys.argv[1])(numpy.load(sys.argv[2])).tofile(sys.argv[3])
"""


def test_registers_that_a_system_saves_on_request(tmp_path: Path) -> None:
    """A process that did nothing but call a package has them: the runtimes request them."""
    torch.manual_seed(0)
    model, x = Halves().eval(), torch.randint(-2, 3, (5, 64)).float()
    want = (x @ model.w.float()).detach().numpy()  # whole numbers below 256: exact
    tw.export(model, x, path=tmp_path / "halves")
    called("once", tmp_path / "halves", tmp_path / "c", 0, *written([x.numpy()], tmp_path))
    np.testing.assert_array_equal(results(tmp_path / "c")[0], want)
    np.save(tmp_path / "x.npy", x.numpy())
    files = [str(tmp_path / name) for name in ("halves", "x.npy", "python")]
    done = subprocess.run([sys.executable, "-c", CALL, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
    np.testing.assert_array_equal(np.fromfile(files[2], np.float32).reshape(5, 24), want)


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_loads_and_unloads_leave_nothing(folder: Path, tmp_path: Path, count: int) -> None:
    files = written([x.numpy() for x in inputs_of(64)], tmp_path)
    words = called("loads", folder, tmp_path / "out", count, *files).split()
    assert words[:2] == ["descriptors", "0"]
    assert int(words[3]) < 64, "memory grows"


def test_threads_two_packages_and_fork(net: Net, folder: Path, tmp_path: Path) -> None:
    given = inputs_of(64)
    files = written([x.numpy() for x in given], tmp_path)
    out, other = tmp_path / "out", str(folder.with_suffix(".twp"))
    called("threads", folder, out, 0, *files)
    for k in range(8):
        judge(net, given, results(tmp_path / f"out.{k}"))
    maps = called("two", folder, out, 0, other, *files)
    judge(net, given, results(out))
    code = [line for line in maps.splitlines() if "memfd:tilewright" in line and "r-xp" in line]
    assert len(code) == 3, "two packages, and one pool for both"
    words = called("fork", folder, out, 0, *files)
    assert words.startswith("child ") and int(words.split()[1]) >= 1
    judge(net, given, results(out))


def test_the_header_is_also_cpp() -> None:
    built(caller_source(), "caller-cpp", "-xc++", "-std=c++11", *QUICK, by="c++")
    assert caller().stat().st_size < 200_000


def caller_source() -> Path:
    return Path(__file__).parent / "caller.c"


def test_models_that_cannot_be_exported(net: Net, tmp_path: Path) -> None:
    def in_eager(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.eig(x)[0].real

    def random(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)

    def changing(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x

    cases: list[tuple[Any, str]] = [
        (in_eager, "in_eager cannot be exported: aten.linalg_eig.default runs in torch, because"),
        (random, "random cannot be exported: it draws random numbers"),
        (changing, "changing cannot be exported: it changes x in place"),
        (nn.BatchNorm1d(4).train(), "BatchNorm1d cannot be exported: it changes .* in place"),
    ]
    for model, words in cases:
        with pytest.raises(Unsupported, match=words):
            tw.export(model, torch.randn(4, 4), path=tmp_path / "p")
    with pytest.raises(Invalid, match="there is no target 'z80'"):
        tw.export(net, *inputs_of(3), path=tmp_path / "p", target="z80")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "manifest.json").write_text('{"name": "of something else"}')
    with pytest.raises(Invalid, match="is there, and no package"):
        tw.export(net, *inputs_of(3), path=tmp_path / "mine")
    with pytest.raises(Invalid, match="there is no folder"):
        tw.export(net, *inputs_of(3), path=tmp_path / "none" / "net.twp")
    assert [x.name for x in tmp_path.iterdir()] == ["mine"]


ONNX = """
<ir_version: 10, opset_import: ["": 21]>
scaled (float[batch, length, 8] x, int64[2] ids) => (float[batch, 2, 8] y)
<float[8, 8] w = {%s}> {
  a = MatMul(x, w)
  b = Gather<axis = 1>(a, ids)
  y = Relu(b)
}
"""


def test_onnx_models(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    w = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    text = ONNX % ",".join(map(str, w.ravel()))
    path = tmp_path / "scaled.onnx"
    path.write_bytes(onnx.parser.parse_model(text).SerializeToString())
    ids = np.array([1, 0])
    tw.export(path, path=tmp_path / "p", dynamic={"batch": (1, 9)})
    tw.export(path, path=tmp_path / "q", dynamic={"batch": 2}, values={"ids": ids})
    package, fixed = Package(tmp_path / "p"), Package(tmp_path / "q")
    assert [x[2] for x in package.inputs] == [["batch", "length", "8"], ["2"]]
    assert fixed.inputs == [("x", "f32", ["2", "length", "8"])]
    for batch, length in ((1, 2), (2, 5), (9, 30)):
        x = np.random.default_rng(length).normal(size=(batch, length, 8)).astype(np.float32)
        right = np.maximum(x @ w, 0)[:, ids]
        np.testing.assert_allclose(package(x, ids)[0], right, rtol=1e-5, atol=1e-6)
        if batch == 2:
            np.testing.assert_allclose(fixed(x)[0], right, rtol=1e-5, atol=1e-6)
    with pytest.raises(Failed, match="the dim batch is 10, and the package is for 1 to 9"):
        package(np.zeros((10, 3, 8), np.float32), ids)
    with pytest.raises(Failed, match="index 5 is outside of an axis of 3 elements"):
        package(np.zeros((1, 3, 8), np.float32), np.array([0, 5]))
    package.close()
    fixed.close()
    with pytest.raises(Invalid, match="scaled has no dim 'width'"):
        tw.export(path, path=tmp_path / "r", dynamic={"width": 3})
    apart = "g (float[4, n] x, float[m, 8] z) => (float[4, 8] y) { y = MatMul(x, z) }"
    head = '<ir_version: 10, opset_import: ["": 21]>'
    path.write_bytes(onnx.parser.parse_model(head + apart).SerializeToString())
    with pytest.raises(Unsupported, match="do not fit together for n = 64, m = 72"):
        tw.export(path, path=tmp_path / "r")


@pytest.mark.parametrize("stored", ["f16", pytest.param("bf16", marks=pytest.mark.slow)])
def test_weights_in_16_bits(net: Net, folder: Path, tmp_path: Path, stored: str) -> None:
    """They are rounded, and nothing else is: a net whose weights are such numbers is the same."""
    made = tw.export(net, *inputs_of(5), path=tmp_path / "p.twp", weights=stored)
    half = {"f16": torch.float16, "bf16": torch.bfloat16}[stored]
    same = json.loads((folder.with_name("net") / "manifest.json").read_text())["weights"]["bytes"]
    assert made.manifest["weights"]["bytes"] < 0.7 * same
    rounded = nn.Linear(40, 64).requires_grad_(False)
    special = torch.tensor([0.0, -0.0, 6e-8, -5.9e-8, 1e-5, 6.2e-5, 65504.0, -65504.0])
    for p in rounded.parameters():
        p.copy_(p.to(half).float())
    if stored == "f16":
        rounded.weight[0, : len(special)] = special.half().float()
    x = torch.eye(40)
    tw.export(rounded, x, path=tmp_path / "r", weights=stored)
    package = Package(tmp_path / "r")
    with torch.no_grad():
        right = rounded(torch.eye(40)).numpy()
    np.testing.assert_array_equal(package(x.numpy())[0], right)
    package.close()


@pytest.mark.parametrize("stored", ["same", "f16"])
def test_weights_as_safetensors(net: Net, tmp_path: Path, stored: str) -> None:
    """Both runtimes read the file, and so does the library of that name."""
    path, given = tmp_path / "p.twp", inputs_of(5)
    targets = ["host", "x86-64"]
    made = tw.export(net, *given, path=path, target=targets, weights=stored, layout="safetensors")
    about = made.manifest["weights"]
    assert about["layout"] == "safetensors" and about["file"] == "weights.safetensors"
    package, arrays = Package(path, flags=1), [x.numpy() for x in given]
    with tw.load(path, verify=True) as loaded, torch.no_grad():
        found, again, right = package(*arrays), loaded(*arrays), net(*given).values()
    package.close()
    for x, y, z in zip(found, again, right, strict=True):
        np.testing.assert_array_equal(x, y)
        np.testing.assert_allclose(x, z, rtol=0, atol=1e-5 if stored == "same" else 0.02)
    library = pytest.importorskip("safetensors.numpy")
    with zipfile.ZipFile(path) as archive:
        raw = archive.read(about["file"])
    tensors = library.load(raw)
    assert {x["name"] for x in about["table"]} <= tensors.keys()
    np.testing.assert_array_equal(tensors["table.weight"], net.table.weight.detach().numpy())
    for x in about["table"]:
        assert x["offset"] % 64 == 0
        a = tensors[x["name"]]
        if list(a.shape) == x["shape"] and sum(y["name"] == x["name"] for y in about["table"]) == 1:
            assert raw[x["offset"] : x["offset"] + a.nbytes] == a.tobytes()
    with pytest.raises(Invalid, match="layout='pickle'"):
        tw.export(net, *given, path=tmp_path / "q", layout="pickle")
