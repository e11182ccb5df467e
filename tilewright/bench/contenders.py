"""How each contender is called: ours, and the peers.

A contender is a function from an entrant to a call without arguments; whatever it compiles, it does
so by the end of the first call. A peer that cannot take part says why with `Unavailable`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from tilewright.bench.example import Example
from tilewright.bench.jax_graphs import Unspelled, captured, function_of
from tilewright.bench.jax_operators import FUNCTIONS
from tilewright.capture.torch.decompositions import decompositions
from tilewright.driver.api import compile

Call = Callable[[], Any]


class Unavailable(Exception):
    """Why a peer cannot take part, in a sentence."""


@dataclass(frozen=True)
class Entrant:
    """What a contender gets: a module, its inputs and settings."""

    example: Example
    dtype: str
    threads: int
    folder: Path  # for files that live as long as the run; one model is exported once
    strict: bool = True  # ours only: a fallback to eager is an error
    name: str = ""  # of its builder
    own_weights: bool = False  # ours only: packed weights have no second copy
    device: str = "cpu"

    @property
    def module(self) -> nn.Module:
        return self.example.module

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return self.example.inputs


class Ours:
    """A call, and how many operators fell back to eager."""

    def __init__(self, e: Entrant) -> None:
        options = {"own_weights": True} if e.own_weights else {}
        self.fast, self.inputs = compile(e.module, *e.inputs, strict=e.strict, **options), e.inputs

    def __call__(self) -> Any:
        return self.fast(*self.inputs)

    @property
    def fallbacks(self) -> int:
        return len(self.fast.log.of("fallback"))


def eager(e: Entrant) -> Call:
    return lambda: e.module(*e.inputs)


def capture(e: Entrant) -> Call:
    """No peer: torch's share in our compile time. Captures as we do and runs that in eager."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func

    backend = aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        decompositions=decompositions(),
    )
    fast = torch.compile(e.module, backend=backend, fullgraph=e.strict)
    return lambda: fast(*e.inputs)


def inductor(e: Entrant, mode: str | None = None, freezing: bool = False) -> Call:
    import torch._inductor.config as config

    config.freezing = freezing
    fast = torch.compile(e.module, mode=mode)
    return lambda: fast(*e.inputs)


def inductor_freezing(e: Entrant) -> Call:
    return inductor(e, freezing=True)


def reduce_overhead(e: Entrant) -> Call:
    """With CUDA graphs."""
    return inductor(e, "reduce-overhead")


def max_autotune(e: Entrant) -> Call:
    """Its own templates of products pack constant weights, so weights are frozen here too."""
    return inductor(e, "max-autotune", freezing=e.device == "cpu")


def onnxruntime(e: Entrant) -> Call:
    _need("onnxruntime", "onnx", "onnxscript")
    import onnxruntime as ort

    if e.dtype == "bfloat16":
        raise Unavailable("ONNX Runtime has no bfloat16 on CPUs")
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = e.threads, 1
    path = str(_exported(e))
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    # Bound once, or results would be copied out at every call.
    binding = session.io_binding()
    for i, x in zip(session.get_inputs(), e.inputs, strict=True):
        binding.bind_ortvalue_input(i.name, ort.OrtValue.ortvalue_from_numpy(x.numpy()))
    for o in session.get_outputs():
        binding.bind_output(o.name, "cpu")

    def call() -> Any:
        session.run_with_iobinding(binding)
        return binding.get_outputs()

    return call


