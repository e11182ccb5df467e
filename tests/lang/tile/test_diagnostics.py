"""Errors show the kernel's line with a caret, how it was called, and what to write."""
# Numbers of a kernel become tensors, which Python's own types do not show.

import copy
import functools
import linecache
import math
import pickle
from typing import Any

import numpy as np
import pytest

import tilewright.language as tl
from tests.lang.tile.kernels import run
from tilewright.base.errors import Invalid, TilewrightError
from tilewright.ir.types import i32
from tilewright.lang.tile.front.diagnostics import beyond
from tilewright.lang.tile.front.frontend import CompileError, StaticAssertionError, translate
from tilewright.lang.tile.front.functions import Argument, function, must_use_result


def failing(kernel, **values) -> CompileError:
    values = values or {"out": np.zeros(8, np.int32)}
    with pytest.raises(CompileError) as caught:
        run(kernel, **values)
    return caught.value


def marked(error: CompileError) -> str:
    """The part of the line above the carets."""
    above, below = error.spots[-1].shown()
    start = below.index("^")
    return above[start : start + below.count("^")]


def test_the_line_and_a_caret():
    @function
    def kernel(out):
        at = tl.arange(0, 8)
        tl.store(out + at, at + tl.arange(0, 100))

    error = failing(kernel)
    assert marked(error) == "tl.arange(0, 100)"
    text = str(error)
    assert f"test_diagnostics.py:{kernel.line + 2} in kernel" in text
    assert "tl.store(out + at, at + tl.arange(0, 100))" in text
    assert "hint: " in text
    assert isinstance(error, (Invalid, TilewrightError, ValueError))
    assert isinstance(error.__cause__, Invalid)


@function
def helper(x, y):
    return x + y


@function
def between(x):
    # Something to say.
    return helper(x, tl.arange(0, 4))


def test_the_chain_of_calls():
    @function
    def kernel(out):
        between(tl.arange(0, 8))

    error = failing(kernel)
    assert [s.function for s in error.spots] == ["kernel", "between", "helper"]
    lines = str(error).splitlines()
    shown = [line.strip() for line in lines if line.strip().startswith(("at ", "called from "))]
    assert [line.split(" in ")[-1] for line in shown] == ["helper", "between", "kernel"]
    assert marked(error) == "x + y"
    assert "<[8], int32>" in error.what or "8" in error.what


def test_errors_of_combining_functions_have_their_place():
    @function
    def combine(a, b):
        return a + nothing_like_it  # type: ignore  # noqa: F821

    @function
    def kernel(out):
        tl.store(out, tl.reduce(tl.arange(0, 8), 0, combine))

    error = failing(kernel)
    assert error.spots[-1].function == "combine"
    assert marked(error) == "nothing_like_it"
    assert "nothing_like_it is not defined" in str(error)


def test_names_that_are_not_defined():
    @function
    def kernel(out):
        a += 1  # type: ignore  # noqa: F841, F821

    assert "a is not defined" in str(failing(kernel))

    @function
    def python_function(out):
        tl.store(out, open("x"))  # type: ignore  # noqa: SIM115

    assert "open is a function of Python that kernels do not have" in str(failing(python_function))

    @function
    def attribute(out):
        tl.no_such_thing(out)  # type: ignore

    error = failing(attribute)
    assert "has no attribute no_such_thing" in error.what and marked(error) == "tl.no_such_thing"


def test_operators_without_meaning():
    @function
    def kernel(out):
        x = tl.arange(0, 8)
        x + "a"

    assert marked(failing(kernel)) == 'x + "a"'

    @function
    def constants(out):
        1.0 << 1  # type: ignore  # noqa: B018

    error = failing(constants)
    assert "there is no << of 1.0 and 1" in error.what

    @function
    def negative(out):
        -(0, 0)  # type: ignore  # noqa: B018

    assert "there is no - of a tuple" in failing(negative).what

    @function
    def product(out):
        tl.arange(0, 8) @ tl.arange(0, 8)

    assert "tl.dot" in (failing(product).hint or "")


def test_static_assertions():
    @function
    def kernel(out, N: tl.constexpr):
        tl.static_assert(N == 4, f"N is {N}")

    error = failing(kernel, out=np.zeros(1, np.int32), N=3)
    assert isinstance(error, StaticAssertionError)
    assert error.what == "static assertion failed: N is 3"
    assert marked(error).startswith("tl.static_assert(")

    @function
    def dynamic(out):
        tl.static_assert(tl.load(out) == 4)

    assert "not known while compiling" in failing(dynamic).what


def plain(x):
    return x


def refused(text: str) -> CompileError:
    body = "".join(f"    {line}\n" for line in text.splitlines())
    source = f"@function\ndef kernel(out):\n{body}"
    name = f"<refused {abs(hash(text))}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope: dict[str, Any] = {"tl": tl, "function": function, "math": math, "np": np, "plain": plain}
    exec(compile(source, name, "exec"), scope)
    with pytest.raises(CompileError) as caught:
        translate(scope["kernel"], {"out": Argument.pointer(i32)})
    return caught.value


