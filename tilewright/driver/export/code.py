"""The functions by which a package's code is called, as LLVM text around a program's entry.

    int64_t tw_workspace(const int64_t *dims)
    void tw_shapes(const int64_t *dims, int64_t *out)
    int32_t tw_run(const void *weights, const void *const *inputs, void *const *outputs,
                   const int64_t *dims, void *workspace)
    void tw_results(const int64_t *dims, const void *workspace, int64_t *out)
    void tw_unpack(const void *file, void *memory)

`dims` are the values of the model's symbols. `tw_shapes` writes all extents of the inputs, then of
the outputs, one tensor after the other. `tw_run` gives 0, or the number of the check that failed,
from 1 on: then the integer that it found, and the size that an index should be within, stand in the
workspace, at 64 times that number. `tw_results` is there where data decides sizes of outputs: after
a run it writes all extents of the outputs, for which `tw_shapes` has the most that they may be.
`tw_unpack` is there where weights are stored in fewer bits: it makes what `tw_run` reads of the
file's content.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.driver.export.model import Model
from tilewright.driver.export.steps import LINE, Place, Steps
from tilewright.driver.export.weights import Placed
from tilewright.graph.divide import Cut
from tilewright.ir.dim import Dim
from tilewright.ir.extremes import greatest
from tilewright.ir.types import f16
from tilewright.llvm.sizes import DECLARED, Sizes

EXPORTS = ("tw_workspace", "tw_shapes", "tw_run")
RESULTS = "tw_results"


def interface(model: Model, made: Steps, start: int) -> str:
    """The module. `start`: where tensors begin in what calls get as weights."""
    symbols, most = tuple(s.name for s in model.symbols), model.most
    extents = [d for x in model.inputs for d in x.shape]
    outputs = [d for x in model.outputs for d in x.shape]
    entries = [f"declare void @{x.data.entry}(ptr, ptr, ptr, ptr)" for x in made.steps]
    parts = [
        *entries,
        DECLARED,
        _workspace(symbols, made.workspace),
        _shapes(symbols, [*extents, *(greatest(d, most) for d in outputs)]),
        _run(model, symbols, made, start),
    ]
    if model.counted_in_outputs():
        parts.append(_results(model, symbols, outputs, made))
    return "\n".join(parts) + "\n"


def _workspace(symbols: tuple[str, ...], size: Dim) -> str:
    f = Sizes()
    f.read_symbols(symbols)
    f.line(f"ret i64 {f.dim(size)}")
    return _function("i64 @tw_workspace(ptr %dims)", f)


def _shapes(symbols: tuple[str, ...], extents: Sequence[Dim]) -> str:
    f = Sizes()
    f.read_symbols(symbols)
    f.fill("%out", "i64", [f.dim(d) for d in extents])
    f.line("ret void")
    return _function("void @tw_shapes(ptr %dims, ptr %out)", f)


def _results(model: Model, symbols: tuple[str, ...], extents: Sequence[Dim], made: Steps) -> str:
    f = Sizes()
    f.read_symbols(symbols)
    _read_counts(f, model, made, model.counted)
    f.fill("%out", "i64", [f.dim(d) for d in extents])
    f.line("ret void")
    return _function(f"void @{RESULTS}(ptr %dims, ptr %workspace, ptr %out)", f)


def _read_counts(f: Sizes, model: Model, made: Steps, known: Sequence[Cut]) -> None:
    for place, c in zip(made.counts, model.counted, strict=True):
        if c in known:
            f.values[c.symbol] = f.put(f"load i64, ptr {_address(f, place)}, align 8")


def _run(model: Model, symbols: tuple[str, ...], made: Steps, start: int) -> str:
    f = Sizes()
    f.read_symbols(symbols)
    work = Place("work", made.used)
    for step in made.steps:
        data = step.data
        ins = f.put(f"alloca [{max(1, len(step.operands))} x ptr]")
        outs = f.put(f"alloca [{max(1, len(step.results))} x ptr]")
        sizes = f.put(f"alloca [{max(1, len(data.dims))} x i64], align 8")
        f.fill(ins, "ptr", ["null" if x is None else _address(f, x, start) for x in step.operands])
        f.fill(outs, "ptr", [_address(f, x) for x in step.results])
        f.fill(sizes, "i64", [f.values[name] for name in data.dims])
        arena = _address(f, work)
        f.line(f"call void @{data.entry}(ptr {ins}, ptr {outs}, ptr {sizes}, ptr {arena})")
        _read_counts(f, model, made, step.counted)
    code = "0"
    for k in range(len(model.checks), 0, -1):  # the first that failed is told
        size = model.checks[k - 1].size
        found = _address(f, Place("work", k * LINE))
        value = f.put(f"load i64, ptr {found}, align 8")
        beside = f.put(f"getelementptr i64, ptr {found}, i64 1")
        f.line(f"store i64 {'0' if size is None else f.dim(size)}, ptr {beside}, align 8")
        failed = f.put(f"icmp ne i64 {value}, 0")
        code = f.put(f"select i1 {failed}, i32 {k}, i32 {code}")
    f.line(f"ret i32 {code}")
    arguments = "ptr %weights, ptr %inputs, ptr %outputs, ptr %dims, ptr %workspace"
    return _function(f"i32 @tw_run({arguments})", f)


# Numbers of 16 bits as such of 32. Subnormal halves are whole numbers of 2^-24. Halves are finite
# here: a tensor with others is stored in 32 bits.
_WIDENED = """
define internal void @widened(ptr %from, ptr %to, i64 %vectors, i1 %half) nounwind {
entry:
  br label %loop
loop:
  %k = phi i64 [ 0, %entry ], [ %next, %loop ]
  %at = getelementptr <8 x i16>, ptr %from, i64 %k
  %narrow = load <8 x i16>, ptr %at, align 16
  %x = zext <8 x i16> %narrow to <8 x i32>
  %bfloat = shl <8 x i32> %x, splat (i32 16)
  %sign = and <8 x i32> %bfloat, splat (i32 -2147483648)
  %rest = and <8 x i32> %x, splat (i32 32767)
  %moved = shl <8 x i32> %rest, splat (i32 13)
  %normal = add <8 x i32> %moved, splat (i32 939524096)
  %whole = sitofp <8 x i32> %rest to <8 x float>
  %scaled = fmul <8 x float> %whole, splat (float 0x3E70000000000000)
  %small = bitcast <8 x float> %scaled to <8 x i32>
  %is.small = icmp ult <8 x i32> %rest, splat (i32 1024)
  %size = select <8 x i1> %is.small, <8 x i32> %small, <8 x i32> %normal
  %of.half = or <8 x i32> %size, %sign
  %wide = select i1 %half, <8 x i32> %of.half, <8 x i32> %bfloat
  %place = getelementptr <8 x i32>, ptr %to, i64 %k
  store <8 x i32> %wide, ptr %place, align 32
  %next = add i64 %k, 1
  %more = icmp ult i64 %next, %vectors
  br i1 %more, label %loop, label %end
end:
  ret void
}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"""


def unpacking(placed: Sequence[Placed], first: int) -> str:
    """The module of `tw_unpack`, of a file whose tensors begin at `first`. Each begins at a
    multiple of 64 bytes in both places, so that vectors may pass its end."""
    f = Sizes()
    for p in placed:
        start = f.put(f"getelementptr i8, ptr %file, i64 {first + p.at}")
        to = f.put(f"getelementptr i8, ptr %memory, i64 {p.offset}")
        if p.is_same:
            copied = f"ptr {to}, ptr {start}, i64 {p.stored.size}, i1 0"
            f.line(f"call void @llvm.memcpy.p0.p0.i64({copied})")
        else:
            vectors = -(-p.stored.array.size // 8)
            half = int(p.stored.dtype is f16)
            f.line(f"call void @widened(ptr {start}, ptr {to}, i64 {vectors}, i1 {half})")
    f.line("ret void")
    return "\n".join([_WIDENED, _function("void @tw_unpack(ptr %file, ptr %memory)", f), ""])


def _address(f: Sizes, x: Place, start: int = 0) -> str:
    if x.kind in ("input", "output"):
        at = f.put(f"getelementptr ptr, ptr %{x.kind}s, i64 {x.at}")
        return f.put(f"load ptr, ptr {at}")
    if x.kind == "weight":
        return f.put(f"getelementptr i8, ptr %weights, i64 {f.dim(start + x.at)}")
    return f.put(f"getelementptr i8, ptr %workspace, i64 {f.dim(x.at)}")


def _function(head: str, f: Sizes) -> str:
    return "\n".join([f"define {head} nounwind {{", *f.out, "}"])
