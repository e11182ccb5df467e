"""Calls of a module that nobody changed: whatever guards would notice, the quick check notices."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import nn
from torch._C._dynamo.eval_frame import _CacheEntry

import tilewright as tw
from tilewright.driver.torch import shortcut, unchanged
from tilewright.driver.torch.api import Compiled
from tilewright.driver.torch.unchanged import counts_changes

# From Python 3.13 on dictionaries do not count their changes: then there is no quick check, and the
# guards look at everything in every call. test_without_counts tests that way everywhere.
counted = pytest.mark.skipif(not counts_changes(), reason="dictionaries count no changes here")
SHIFT = 0.25  # read by the module
Change = Callable[["Net"], AbstractContextManager[None]]


class Settings:
    """An object beside the module, and a list in it."""

    def __init__(self) -> None:
        self.scale, self.parts = 2.0, [1.0, 3.0]


def bent(x: torch.Tensor, by: float = 1.0, *, back: float = 0.5) -> torch.Tensor:
    return torch.relu(x) * by - back


def turned(x: torch.Tensor, by: float = 1.0, *, back: float = 0.5) -> torch.Tensor:
    return torch.tanh(x) * by - back


class Net(nn.Module):
    factor = 1.25

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(4, 4), nn.Linear(4, 4), nn.Dropout(0.5)
        self.settings, self.names, self.bend = Settings(), {"bias": 1.5}, bent
        self.register_buffer("offset", torch.ones(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bend(self.first(x)) * self.settings.scale + self.settings.parts[1]
        y = self.last(self.drop(y)) + self.names["bias"] * self.factor + SHIFT
        return y + self.offset.sum() * (2 if x is self.offset else 1)


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    torch.manual_seed(0)
    with torch.no_grad():
        fast = tw.compile(Net().eval())
        for _ in range(3):
            fast(torch.ones(2, 4))
    return fast


@contextmanager
def attribute(x: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(x, name)
    setattr(x, name, value)
    try:
        yield
    finally:
        setattr(x, name, before)


@contextmanager
def item(x: Any, name: Any, value: Any) -> Iterator[None]:
    before = x[name]
    x[name] = value
    try:
        yield
    finally:
        x[name] = before


def set_scale(net: Net) -> AbstractContextManager[None]:
    return attribute(net.settings, "scale", 3.0)


def set_part(net: Net) -> AbstractContextManager[None]:
    return item(net.settings.parts, 1, -1.0)


@contextmanager
def put_part_in_place_of_another(net: Net) -> Iterator[None]:
    """The new number may lie where the old one was, which is given back before."""
    net.settings.parts.pop()
    net.settings.parts.append(float(len(net.settings.parts) + 6))
    try:
        yield
    finally:
        net.settings.parts[1] = 3.0


def set_name(net: Net) -> AbstractContextManager[None]:
    return item(net.names, "bias", 0.5)


def transpose(net: Net) -> AbstractContextManager[None]:
    return attribute(net.first.weight, "data", net.first.weight.data.t())


def widen(net: Net) -> AbstractContextManager[None]:
    return attribute(net.last.weight, "data", net.last.weight.data.double())


def replace_weight(net: Net) -> AbstractContextManager[None]:
    return attribute(net.last, "weight", nn.Parameter(torch.randn(4, 4), requires_grad=False))


def replace_part(net: Net) -> AbstractContextManager[None]:
    return attribute(net, "last", nn.Linear(4, 4))


def drop_bias(net: Net) -> AbstractContextManager[None]:
    return attribute(net.last, "bias", None)


def train(net: Net) -> AbstractContextManager[None]:
    return attribute(net.drop, "training", True)


def replace_dictionary(net: Net) -> AbstractContextManager[None]:
    return attribute(net.settings, "__dict__", {"scale": 3.0, "parts": [1.0, 3.0]})


def set_of_class(net: Net) -> AbstractContextManager[None]:
    return attribute(type(net), "factor", 2.0)


def set_class(net: Net) -> AbstractContextManager[None]:
    return attribute(net, "__class__", type("Other", (Net,), {"factor": 3.0}))


def set_default(net: Net) -> AbstractContextManager[None]:
    return attribute(net.bend, "__defaults__", (2.0,))


def set_keyword(net: Net) -> AbstractContextManager[None]:
    return item(net.bend.__kwdefaults__, "back", 0.75)


def set_code(net: Net) -> AbstractContextManager[None]:
    return attribute(net.bend, "__code__", turned.__code__)


def set_global(net: Net) -> AbstractContextManager[None]:
    return item(globals(), "SHIFT", 0.5)


CHANGES = (
    *(set_scale, set_part, put_part_in_place_of_another, set_name, transpose, widen, train),
    *(replace_weight, replace_part, drop_bias, replace_dictionary, set_of_class, set_class),
    *(set_default, set_keyword, set_code, set_global),
)


def quick(fast: Compiled, *args: torch.Tensor) -> bool:
    seen: dict[str, Any] = {"function": fast.original, "args": args, "kwargs": {}}
    return any(fits(seen) for fits, _ in fast._quick.values())


@counted
def test_nothing_changed(compiled: Compiled) -> None:
    x = torch.randn(2, 4)
    with torch.no_grad():
        assert quick(compiled, x) and quick(compiled, x.clone())
        torch.testing.assert_close(compiled(x), compiled.original(x))
        assert not quick(compiled, torch.randn(3, 4)) and not quick(compiled, x.double())
    assert not quick(compiled, x), "gradients were not computed"


@counted
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_changes_are_noticed(compiled: Compiled, change: Change) -> None:
    net, x = compiled.original, torch.ones(2, 4)
    assert isinstance(net, Net)
    with torch.no_grad():
        with change(net):
            assert not quick(compiled, x)
        # As it was; that is noticed too, so all guards look, and then it is known again.
        compiled._misses = 0
        torch.testing.assert_close(compiled(x), net(x))
        assert quick(compiled, x)


@counted
@pytest.mark.parametrize("name", ["autocast", "default dtype", "deterministic", "same tensor"])
def test_the_state_of_torch_and_arguments_are_looked_at(compiled: Compiled, name: str) -> None:
    x = torch.ones(2, 4)
    with torch.no_grad():
        assert quick(compiled, x)
        try:
            if name == "autocast":
                with torch.autocast("cpu", torch.bfloat16):
                    assert not quick(compiled, x)
            elif name == "default dtype":
                torch.set_default_dtype(torch.float64)
                assert not quick(compiled, x)
            elif name == "deterministic":
                torch.use_deterministic_algorithms(True)
                assert not quick(compiled, x)
            else:
                net = compiled.original
                assert isinstance(net, Net) and not quick(compiled, net.offset)
        finally:
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(False)
        assert quick(compiled, x)


@pytest.mark.parametrize("given", ["weight", "other"])
def test_an_argument_that_is_a_weight(given: str) -> None:
    """What was compiled for one tensor in two places is not for two tensors, nor the reverse."""
    net = nn.Linear(4, 4).eval()

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + self.inner.weight

    both, other = Both(), torch.randn(4, 4)
    calls = [net.weight, other] if given == "weight" else [other, net.weight]
    with torch.no_grad():
        fast = tw.compile(both)
        for x in (*[calls[0]] * 3, *[calls[1]] * 3, *calls * 2):
            torch.testing.assert_close(fast(x), both(x))


def test_a_changed_module_gives_its_own_results() -> None:
    torch.manual_seed(1)
    x = torch.randn(2, 4)
    with torch.no_grad():
        net = Net().eval()
        fast = tw.compile(net)
        for change in (None, replace_weight, transpose, None, set_code):
            with change(net) if change is not None else torch.no_grad():
                for _ in range(3):
                    torch.testing.assert_close(fast(x), net(x))


def test_weights_edited_in_place() -> None:
    first, last, x = nn.Linear(4, 8), nn.Linear(8, 4), torch.randn(2, 4)
    net = nn.Sequential(first, nn.ReLU(), last).eval()
    with torch.no_grad():
        fast = tw.compile(net)
        for _ in range(4):
            for _ in range(3):
                torch.testing.assert_close(fast(x), net(x))
            first.weight.mul_(-1.5)
            last.bias.data = torch.randn(4)


def test_without_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where dictionaries do not count, nothing is skipped, and changes are noticed all the same."""
    monkeypatch.setattr(unchanged, "counts_changes", lambda: False)
    torch.manual_seed(2)
    x = torch.randn(2, 4)
    with torch.no_grad():
        net = Net().eval()
        fast = tw.compile(net)
        for change in (None, set_scale, replace_weight):
            with change(net) if change is not None else torch.no_grad():
                for _ in range(2):
                    torch.testing.assert_close(fast(x), net(x))
    assert not fast._quick


