"""A quick check that a module or a function is as it was when Dynamo's guards last looked at it.

Guards look at every attribute of every part of a module that was traced: for two hundred weights,
longer than all else in a call takes. Python counts the changes of a dictionary in the dictionary
itself, so here the numbers of those that the guards look into are compared, by a native loop, with
what else decides: classes, cells, lists, and what torch says of a tensor's shape and dtype. Only
where a word differs do the guards look again. Globals, most of them functions and modules of
libraries, are watched in the same way until they are seen to change. Arguments and the state of
torch are checked by guards in every call.
"""

from __future__ import annotations

import ctypes
import gc
import re
import types
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from tilewright.driver.weights.bound import find_places
from tilewright.llvm.objects import cached_object
from tilewright.runtime.library import Library
from tilewright.targets import host

_MODULE = "L['function']"
_PART = re.compile(r"L\['function'\]|G\['\w+'\]")
# A loop over entries: an address, and the words that are expected from there on. They are compared
# without a branch between them: there are thousands, and branches that are foreseen wrongly would
# cost more than all else.
_LOOP = """
{s}.head:
  %{s}.at = phi ptr [ %{s}.begin, %{before} ], [ %{s}.next, %{s}.same ]
  %{s}.done = icmp eq ptr %{s}.at, %{s}.end
  br i1 %{s}.done, label %{after}, label %{s}.body
{s}.body:
  %{s}.place = load ptr, ptr %{s}.at
{words}
  %{s}.next = getelementptr i64, ptr %{s}.at, i64 {entry}
  %{s}.equal = icmp eq i64 %{s}.any{last}, 0
  br i1 %{s}.equal, label %{s}.same, label %differs
{s}.same:
  br label %{s}.head"""
_COMPARE = """\
  %{s}.p{k} = getelementptr i64, ptr %{s}.place, i64 {k}
  %{s}.now{k} = load i64, ptr %{s}.p{k}
  %{s}.q{k} = getelementptr i64, ptr %{s}.at, i64 {next}
  %{s}.was{k} = load i64, ptr %{s}.q{k}
  %{s}.x{k} = xor i64 %{s}.now{k}, %{s}.was{k}
  %{s}.any{k} = or i64 %{s}.x{k}, {others}"""
