"""What a launch runs: functions written for the signature of a kernel.

The usual one binds each argument, makes the key of its specialisation and finds the kernel. Of
launches on a GPU that came before with the same numbers, constants and grid, only addresses are
new: those numbers are looked up at once, and the words of the launch are there already.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from tilewright.base import knobs
from tilewright.base.untraced import untraced
from tilewright.driver.tile.arguments import PLAIN, constant_key, handlers_of
from tilewright.driver.tile.devices import key_of_launch
from tilewright.driver.tile.launch import GRIDS
from tilewright.lang.tile.language.descriptors import TensorDescriptor
from tilewright.lang.tile.language.types import constexpr

if TYPE_CHECKING:
    from tilewright.driver.tile.jit import JITFunction
    from tilewright.driver.tile.launch import CompiledKernel
    from tilewright.driver.tile.overlap import Relation

Given = Sequence[Any]  # the arguments of a launch, in the order of the parameters
# Parameters that are tensors, and whether each is described.
Tensors = tuple[tuple[int, bool], ...]

# Options of a launch that say how a GPU shares out work. They change no result and are ignored.
IGNORED = frozenset(
    """num_warps num_stages num_ctas maxnreg enable_fp_fusion launch_cooperative_grid launch_pdl
    cluster_dims ptx_version ptx_options ir_override arch warp_size extern_libs sanitize_overflow
    allow_fp8e4nv allowed_dot_input_precisions default_dot_input_precision
    max_num_imprecise_acc_default supported_fp8_dtypes deprecated_fp8_dot_operand_dtypes
    deprecated_fp8_dtypes enable_reflect_ftz waves_per_eu matrix_instr_nonkdim kpack
    schedule_hint num_buffers_warp_spec num_consumer_groups reg_dec_producer reg_inc_consumer
    instrumentation_mode minRegAutoWS maxRegAutoWS backend_name num_threads early_inline_fn
    fpsan_homomorphic_casts optimize_epilogue""".split()
)

_USUAL_WARPS = frozenset((None, *(1 << k for k in range(8))))  # other values are checked


@dataclass
class Defaults:
    """What holds for kernels that do not say otherwise."""

    debug: bool = False  # are asserts checked?
    causes: bool = False  # do errors in kernels carry what is wrong a second time, as their cause?
    # Called before each launch with the kernel, its arguments, options and the sizes of the grid.
    # What they give back, if anything, is called after it.
    listeners: list[Callable[..., Any]] = field(default_factory=list)


DEFAULTS = Defaults()


class Missing:
    """Stands for an argument that a launch was not given."""


@dataclass(frozen=True)
class Calls:
    """Functions written for the signature of a kernel."""

    launch: Callable[..., Any]  # (grid, arguments as the user gives them): binds, finds, runs
    gather: Callable[..., Any]  # (arguments as the user gives them): all in order, rest, options
    bind: Callable[[Given], Any]  # (all in order): the key of their kernel, and launch values


_BUSY = """_tw_f.pre_run_hooks or _tw_defaults.listeners
        or _tw_steps() or _tw_checks()
        or _tw_f.debug or _tw_defaults.debug or _tw_f._used and _tw_f.changed_global()"""
_SOURCE = """
def launch(_tw_grid, /, {head}):
    {again}
    try:
        {bind}
        _tw_key = {key}
        if _tw_options:  # a key with warps and stages is that of a GPU's kernel
            _tw_w = _tw_options.get("num_warps")
            _tw_kernel = _tw_kernels.get((_tw_key, _tw_w, _tw_options.get("num_stages")))
            if _tw_w not in _tw_warps:
                _tw_kernel = None
            elif _tw_kernel is None:
                _tw_kernel = _tw_kernels[_tw_of(_tw_key, _tw_options)]
        else:
            _tw_kernel = _tw_kernels[_tw_key]
    except Exception:  # reported below, or no error: a kernel is to be made
        _tw_kernel = None
    if (
        _tw_kernel is None or {rest} or {busy}
        or _tw_options and not _tw_ignored.issuperset(_tw_options)
    ):
        return _tw_slowly(_tw_grid, {given}, {rest}, _tw_options)
    _tw_sizes = _tw_grids.get(_tw_grid) if _tw_grid.__class__ is tuple else None
    # 1.0 == 1 as a key: what is no int is checked.
    if (
        _tw_sizes is None or _tw_kernel.wants_given
        or _tw_grid[0].__class__ is not int or _tw_grid[-1].__class__ is not int
    ):
        return _tw_f._go(_tw_kernel, {values}, {given}, _tw_options, _tw_grid)
    _tw_values = {values}
    _tw_met = _tw_kernel.relation and _tw_kernel.relation({given}, _tw_values)
    if _tw_met is None:
        _tw_kernel.launch(_tw_kernel.pick(_tw_values), None, _tw_sizes)
        if _tw_kernel.remembers:
            _tw_remember(_tw_kernel, _tw_grid, _tw_sizes, {given}, _tw_values, _tw_options)
    else:
        _tw_kernel.variant(_tw_met).launch(_tw_kernel.pick(_tw_values), None, _tw_sizes)
    return _tw_kernel