@counted
def test_what_changed_is_named(compiled: Compiled) -> None:
    net, x = compiled.original, torch.ones(2, 4)
    seen: dict[str, Any] = {"function": net, "args": (x,), "kwargs": {}}
    assert isinstance(net, Net)
    with torch.no_grad():
        compiled._misses = 0
        compiled(x)
        (known,) = compiled._known.values()
        assert known.difference(seen) == "nothing" and not known.reshaped()
        with set_global(net):
            assert "global" in known.difference(seen)
        with transpose(net):
            assert "first" in known.difference(seen) and known.reshaped()
        with set_scale(net):
            assert "settings" in known.difference(seen)


@counted
def test_only_words_of_the_tensor_itself() -> None:
    """What lies behind a tensor is another's: it would change at any time."""
    usable = ctypes.CDLL(None).malloc_usable_size
    usable.argtypes, usable.restype = [ctypes.c_void_p], ctypes.c_size_t
    sizes = [usable(torch.ones(3)._cdata) for _ in range(4)]
    for _ in range(20):
        unchanged.tensor_words.cache_clear()
        assert max(unchanged.tensor_words()) + 8 <= max(sizes)


@counted
def test_a_method_of_a_module_is_watched_like_the_module() -> None:
    # transformers' way: model.forward = tw.compile(model.forward).
    net = Net().eval()
    x = torch.ones(2, 4)
    with torch.no_grad():
        fast = tw.compile(net.forward)
        for _ in range(3):
            fast(x)
        assert fast._quick and all(
            f({"function": fast.original, "args": (x,), "kwargs": {}})
            for f, _ in fast._quick.values()
        )
        with attribute(net.settings, "scale", 5.0):
            assert torch.allclose(fast(x), net(x))
        net.first.weight.data = net.first.weight.data * 2
        assert torch.allclose(fast(x), net(x))