def openvino(e: Entrant) -> Call:
    _need("openvino", "onnx", "onnxscript")
    import openvino as ov

    # A float32 model of the same values: how exactly it computes is the plugin's own setting.
    path = str(_exported(_in_float(e)))
    precision = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
    if e.dtype not in precision:
        raise Unavailable(f"OpenVINO does not compute in {e.dtype}")
    settings = {
        "INFERENCE_PRECISION_HINT": precision[e.dtype],
        "INFERENCE_NUM_THREADS": e.threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    core = ov.Core()
    request = core.compile_model(core.read_model(path), "CPU", settings).create_infer_request()
    feed = [x.numpy() for x in _in_float(e).inputs]
    # Without copies on the way in and out.
    shared = {"share_inputs": True, "share_outputs": True}
    return lambda: list(request.infer(feed, **shared).values())


def xla(e: Entrant) -> Call:
    """XLA through JAX: operators are spelled once more for it, models are translated."""
    _need("jax")
    # JAX would take most of a GPU's memory at once, next to what torch has there.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    if e.device == "cpu":
        _keep_to_cores(e.threads)
        jax.config.update("jax_platforms", "cpu")
    if e.name in FUNCTIONS:
        function = partial(FUNCTIONS[e.name], jax)
        tensors = [*e.inputs, *(w.detach() for w in e.module.parameters())]
    else:
        try:
            graph, tensors = captured(e.module, e.inputs)
            function = function_of(jax, graph)
        except Unspelled as problem:
            raise Unavailable(str(problem)) from None
    fast, given = jax.jit(function), [_jax_array(jax, x) for x in tensors]
    return lambda: jax.block_until_ready(fast(*given))


def _jax_array(jax: Any, x: torch.Tensor) -> Any:
    x = x.detach().cpu()
    if x.dtype is torch.bfloat16:
        return jax.numpy.asarray(x.float().numpy()).astype(jax.numpy.bfloat16)
    return jax.numpy.asarray(x.numpy())


def iree(e: Entrant) -> Call:
    _need("iree.compiler", "iree.runtime", "iree.turbine")
    import iree.runtime as runtime
    from iree.turbine import aot

    if e.dtype == "bfloat16":
        raise Unavailable("numpy, through which IREE is called here, has no bfloat16")
    _keep_to_cores(e.threads)
    exported = aot.export(e.module, *e.inputs)
    exported.session.set_flags("--iree-llvmcpu-target-cpu=host")
    binary = exported.compile(save_to=None, target_backends=("llvm-cpu",))
    if binary is None:
        raise Unavailable("IREE gave no program")
    settings = runtime.Config("local-task")
    module = runtime.VmModule.copy_buffer(settings.vm_instance, binary.map_memory())
    loaded = runtime.load_vm_module(module, settings)
    feed = [runtime.asdevicearray(settings.device, x.numpy()) for x in e.inputs]
    return lambda: loaded.main(*feed)


def _keep_to_cores(count: int) -> None:
    """For peers that take as many threads as there are cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


PEERS: dict[str, Callable[[Entrant], Call]] = {
    "eager": eager,
    "inductor": inductor,
    "inductor-freezing": inductor_freezing,
    "reduce-overhead": reduce_overhead,
    "max-autotune": max_autotune,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "xla": xla,
    "iree": iree,
}
CONTENDERS = {"tilewright": Ours, "capture": capture, **PEERS}


def as_tensors(results: Any, dtype: str) -> list[Any]:
    """What a call gave, as torch would have given it; peers may answer in numpy and in float32."""
    return [
        x if isinstance(x, (torch.Tensor, int, float)) else _tensor(x, dtype)
        for x in pytree.tree_leaves(results)
    ]


def _tensor(result: Any, dtype: str) -> torch.Tensor:
    x = result.numpy() if hasattr(result, "numpy") else np.asarray(result)
    if x.dtype.name == "bfloat16":  # of a package of its own, unknown to torch
        x = x.astype(np.float32)
    found = torch.from_numpy(np.array(x))
    return found.to(getattr(torch, dtype)) if found.is_floating_point() else found


def _in_float(e: Entrant) -> Entrant:
    if e.dtype == "float32":
        return e
    inputs = tuple(x.float() if x.is_floating_point() else x for x in e.inputs)
    return replace(e, example=Example(e.module.float(), inputs))


def _exported(e: Entrant) -> Path:
    """The model as ONNX, written on first use."""
    path = e.folder / "model.onnx"
    if not path.exists():
        part = e.folder / "part"
        part.mkdir(exist_ok=True)
        # Weights in a separate file: a file of protocol buffers ends at 2 GiB.
        written = part / "model.onnx"
        torch.onnx.export(
            e.module, e.inputs, str(written), dynamo=True, verbose=False, external_data=True
        )
        for file in sorted(part.iterdir(), reverse=True):
            file.rename(e.folder / file.name)
    return path


def _need(*packages: str) -> None:
    missing = [name for name in packages if not _installed(name)]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise Unavailable(f"{' and '.join(missing)} {verb} not installed")


def _installed(name: str) -> bool:
    try:
        return name in sys.modules or find_spec(name) is not None
    except ModuleNotFoundError:  # the package that would hold it is missing
        return False
