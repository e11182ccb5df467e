"""Programs that import onnxruntime, and the command that shows a model."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the extra onnx is not installed")
from onnx import parser

from tilewright.driver.onnx.command import main

PROGRAM = """
import sys
import numpy as np
import onnxruntime as ort

assert ort.get_available_providers() == ["CPUExecutionProvider"] and ort.get_device() == "CPU"
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.intra_op_num_threads = 1
wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"]
session = ort.InferenceSession(sys.argv[1], options, providers=wanted)
(x,) = session.get_inputs()
assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["N", 3])
assert session.get_providers() == ["CPUExecutionProvider"]
assert session.get_modelmeta().producer_name == "test"
a = np.arange(6, dtype=np.float32).reshape(2, 3)
(y,) = session.run(["y"], {x.name: a}, ort.RunOptions())
assert session.run([], {"x": a})[0].shape == (2, 3)
binding = session.io_binding()
binding.bind_cpu_input("x", a)
binding.bind_output("y")
session.run_with_iobinding(binding)
np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], y)
place = ort.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
value = ort.OrtValue.ortvalue_from_numpy(a)
binding.clear_binding_outputs()
binding.bind_input("x", "cpu", 0, np.float32, value.shape(), value.data_ptr())
binding.bind_ortvalue_output("y", place)
session.run_with_iobinding(binding)
np.testing.assert_array_equal(place.numpy(), y)
(again,) = session.run_with_ort_values(None, {"x": value})
assert again.data_type() == "tensor(float)" and again.shape() == [2, 3]
found = y.tolist()
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18], producer_name: "test"> '
        "g (float[N, 3] x) => (float[N, 3] y) <float[3] b = {1, 2, 3}> { y = Add(x, b) }"
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    return path


def test_a_program_of_onnxruntime(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = model.with_name("program.py")
    script.write_text(PROGRAM)
    ended: dict[str, object] = {}
    run = runpy.run_path
    monkeypatch.setattr(runpy, "run_path", lambda *a, **kw: ended.update(run(*a, **kw)))
    said = "ignores SessionOptions.graph_optimization_level, SessionOptions.intra_op_num_threads, "
    with pytest.warns(UserWarning, match=said + "CUDAExecutionProvider"):
        main([str(script), str(model)])
    assert ended["found"] == [[1, 3, 5], [4, 6, 8]]


def test_what_the_stand_in_lacks_is_named(model: Path) -> None:
    from tilewright.driver.onnx.stand_in import SessionOptions, install

    ort = install()
    with pytest.raises(AttributeError, match=r"onnxruntime\.LoraAdapter has no counterpart"):
        _ = ort.LoraAdapter
    with pytest.raises(AttributeError, match="has no setting 'threads' here"):
        SessionOptions().threads = 3
    session = ort.InferenceSession(model)
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.zeros((1, 3), np.float32))
    binding.bind_ortvalue_output("y", ort.OrtValue(np.zeros((2, 3), np.float32)))
    with pytest.raises(ValueError, match=r"is float32\[1, 3\], and memory for float32\[2, 3\]"):
        session.run_with_iobinding(binding)


def test_a_model_is_shown(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(model)]) is None
    shown = " ".join(capsys.readouterr().out.split())
    assert "opset 18, 1 nodes, 3 numbers in weights" in shown
    assert "[N, 3]" in shown and "tensor(float)" in shown
    for wrong, said in ((["--x"], "is no option"), (["none.py"], "no file none.py"), ([], "which")):
        with pytest.raises(SystemExit):
            main(wrong)
        assert said in capsys.readouterr().err
