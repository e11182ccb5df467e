"""What stands in the place of the module `onnxruntime`, so that programs that import it run their
models through native code."""

from __future__ import annotations

import ctypes
import enum
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx

from tilewright.base.errors import Invalid, Unsupported
from tilewright.capture.onnx.elements import element_of_array, name_of, numpy_of
from tilewright.capture.onnx.model import read
from tilewright.driver.onnx.session import Argument, Session

PROVIDER = "CPUExecutionProvider"


class ExecutionMode(enum.IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    DEFAULT = 0
    PRIORITY_BASED = 1


class GraphOptimizationLevel(enum.IntEnum):
    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class _Settings:
    """Attributes with their values; `changed` are those that a program set to others."""

    defaults: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.__dict__.update(self.defaults)
        self.__dict__["entries"] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.defaults:
            raise AttributeError(
                f"{type(self).__name__} has no setting {name!r} here; it has "
                + ", ".join(self.defaults)
            )
        self.__dict__[name] = value

    @property
    def changed(self) -> list[str]:
        own = [f".{k}" for k, v in self.defaults.items() if getattr(self, k) != v]
        return [*own, *(f" entry {k!r}" for k in self.__dict__["entries"])]


class SessionOptions(_Settings):
    """Settings of a session. None changes what is computed, so all are accepted and none is
    needed: a session says which it ignores."""

    defaults: Mapping[str, Any] = {
        "enable_cpu_mem_arena": True,
        "enable_mem_pattern": True,
        "enable_mem_reuse": True,
        "enable_profiling": False,
        "execution_mode": ExecutionMode.ORT_SEQUENTIAL,
        "execution_order": ExecutionOrder.DEFAULT,
        "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
        "inter_op_num_threads": 0,
        "intra_op_num_threads": 0,
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "optimized_model_filepath": "",
        "profile_file_prefix": "onnxruntime_profile_",
        "use_deterministic_compute": False,
        "use_per_session_threads": True,
    }

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.__dict__["entries"][key] = value

    def get_session_config_entry(self, key: str) -> str:
        return self.__dict__["entries"][key]

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Programs hold for all sizes of a symbolic dim."""
        self.__dict__["entries"][name] = str(size)

    def add_initializer(self, name: str, value: Any) -> None:
        raise Unsupported("add_initializer has no native form", hint="write it into the model")

    def register_custom_ops_library(self, path: str) -> None:
        raise Unsupported(f"the operators of the library {path!r} have no native form")


class RunOptions(_Settings):
    """Settings of a call, all of them ignored."""

    defaults: Mapping[str, Any] = {
        "log_severity_level": -1,
        "log_verbosity_level": 0,
        "logid": "",
        "only_execute_path_to_fetches": False,
        "terminate": False,
    }

    def add_run_config_entry(self, key: str, value: str) -> None:
        self.__dict__["entries"][key] = value


@dataclass(frozen=True)
class ModelMetadata:
    """What a file says of its model."""

    custom_metadata_map: dict[str, str]
    description: str
    domain: str
    graph_description: str
    graph_name: str
    producer_name: str
    version: int


class OrtValue:
    """An array, in memory that processors see."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(
        array: np.ndarray, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        _on_cpu(device_type)
        return OrtValue(np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array))

    @staticmethod
    def ortvalue_from_shape_and_type(
        shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        _on_cpu(device_type)
        return OrtValue(np.empty(tuple(shape), _dtype(element_type)))

    def numpy(self) -> np.ndarray:
        return self._array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._array, dtype=dtype, copy=copy)

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def data_type(self) -> str:
        return f"tensor({name_of(self.element_type()).lower()})"

    def element_type(self) -> int:
        return element_of_array(self._array)

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def tensor_size_in_bytes(self) -> int:
        return self._array.nbytes

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def update_inplace(self, array: np.ndarray) -> None:
        np.copyto(self._array, array)


