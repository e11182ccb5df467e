"""Functions of the tile language: their source, their parameters, what their hash depends on."""
# Numbers of a kernel become tensors, which Python's own types do not show.

import linecache
import types
from pathlib import Path

import numpy as np
import pytest

import tilewright.language as tl
from tests.lang.tile.kernels import run
from tilewright.base.errors import Invalid
from tilewright.ir.types import f32, i32
from tilewright.lang.tile.front.functions import (
    Argument,
    ConstexprFunction,
    TileFunction,
    call_function,
    constexpr_function,
    function,
)

WIDTH = tl.constexpr(4)


@function
def scaled(x, factor: tl.constexpr = 2):
    return x * factor


@constexpr_function
def doubled(n):
    return n * 2


@function
def kernel(x, out, n: "tl.int32", BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, scaled(tl.load(x + at)), mask=at < n)


def in_module(text: str, name: str = "f", **names) -> TileFunction:
    """A function as another module would define it."""
    file = f"<module {abs(hash((text, *names)))}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = types.ModuleType("elsewhere")
    module.__dict__.update(tl=tl, function=function, constexpr_function=constexpr_function, **names)
    exec(compile(text, file, "exec"), module.__dict__)
    return module.__dict__[name]


def test_a_function_knows_where_it_stands_and_what_it_takes():
    assert kernel.name == kernel.__name__ == "kernel"
    assert kernel.file == __file__
    assert kernel.source.startswith("def kernel(x, out")
    lines = Path(__file__).read_text().splitlines()
    assert lines[kernel.line - 1].startswith("def kernel(")
    assert [p.name for p in kernel.parameters] == ["x", "out", "n", "BLOCK"]
    assert [p.is_constexpr for p in kernel.parameters] == [False, False, False, True]
    assert kernel.parameters[2].annotation_text == "tl.int32"
    assert scaled.parameters[1].has_default and scaled.parameters[1].default == 2
    assert not scaled.parameters[0].has_default


def test_parameters_that_are_not_specialised_are_named_or_counted():
    made = TileFunction(
        kernel.fn, do_not_specialize=["n"], do_not_specialize_on_alignment=[0], noinline=True
    )
    assert [p.do_not_specialize for p in made.parameters] == [False, False, True, False]
    assert made.parameters[0].do_not_specialize_on_alignment
    assert made.noinline


def test_nested_definitions_keep_their_columns():
    def outer():
        @function
        def inner(x):
            return x

        return inner

    f = outer()
    assert f.source.startswith("def inner(x):\n    return x")
    assert f.column == 8


def test_functions_over_tiles_are_not_called_from_python():
    with pytest.raises(Invalid, match="cannot be called like a Python function"):
        scaled(3)


def test_a_lambda_and_an_object_are_no_functions():
    with pytest.raises(Invalid, match="is no def"):
        function(lambda x: x)
    with pytest.raises(Invalid, match="no Python function"):
        function(3)  # type: ignore
    with pytest.raises(Invalid, match=r"takes \*\*more"):

        @function
        def f(x, **more):
            return x


def test_functions_of_constants_work_outside_kernels():
    assert isinstance(doubled, ConstexprFunction)
    assert doubled(tl.constexpr(4)) == 8
    assert call_function(doubled, (5,)) == 10


def test_a_hash_depends_on_the_source():
    one = in_module("@function\ndef f(x):\n    return x + 1\n")
    other = in_module("@function\ndef f(x):\n    return x + 2\n")
    assert one.hash() != other.hash()
    assert one.hash() == in_module("@function\ndef f(x):\n    return x + 1\n").hash()


def test_a_hash_depends_on_what_is_called():
    text = "@function\ndef g(x):\n    return x {op} 1\n@function\ndef f(x):\n    return g(x)\n"
    assert in_module(text.format(op="+")).hash() != in_module(text.format(op="-")).hash()
    constant = (
        "@constexpr_function\ndef g(x):\n    return x {op} 1\n"
        "@function\ndef f(x):\n    return x * g(3)\n"
    )
    assert in_module(constant.format(op="+")).hash() != in_module(constant.format(op="-")).hash()


