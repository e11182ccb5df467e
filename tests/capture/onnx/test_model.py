"""Files that are no models, or bad ones: an error in words, nothing run."""

import random
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed")
from onnx import helper, numpy_helper, parser  # noqa: E402

from tilewright.base.errors import Invalid, TilewrightError, Unsupported  # noqa: E402
from tilewright.capture.onnx.model import read  # noqa: E402
from tilewright.capture.onnx.translate import translate  # noqa: E402


def text(body: str, opset: int = 18, head: str = "float[3] x") -> bytes:
    start = f'<ir_version: 8, opset_import: ["" : {opset}]> g ({head}) => (float[3] y)'
    return parser.parse_model(f"{start} {{ {body} }}").SerializeToString()


def refused(source: str | Path | bytes, *words: str) -> None:
    with pytest.raises(Invalid) as error:
        read(source)
    for word in words:
        assert word in str(error.value)


def test_bytes_that_are_no_model() -> None:
    refused(b"\x08\xff\xff garbage", "not an ONNX model")
    refused(b"", "no graph")


def test_a_missing_file(tmp_path: Path) -> None:
    refused(tmp_path / "none.onnx", "cannot read", "none.onnx")


def test_a_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "short.onnx"
    path.write_bytes(text("y = Add(x, x)")[:-7])
    refused(path, "short.onnx")


def test_a_cycle() -> None:
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Add", ["a", "x"], ["b"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [value("x", 1, [3])], [value("b", 1, [3])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    refused(made.SerializeToString(), "cycle", "first")


def test_an_opset_of_the_future() -> None:
    proto = onnx.ModelProto()
    proto.ParseFromString(text("y = Add(x, x)"))
    proto.opset_import[0].version = 999
    refused(proto.SerializeToString(), "opset 999", "newer onnx")


def test_an_unknown_domain_and_operator() -> None:
    proto = onnx.ModelProto()
    proto.ParseFromString(text("y = Add(x, x)"))
    proto.graph.node[0].domain = "my.company"
    proto.opset_import.append(helper.make_opsetid("my.company", 3))
    with pytest.raises(Unsupported, match=r"'my.company'") as error:
        translate(read(proto.SerializeToString()))
    assert "Add (-> y), opset 3" in str(error.value)


def external(folder: Path, location: str) -> Path:
    """A model that keeps a tensor in another file."""
    proto = onnx.ModelProto()
    proto.ParseFromString(text("y = Add(x, w)"))
    t = numpy_helper.from_array(np.arange(3, dtype=np.float32), "w")
    onnx.external_data_helper.set_external_data(t, location)
    t.ClearField("raw_data")
    proto.graph.initializer.append(t)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data(tmp_path: Path) -> None:
    path = external(tmp_path, "w.bin")
    refused(path, "initializer 'w'", "no such file")
    (tmp_path / "w.bin").write_bytes(np.arange(3, dtype=np.float32).tobytes())
    (tensor,) = read(path).proto.graph.initializer
    assert numpy_helper.to_array(tensor).tolist() == [0, 1, 2]
    refused(path.read_bytes(), "bytes have no folder")


@pytest.mark.parametrize("location", ["../w.bin", "a/../../w.bin", "/etc/hostname"])
def test_external_data_outside_of_the_folder(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(12))
    refused(external(folder, location), "outside of the model's folder", "initializer 'w'")


def test_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(12))
    (folder / "w.bin").symlink_to(tmp_path / "w.bin")
    refused(external(folder, "w.bin"), "outside of the model's folder")


def test_operators_without_a_translation_are_named() -> None:
    with pytest.raises(Unsupported, match="images are not decoded") as error:
        translate(read(text("y = ImageDecoder(x)", opset=20)))
    assert "ImageDecoder (-> y), opset 20" in str(error.value)


def changed(data: bytes, seed: int) -> bytes:
    """The bytes with a few of them replaced, left out or put in."""
    rng, out = random.Random(seed), bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, byte = rng.randrange(len(out)), rng.randrange(256)
        out[at : at + rng.randrange(2)] = bytes([byte] * rng.randrange(2))
    return bytes(out)


def test_altered_bytes_are_an_error_in_words() -> None:
    """Or still a model: whatever they are, nothing else is raised."""
    body = """
        w = Constant <value = float[2, 1, 2] {1, 2, 3, 4}> ()
        c = Conv <strides = [1], pads = [1, 1]> (x, w)
        s = Shape (c)
        p = AveragePool <kernel_shape = [2], strides = [1]> (c)
        n = LayerNormalization <axis = -1> (p, one)
        y = Reshape (c, s)
    """
    whole = text(body, head="float[1, 1, 3] x, float[3] one")
    ends = {"ok": 0, "refused": 0}
    for seed in range(800):
        try:
            translate(read(changed(whole, seed)))
            ends["ok"] += 1
        except TilewrightError:
            ends["refused"] += 1
    assert min(ends.values()) > 20
