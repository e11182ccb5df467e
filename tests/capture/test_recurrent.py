"""Recurrent layers are scans while any capture is under way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import torch

from tilewright.capture.torch.decompositions import decompositions
from tilewright.capture.torch.recurrent import as_scans, recurrent_layers


def test_a_capture_that_ends_earlier_leaves_that_of_another_thread_alone() -> None:
    """Settings of Dynamo may be everyone's or each thread's own, by torch's version."""
    op = torch.ops.aten.gru.input
    before = dict(op.py_kernels)
    begun, ended = Event(), Event()

    def other() -> bool:
        with recurrent_layers():
            begun.set()
            assert ended.wait(60)
            return dict(op.py_kernels) == inside and torch._dynamo.config.allow_rnn

    with ThreadPoolExecutor(1) as threads:
        with recurrent_layers():
            inside = dict(op.py_kernels)
            assert inside != before and torch._dynamo.config.allow_rnn
            found = threads.submit(other)
            assert begun.wait(60)
        ended.set()
        assert found.result()
    assert dict(op.py_kernels) == before and not torch._dynamo.config.allow_rnn


def test_tables_have_no_layers_as_they_were_when_the_table_was_made() -> None:
    assert as_scans() and not as_scans().keys() & decompositions().keys()