def gather({head}):
    return {given}, {rest}, _tw_options

def bind(_tw_given):
        {given} = _tw_given
        {bind}
        return {key}, {values}
"""
# A launch as one before: tensors of torch itself at multiples of 16 bytes, or descriptors of such,
# all else the same. Types are compared too, since 1 == 1.0 == True. Where the copy engine reads,
# the words that follow are those of these addresses.
_AGAIN = """\
if {tensors}:
        try:
            _tw_now = {plain}
            _tw_on = {first}.get_device()
            _tw_known = _tw_again.get(
                (_tw_grid, _tw_on, {kinds}, *_tw_options, *_tw_now, *map(_tw_class, _tw_now))
            )
        except TypeError:  # without a hash
            _tw_known = None
        if (
            _tw_known is not None and _tw_grid[0].__class__ is _tw_grid[-1].__class__ is int
            and not ({rest} or {busy})
        ):
            _tw_kernel, _tw_pack, _tw_words, _tw_go, _tw_sizes, _tw_relation, _tw_apart = _tw_known
            {addresses}
            if (
                {fit} and not ({either}) & 15
                and (not _tw_relation or _tw_relation({given}, {values}) is None)
                and (not _tw_apart or _tw_apart({pointers}))
            ):
                if _tw_words.__class__ is not _tw_bytes:
                    _tw_words = _tw_words[({pointers},)]
                _tw_code = _tw_go(_tw_pack(_tw_stream(_tw_on), *_tw_sizes, {pointers}) + _tw_words)
                if _tw_code:
                    _tw_kernel.launchable.launcher.failed(_tw_code, _tw_sizes)
                return _tw_kernel"""
# What a descriptor says besides the address.
_LAYOUT = "{n}.shape, {n}.strides, *{n}.block_shape, {n}.padding"
MOST_AGAIN = 256  # launches of a kernel that are remembered
# A tensor of torch itself and a usual integer are bound in place: key and value without a call.
_TENSOR = """\
if {n}.__class__ is _tw_tensor and (_tw_v{k} := {n}.data_ptr()):
            _tw_k{k} = {n}.dtype
            _tw_a{k} = {aligned} if {n}.is_cpu else ({aligned}, {n}.get_device()){integer}
        else:
            _tw_k{k}, _tw_v{k} = _tw_handlers{k}[{n}.__class__]({n}); _tw_a{k} = None"""
_INTEGER = """
        elif {n}.__class__ is int and 1 < {n} <= 0x7FFFFFFF:
            _tw_k{k} = _tw_positive{k} if {n} & 15 else _tw_many{k}
            _tw_v{k} = {n}; _tw_a{k} = None"""
_ONE = """
        elif {n}.__class__ is int and {n} == 1:
            _tw_k{k} = _tw_one{k}; _tw_v{k} = _tw_a{k} = None"""


def calls(f: JITFunction[Any], tensors: Tensors = ()) -> Calls:
    """`tensors` are parameters that were tensors in a launch on a GPU: the next such is quick."""
    torch = sys.modules.get("torch")
    scope: dict[str, Any] = {
        "_tw_f": f,
        "_tw_slowly": f._slowly,
        "_tw_kernels": f.kernels,
        "_tw_of": partial(key_of_launch, f.kernels),
        "_tw_ignored": IGNORED,
        "_tw_warps": _USUAL_WARPS,
        "_tw_steps": knobs.interpret.looker(),
        "_tw_checks": knobs.tile_check.looker(),
        "_tw_defaults": DEFAULTS,
        "_tw_grids": GRIDS,
        "_tw_tensor": Missing if torch is None else torch.Tensor,
        "_tw_missing": Missing(),
        "_tw_plain": PLAIN,
        "_tw_constexpr": constexpr,
        "_tw_constant": constant_key,
        "_tw_remember": partial(_remember, f),
        "_tw_again": f.again,
        "_tw_class": type,
        "_tw_bytes": bytes,
        "_tw_described": TensorDescriptor,
        "_tw_stream": getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None),
    }
    # Positional ones, then what is too much, then those by keyword only.
    before: list[str] = []
    after: list[str] = []
    lines: list[str] = []
    key: list[str] = []
    values: list[str] = []
    for k, p in enumerate(f.parameters):
        n = p.name
        scope[f"_tw_default{k}"] = p.default if p.has_default else scope["_tw_missing"]
        by_name = f.signature.parameters[n].kind.name == "KEYWORD_ONLY"
        if not p.variadic:
            (after if by_name else before).append(f"{n}=_tw_default{k}")
        if p.is_constexpr:
            lines.append(f"if {n}.__class__ is _tw_constexpr: {n} = {n}.value")
            plain = f"{n} if {n}.__class__ in _tw_plain else _tw_constant({n})"
            key.append(f"{n}.__class__, {plain}")
            continue
        handlers = scope[f"_tw_handlers{k}"] = handlers_of(p)
        aligned = f"not _tw_v{k} & 15" if handlers.align else "None"
        integer = ""
        if handlers.binds_integers:
            usual = handlers[int]
            scope[f"_tw_positive{k}"], scope[f"_tw_many{k}"] = usual(3)[0], usual(16)[0]
            scope[f"_tw_one{k}"] = usual(1)[0]
            integer = (_INTEGER + _ONE * handlers.one).format(n=n, k=k)
        lines.append(_TENSOR.format(n=n, k=k, aligned=aligned, integer=integer))
        key.append(f"_tw_k{k}, _tw_a{k}")
        values.append(f"_tw_v{k}")
    variadic = next((p.name for p in f.parameters if p.variadic), None)
    head = [*before, f"*{variadic or '_tw_rest'}", *after, "**_tw_options"]
    source = _SOURCE.format(
        head=", ".join(head),
        bind="\n        ".join(lines) or "pass",
        key=_tuple(key),
        values=_tuple(values),
        given=_tuple(f.arg_names),
        rest="()" if variadic else "_tw_rest",
        busy=_BUSY,
        again=_again(f, tensors) if tensors and not variadic else "",
    )
    file = f"{__file__}, launching {f.name}"  # a file that torch does not trace
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    exec(compile(source, file, "exec", dont_inherit=True), scope)
    scope["launch"].__qualname__ = f.name  # as Python's own errors call it
    return Calls(untraced(scope["launch"]), scope["gather"], scope["bind"])


def _again(f: JITFunction[Any], tensors: Tensors) -> str:
    """The beginning of a launch of a kernel that was launched with tensors for these parameters."""
    names = f.arg_names
    runtime = [k for k, p in enumerate(f.parameters) if not p.is_constexpr]
    described = {k for k, is_ in tensors if is_}
    own = [f"{names[k]}.base" if is_ else names[k] for k, is_ in tensors]
    at = {k: f"_tw_v{k}" for k, _ in tensors}
    fit = [*at.values(), *(f"{x}.get_device() == _tw_on" for x in own[1:])]
    classes = [f"{names[k]}.__class__ is _tw_described" for k in sorted(described)]
    layouts = [_LAYOUT.format(n=names[k]) for k in sorted(described)]
    values = [f"({at[k]},)" if k in described else at.get(k, names[k]) for k in runtime]
    return _AGAIN.format(
        tensors=" and ".join([*classes, *(f"{x}.__class__ is _tw_tensor" for x in own)]),
        plain=_tuple([*(n for k, n in enumerate(names) if k not in at), "*_tw_options.values()"]),
        first=own[0],
        kinds=", ".join([*(f"{x}.dtype" for x in own), *layouts]),
        addresses="; ".join(f"{v} = {x}.data_ptr()" for v, x in zip(at.values(), own, strict=True)),
        fit=" and ".join(fit),
        either=" | ".join(at.values()),
        pointers=", ".join(at.values()),
        given=_tuple(names),
        values=_tuple(values),
        rest="_tw_rest",
        busy=_BUSY,
    )


def _remember(
    f: JITFunction[Any],
    kernel: CompiledKernel,
    grid: tuple[int, ...],
    sizes: tuple[int, int, int],
    given: Given,
    values: Given,
    options: dict[str, Any],
) -> None:
    """Notes a launch on a GPU, so that the next one like it packs addresses only. Equal numbers are
    the same ones: no 0.0, which equals -0.0, and no NaN."""
    torch = sys.modules["torch"]
    tensors: Tensors = tuple(
        (k, x.__class__ is TensorDescriptor)
        for k, x in enumerate(given)
        if (x.base if x.__class__ is TensorDescriptor else x).__class__ is torch.Tensor
    )
    at = dict(tensors)
    plain = [x for k, x in enumerate(given) if k not in at]
    plain += options.values()
    usual = all(x.__class__ in PLAIN or (x.__class__ is float and x and x == x) for x in plain)
    runtime = [k for k, p in enumerate(f.parameters) if not p.is_constexpr]
    order = [(runtime.index(k), is_) for k, is_ in tensors if k in runtime]
    aligned = not any((values[k][0] if is_ else values[k]) & 15 for k, is_ in order)
    frozen = None
    if usual and aligned and len(order) == len(tensors) and tensors:
        on_gpu: Any = kernel.launchable
        frozen = on_gpu.frozen(kernel.pick, values, order, sizes)
    boxes = [given[k] for k, is_ in tensors if is_]
    listed = any(list in (x.shape.__class__, x.strides.__class__) for x in boxes)  # has no hash
    if frozen is None or listed:
        kernel.remembers = False
        return
    first = f.quick_for is None
    if first:
        f.quick_for = tensors
    if tensors != f.quick_for:
        kernel.remembers = False
        return
    if len(f.again) >= MOST_AGAIN:
        f.again.clear()
    kinds = [(given[k].base if is_ else given[k]).dtype for k, is_ in tensors]
    layouts = [y for x in boxes for y in (x.shape, x.strides, *x.block_shape, x.padding)]
    key = (grid, kernel.gpu, *kinds, *layouts, *options, *plain, *map(type, plain))
    f.again[key] = (kernel, *frozen, sizes, *_overlaps(kernel, values, tuple(order), boxes))
    if first:
        f.use_calls(calls(f, tensors))


def _overlaps(
    kernel: CompiledKernel, values: Given, order: Tensors, boxes: Sequence[TensorDescriptor]
) -> tuple[Relation | None, Callable[..., bool] | None]:
    """What tells whether tensors of a launch overlap: of their storages, or, where all of them are
    described as these are, of their addresses alone, since a kernel reaches no further than
    descriptors say."""
    if len(boxes) < len(order) or any(min(x.strides) < 0 for x in boxes):
        return kernel.relation, None
    number = {k: which for which, (k, _) in enumerate(order)}
    flat = kernel.pick([[k] * len(v) if k in number else k for k, v in enumerate(values)])
    pairs = [[number[flat[x]] for x in pair] for pair in kernel.launchable.pairs]
    last = [sum((n - 1) * m for n, m in zip(x.shape, x.strides, strict=True)) for x in boxes]
    reach = [x.base.itemsize * (1 + n) for x, n in zip(boxes, last, strict=True)]
    apart = [f"(a{a} + {reach[a]} <= a{b} or a{b} + {reach[b]} <= a{a})" for a, b in pairs]
    names = ", ".join(f"a{k}" for k in range(len(boxes)))
    return None, eval(f"lambda {names}: {' and '.join(apart)}") if apart else None


def _tuple(items: Sequence[str]) -> str:
    return f"({''.join(f'{x}, ' for x in items)})"
