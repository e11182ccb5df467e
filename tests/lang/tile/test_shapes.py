"""Making tiles and changing their shapes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.lang.tile.values import array, given, pointer, running, tile, writing
from tilewright.base.errors import Invalid
from tilewright.lang.tile.language import core as tl


def test_arange():
    with running():
        assert array(tl.arange(4, tl.constexpr(8))).tolist() == [4, 5, 6, 7]
        assert tl.arange(0, 1).dtype == tl.int32
        for low, high, said in [
            (0, 12, "12 elements, which is no power of two"),
            (4, 4, "is empty"),
            (0, 2**21, "more than 1048576"),
            (2**31, 2**31 + 2, "does not fit int32"),
        ]:
            with pytest.raises(Invalid, match=said):
                tl.arange(low, high)
        with pytest.raises(Invalid, match="the end is int32, which is not known"):
            tl.arange(0, tl.program_id(0))
    with pytest.raises(Invalid) as error, running():
        tl.arange(3, 12)
    assert "arange(3, 19) and a mask: x < 12" in str(error.value)


def test_full():
    with running():
        assert array(tl.full((2, 2), 7, tl.int8)).tolist() == [[7, 7], [7, 7]]
        assert array(tl.full([2], -1, tl.uint8)).tolist() == [255, 255]
        assert array(tl.full([tl.constexpr(2)], 1, tl.float16)).dtype == np.float16
        assert array(tl.full((2,), tile(1.5, tl.float32), tl.int32)).tolist() == [1, 1]
        assert tl.full((), 3, tl.int32).handle.shape == ()
        with pytest.raises(Invalid, match=r"1\.5 as int32"):
            tl.full((2,), 1.5, tl.int32)
        with pytest.raises(Invalid, match="is no element type"):
            tl.full((2,), 1, "float")
        with pytest.raises(Invalid, match="a single number"):
            tl.full((2,), tile([1, 2], tl.int32), tl.int32)


def test_new_axes():
    with running():
        x = tile([1, 2], tl.int32)
        assert x[:, None].handle.shape == (2, 1) and x[None, :].handle.shape == (1, 2)
        assert x[None, :, None].handle.shape == (1, 2, 1)
        assert tl.expand_dims(x, (0, -1)).handle.shape == (1, 2, 1)
        assert tl.expand_dims(5, 0).handle.shape == (1,) and x.expand_dims(1).handle.shape == (2, 1)
        with pytest.raises(Invalid, match="unsupported tensor index"):
            x[0]
        with pytest.raises(Invalid, match="unsupported tensor index"):
            x[1:]
        with pytest.raises(Invalid, match="duplicate axes"):
            tl.expand_dims(x, (0, -3))
        with pytest.raises(Invalid, match="invalid axis 2"):
            tl.expand_dims(x, 2)


def test_the_shape_is_constant():
    with running():
        x = tile(np.zeros((2, 4)), tl.float32)
        assert [s.value for s in x.shape] == [2, 4] and x.numel.value == 8
        rows, columns = x.shape
        assert isinstance(rows, tl.constexpr) and (rows * columns).value == 8
        assert x.type == tl.block_type(tl.float32, (2, 4)) and x.shape[1] == 4


def test_broadcast():
    with running():
        x = tile([[1], [2]], tl.int32)
        assert array(tl.broadcast_to(x, 2, 2)).tolist() == [[1, 1], [2, 2]]
        assert array(x.broadcast_to((2, 2))).tolist() == [[1, 1], [2, 2]]
        assert array(tl.broadcast_to(7, [2])).tolist() == [7, 7]
        a, b = tl.broadcast(x, tile([5, 6], tl.int32))
        assert array(a).tolist() == [[1, 1], [2, 2]] and array(b).tolist() == [[5, 6], [5, 6]]
        with pytest.raises(Invalid, match="axis 0 has 2 elements, not 4"):
            tl.broadcast_to(x, 4, 2)
        with pytest.raises(Invalid, match="2 axes and cannot become"):
            tl.broadcast_to(x, 2)


def test_numbers_are_constants_of_the_whole_tile():
    with writing() as b:
        tl.broadcast_to(7, [4, 8])
        assert str(given(b, tl.float32, 4, 8) * 2) == "fp32[4, 8]"
    assert all(o.name in ("const", "map") for o in b.block.operations)


def test_orders():
    values = np.arange(8).reshape(2, 2, 2)
    with running():
        x = tile(values, tl.int32)
        assert (array(tl.permute(x, 2, 0, 1)) == values.transpose(2, 0, 1)).all()
        assert (array(x.permute((1, 0, 2))) == values.transpose(1, 0, 2)).all()
        assert (array(tl.trans(x)) == values.swapaxes(1, 2)).all()
        assert (array(tl.trans(x, (2, 1, 0))) == values.T).all()
        assert (array(tile(values[0], tl.int32).T) == values[0].T).all()
        assert tl.permute(x, 0, 1, 2).handle is x.handle
        with pytest.raises(Invalid, match="no order of its axes"):
            tl.permute(x, 0, 1, 1)
        with pytest.raises(Invalid, match="needs two axes"):
            tl.trans(tile([1], tl.int32))
        with pytest.raises(Invalid, match="for two axes"):
            _ = x.T


def test_reshape():
    with running():
        x = tile(np.arange(8), tl.int32)
        assert (array(tl.reshape(x, 2, 4)) == np.arange(8).reshape(2, 4)).all()
        assert x.reshape((4, 2), can_reorder=True).handle.shape == (4, 2)
        assert x.view(8, 1).handle.shape == (8, 1)
        assert tl.reshape(tile([[3]], tl.int32), ()).handle.shape == ()
        assert int(tile([[3]], tl.int32).item()) == 3
        with pytest.raises(Invalid, match=r"8 elements, \[2, 2\] has 4"):
            tl.reshape(x, 2, 2)
        with pytest.raises(Invalid, match="item of int32"):
            x.item()


def test_join_split_and_cat():
    with running():
        a, b = tile([1, 2], tl.int32), tile([3, 4], tl.int32)
        both = tl.join(a, b)
        assert array(both).tolist() == [[1, 3], [2, 4]]
        left, right = tl.split(both)
        assert array(left).tolist() == [1, 2] and array(right).tolist() == [3, 4]
        one, two = a.split()
        assert (int(one), int(two)) == (1, 2) and one.handle.shape == ()
        assert array(tl.join(1, 2)).tolist() == [1, 2]
        assert array(tl.cat(a, b, can_reorder=True)).tolist() == [1, 2, 3, 4]
        square = tile([[1, 2], [3, 4]], tl.int32)
        assert array(tl.cat(square, square, dim=1)).tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]]
        assert array(tl.cat(square, square)).tolist() == [[1, 2], [3, 4], [1, 2], [3, 4]]
        with pytest.raises(Invalid, match="last axis must have two elements"):
            tl.split(tile(np.zeros((2, 4)), tl.int32))
        with pytest.raises(Invalid, match="cast one of them first"):
            tl.join(a, tile([1.0, 2.0], tl.float32))
        with pytest.raises(Invalid, match="tensors of the same shape"):
            tl.cat(a, tile([1, 2, 3, 4], tl.int32))


def test_gather():
    values = np.arange(8).reshape(2, 4)
    index = np.array([[3, 0], [1, 1]])
    with running():
        x, i = tile(values, tl.float32), tile(index, tl.int32)
        wanted = np.take_along_axis(values, index, 1)
        assert (array(tl.gather(x, i, 1)) == wanted).all()
        assert (array(x.gather(i, axis=-1)) == wanted).all()
        with pytest.raises(Invalid, match="only along axis 0"):
            tl.gather(x, i, 0)
        with pytest.raises(Invalid, match="a tile of integers"):
            tl.gather(x, x, 1)


def test_shapes_of_pointers_and_of_pointers_to_constants():
    with writing() as b:
        p = pointer(b, tl.float32)
        const = tl.tensor(p.handle, tl.pointer_type(tl.float32, const=True))
        for start, is_const in ((p, False), (const, True)):
            q = (start + tl.arange(0, 4))[:, None]
            wide = tl.broadcast_to(q, 4, 2)
            assert wide.dtype.is_ptr() and wide.dtype.is_const() == is_const
            assert tl.trans(wide).dtype.is_const() == is_const
