"""Kernels inside functions that torch compiles.

With ours in Triton's place Dynamo takes a launch for one of Triton's, and queries Triton's compiler
for the tensors that the kernel changes. Here the tile IR answers. torch imports the modules that
have to be patched late, so each is patched when it is imported.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from typing import Any

from tilewright.base.errors import TilewrightError
from tilewright.base.events import Log
from tilewright.base.untraced import keep_untraced
from tilewright.driver.tile.arguments import ALIGNMENT, TYPE_NAMES, argument_of, handlers_of
from tilewright.driver.tile.autotune import Autotuner
from tilewright.driver.tile.jit import JITFunction
from tilewright.driver.tile.request import translated
from tilewright.ir.types import DTYPES, f32, i32
from tilewright.lang.tile.front.functions import Argument
from tilewright.lang.tile.front.stored import stored_arguments
from tilewright.lang.tile.language.types import constexpr, dtype

Replace = Callable[[Any, str, Any], None]

LOG = Log()


class AfterImport(MetaPathFinder):
    """Calls a function with a module as soon as it is imported, or now."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[Any], None]] = {}

    def call(self, name: str, function: Callable[[Any], None]) -> None:
        module = sys.modules.get(name)
        if module is not None:
            function(module)
            return
        self.waiting[name] = function
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self) -> None:
        self.waiting.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        function = self.waiting.get(fullname)
        if function is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            if self.waiting.pop(fullname, None) is function:
                function(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_after = AfterImport()


def attach(replace: Replace) -> None:
    """Make Dynamo understand launches inside compiled functions; `replace` can be undone."""
    forget_answers()
    wrapper = "torch._higher_order_ops.triton_kernel_wrap"
    _after.call(wrapper, lambda module: _attach_analysis(module, replace))
    _after.call("torch._dynamo.trace_rules", keep_untraced)
    _after.call("torch._dynamo.utils", lambda module: _attach_constants(module, replace))
    _after.call("torch._inductor.async_compile", lambda module: _attach_workers(module, replace))


def _attach_constants(module: Any, replace: Replace) -> None:
    """Dynamo looked for Triton when it was imported, and may have found none."""
    module.common_constant_types.add(dtype)
    if not hasattr(module, "triton"):
        replace(module, "triton", sys.modules["triton"])


def _attach_workers(module: Any, replace: Replace) -> None:
    """Inductor compiles Triton's kernels in processes of its own as soon as these have started.
    They know nothing of this package, so kernels are compiled here, as they are before that."""
    replace(module.AsyncCompile, "use_process_pool", classmethod(lambda cls: False))


def forget_answers() -> None:
    """Clear what torch cached before: whether there is a Triton, and which functions of its own go
    into graphs."""
    for name in ("torch.utils._triton", "torch._dynamo.trace_rules"):
        for answer in vars(sys.modules.get(name, object)).values():
            if hasattr(answer, "cache_clear"):
                answer.cache_clear()


def attach_devices(replace: Replace) -> None:
    """Make functions that torch compiles see tensors on a GPU, as the code around them does."""
    _after.call("torch._dynamo.variables.tensor", lambda module: _attach_devices(module, replace))


def attach_answers(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Functions that Dynamo calls while it traces, and whose results it takes for constants: the
    replacements are registered like the functions that they replace."""

    def attach_to(module: Any) -> None:
        for table in (module.constant_fold_functions, module.constant_fold_functions_need_guards):
            for old, new in pairs:
                if old in table or new in table:
                    table[old] = table[new] = None

    _after.call("torch._dynamo.variables.torch", attach_to)


def detach() -> None:
    _after.forget()
    forget_answers()


def _attach_devices(module: Any, replace: Replace) -> None:
    import torch

    variable = module.TensorVariable
    where = variable.method_attr_device

    def device(self: Any, tx: Any) -> Any:
        found = where(self, tx)
        real = self.device
        if real is None or real.type != "cpu":
            return found
        return module.VariableTracker.build(tx, torch.device("cuda", 0))

    def is_cuda(self: Any, tx: Any) -> Any:
        if self.device is None:
            return None
        return module.VariableTracker.build(tx, self.device.type in ("cpu", "cuda"))

    replace(variable, "method_attr_device", device)
    replace(variable, "method_attr_is_cuda", is_cuda)


def _attach_analysis(module: Any, replace: Replace) -> None:
    """torch queries what a kernel reads and writes, older versions only what it writes."""
    if hasattr(module, "identify_accessed_tensors"):
        original = module.identify_accessed_tensors

        def accessed(kernel: Any, kwargs: Any, tma_descriptor_metadata: Any) -> Any:
            if not _is_ours(kernel):
                return original(kernel, kwargs, tma_descriptor_metadata)
            from torch._inductor.dependencies import ReadWrites, StarDep
            from torch.utils._ordered_set import OrderedSet

            tensors, written = changed(kernel, kwargs)
            return module.TensorAccesses(
                ReadWrites(
                    reads=OrderedSet(StarDep(name) for name in tensors),
                    writes=OrderedSet(StarDep(name) for name in written),
                    index_exprs=OrderedSet(),
                ),
                can_fuse_epilogue=False,
            )

        replace(module, "identify_accessed_tensors", accessed)
    if hasattr(module, "identify_mutated_tensors"):
        before = module.identify_mutated_tensors

        def mutated(kernel: Any, kwargs: Any, *rest: Any) -> list[str]:
            return changed(kernel, kwargs)[1] if _is_ours(kernel) else before(kernel, kwargs, *rest)

        replace(module, "identify_mutated_tensors", mutated)


def _is_ours(kernel: Any) -> bool:
    return isinstance(kernel, (JITFunction, Autotuner))


def changed(kernel: Any, given: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """The tensors among a launch's arguments by name, and those of them that the kernel stores to.
    Of a kernel that cannot be followed, or not be translated, all of them."""
    given = dict(given)
    tensors = [name for name, value in given.items() if _is_tensor(value)]
    while not isinstance(kernel, JITFunction):
        for config in getattr(kernel, "configs", ())[:1]:  # each does the same
            given |= config.kwargs
        kernel = kernel.fn
    try:
        arguments = {p.name: _described(p, given) for p in kernel.parameters}
        stored = stored_arguments(translated(kernel, arguments, debug=False))
    except TilewrightError as problem:
        what = f"every tensor passed to {kernel.name} is assumed to change: {problem.what}"
        LOG.add("triton", what, where=f"{kernel.file}:{kernel.line}")
        return tensors, tensors
    owners = [name for name, a in arguments.items() for _ in a.leaves()]
    named = {owners[k] for k in stored}
    return tensors, [name for name in tensors if name in named]


def _is_tensor(value: Any) -> bool:
    import torch

    # Inductor passes arguments in wrappers of its own.
    return isinstance(value, torch.Tensor) or hasattr(value, "get_dtype")


def _described(p: Any, given: Mapping[str, Any]) -> Argument:
    import torch

    value = given.get(p.name, p.default)
    if p.is_constexpr:
        return Argument.constant(value.value if isinstance(value, constexpr) else value)
    if _is_tensor(value):
        kind = value.dtype if isinstance(value, torch.Tensor) else value.get_dtype()
        element = DTYPES[TYPE_NAMES[str(kind).removeprefix("torch.")]]
        return Argument.pointer(element, ALIGNMENT)
    if isinstance(value, torch.SymFloat):
        return Argument.scalar(f32)
    if isinstance(value, (torch.SymInt, torch.SymBool)) or hasattr(value, "free_symbols"):
        return Argument.scalar(i32)
    return argument_of(handlers_of(p)[value.__class__](value)[0])
