"""Tables of an exported program's decompositions are made faster, and are the same."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch._export.utils
import torch._ops
from torch.export import exported_program

from tilewright.capture.torch.decompositions import decompositions
from tilewright.capture.torch.quick_tables import quick_tables


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.interpolate(self.inner(x)[None], scale_factor=2.0)
        return torch.nn.functional.gelu(y).logsumexp(-1)


def decomposed() -> str:
    exported = torch.export.export(Net().eval(), (torch.ones(3, 4),))
    return str(exported.run_decompositions(decompositions()).graph)


def test_programs_are_the_same() -> None:
    plain = decomposed()
    with quick_tables():
        assert decomposed() == plain
    assert decomposed() == plain


def test_tables_and_kernels_are_the_same() -> None:
    def made() -> tuple[set[Any], dict[Any, set[Any]]]:
        split = exported_program._split_decomp_table_to_cia_and_python_decomp
        kept, _ = split(dict(decompositions()))
        with exported_program._override_composite_implicit_decomp(kept):
            return set(kept), {op: set(op.py_kernels) for op in kept}

    plain = made()
    with quick_tables():
        assert made() == plain


def test_the_last_thread_takes_it_away() -> None:
    before = torch._ops.Callable, torch._export.utils._materialize_cpp_cia_ops
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with quick_tables():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with quick_tables():
        thread.start()
        assert inside.wait(60)
    quick: Any = vars(torch._ops)["Callable"]
    assert quick is not before[0] and quick is quick[[int], str]
    assert isinstance(len, quick) and not isinstance(1, quick)
    leave.set()
    thread.join()
    assert (torch._ops.Callable, torch._export.utils._materialize_cpp_cia_ops) == before
    assert before[0] is Callable


def test_operators_that_are_declared_between_two_are_seen() -> None:
    found = exported_program._collect_all_valid_cia_ops
    with torch.library._scoped_library("tilewright_test_tables", "DEF") as library:
        with quick_tables():
            assert not any("tilewright_test_tables" in str(op) for op in found())
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CompositeImplicitAutograd")
        with quick_tables():
            assert any("tilewright_test_tables" in str(op) for op in found())