def test_why_a_module_is_not_watched() -> None:
    net = Forms(lambda net, x, y: y)
    fast = tw.compile(net)
    for _ in range(3):
        fast(torch.ones(3, 4))
    (event,) = fast.log.of("guards")[:1]
    assert "gradients" in event.message


@counted
def test_globals_that_change_are_left_to_guards(compiled: Compiled) -> None:
    """A loop in a script binds names again and again: other globals of it are still looked at."""
    x, fits = torch.ones(2, 4), []
    with torch.no_grad():
        compiled._misses, compiled._moving = 0, set()
        for k in range(6):
            globals()["LATEST"] = k
            fits.append(quick(compiled, x))
            compiled(x)
        assert fits[-3:] == [True] * 3 and any("test_unchanged" in m for m in compiled._moving)
        assert isinstance(compiled.original, Net)
        with set_global(compiled.original):
            assert not quick(compiled, x)
        compiled._moving = set()


def test_an_order_that_may_change_is_not_watched() -> None:
    with pytest.raises(ValueError, match="order"):
        unchanged._Found().add(OrderedDict(a=1))


# ---- calls without Dynamo's code


class Note:
    """What models outside of themselves note while they are compiled."""

    def __init__(self) -> None:
        self.depth: Any = 0
        self.inside = False


NOTE = Note()


class Forms(nn.Module):
    """Results in some form."""

    def __init__(self, form: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__()
        self.inner, self.form, self.calls = nn.Linear(4, 4), form, []

    def forward(self, x: torch.Tensor, *others: torch.Tensor, more: Any = None) -> Any:
        y = self.inner(x)
        for z in (*others, *(more or ())):
            y = y + z
        return self.form(self, x, y)


def keep(net: Forms, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    net.last = y
    return y + 1


def note(value: Any) -> Callable[[Any, Any, Any], Any]:
    def form(net: Forms, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        NOTE.inside = True
        y = y + 1
        NOTE.depth, NOTE.inside = value, False
        return y

    return form


def note_result(net: Forms, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    NOTE.depth = y
    return y + 1


FORMS: dict[str, tuple[Callable[[Any, Any, Any], Any], bool]] = {
    "one": (lambda net, x, y: y, True),
    "tuple": (lambda net, x, y: (y, (y + 1, None)), True),
    "dict": (lambda net, x, y: {"a": [y * 2], "b": y}, True),
    "an argument": (lambda net, x, y: (x, y), False),
    "a number": (lambda net, x, y: (y, x.shape[0]), False),
    "an effect": (keep, False),
    "a note": (note(7), True),
    "a note of nothing": (note(None), True),
    "a note of a result": (note_result, False),
}


@counted
@pytest.mark.parametrize("name", FORMS)
def test_forms_of_results(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    form, short = FORMS[name]
    made: list[Any] = []

    def watched(*args: Any) -> Any:
        made.append(shortcut.shortcut(*args))
        return made[-1]

    monkeypatch.setattr("tilewright.driver.torch.api.shortcut", watched)
    net = Forms(form).eval()
    with torch.no_grad():
        fast = tw.compile(net)
        for _ in range(4):
            x, z, v, w = (torch.randn(3, 4) for _ in range(4))
            got, want = fast(x, z, more=(v, w)), net(x, z, more=(v, w))
            torch.testing.assert_close(got, want)
            assert type(got) is type(want)
            noted, NOTE.depth, NOTE.inside = NOTE.depth, 3, True
            fast(x, z, more=(v, w))  # sets what somebody else has set since
            torch.testing.assert_close(NOTE.depth, noted if "note" in name else 3)
            assert NOTE.inside == (name not in ("a note", "a note of nothing"))
            NOTE.depth, NOTE.inside = 0, False
    assert any(made) == short


def test_calls_go_on_when_dynamo_forgets_what_it_compiled() -> None:
    """Its entries are gone then: nothing of them may be read any more."""
    net, x = Net().eval(), torch.randn(2, 4)
    with torch.no_grad():
        fast = tw.compile(net, x)
        fast(x)
        torch._dynamo.reset()
        assert not any(isinstance(e, _CacheEntry) for e in fast._found)
        for _ in range(3):
            torch.testing.assert_close(fast(x), net(x))