def test_a_hash_depends_on_functions_of_other_modules():
    def with_helper(text: str) -> str:
        other = types.SimpleNamespace(g=in_module(text, "g"))
        module = types.ModuleType("other")
        module.g = other.g  # type: ignore
        return in_module("@function\ndef f(x):\n    return m.g(x)\n", m=module).hash()

    plus = with_helper("@function\ndef g(x):\n    return x + 1\n")
    assert plus != with_helper("@function\ndef g(x):\n    return x - 1\n")


def test_a_hash_depends_on_constants_and_knows_when_they_change():
    text = "@function\ndef f(x):\n    return x + N\n"
    assert in_module(text, N=tl.constexpr(3)).hash() != in_module(text, N=tl.constexpr(4)).hash()
    f = in_module(text, N=tl.constexpr(3))
    f.hash()
    assert f.changed_global() is None
    f.fn.__globals__["N"] = tl.constexpr(5)
    name, before, now = f.changed_global() or ("", None, None)
    assert name == "N" and before.value == 3 and now.value == 5


def test_functions_that_call_each_other_have_a_hash():
    text = "@function\ndef g(x):\n    return f(x)\n@function\ndef f(x):\n    return g(x)\n"
    assert len(in_module(text).hash()) == 64


def test_variables_of_enclosing_functions_are_seen():
    factor = tl.constexpr(3)

    @function
    def f(x, out):
        tl.store(out, tl.load(x) * factor)

    out = np.zeros(1, np.float32)
    run(f, x=np.ones(1, np.float32), out=out)
    assert out[0] == 3
    assert f.globals["factor"] is factor


def test_another_source_for_a_function():
    def template(x, out):
        tl.store(out, GENERATE)  # type: ignore  # noqa: F821

    f = TileFunction(template)
    f.replace_source(f.source.replace("GENERATE", "tl.load(x) + 41"))
    out = np.zeros(1, np.float32)
    run(f, x=np.ones(1, np.float32), out=out)
    assert out[0] == 42
    assert "41" in f.source and f.fn.__name__ == "template"


def test_methods_are_bound():
    class Pair:
        def __init__(self, a):
            self.a = a

        @function
        def twice(self, n):
            return self.a * n

    assert isinstance(Pair.twice, TileFunction)
    assert Pair(3).twice.func is Pair.twice


def test_arguments_give_what_a_launch_passes():
    inner = Argument.group([Argument.scalar(i32, 16), Argument.constant(3)])
    group = Argument.group([Argument.pointer(f32), inner])
    assert [a.divisor for a in group.leaves()] == [1, 16]
    assert Argument.constant(None).value is None and not list(Argument.constant(1).leaves())


def twice_two(a, b, c):
    @function
    def applied(x):
        return a(x) + b(x) + c(x)

    return applied


def scaled_by(n):
    @function
    def scaled(x):
        return x * n

    return scaled


def test_a_hash_tells_functions_of_one_name_apart():
    two, five = scaled_by(tl.constexpr(2)), scaled_by(tl.constexpr(5))
    made = [twice_two(two, five, two), twice_two(two, five, five), twice_two(two, two, five)]
    assert len({f.hash() for f in made}) == 3
    assert twice_two(two, five, two).hash() == made[0].hash()


def test_variables_of_enclosing_functions_may_change():
    n = tl.constexpr(2)

    @function
    def plus(x):
        return helper(x) + n

    helper = scaled_by(tl.constexpr(3))
    before = plus.hash()
    assert plus.changed_global() is None
    two, n = n, tl.constexpr(7)
    assert plus.changed_global() == ("n", two, n)
    plus._hash = None
    assert plus.hash() != before and plus.changed_global() is None
    old, helper = helper, scaled_by(tl.constexpr(4))
    assert plus.changed_global() == ("helper", old, helper)
