"""Scripts that use a GPU with torch get the CPU: `device="cuda"` is taken as `device="cpu"`.

Functions that make or move tensors are wrapped, queries about a GPU are answered from the tables of
`cuda.py`, and operators that are registered for CUDA are the CPU's. Programs see tensors on
`cuda:0`; torch itself sees where they are. `undo()` puts everything back.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.triton import compiling
from tilewright.triton.cuda import EXISTENCE, answering, answers, called_by_torch, here, named

_FACTORIES = """empty zeros ones full rand randn randint arange tensor as_tensor asarray linspace
    logspace eye randperm normal empty_strided empty_permuted scalar_tensor empty_like zeros_like
    ones_like full_like rand_like randn_like randint_like tril_indices triu_indices from_file
    frombuffer from_numpy range bartlett_window blackman_window hamming_window hann_window
    kaiser_window sparse_coo_tensor sparse_csr_tensor sparse_csc_tensor sparse_bsr_tensor
    sparse_bsc_tensor sparse_compressed_tensor""".split()
_METHODS = "new_empty new_zeros new_ones new_full new_tensor new_empty_strided".split()
# Functions and constructors that take a device, or its kind, and make no tensor.
_OTHERS = {
    "torch": "set_default_device get_autocast_dtype set_autocast_enabled set_autocast_dtype",
    "torch.amp.autocast_mode": "_cast",
    "torch.library": "register_autocast",
    "torch.utils._device": "DeviceContext.__init__",
    "torch.amp.grad_scaler": "GradScaler.__init__",
}
# Keys of torch's dispatcher that are a GPU's.
_KEYS = re.compile("CUDA|HIP|XPU|MPS")
# On a tensor that was made on the CPU by name: moving it to a GPU copies it, as there.
_BORN_HERE = "_tilewright_on_cpu"
# On a tensor in memory that a GPU could copy from by itself: here all memory is alike.
_PINNED = "_tilewright_pinned"


_undo: list[Callable[[], None]] = []
_redirected = False
_MISSING = object()


def complete() -> None:
    """Functions that scripts call in the module of their device and that `torch.cpu` lacks."""
    torch = sys.modules.get("torch")
    if torch is not None and not hasattr(torch.cpu, "set_stream"):
        replace(torch.cpu, "set_stream", lambda stream: None)


def redirected() -> bool:
    return _redirected


def redirect() -> None:
    """From now on tensors for a GPU are made on the CPU. Calling it again changes nothing."""
    global _redirected
    import torch
    import torch.utils._device

    if _redirected:
        return
    _redirected = True
    complete()
    _tensors(torch)
    for module, names in _OTHERS.items():
        for path in names.split():
            owner, _, name = f"{module}.{path}".rpartition(".")
            owner = _found(owner)
            replace(owner, name, _wrapped(getattr(owner, name)))
    replace(torch, "Generator", _generators(torch.Generator))
    replace(torch, "load", _loading(torch.load))
    replace(torch, "is_autocast_enabled", _enabled(torch.is_autocast_enabled))
    autocast = torch.amp.autocast_mode.autocast
    replace(autocast, "__init__", _autocast(autocast.__init__))
    functional = torch.nn.functional
    replace(functional, "layer_norm", _summed_widely(functional.layer_norm))
    library = torch.library.Library
    replace(library, "__init__", _library(library.__init__))
    replace(library, "impl", _registered(library.impl))
    _install_answers()
    compiling.attach_devices(replace)
    compiling.forget_answers()


def _tensors(torch: Any) -> None:
    """Wrap what makes tensors, moves them and says where they are."""
    for name in _FACTORIES:
        replace(torch, name, _making(getattr(torch, name)))
    tensor = torch.Tensor
    for name in _METHODS:
        replace(tensor, name, _wrapped(getattr(tensor, name)))
    for name in ("_make_subclass", "_make_wrapper_subclass"):
        replace(tensor, name, staticmethod(_wrapped(getattr(tensor, name))))
    move = tensor.to
    replace(tensor, "to", _moving(move))
    replace(tensor, "cuda", lambda x, *_, **__: _moved(x, True, move))
    replace(tensor, "cpu", lambda x, *_, **__: _moved(x, False, move))
    replace(tensor, "record_stream", lambda x, stream: None)
    replace(tensor, "pin_memory", _pinned)
    replace(tensor, "is_pinned", lambda x, *_, **__: _PINNED in x.__dict__)
    where = tensor.device.__get__
    cuda = torch.device("cuda", 0)
    replace(tensor, "is_cuda", property(lambda x: x.is_cpu and not called_by_torch()))

    def device(x: Any) -> Any:
        real = where(x)
        return real if real.type != "cpu" or called_by_torch() else cuda

    replace(tensor, "device", property(device))
    number = tensor.get_device
    replace(tensor, "get_device", lambda x: 0 if x.is_cpu and not called_by_torch() else number(x))


def _install_answers() -> None:
    """Install the answers of the tables, in every module of torch that imported the name."""
    answered: list[tuple[Any, Any]] = []
    for module, table in EXISTENCE.items():
        owner, inside = _found(module), _inside(module)
        for name, answer in table.items():
            if hasattr(owner, name):
                answered.append((getattr(owner, name), answering(getattr(owner, name), answer)))
                _everywhere(owner, inside, name, answered[-1][1])
    given = answers()
    pairs = [
        (getattr(_found(module), name, None), answer)
        for module, table in given.items()
        for name, answer in table.items()
    ]
    compiling.attach_answers([*answered, *((old, new) for old, new in pairs if callable(old))])
    for module, table in given.items():
        owner, inside = _found(module), _inside(module)
        for name, answer in table.items():
            _everywhere(owner, inside, name, answer)
    for module in ("torch.cuda", "torch.accelerator"):
        owner = _found(module)
        for name in owner.__all__:
            original = getattr(owner, name, None)
            known = name in given[module] or name in EXISTENCE[module]
            if not known and callable(original) and not isinstance(original, type):
                replace(owner, name, named(f"{module}.{name}", original))


def _found(path: str) -> Any:
    """A module or a class by its full name."""
    module, _, last = path.rpartition(".")
    if path in sys.modules or not module:
        return sys.modules[path]
    return getattr(_found(module), last)


def _inside(path: str) -> list[Any]:
    """The modules inside a module that are imported."""
    return [module for name, module in sys.modules.items() if name.startswith(path + ".")]


def _everywhere(owner: Any, inside: Sequence[Any], name: str, new: Any) -> None:
    """Replace an attribute, also in modules inside its owner that imported it from there."""
    old = getattr(owner, name, None)
    replace(owner, name, new)
    if old is None:
        return
    for module in inside:
        if vars(module).get(name) is old:
            replace(module, name, new)


def undo() -> None:
    """Undo all replacements."""
    global _redirected
    _redirected = False
    while _undo:
        _undo.pop()()
    compiling.detach()


def replace(owner: Any, name: str, new: Any) -> None:
    """Put something in the place of an attribute until `undo()`."""
    own = vars(owner).get(name, _MISSING)
    setattr(owner, name, new)
    if own is _MISSING:  # it came from a base class
        _undo.append(lambda: delattr(owner, name))
    else:
        _undo.append(lambda: setattr(owner, name, own))


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _take_here(kwargs)
        return _made(function, args, kwargs)

    return call


def _made(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    pinned = kwargs.pop("pin_memory", False)
    made = function(*map(here, args), **kwargs)
    if pinned:
        setattr(made, _PINNED, True)
    return made


def _pinned(x: Any, *_: Any) -> Any:
    """`Tensor.pin_memory`: a copy on the CPU, unless it is pinned."""
    if _PINNED in x.__dict__:
        return x
    made = x.clone()
    setattr(made, _PINNED, True)
    setattr(made, _BORN_HERE, True)
    return made


def _take_here(kwargs: dict[str, Any]) -> None:
    for name in ("device", "device_type"):
        if name in kwargs:
            device = kwargs[name]
            whole = isinstance(device, int) and not isinstance(device, bool)
            kwargs[name] = "cpu" if whole else here(device)


def _making(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a tensor; one that names no GPU makes it on the CPU."""
    import torch

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        on_gpu = "device" in kwargs and here(kwargs["device"]) is not kwargs["device"]
        on_gpu = on_gpu or kwargs.get("device").__class__ is int
        _take_here(kwargs)
        made = _made(function, args, kwargs)
        if not on_gpu and not torch.compiler.is_compiling():
            setattr(made, _BORN_HERE, True)
        return made

    return call