@pytest.mark.parametrize(
    ("text", "said", "hint"),
    [
        ("for i in range(3):\n    break", "no break", "while"),
        ("for i in range(3):\n    continue", "no continue", "if"),
        ("def f():\n    pass", "no function defined inside", "module level"),
        ("f = lambda x: x", "no lambda", "function"),
        ("try:\n    pass\nexcept ValueError:\n    pass", "no try", "if"),
        ("raise ValueError", "no raise", "static_assert"),
        ("import math", "no import", "top"),
        ("global x", "no global", "argument"),
        ("x = {'a': 1}", "no dict", "tuple"),
        ("x = {1, 2}", "no set", "tuple"),
        ("with open('x'):\n    pass", "no with", "context"),
        ("class A:\n    pass", "no class", "module level"),
        ("out[0] = 3", "not changed in place", "tl.store"),
        ("out.x = 3", "attributes cannot be assigned", "variable"),
        ("out[0] += 3", "not changed in place", "tl.store"),
        ("a, *b = (1, 2, 3)", "no starred assignment", "slice"),
        ("a, b = 1, 2, 3", "too many values to unpack (expected 2, got 3)", ""),
        ("a, b, c = 1, 2", "not enough values to unpack (expected 3, got 2)", ""),
        ("a, b = tl.arange(0, 8)", "no tuple", "tl.split"),
        ("for x in tl.arange(0, 8):\n    pass", "a tensor cannot be", "tl.range"),
        ("while True:\n    pass\nelse:\n    pass", "no else after while", "after the loop"),
        ("x = f'{tl.arange(0, 8)}'", "an f-string can show constants only", "device_print"),
        ("x = (1, 2)[tl.load(out)]", "has to be a constant", "static_range"),
        ("x = tl.load(out) in (1, 2)", "`in` works on constants", "=="),
        ("x = float(tl.load(out))", "float() is for constants", "x.to(tl.float32)"),
        ("x = tl.arange(0, *(3, 4), **{})", "", ""),
        ("x: tl.constexpr = 3\nx: tl.constexpr = tl.load(out)", "already defined", "another name"),
        ("del y", "y is not defined", ""),
        ("x = 3\nx()", "cannot be called", ""),
        ("tl.load(out)()", "cannot be called", ""),
        ("x = [i for i in (1, 2) for j in (3, 4)]", "one for", "nest"),
        ("if 'text':\n    pass", "a condition is a bool", "compare"),
        ("yield 3", "no yield", "tuple"),
        ("x = out if tl.load(out) else 3", "the two sides", ".to("),
        ("x = tl.arrange(0, 8)", "no attribute arrange", "did you mean arange?"),
        ("x = tl.load(out).float()", "no attribute float", ".to(tl.float32)"),
        ("x = [1]\nx.append(2)", "no attribute append", "x = x + (item,)"),
        ("x = out.shape[0]", "out.shape has 0 items", "pass sizes as arguments"),
        ("x = (1, 2)[3]", "(1, 2) has 2 items", "0 to 1"),
        ("x = len(out)", "len() of a tensor", "pass it as an argument"),
        ("x = len(tl.arange(0, 8))", "len() of a tensor", "x.shape[0]"),
        ("x = sum(tl.arange(0, 8))", "sum() goes over the items", "tl.sum(x, axis)"),
        ("x = list(tl.arange(0, 8))", "list() goes over the items", "tl.split"),
        ("x = tl.load(out) ** 2", "no ** of a tensor", "x * x"),
        ("x = tl.zeros((4, 4), tl.int32) @ tl.zeros((4, 4), tl.int32)", "operator @", "tl.dot"),
        ("x = math.exp(tl.load(out))", "math.exp is no function of kernels", "tl.exp"),
        ("x = np.maximum(tl.load(out), 0)", "np.maximum is no function", "tl.maximum"),
        ("x = np.interp(tl.load(out), 0, 1)", "np.interp is no function", "before the launch"),
        ("x = plain(tl.load(out))", "plain is a plain function", "@tw.jit"),
        ("x = out[0]", "unsupported tensor index", "tl.load(p + i)"),
        ("x = tl.sum(tl.arange(0, 8), 1)", "invalid axis 1", "the axes are"),
        ("x = max([tl.load(out), 1])", "max() of a list or tuple", "tl.maximum(x, y)"),
        ("x = min((1, tl.load(out)))", "min() of a list or tuple", "tl.minimum(x, y)"),
        ("x = max(tl.load(out), 1, key=abs)", "max() of a kernel has no key", "tl.maximum"),
        ("x = max(tl.arange(0, 8))", "max() of one tensor", "tl.max(x, axis)"),
        ("x = str(tl.load(out))", "str() shows constants only", "device_print"),
        ("x = tl.load(out) is True", "`is` tests whether two names", "=="),
        ("return 3", "a kernel returns nothing, and this one returns the constant 3", "tl.store"),
        ("return tl.load(out), 1", "returns (int32, the constant 1)", "tl.store"),
        ("return ()", "a kernel returns nothing", "tl.store"),
        ("if tl.load(out) > 0:\n    return 3\ntl.store(out, 1)", "returns nothing", "tl.store"),
    ],
)
def test_python_that_kernels_do_not_have(text, said, hint):
    error = refused(text)
    assert said in error.what
    assert hint in (error.hint or "")
    assert error.spots[-1].function == "kernel"


