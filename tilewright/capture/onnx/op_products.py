"""Products of matrices and their generalisation."""

from __future__ import annotations

from functools import reduce

from tilewright import ops
from tilewright.capture.onnx.context import Context, static, translation
from tilewright.capture.onnx.quantised import rounded_to
from tilewright.ir.node import Node
from tilewright.ir.types import f32, i32


def matrix_product(x: Node, y: Node) -> Node:
    """numpy's matmul: a vector is a row or a column, whose axis is left out again."""
    row, column = x.rank == 1, y.rank == 1
    z = ops.matmul(ops.unsqueeze(x, 0) if row else x, ops.unsqueeze(y, 1) if column else y)
    shape = list(z.shape)
    if column:
        del shape[-1]
    if row:
        del shape[-1 if column else -2]
    return ops.reshape(z, shape)


@translation("MatMul")
def matmul(c: Context, x: Node, y: Node) -> Node:
    return matrix_product(x, y)


@translation("Gemm")
def gemm(c: Context, a: Node, b: Node, bias: Node | None = None) -> Node:
    a = ops.permute(a, (1, 0)) if c.get("transA", 0) else a
    b = ops.permute(b, (1, 0)) if c.get("transB", 0) else b
    out = _times(ops.matmul(a, b), c.get("alpha", 1.0))
    return out if bias is None else ops.add(out, _times(bias, c.get("beta", 1.0)))


def _times(x: Node, factor: float) -> Node:
    if factor == 1.0:
        return x
    if x.dtype.is_float:
        return ops.mul(x, ops.number(factor, x.dtype))
    return ops.cast(ops.mul(ops.cast(x, f32), ops.number(factor, f32)), x.dtype)


def centred(x: Node, zero: Node | None, axis: int | None = None) -> Node:
    """Quantised numbers less their zero point, in 32 bits; `axis` has one zero point each."""
    wide = ops.cast(x, i32)
    if zero is None:
        return wide
    point = ops.cast(zero, i32)
    if zero.rank == 1 and axis is not None:
        point = ops.reshape(point, [zero.shape[0] if k == axis else 1 for k in range(x.rank)])
    elif zero.rank <= 1:
        point = ops.reshape(point, ())
    return ops.sub(wide, point)


@translation("MatMulInteger")
def matmul_integer(
    c: Context, a: Node, b: Node, a_zero: Node | None = None, b_zero: Node | None = None
) -> Node:
    rows, columns = _rows(a, a_zero), _columns(b, b_zero)
    return matrix_product(centred(a, a_zero, rows), centred(b, b_zero, columns))


def _rows(a: Node, zero: Node | None) -> int | None:
    many = zero is not None and zero.rank == 1 and zero.shape[0] != 1
    return a.rank - 2 if many else None


def _columns(b: Node, zero: Node | None) -> int | None:
    many = zero is not None and zero.rank == 1 and zero.shape[0] != 1
    return b.rank - 1 if many else None


@translation("QLinearMatMul")
def qlinear_matmul(
    c: Context,
    a: Node,
    a_scale: Node,
    a_zero: Node,
    b: Node,
    b_scale: Node,
    b_zero: Node,
    y_scale: Node,
    y_zero: Node,
) -> Node:
    exact = matrix_product(
        centred(a, a_zero, _rows(a, a_zero)), centred(b, b_zero, _columns(b, b_zero))
    )
    rank = exact.rank
    scales = (_scale(a_scale, rank, rank - 2), _scale(b_scale, rank, rank - 1))
    out = ops.mul(ops.cast(exact, f32), ops.mul(*scales))
    return rounded_to(ops.div(out, _scale(y_scale, rank, rank - 2)), y_zero)


def _scale(s: Node, rank: int, axis: int) -> Node:
    wide = ops.cast(s, f32)
    if s.rank == 1 and s.shape[0] != 1:
        return ops.reshape(wide, [s.shape[0] if k == axis else 1 for k in range(rank)])
    return ops.reshape(wide, ()) if s.rank <= 1 else wide


# ---- einsum


