"""A launch, or that of a CUDA graph, in one call of native code.

Most of the host's time of a launch through ctypes is the conversion of a dozen arguments. Here
there are two: what never changes of a kernel, and the rest as packed words. Of a graph the rest is
the stream.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from tilewright.ir.target import Target
from tilewright.llvm.objects import cached_object, host_cpu
from tilewright.runtime.library import Library

if TYPE_CHECKING:
    from tilewright.runtime.cuda.device import Device
    from tilewright.runtime.cuda.module import Function

HEAD = 4  # words before the parameters: the stream and the sizes of the grid
_FIXED = "launch current change context function x y z shared values all".split()
_GIVEN = "stream gx gy gz".split()
_SIZES = "gx gy gz x y z shared".split()


def _loads(at: str, names: Sequence[str], kind: str = "ptr") -> str:
    """Reads words by name."""
    return "\n".join(
        f"  %{n}.at.{k} = getelementptr i64, ptr %{at}, i64 {k}\n"
        f"  %{n} = load {kind}, ptr %{n}.at.{k}"
        for k, n in enumerate(names)
    )


def _native_text() -> str:
    """`i32 tw_launch(fixed, given)`: makes the context the thread's where it is not, and launches.
    The driver takes the address of each parameter: of a value that is its word, of a tensor map
    the word is the address."""
    lines = [_loads("fixed", _FIXED, "i64"), _loads("given", _GIVEN, "i64")]
    lines += [f"  %{n}.32 = trunc i64 %{n} to i32" for n in _SIZES]
    pointers = ("launch", "current", "change", "context", "function", "stream")
    lines += [f"  %{n}.p = inttoptr i64 %{n} to ptr" for n in pointers]
    loaded = "\n".join(lines)
    sizes = ", ".join(f"i32 %{n}.32" for n in _SIZES)
    return f"""
define i32 @tw_launch(ptr %fixed, ptr %given) {{
entry:
{loaded}
  %now.at = alloca ptr
  %places = alloca ptr, i64 %all
  %asked = call i32 %current.p(ptr %now.at)
  %now = load ptr, ptr %now.at
  %other = icmp ne ptr %now, %context.p
  br i1 %other, label %changing, label %fill
changing:
  %changed = call i32 %change.p(ptr %context.p)
  %refused = icmp ne i32 %changed, 0
  br i1 %refused, label %failed, label %fill
failed:
  ret i32 %changed
fill:
  %k = phi i64 [ 0, %entry ], [ 0, %changing ], [ %k.next, %one ]
  %more = icmp ult i64 %k, %all
  br i1 %more, label %one, label %go
one:
  %word = add i64 %k, {HEAD}
  %value = getelementptr i64, ptr %given, i64 %word
  %held = load ptr, ptr %value
  %plain = icmp ult i64 %k, %values
  %what = select i1 %plain, ptr %value, ptr %held
  %place = getelementptr ptr, ptr %places, i64 %k
  store ptr %what, ptr %place
  %k.next = add i64 %k, 1
  br label %fill
go:
  %code = call i32 %launch.p(ptr %function.p, {sizes}, ptr %stream.p, ptr %places, ptr null)
  ret i32 %code
}}
"""


# `i32 tw_replay(fixed, stream)`: the same of a graph; the context is the thread's as long only.
_REPLAYED = ("launch", "current", "change", "context", "graph")
_REPLAY = f"""
define i32 @tw_replay(ptr %fixed, ptr %stream) {{
entry:
{_loads("fixed", _REPLAYED)}
  %now.at = alloca ptr
  store ptr null, ptr %now.at
  %asked = call i32 %current(ptr %now.at)
  %now = load ptr, ptr %now.at
  %other = icmp ne ptr %now, %context
  br i1 %other, label %changing, label %own
own:
  %code = call i32 %launch(ptr %graph, ptr %stream)
  ret i32 %code
changing:
  %changed = call i32 %change(ptr %context)
  %refused = icmp ne i32 %changed, 0
  br i1 %refused, label %failed, label %go
failed:
  ret i32 %changed
go:
  %result = call i32 %launch(ptr %graph, ptr %stream)
  %none = icmp eq ptr %now, null
  br i1 %none, label %end, label %back
back:
  %again = call i32 %change(ptr %now)
  br label %end
end:
  ret i32 %result
}}
"""


@cache
def _library() -> Library:
    host = host_cpu()
    target = Target("launch", host.triple, host.cpu, host.features)
    return Library([cached_object(_native_text() + _REPLAY, target)])


def quick_replay(device: Device, graph: int) -> Callable[[int], int] | None:
    """Launches a graph on a stream, of any thread. Gives the driver's code; None as below."""
    found = _addresses(device, "cuGraphLaunch", "cuCtxGetCurrent", "cuCtxSetCurrent")
    if None in found:
        return None
    go = _library().function("tw_replay", *[ctypes.c_void_p] * 2, result=ctypes.c_int)
    return _with(go, *found, device.context, graph)


def quick_launch(
    function: Function, threads: tuple[int, int, int], values: int, maps: int = 0
) -> Callable[[bytes], int] | None:
    """Launches `function` with packed words of 8 bytes: the stream, the grid, parameters, addresses
    of tensor maps. Gives the driver's code. None: the driver's functions have no addresses."""
    found = _addresses(function.device, "cuLaunchKernel", "cuCtxGetCurrent", "cuCtxSetCurrent")
    if None in found:
        return None
    kinds = (ctypes.c_void_p, ctypes.c_char_p)
    go = _library().function("tw_launch", *kinds, result=ctypes.c_int)
    sizes = (*threads, function.dynamic, values, values + maps)
    return _with(go, *found, function.device.context, function.handle, *sizes)


def _addresses(device: Device, *names: str) -> list[int | None]:
    return [address_of(device.driver.function(n)) for n in names]


def _with(go: Any, *words: Any) -> Any:
    """A native function with its first argument, the address of words."""
    fixed = (ctypes.c_int64 * len(words))(*words)
    made: Any = partial(go, ctypes.addressof(fixed))
    made.fixed = fixed  # lives as long
    return made


def address_of(function: Any) -> int | None:
    """Where a function of a library is; None of what stands for one in Python."""
    if not hasattr(function, "argtypes"):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value