def _moving(move: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.to`: from the CPU to a GPU and back it copies, as it does there."""
    import torch

    @functools.wraps(move)
    def to(x: Any, *args: Any, **kwargs: Any) -> Any:
        requested: Any = kwargs.get("device", args[0] if args else None)
        if requested.__class__ is int:
            requested = torch.device("cuda", requested)
        elif not isinstance(requested, (str, torch.device)):
            return move(x, *map(here, args), **kwargs)
        there = here(requested) is not requested
        if "device" in kwargs:
            kwargs["device"] = here(requested)
        else:
            args = (here(requested), *args[1:])
        found = move(x, *args, **kwargs)
        return _moved(found, there, move) if found is x else found

    return to


def _moved(x: Any, to_gpu: bool, move: Callable[..., Any]) -> Any:
    """A tensor on the other side. Where it is already it stays the same."""
    import torch

    if not x.is_cpu or torch.compiler.is_compiling():
        return move(x, "cpu")
    born_here = _BORN_HERE in x.__dict__
    if called_by_torch(3) or born_here is not to_gpu:
        return x
    made = x.clone()
    if not to_gpu:
        setattr(made, _BORN_HERE, True)
    return made


def _library(init: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init)
    def call(self: Any, ns: str, kind: str, dispatch_key: str = "") -> None:
        if called_by_torch(through=("torch.library", "torch._library", __name__)):
            init(self, ns, kind, dispatch_key)
            return
        init(self, ns, kind, _KEYS.sub("CPU", str(dispatch_key)))
        self._tilewright_key = str(dispatch_key)

    return call


def _registered(impl: Callable[..., Any]) -> Callable[..., Any]:
    """`Library.impl`: what is registered for a GPU is the CPU's, before what is for a CPU."""
    taken: set[tuple[str, str, str]] = set()

    @functools.wraps(impl)
    def call(
        self: Any, op_name: Any, fn: Any, dispatch_key: str = "", *args: Any, **kwargs: Any
    ) -> Any:
        import torch

        wanted = str(dispatch_key or getattr(self, "_tilewright_key", self.dispatch_key))
        key = _KEYS.sub("CPU", wanted)
        name = op_name if isinstance(op_name, str) else op_name._schema.name
        bare = name.split("::")[-1]
        if not isinstance(op_name, str) and op_name._schema.overload_name:
            bare = f"{bare}.{op_name._schema.overload_name}"
        entry = (self.ns, bare, key)
        if called_by_torch(through=("torch.library", "torch._library", __name__)):
            return impl(self, op_name, fn, dispatch_key, *args, **kwargs)
        if key == wanted:
            return (
                None if entry in taken else impl(self, op_name, fn, dispatch_key, *args, **kwargs)
            )
        taken.add(entry)
        # It replaces one for the CPU; torch refuses a second one while the first is registered.
        torch.library._impls.discard(f"{self.ns}/{bare}/{key}")
        return impl(self, op_name, fn, key, *args, **kwargs)

    return call


def _enabled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.is_autocast_enabled`: without a device it means a GPU's."""

    @functools.wraps(function)
    def call(device_type: str = "cuda") -> bool:
        return function(here(device_type))

    return call


def _autocast(init: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(init)
    def call(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        import torch

        place = here(device_type)
        if place is not device_type and dtype is None:
            dtype = torch.float16  # what a GPU takes by default
        init(self, place, dtype, *args, **kwargs)

    return call


def _loading(load: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(load)
    def call(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        place = "cpu" if map_location is None else here(map_location)
        return load(f, place, *args, **kwargs)

    return call


def _summed_widely(layer_norm: Callable[..., Any]) -> Callable[..., Any]:
    """Gradients of a layer norm of 16-bit floats as a GPU has them, summed in 32 bits and rounded
    once. On a CPU torch sums them in 16 bits: scripts that compare with a GPU's find them wrong.
    """
    import torch

    class Wide(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
            ctx.save_for_backward(x, weight, bias)
            ctx.shape, ctx.eps = shape, eps
            return layer_norm(x, shape, weight, bias, eps)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *grads: Any) -> Any:
            given = ctx.saved_tensors
            wide: list[Any] = [None if v is None else v.detach().float() for v in given]
            wanted = [
                k
                for k, of in enumerate((0, 2, 3))
                if ctx.needs_input_grad[of] and given[k] is not None
            ]
            with torch.enable_grad():
                leaves = [wide[k].requires_grad_() for k in wanted]
                y = layer_norm(wide[0], ctx.shape, wide[1], wide[2], ctx.eps)
                found = torch.autograd.grad(y, leaves, grads[0].float())
            made: list[Any] = [None] * 3
            for k, g in zip(wanted, found, strict=True):
                made[k] = g.to(given[k].dtype)
            return made[0], None, made[1], made[2], None

    @functools.wraps(layer_norm)
    def call(
        input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Any:
        narrow = input.is_cpu and input.dtype in (torch.float16, torch.bfloat16)
        if narrow and torch.is_grad_enabled():
            return Wide.apply(input, normalized_shape, weight, bias, eps)
        return layer_norm(input, normalized_shape, weight, bias, eps)

    return call


def _generators(base: type) -> type:
    class Generator(base):
        def __new__(cls, device: Any = "cpu") -> Any:
            return base.__new__(cls, here(device))

        def __init__(self, device: Any = "cpu") -> None:
            super().__init__()

    return Generator