class IOBinding:
    """Arrays by the names of inputs and outputs."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.inputs: dict[str, np.ndarray] = {}
        self.outputs: dict[str, np.ndarray | None] = {}  # None: new memory in each call
        self._found: list[OrtValue] = []

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        self.inputs[name] = array

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self.inputs[name] = value.numpy()

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        _on_cpu(device_type)
        self.inputs[name] = _at(buffer_ptr, element_type, shape)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        _on_cpu(device_type)
        place = None if buffer_ptr is None else _at(buffer_ptr, element_type, shape or ())
        self.outputs[name] = place

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self.outputs[name] = value.numpy()

    def clear_binding_inputs(self) -> None:
        self.inputs.clear()

    def clear_binding_outputs(self) -> None:
        self.outputs.clear()

    def synchronize_inputs(self) -> None:
        """Nothing runs at the same time."""

    def synchronize_outputs(self) -> None:
        """Nothing runs at the same time."""

    def get_outputs(self) -> list[OrtValue]:
        return list(self._found)

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        return [v.numpy() for v in self._found]

    def run(self) -> None:
        names = list(self.outputs)
        found = self._session.run(names, self.inputs)
        self._found = []
        for name, array in zip(names, found):
            place = self.outputs[name]
            if place is not None:
                if place.shape != array.shape or place.dtype != array.dtype:
                    raise Invalid(
                        f"the output {name!r} is {array.dtype}{list(array.shape)}, and memory for "
                        f"{place.dtype}{list(place.shape)} is bound to it"
                    )
                np.copyto(place, array)
            self._found.append(OrtValue(array if place is None else place))


class InferenceSession(Session):
    """A model, as programs of ONNX Runtime open it."""

    def __init__(
        self,
        path_or_bytes: str | Path | bytes,
        sess_options: SessionOptions | None = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **others: Any,
    ) -> None:
        self._given = sess_options or SessionOptions()
        ignored = [f"SessionOptions{name}" for name in self._given.changed]
        for p in providers or ():
            name = p if isinstance(p, str) else p[0]
            ignored += [name] if name != PROVIDER else []
        ignored += ["provider_options"] if provider_options else []
        ignored += list(others)
        if ignored:
            warnings.warn(
                f"Tilewright runs this model, and ignores {', '.join(ignored)}", stacklevel=2
            )
        super().__init__(read(path_or_bytes), None, None)

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: RunOptions | None = None,
    ) -> list[Any]:
        return super().run(output_names or None, input_feed)

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: RunOptions | None = None,
    ) -> list[OrtValue]:
        feeds = {k: v.numpy() for k, v in input_dict_ort_values.items()}
        return [OrtValue(a) for a in self.run(output_names, feeds)]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, binding: IOBinding, run_options: RunOptions | None = None) -> None:
        binding.run()

    def get_session_options(self) -> SessionOptions:
        return self._given

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {PROVIDER: {}}

    def set_providers(self, providers: Sequence[Any], options: Any = None) -> None:
        """There is only one."""

    def get_overridable_initializers(self) -> list[Argument]:
        return []

    def get_modelmeta(self) -> ModelMetadata:
        proto = self.model.proto
        return ModelMetadata(
            {p.key: p.value for p in proto.metadata_props},
            proto.doc_string,
            proto.domain,
            proto.graph.doc_string,
            proto.graph.name,
            proto.producer_name,
            proto.model_version,
        )


def _on_cpu(device: Any) -> None:
    if str(device).lower() != "cpu":
        raise Unsupported(f"arrays are on processors here, not on {device!r}", hint='use "cpu"')


def _dtype(element: Any) -> np.dtype:
    return numpy_of(element) if isinstance(element, int) else np.dtype(element)


def _at(address: int, element: Any, shape: Sequence[int]) -> np.ndarray:
    dtype = _dtype(element)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = (ctypes.c_char * size).from_address(address)
    return np.ndarray(tuple(shape), dtype, memoryview(memory))


def module() -> ModuleType:
    """The module that programs import as `onnxruntime`; what it lacks is named when it is used."""
    made = ModuleType("onnxruntime", "Tilewright in the place of ONNX Runtime.")

    def absent(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"onnxruntime.{name} has no counterpart in Tilewright, which stands in its place"
        )

    made.__dict__.update(
        {
            "InferenceSession": InferenceSession,
            "SessionOptions": SessionOptions,
            "RunOptions": RunOptions,
            "OrtValue": OrtValue,
            "IOBinding": IOBinding,
            "NodeArg": Argument,
            "ModelMetadata": ModelMetadata,
            "ExecutionMode": ExecutionMode,
            "ExecutionOrder": ExecutionOrder,
            "GraphOptimizationLevel": GraphOptimizationLevel,
            "get_available_providers": lambda: [PROVIDER],
            "get_all_providers": lambda: [PROVIDER],
            "get_device": lambda: "CPU",
            "set_default_logger_severity": lambda level: None,
            "set_default_logger_verbosity": lambda level: None,
            "set_seed": lambda seed: None,
            "get_version_string": lambda: made.__version__,
            "__version__": f"{onnx.__version__}+tilewright",
            "__getattr__": absent,
        }
    )
    return made


def install() -> ModuleType:
    """From now on `import onnxruntime` gives the stand-in."""
    sys.modules["onnxruntime"] = module()
    return sys.modules["onnxruntime"]