_WORD = 8
_TYPE, _SIZE, _ITEMS = _WORD, 2 * _WORD, 3 * _WORD  # of an object; of a list
_CONTENTS = 2 * _WORD  # of a cell
_CHANGES = 3 * _WORD  # of a dictionary
_DICTIONARY = -3 * _WORD  # of an object whose class says nothing else
# From the code of a function on: defaults, those of keywords, closure, text, attributes.
_FUNCTION = 6
# Guards that compare what several sources hold.
_ALONE = "NO_TENSOR_ALIASING"
_RELATIONS = ("OBJECT_ALIASING", "STORAGE_OVERLAPPING")
_MOST_AXES = 5  # whose sizes stand in the tensor itself
_FIXED = (
    *(type(None), bool, int, float, complex, str, bytes, tuple, range, slice, frozenset),
    *(types.BuiltinFunctionType, types.MethodType, types.CodeType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType),
    *(property, staticmethod, classmethod),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
_Words = tuple[int, list[int]]  # an address, and what is there


class CannotWatch(ValueError):
    """Why all guards look in every call."""


class Unchanged:
    """A module or a function, and the guards of what was compiled for it."""

    def __init__(
        self,
        guards: _Guards,
        found: _Found,
        scope: Mapping[str, Any],
        root: Any,
        watched: Sequence[str],
    ) -> None:
        self.sources = frozenset(guards.parts.get(_MODULE, ()))
        self._found: list[_Found] = []  # with it objects that live, and stay where they are
        self._look_at(found)
        skipped = tuple(watched)
        rest = root.clone_manager(lambda node: not node.get_source().startswith(skipped))
        self._differ, self._rest = _differ(), rest.check
        self._own, self._others = frozenset(guards.own), None
        if guards.own and guards.others:
            listed = ", ".join(guards.others)
            self._others = eval(f"lambda L: ({listed},)", {"G": scope})

    def fits(self, seen: dict[str, Any]) -> bool:
        """Is the module as it was, and do the guards accept all else of a call?"""
        if self._differ(self._all) or not self._rest(seen):
            return False
        return self._others is None or self._own.isdisjoint(map(id, self._others(seen)))

    def reshaped(self) -> bool:
        """Has a tensor of the module other memory, another shape, other strides or another dtype
        than it had?"""
        return self._differ(self._forms) != 0

    def modules(self) -> list[nn.Module]:
        """Those that guards look into."""
        return [x for found in self._found for x in found.keeps if isinstance(x, nn.Module)]

    def hold(self, tensors: Sequence[torch.Tensor], derives: Collection[int]) -> bool:
        """From now on the memory of these tensors, which guards look at, has to be what it was too,
        and of some of them its content. False where that cannot be seen."""
        places, to_data = find_places(), storage_data()
        if places is None or to_data < 0:
            return False
        words = _Found()
        words.whose = "the memory of weights"
        for k, x in enumerate(tensors):
            words.at(_word(x._cdata + places.storage) + to_data)
            if k in derives:
                counter = _word(x._cdata + places.counter)
                if not counter or x.is_inference():  # changes are not counted
                    return False
                words.at(x._cdata + places.counter)
                words.at(counter + places.version // _WORD * _WORD)
        self._look_at(words)
        return True

    def _look_at(self, found: _Found) -> None:
        self._found.append(found)
        # What is held lies behind pointers in tensors, so it comes last.
        first, *rest = self._found
        lists = (first.words, first.tensors, [*first.behind, *(w for x in rest for w in x.words)])
        tables = [np.array([[at, *was] for at, was in x], np.uint64) for x in lists]
        bounds = [(x.ctypes.data, x.ctypes.data + x.nbytes) for x in tables]
        nothing = (0, 0)
        every = np.array(bounds, np.uint64)
        forms = np.array([nothing, bounds[1], nothing], np.uint64)
        self._tables = (*tables, every, forms)
        self._all, self._forms = every.ctypes.data, forms.ctypes.data

    def difference(self, seen: dict[str, Any]) -> str:
        """What is not as it was."""
        for x in self._found:
            for words, whose in x.named:
                if _is_other(words):
                    return whose
        return "an argument, a global or the state of torch" if not self._rest(seen) else "nothing"

    def changed(self) -> set[str]:
        """The globals that are not as they were."""
        found = self._found[0]
        parts = [(name, found.named[a:b]) for name, (a, b) in found.parts.items()]
        return {name for name, words in parts if any(map(_is_other, (w for w, _ in words)))}

    @staticmethod
    def of(
        root: Any, seen: dict[str, Any], scope: Mapping[str, Any], moving: Collection[str] = ()
    ) -> Unchanged:
        """Of a call that the guards have just accepted; `CannotWatch` where something of the module
        or function cannot be watched, such as a tensor where gradients are computed: its need of
        one is elsewhere. Globals that can be are watched too, but for those that are known to
        change (`moving`)."""
        if not counts_changes() or not hasattr(root, "clone_manager"):
            raise CannotWatch("Python or torch is laid out in another way than is known")
        function = seen["function"]
        if module_of(function) is None and not isinstance(function, types.FunctionType):
            raise CannotWatch("this is neither a module nor a function")
        found = _Found()
        try:
            guards = _Guards(root)
            found.add(scope)  # from which guards fetch globals
            watched = [_MODULE]
            guards.own += found.part(guards.parts.get(_MODULE, {}), seen, scope)
            for name, sources in guards.parts.items():
                if name != _MODULE and name not in guards.related and name not in moving:
                    kept = found.copy()
                    try:
                        start = len(found.named)
                        found.part(sources, seen, scope)
                        found.parts[name] = start, len(found.named)
                        watched.append(name)
                    except Exception:  # guards look at this one
                        found = kept
            return Unchanged(guards, found, scope, root, watched)
        except Exception as problem:  # a source that is no expression, or a value of another kind
            raise CannotWatch(f"{found.whose or 'guards'}: {problem}") from None


def module_of(function: Any) -> nn.Module | None:
    """The module that is called: itself, or by a method of it, such as its `forward`."""
    found = function.__self__ if isinstance(function, types.MethodType) else function
    return found if isinstance(found, nn.Module) else None


class _Guards:
    """Where guards look, as expressions, by the module or the global that they begin with, each
    with whether no other source may hold the same tensor; other sources of which that is required;
    globals whose guards are about more than one source."""

    def __init__(self, root: Any) -> None:
        self.parts: dict[str, dict[str, bool]] = {}
        self.others: list[str] = []
        self.own: list[int] = []  # tensors of the module that no other source may hold
        self.related: set[str] = set()
        waiting: list[tuple[Any, str | None]] = [(root, None)]
        while waiting:
            node, part = waiting.pop()
            source = node.get_source()
            begins = _PART.match(source)
            part = part or (begins[0] if begins is not None else None)
            kinds = {type(x).__name__ for x in node.get_leaf_guards()}
            related = not kinds.isdisjoint(_RELATIONS)
            if part == _MODULE and related:
                raise ValueError("this guard is about more than the module")
            if part is not None:
                sources = self.parts.setdefault(part, {})
                sources[source] = sources.get(source, False) or _ALONE in kinds
            if part != _MODULE and _ALONE in kinds:
                self.others.append(source)
            if part is not None and (related or _ALONE in kinds):
                self.related.add(part)
            pairs = getattr(node, "get_key_value_managers", dict)().values()
            below_it = [x for pair in pairs for x in pair if x is not None]
            waiting += [(x, part) for x in (*below_it, *node.get_child_managers())]


class _Found:
    """Words that say whether values are as they were."""

    def __init__(self) -> None:
        self.words: list[_Words] = []  # one word each
        self.tensors: list[_Words] = []
        self.behind: list[_Words] = []  # where pointers of tensors lead
        self.named: list[tuple[_Words, str]] = []  # all of them, and of what they tell
        self.whose = ""  # of what those tell that are added
        self.parts: dict[str, tuple[int, int]] = {}  # which of them tell of a global
        self.keeps: list[Any] = []
        self._known: set[int] = set()

    def copy(self) -> _Found:
        made = _Found()
        made.words, made.tensors, made.named = [*self.words], [*self.tensors], [*self.named]
        made.behind = [*self.behind]
        made.parts, made.keeps, made._known = {**self.parts}, [*self.keeps], {*self._known}
        return made

    def part(
        self, sources: Mapping[str, bool], seen: dict[str, Any], scope: Mapping[str, Any]
    ) -> list[int]:
        """Adds what sources hold; returns which objects no other source may hold."""
        alone = []
        held = {s[:k] for s in sources for k, c in enumerate(s) if c in ".["}
        for self.whose, only in sources.items():
            value = eval(self.whose, {"L": seen, "G": scope})
            self.add(value)
            if isinstance(value, torch.Tensor) and self.whose in held:
                raise ValueError("what a tensor refers to, such as a gradient, cannot be watched")
            if only:
                alone.append(id(value))
        return alone

    def add(self, value: Any) -> None:
        if id(value) in self._known or _is_fixed(value):
            return
        self._known.add(id(value))
        self.keeps.append(value)
        if isinstance(value, type):
            for one in value.__mro__[:-1]:
                self._dictionary(gc.get_referents(one.__dict__)[0])
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, OrderedDict):
            raise ValueError("the order changes, and no number says so")
        elif isinstance(value, dict):
            self._dictionary(value)
            if type(value) is not dict:
                self._object(value)
        elif isinstance(value, torch.Tensor):
            self._tensor(value)
        elif isinstance(value, list):
            self.at(id(value) + _SIZE)
            self.at(id(value) + _ITEMS)
            start = _word(id(value) + _ITEMS)
            for k in range(len(value)):
                self.at(start + k * _WORD)
            self.keeps += value  # or another could come to lie where one was
        elif isinstance(value, types.CellType):
            self.at(id(value) + _CONTENTS)
            self.keeps.append(value.cell_contents)
        else:
            self._object(value)

    def _object(self, value: Any) -> None:
        self.at(id(value) + _TYPE)
        own = vars(value)  # an error where it has none
        self._dictionary(own)
        kind = type(value)
        where = kind.__dictoffset__ or _DICTIONARY
        if where < 0 and kind.__itemsize__:  # counted from the end of what it holds
            items = abs(ctypes.c_int64.from_address(id(value) + _SIZE).value) * kind.__itemsize__
            where -= -(kind.__basicsize__ + items) // _WORD * _WORD
        elif where < 0:
            where = _DICTIONARY
        self.at(id(value) + where, id(own))
        # Slots, and what classes written in C keep; references to an object change nothing in it.
        others = (where, kind.__weakrefoffset__)
        self.keeps += gc.get_referents(value)
        for k in range(object.__basicsize__, kind.__basicsize__, _WORD):
            if k not in others:
                self.at(id(value) + k)
        self.add(kind)
        if isinstance(value, nn.Module):
            for name in ("_parameters", "_buffers", "_modules"):
                self.add(own[name])
            for x in (*own["_parameters"].values(), *own["_buffers"].values()):
                self.add(x)

    def _function(self, value: types.FunctionType) -> None:
        own = vars(value)
        self._dictionary(own)
        self.keeps += [value.__code__, value.__defaults__, value.__closure__]
        if value.__kwdefaults__ is not None:
            self.add(value.__kwdefaults__)
        start = id(value) + function_words()
        self.at(start, id(value.__code__))
        for k in range(1, _FUNCTION - 1):
            self.at(start + k * _WORD)
        self.at(start + (_FUNCTION - 1) * _WORD, id(own))

    def _dictionary(self, value: dict[Any, Any]) -> None:
        if id(value) + 1 not in self._known:  # an object's own, or one that guards look at
            self._known.add(id(value) + 1)
            self.keeps.append(value)
            self.at(id(value) + _CHANGES)

    def _tensor(self, value: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            raise ValueError("gradients may be computed")
        if value.dim() > _MOST_AXES or type(value) not in (torch.Tensor, nn.Parameter):
            raise ValueError("this tensor cannot be watched")
        places = [value._cdata + k for k in tensor_words()]
        self.tensors.append((places[0], [_word(x) for x in places]))
        self.named.append((self.tensors[-1], self.whose))
        to_needs, needs = gradient_words()
        if at := _word(value._cdata + to_needs):  # once it was asked for a gradient
            self.behind.append((at + needs, [_word(at + needs)]))
            self.named.append((self.behind[-1], self.whose))

    def at(self, address: int, expected: int | None = None) -> None:
        word = _word(address)
        if expected is not None and word != expected:
            raise ValueError("this object is laid out in another way")
        self.words.append((address, [word]))
        self.named.append((self.words[-1], self.whose))


def _is_fixed(value: Any) -> bool:
    """Does nothing in it ever change? Classes made of such ones may add attributes."""
    kind = type(value)
    base = next((b for b in kind.__mro__ if b in _FIXED), None)
    if base is None or kind is base:
        return base is not None
    return not kind.__dictoffset__ and kind.__basicsize__ == base.__basicsize__


def _is_other(words: _Words) -> bool:
    address, was = words
    return [_word(address + k * _WORD) for k in range(len(was))] != was


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


@cache
def counts_changes() -> bool:
    """Do dictionaries, cells, lists and tensors look as expected here?"""
    sample: dict[str, Any] = {"a": 1}
    seen = [_word(id(sample) + _CHANGES)]
    for change in (
        lambda: sample.__setitem__("a", 2),
        lambda: sample.__setitem__("b", 1),
        lambda: sample.pop("b"),
        sample.clear,
    ):
        change()
        seen.append(_word(id(sample) + _CHANGES))
    items = [sample, seen]
    start = _word(id(items) + _ITEMS)
    cell = types.CellType(sample)
    return (
        len(set(seen)) == len(seen)
        and _word(id(sample) + _CHANGES) == seen[-1]
        and _word(id(items) + _SIZE) == 2
        and (_word(start), _word(start + _WORD)) == (id(sample), id(seen))
        and _word(id(cell) + _CONTENTS) == id(sample)
        and _word(id(sample) + _TYPE) == id(dict)
        and bool(tensor_words())
        and bool(gradient_words())
        and bool(function_words())
    )


@cache
def function_words() -> int:
    """Where a function has its code, followed by what `_FUNCTION` lists; 0 where it has not."""
    inside = 1

    def sample(x: int = 300, *, y: int = 400) -> int:
        return x + y + inside

    parts = (sample.__code__, sample.__defaults__, sample.__kwdefaults__, sample.__closure__)
    wanted = [*map(id, parts), None, id(vars(sample))]
    for k in range(_TYPE, types.FunctionType.__basicsize__ - len(wanted) * _WORD, _WORD):
        found = [_word(id(sample) + k + n * _WORD) for n in range(len(wanted))]
        if all(b is None or a == b for a, b in zip(found, wanted, strict=True)):
            return k
    return 0


@cache
def tensor_words() -> tuple[int, ...]:
    """Offsets of the words of a tensor, from its memory on to its dtype, between which sizes and
    strides are: found by looking at tensors that differ so. None where one of those shows nowhere.
    """
    places = find_places()
    if places is None:
        return ()
    base, behind = torch.empty(2, 2 * 3 * 4 * 5 * 6)
    one, twin, third = (base.view(2, 3, 4, 5, 6) for _ in range(3))
    span = range(places.storage, 24 * _WORD, _WORD)
    # A dtype has a small number. Of the bytes behind it some are nobody's, and may hold anything.
    alike = [x.view(torch.int32) for x in (one, twin, third)]
    numbers = [
        {k: {_word(x._cdata + k) % 2**16 for x in group} for k in span}
        for group in ((one, twin, third), alike)
    ]
    found = [k for k in span if len(numbers[0][k]) == len(numbers[1][k]) == 1]
    last = next((k for k in found if numbers[0][k] != numbers[1][k]), 0)
    words = range(places.storage, last + _WORD, _WORD)

    def differing(x: torch.Tensor) -> set[int]:
        return {k for k in words if _word(one._cdata + k) != _word(x._cdata + k)}

    own = differing(twin)  # what every tensor has of its own: objects of Python and of torch
    others = (
        *(one.permute(1, 2, 3, 4, 0), base.view(6, 5, 4, 3, 2), base, base.view(1, -1), one[:1]),
        *(one.clone(), behind.view(2, 3, 4, 5, 6)),
    )
    return tuple(words) if all(differing(x) - own for x in others) else ()


@cache
def gradient_words() -> tuple[int, ...]:
    """Where a tensor has the address of what gradients need, and where there the word is that says
    whether it asks for one. None where they are not found."""
    places, x = find_places(), torch.empty(1)
    if places is None:
        return ()
    span = range(places.storage, places.storage + 8 * _WORD, _WORD)
    before = [_word(x._cdata + k) for k in span]
    x.requires_grad_(True)
    made = [k for k, was in zip(span, before, strict=True) if _word(x._cdata + k) != was]
    if len(made) != 1 or before[span.index(made[0])]:
        return ()
    at = _word(x._cdata + made[0])
    for k in range(0, 32 * _WORD, _WORD):  # no further than to where it is
        seen = []
        for needs in (True, False) * 3:
            x.requires_grad_(needs)
            seen.append(_word(at + k))
        if len({*seen[::2]}) == len({*seen[1::2]}) == 1 and seen[0] != seen[1]:
            return made[0], k
    return ()


@cache
def storage_data() -> int:
    """Where in torch's storage the address of its memory is; -1 where it is not found."""
    x = torch.empty(3)
    storage = x.untyped_storage()
    found = [k for k in range(0, 8 * _WORD, _WORD) if _word(storage._cdata + k) == x.data_ptr()]
    return found[0] if found else -1


@cache
def _differ() -> Callable[[int], int]:
    """Given where three lists begin and end: does a word differ in one of them? The entries of the
    second are tensors."""
    sizes = {"a": 1, "b": len(tensor_words()), "c": 1}
    lines = ["define i32 @tw_words(ptr %state) {", "entry:"]
    for k, name in enumerate(f"{s}.{x}" for s in sizes for x in ("begin", "end")):
        lines += [f"  %{name}.p = getelementptr ptr, ptr %state, i64 {k}"]
        lines += [f"  %{name} = load ptr, ptr %{name}.p"]
    lines.append("  br label %a.head")
    around = ("entry", *(f"{s}.head" for s in sizes), "same")
    for n, (s, count) in enumerate(sizes.items()):
        words = (
            _COMPARE.format(s=s, k=k, next=k + 1, others=f"%{s}.any{k - 1}" if k else 0)
            for k in range(count)
        )
        edges = {"before": around[n], "after": around[n + 2]}
        lines.append(
            _LOOP.format(s=s, words="\n".join(words), entry=count + 1, last=count - 1, **edges)
        )
    lines += ["same:", "  ret i32 0", "differs:", "  ret i32 1", "}", ""]
    library = Library([cached_object("\n".join(lines), host())], {})
    # The interpreter's lock is not released: the loop reads Python objects.
    return library.function("tw_words", ctypes.c_void_p, result=ctypes.c_int32, holds_lock=True)