@translation("Einsum")
def einsum(c: Context, *xs: Node) -> Node:
    equation = c.get("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(xs):
        c.refuse(f"{equation!r} has {len(terms)} terms for {len(xs)} operands")
    # An ellipsis stands for letters that no equation uses, the last of them for the last axis.
    more = max(
        (x.rank - len(t.replace("...", "")) for t, x in zip(terms, xs) if "..." in t), default=0
    )
    spare = [chr(0x391 + k) for k in range(more)]

    def spelled(term: str, rank: int) -> str:
        return term.replace(
            "...", "".join(spare[more - (rank - len(term) + 3) :]) if "..." in term else ""
        )

    names = [spelled(t, x.rank) for t, x in zip(terms, xs)]
    if arrow:
        out = right.replace("...", "".join(spare))
    else:
        once = sorted(ch for ch in set(left) - set(",.") if left.count(ch) == 1)
        out = "".join(spare) + "".join(once)
    terms_left = [_without_repeats(n, x) for n, x in zip(names, xs)]
    while len(terms_left) > 1:
        (n1, x1), (n2, x2), *rest = terms_left
        wanted = set(out).union(*(n for n, _ in rest))
        terms_left = [_pair(n1, x1, n2, x2, wanted), *rest]
    name, x = terms_left[0]
    gone = [k for k, ch in enumerate(name) if ch not in out]
    if gone:
        x, name = ops.sum(x, gone), "".join(ch for ch in name if ch in out)
    return ops.permute(x, [name.index(ch) for ch in out])


def _without_repeats(name: str, x: Node) -> tuple[str, Node]:
    """A letter twice is a diagonal, which becomes the last axis."""
    for ch in dict.fromkeys(name):
        while name.count(ch) > 1:
            a = name.index(ch)
            b = name.index(ch, a + 1)
            x = ops.diagonal(x, 0, a, b)
            name = "".join(k for i, k in enumerate(name) if i not in (a, b)) + ch
    return name, x


def _pair(n1: str, x1: Node, n2: str, x2: Node, wanted: set[str]) -> tuple[str, Node]:
    """Two terms as one, by a product of matrices: letters of both that stay are its batch."""
    for k in range(2):  # letters of one term alone that nobody wants are summed first
        name, x, other = (n1, x1, n2) if k == 0 else (n2, x2, n1)
        gone = [i for i, ch in enumerate(name) if ch not in other and ch not in wanted]
        if gone:
            x, name = ops.sum(x, gone), "".join(ch for i, ch in enumerate(name) if i not in gone)
        n1, x1, n2, x2 = (name, x, n2, x2) if k == 0 else (n1, x1, name, x)
    batch = [ch for ch in n1 if ch in n2 and ch in wanted]
    inner = [ch for ch in n1 if ch in n2 and ch not in wanted]
    rows = [ch for ch in n1 if ch not in n2]
    columns = [ch for ch in n2 if ch not in n1]
    size = {ch: d for n, x in ((n1, x1), (n2, x2)) for ch, d in zip(n, x.shape) if d != 1}

    def dims(letters: list[str]) -> list:
        return [size.get(ch, 1) for ch in letters]

    def count(letters: list[str]):
        return reduce(lambda a, b: a * b, dims(letters), 1)

    def arranged(name: str, x: Node, groups: list[list[str]]) -> Node:
        order = [ch for g in groups for ch in g]
        x = ops.expand(ops.permute(x, [name.index(ch) for ch in order]), dims(order))
        return ops.reshape(x, [*dims(batch), *(count(g) for g in groups[1:])])

    p = arranged(n1, x1, [batch, rows, inner])
    q = arranged(n2, x2, [batch, inner, columns])
    out = ops.reshape(ops.matmul(p, q), [*dims(batch), *dims(rows), *dims(columns)])
    return "".join(batch + rows + columns), out


@translation("Det")
def det(c: Context, x: Node) -> Node:
    """By cofactors of the first column, for small matrices."""
    size = static(x.shape[-2:], "Det")[0]
    if size > 4:
        c.refuse(f"determinants of {size} by {size} matrices have no native form")
    return _det(x, size)


def _det(x: Node, size: int) -> Node:
    lead = x.shape[:-2]
    if size == 1:
        return ops.reshape(x, lead)
    column, rest = ops.split(x, [1, size - 1], x.rank - 1)
    total: Node | None = None
    for k in range(size):
        factor = ops.reshape(ops.slice(column, x.rank - 2, k, k + 1), lead)
        rows = [ops.slice(rest, x.rank - 2, a, b) for a, b in ((0, k), (k + 1, size)) if a < b]
        term = ops.mul(factor, _det(ops.concat(rows, x.rank - 2), size - 1))
        total = term if total is None else (ops.sub if k % 2 else ops.add)(total, term)
    assert total is not None
    return total