def test_wrong_calls():
    @function
    def missing(out):
        helper(1)

    assert "lacks the argument y" in failing(missing).what

    @function
    def many(out):
        helper(1, 2, 3)

    assert "1 arguments too many" in failing(many).what

    @function
    def unknown(out):
        helper(1, 2, z=3)

    assert "has no parameter z" in failing(unknown).what

    @function
    def twice(out):
        helper(1, x=3)

    assert "given x twice" in failing(twice).what


def test_wrong_arguments_of_the_kernel():
    @function
    def kernel(out, N: tl.constexpr):
        pass

    with pytest.raises(CompileError, match="missing the argument N") as caught:
        translate(kernel, {"out": Argument.pointer(i32)})
    assert "constexpr" in (caught.value.hint or "")
    with pytest.raises(CompileError, match="no parameter M"):
        translate(kernel, {"M": Argument.constant(1)})
    with pytest.raises(CompileError, match=r"N is a tl\.constexpr"):
        translate(kernel, {"out": Argument.pointer(i32), "N": Argument.scalar(i32)})


@function
def endless(x):
    endless(x)


def test_a_recursion_is_shown_once():
    error = failing(endless, x=np.zeros(8, np.int32))
    text = str(error)
    assert text.count("endless(x)") == 1 and f"{len(error.spots)} times over" in text


def test_what_python_computes_for_kernels_stays():
    @function
    def kernel(out):
        tl.store(out, math.isqrt(17) + int(np.log2(8)))

    out = np.zeros(1, np.int32)
    run(kernel, out=out)
    assert out[0] == 7


def test_causes_that_say_more_are_shown():
    def of_the_author():
        raise ValueError("no such thing")

    def caught(f) -> Exception:
        with pytest.raises(Exception) as found:
            f()
        return found.value

    theirs = caught(of_the_author)
    assert beyond(theirs) is theirs and theirs.__traceback__ is not None
    assert beyond(None) is None
    unexpected = ZeroDivisionError()
    assert beyond(unexpected) is unexpected


def test_errors_travel_between_processes():
    @function
    def kernel(out):
        tl.arange(0, 5)

    error = failing(kernel)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) and type(again) is CompileError
    assert str(copy.copy(error)) == str(error)


def test_columns_count_characters():
    @function
    def kernel(out):
        tl.static_assert("größer" == "ß", "ÄÖÜ") or tl.arange(0, 5)

    error = failing(kernel)
    assert marked(error) == 'tl.static_assert("größer" == "ß", "ÄÖÜ")'


def test_a_long_statement_is_marked_on_its_first_line():
    @function
    def kernel(out):
        tl.arange(
            0,
            5,
        )

    assert marked(failing(kernel)) == "tl.arange("


@must_use_result("It has no other effect.")
@function
def cube(x):
    return x * x * x


def test_results_that_must_be_used():
    @function
    def kernel(out):
        cube(tl.load(out))

    error = failing(kernel)
    assert error.what == "the result of cube is not used"
    assert error.hint == "It has no other effect."

    @function
    def used(out):
        tl.store(out, cube(tl.load(out) + 3))

    out = np.zeros(1, np.int32)
    run(used, out=out)
    assert out[0] == 27

    @function
    def advanced(out):
        p = tl.make_block_ptr(out, (8,), (1,), (0,), (8,), (0,))
        tl.advance(p, (8,))

    assert "the result of tl.advance is not used" in failing(advanced).what


def test_pointers_to_constants_stay_such():
    @function
    def kernel(x: tl.const, out):
        at = tl.arange(0, 4)
        tl.store(x + at, tl.load(x + at))

    x, out = np.zeros(4, np.int32), np.zeros(4, np.int32)
    assert "const" in str(failing(kernel, x=x, out=out))

    @function
    def mixed(x: tl.const, out, n):
        target = x if n > 0 else out
        tl.store(target, 1)

    error = failing(mixed, x=x, out=out, n=3)
    assert "const_pointer<int32> and pointer<int32>" in error.what


def test_functions_that_are_not_inlined_take_scalars():
    @functools.partial(function, noinline=True)
    def single(x):
        return x + 1

    @function
    def kernel(out):
        tl.store(out, single(tl.load(out)))

    out = np.zeros(1, np.int32)
    run(kernel, out=out)
    assert out[0] == 1

    @function
    def tile(out):
        single(tl.arange(0, 4))

    assert "marked noinline" in failing(tile).what
