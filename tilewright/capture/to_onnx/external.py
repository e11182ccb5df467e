"""Weights in a file beside the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

ALIGNED = 4096  # so that weights can be mapped


def kept(path: Path, name: str, array: np.ndarray) -> onnx.TensorProto:
    """Appends an array to the file; the tensor says where it is."""
    with path.open("ab") as file:
        file.write(bytes(-file.tell() % ALIGNED))
        offset = file.tell()
        array.tofile(file)
    made = onnx.TensorProto(
        name=name,
        dims=array.shape,
        data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
        data_location=onnx.TensorProto.EXTERNAL,
    )
    for key, value in (("location", path.name), ("offset", offset), ("length", array.nbytes)):
        made.external_data.add(key=key, value=str(value))
    return made
