"""Recurrent layers are scans while any capture is under way."""

from __future__ import annotations

import torch

from tilewright.capture.torch.decompositions import decompositions
from tilewright.capture.torch.recurrent import as_scans, recurrent_layers


def test_a_capture_that_ends_earlier_leaves_that_of_another_thread_alone() -> None:
    op = torch.ops.aten.gru.input
    before = dict(op.py_kernels)
    first, second = recurrent_layers(), recurrent_layers()
    first.__enter__()
    inside = dict(op.py_kernels)
    assert inside != before
    second.__enter__()
    first.__exit__(None, None, None)
    assert dict(op.py_kernels) == inside and torch._dynamo.config.allow_rnn
    second.__exit__(None, None, None)
    assert dict(op.py_kernels) == before and not torch._dynamo.config.allow_rnn


def test_tables_have_no_layers_as_they_were_when_the_table_was_made() -> None:
    assert as_scans() and not as_scans().keys() & decompositions().keys()
