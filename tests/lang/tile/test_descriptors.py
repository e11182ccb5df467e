"""Block pointers and tensor descriptors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.lang.tile.values import array, pointer, running, tile, writing
from tilewright.base.errors import Invalid
from tilewright.lang.tile.language import core as tl


def blocks(p, shape, strides, offsets=(0, 0), block=(2, 4)):
    return tl.make_block_ptr(p, shape, strides, offsets, block, order=(1, 0))


def test_block_pointers_read_and_move():
    memory = np.arange(24, dtype=np.float32).reshape(4, 6)
    with running(memory) as (p,):
        q = blocks(p, (4, 6), (6, 1))
        assert (array(tl.load(q)) == memory[:2, :4]).all()
        q = tl.advance(q, (2, 3))
        zero = array(tl.load(q, boundary_check=(0, 1), padding_option="zero"))
        assert zero[:, :3].tolist() == memory[2:, 3:].tolist() and (zero[:, 3] == 0).all()
        nan = array(tl.load(q, boundary_check=(1,), padding_option="nan"))
        assert np.isnan(nan[:, 3]).all() and nan[0, 0] == memory[2, 3]
        back = q.advance((tl.constexpr(-2), tile(-3, tl.int32)))
        assert (array(tl.load(back)) == memory[:2, :4]).all()


def test_block_pointers_write_what_lies_inside():
    memory = np.zeros((4, 6), np.int32)
    with running(memory) as (p,):
        q = blocks(p, (4, 6), (6, 1), offsets=(tile(3, tl.int64), 4))
        tl.store(q, tl.full((2, 4), 7, tl.float32), boundary_check=(0, 1))
    assert memory[3, 4:].tolist() == [7, 7] and memory.sum() == 14


def test_transposed_blocks():
    memory = np.arange(8, dtype=np.float32).reshape(4, 2)
    with running(memory) as (p,):
        q = tl.make_block_ptr(p, (2, 4), (1, 2), (0, 0), (2, 4), (0, 1))
        assert (array(tl.load(q)) == memory.T).all()


def test_loops_can_carry_block_pointers_and_descriptors():
    memory = np.arange(32, dtype=np.float32).reshape(4, 8)
    with running(memory) as (p,):
        q = blocks(p, (4, 8), (8, 1))
        again = q.rebuild(q.advance((1, 2)).flatten())
        assert (array(tl.load(again)) == memory[1:3, 2:6]).all()
        d = tl.make_tensor_descriptor(p, [4, 8], [8, 1], [2, 4])
        assert len(d.flatten()) == 5
        assert (array(d.rebuild(d.flatten()).load([2, 4])) == memory[2:, 4:]).all()


@pytest.mark.parametrize(
    "wrong, said",
    [
        (lambda p: blocks(p, (4,), (6, 1)), "1 values for 2 axes"),
        (lambda p: blocks(p, (4, 6), (6, 1), block=(2, 3)), "no power of two"),
        (lambda p: tl.make_block_ptr(p, (4, 6), (6, 1), (0, 0), (2, 4), (0, 0)), "each axis once"),
        (lambda p: blocks(p + tl.arange(0, 2), (4, 6), (6, 1)), "a single pointer"),
        (lambda p: tl.advance(p, (1,)), "tl.make_block_ptr"),
        (lambda p: tl.load(blocks(p, (4, 6), (6, 1)), mask=True), "masked with boundary_check"),
        (lambda p: tl.load(blocks(p, (4, 6), (6, 1)), boundary_check=(2,)), "axis 2"),
        (lambda p: tl.store(blocks(p, (4, 6), (6, 1)), 1, mask=True), "masked with boundary"),
        (lambda p: tl.make_tensor_descriptor(p, [4, 8], [8, 2], [2, 4]), "last stride is 2"),
        (lambda p: tl.make_tensor_descriptor(p, [4, 8], [8, 1], [2, 2]), "at least 16 bytes"),
        (lambda p: tl.make_tensor_descriptor(p, [4, 8], [8, 1], [2, 4], "one"), "'one'"),
        (lambda p: tl.make_tensor_descriptor(p, [1] * 6, [1] * 6, [4] * 6), "6 axes"),
    ],
)
def test_bad_blocks(wrong, said):
    with writing() as b, pytest.raises(Invalid, match=said):
        wrong(pointer(b, tl.float32))


def test_descriptors_read_zero_outside_and_write_inside():
    memory = np.arange(40, dtype=np.float32).reshape(5, 8)
    out = np.zeros_like(memory)
    with running(memory, out) as (p, q):
        rows, columns = tile(5, tl.int32), tile(8, tl.int32)
        source = tl.make_tensor_descriptor(p, [rows, columns], [columns, 1], [4, 4])
        target = tl.make_tensor_descriptor(q, [rows, columns], [columns, 1], [4, 4])
        assert source.dtype == tl.float32 and tuple(source.block_shape) == (4, 4)
        x = source.load([4, tile(4, tl.int32)])
        assert array(x)[0].tolist() == memory[4, 4:].tolist() and (array(x)[1:] == 0).all()
        assert (array(source.load([-2, 0]))[:2] == 0).all()
        target.store([4, 4], x + 1)
        tl.store_tensor_descriptor(target, [0, 0], tl.load_tensor_descriptor(source, [0, 0]))
        with pytest.raises(Invalid, match=r"shape \[4, 4\]"):
            target.store([0, 0], tl.full((4, 2), 0, tl.float32))
        with pytest.raises(Invalid, match="1 values for 2 axes"):
            source.load([0])
    assert (out[4, 4:] == memory[4, 4:] + 1).all() and (out[:4, :4] == memory[:4, :4]).all()
    assert (out[:4, 4:] == 0).all() and (out[4, :4] == 0).all()


def test_descriptors_with_nan_around():
    memory = np.ones((2, 4), np.float32)
    whole = np.ones((2, 4), np.int32)
    with running(memory, whole) as (p, q):
        d = tl.make_tensor_descriptor(p, [2, 4], [4, 1], [4, 4], padding_option="nan")
        assert np.isnan(array(d.load([1, 0]))).sum() == 12
        with pytest.raises(Invalid, match="nan around integers"):
            tl.make_tensor_descriptor(q, [2, 4], [4, 1], [4, 4], padding_option="nan")


@pytest.mark.parametrize("kind, wanted", [("add", 17), ("max", 12), ("min", 5), ("or", 13)])
def test_atomics_through_descriptors(kind, wanted):
    memory = np.full((2, 6), 12, np.int32)
    with running(memory) as (p,):
        d = tl.make_tensor_descriptor(p, [2, 6], [6, 1], [2, 4])
        getattr(d, f"atomic_{kind}")([0, 4], tl.full((2, 4), 5, tl.int32))
    assert (memory[:, 4:] == wanted).all() and (memory[:, :4] == 12).all()
    with writing() as b:
        d = tl.make_tensor_descriptor(pointer(b, tl.float64), [2, 6], [6, 1], [2, 4])
        with pytest.raises(Invalid, match=f"atomic_{kind} on fp64"):
            getattr(d, f"atomic_{kind}")([0, 4], tl.full((2, 4), 5, tl.float64))


def test_rows_by_number():
    memory = np.arange(64, dtype=np.float32).reshape(8, 8)
    out = np.zeros_like(memory)
    with running(memory, out) as (p, q):
        d = tl.make_tensor_descriptor(p, [8, 8], [8, 1], [1, 4])
        e = tl.make_tensor_descriptor(q, [8, 8], [8, 1], [1, 4])
        rows = tile([7, 0, 3, 9], tl.int32)
        x = d.gather(rows, 2)
        assert array(x)[:3].tolist() == memory[[7, 0, 3], 2:6].tolist()
        assert (array(x)[3] == 0).all()
        e.scatter(x, rows, 4)
    assert (out[[7, 0, 3], 4:] == memory[[7, 0, 3], 2:6]).all() and out[1].sum() == 0


def test_descriptors_of_the_host():
    memory = np.zeros((4, 8), np.float32)
    d = tl.TensorDescriptor.from_tensor(memory, [2, 4])
    assert list(d.strides) == [8, 1] and list(d.shape) == [4, 8]
    with running(memory) as (p,):
        numbers = [tile(v, tl.int32) for v in (4, 8, 8, 1)]
        made = d.maker()([p, *numbers])
        assert array(made.load([0, 0])).shape == (2, 4)
    for bad, said in [
        ({"strides": [8]}, "other strides or blocks"),
        ({"strides": [1, 8]}, "not contiguous"),
        ({"shape": [0, 8]}, "empty array"),
        ({"padding": "one"}, "padding='one'"),
        ({"block_shape": [2, 3]}, "no power of two"),
    ]:
        given: dict[str, Any] = {"base": memory, "shape": [4, 8], "strides": [8, 1]}
        given |= {"block_shape": [2, 4], **bad}
        with pytest.raises(Invalid, match=said):
            tl.TensorDescriptor(**given)
