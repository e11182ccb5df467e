"""Every family of ATen operators, through definitions, against eager."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.capture.running import captured, check

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, dtype=torch.float64).to(dtype)
    return torch.randint(0 if dtype is torch.uint8 else -9, 10, shape, dtype=dtype)


def every(functions: dict[str, Callable]) -> Callable:
    """One program with a result per function: a capture takes longer than what it captures."""
    return lambda *args: {name: function(*args) for name, function in functions.items()}


def named(module: Any, names: str) -> dict[str, Callable]:
    return {name: getattr(module, name) for name in names.split()}


UNARY = {
    "any number": (
        "exp exp2 expm1 sin cos tan atan sinh cosh tanh asinh erf erfc sigmoid reciprocal neg abs"
        " sign floor ceil trunc round square isnan isinf isfinite logical_not sgn relu positive"
        " frac deg2rad"
    ),
    "positive numbers": "log log2 log10 log1p sqrt rsqrt lgamma digamma acosh",
    "the unit interval": "asin acos atanh erfinv",
}


@pytest.mark.parametrize("where", UNARY)
def test_unary(where: str) -> None:
    x = {
        "any number": numbers(3, 5),
        "positive numbers": numbers(4, 3).abs() + 1.1,
        "the unit interval": torch.rand(7) * 1.8 - 0.9,
    }[where]
    check(every(named(torch, UNARY[where])), x)


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool))
def test_arithmetic_in_every_dtype(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        plain = (x + y, x * y, x == y, x < y, torch.maximum(x, y), torch.where(x > y, x, y))
        return plain if dtype is torch.bool else (*plain, x - y, -x, x.clamp(0, 3), x.sum(0))

    check(program, numbers(3, 4, dtype=dtype), numbers(4, dtype=dtype))


@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool))
def test_numbers_with_tensors(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        return x + 1, x * 2.5, x / 3, 1.1 + x, x > 0.3, x == 1, x.float() ** 2

    check(program, numbers(6, dtype=dtype))


def test_promotion_of_mixed_dtypes() -> None:
    def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> Any:
        return a + b, a * c, b / c, a + d, b == a, torch.where(c > 0, a, b), torch.cat([b, c])

    check(
        program,
        numbers(5),
        numbers(5, dtype=torch.int32),
        numbers(5, dtype=torch.uint8),
        torch.tensor(2.5, dtype=torch.float64),
    )


@pytest.mark.parametrize("dtype", (torch.float32, torch.int32, torch.int64))
def test_division(dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return (
            x / y,
            torch.div(x, y, rounding_mode="floor"),
            torch.div(x, y, rounding_mode="trunc"),
            x % y,
            torch.fmod(x, y),
            x // 3,
        )

    y = numbers(40, dtype=dtype)
    check(program, numbers(40, dtype=dtype), torch.where(y == 0, torch.ones_like(y), y))


def test_powers() -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> Any:
        return x**2, x**3, x**0.5, x**-1, x**-0.5, x**2.2, x**x, 2**x, n**2, n**3, x**0

    check(program, torch.rand(9) + 0.2, numbers(9, dtype=torch.int64), tolerance=1e-5)


def test_bits() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x & y, x | y, x ^ y, ~x, x << 2, x >> 1

    check(program, numbers(8, dtype=torch.int32), numbers(8, dtype=torch.int32))


VIEWS: dict[str, Callable] = {
    "reshape": lambda x: x.reshape(4, 6),
    "permute": lambda x: x.permute(2, 0, 1),
    "transpose": lambda x: x.transpose(0, 2),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "expand": lambda x: x[:1].expand(5, 3, 4),
    "slice": lambda x: x[:, 1:, ::2],
    "negative slice": lambda x: x[-1:, :-1],
    "select": lambda x: x[1, :, -1],
    "flip": lambda x: x.flip(0, 2),
    "roll": lambda x: x.roll((1, -2), (0, 2)),
    "roll flat": lambda x: x.roll(5),
    "repeat": lambda x: x.repeat(2, 1, 3),
    "split": lambda x: x.split([1, 2], 1),
    "chunk": lambda x: x.chunk(2, 2),
    "unbind": lambda x: x.unbind(1),
    "cat": lambda x: torch.cat([x, x * 2], 1),
    "stack": lambda x: torch.stack([x, -x], -1),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
    "crop": lambda x: F.pad(x, (-1, 0)),
    "reflect": lambda x: F.pad(x, (1, 2), mode="reflect"),
    "diagonal": lambda x: x.diagonal(1, 1, 2),
    "unfold": lambda x: x.unfold(2, 2, 1),
    "as_strided": lambda x: x.as_strided((2, 3), (1, 4), 2),
    "tril": lambda x: x.tril(1),
    "triu": lambda x: x.triu(-1),
    "movedim": lambda x: x.movedim(0, 2),
    "tile": lambda x: x.tile(2, 2),
    "rot90": lambda x: x.rot90(1, (1, 2)),
    "pixel shuffle": lambda x: F.pixel_shuffle(x.repeat(2, 1, 1)[None], 2),
    "meshgrid": lambda x: torch.meshgrid(x[0, 0], x[0, :, 0], indexing="ij"),
    "kron": lambda x: torch.kron(x[0], x[1]),
}


def test_views() -> None:
    check(every(VIEWS), numbers(2, 3, 4))


def test_scatters_into_slices() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = x.slice_scatter(y[:, :2], 1, 1, 3)
        b = x.select_scatter(y[0], 0, -1)
        c = x.diagonal_scatter(y[0, :3], 1)
        d = x.as_strided_scatter(y[0, :2], (2,), (3,), 1)
        return a, b, c, d

    check(program, numbers(3, 4), numbers(3, 4))


CREATION: dict[str, Callable] = {
    "full": lambda x: torch.full((2, 3), 1.5),
    "like": lambda x: (torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 7)),
    "arange": lambda x: (torch.arange(5), torch.arange(1, 9, 3), torch.arange(0, 1, 0.3)),
    "linspace": lambda x: torch.linspace(-1, 1, 7),
    "eye": lambda x: torch.eye(3, 4) + 0 * x.sum(),
    "literal": lambda x: torch.tensor([1.0, 2.0, 4.0]) * x[0, :3],
    "tril_indices": lambda x: torch.tril_indices(3, 3) + 0,
}


def test_creation() -> None:
    check(every(CREATION), numbers(3, 4))


REDUCTIONS: dict[str, Callable] = {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, 2), keepdim=True)),
    "mean": lambda x: (x.mean(), x.mean(-1, keepdim=True)),
    "prod": lambda x: (x.prod(), x.prod(1)),
    "extremes": lambda x: (x.amax((0, 1)), x.amin(), x.max(), x.min(2), x.max(1, keepdim=True)),
    "arguments": lambda x: (x.argmax(), x.argmin(1), x.argmax(2, keepdim=True)),
    "truth": lambda x: ((x > 0).any(), (x > 0).all(1), (x > -9).all(), x.any(2)),
    "variance": lambda x: (x.var(), x.std(1), torch.var_mean(x, 2, correction=0)),
    "norms": lambda x: (x.norm(), x.norm(1, 2), torch.linalg.vector_norm(x, float("inf"), 1)),
    "logsumexp": lambda x: x.logsumexp((1, 2)),
    "cumulative": lambda x: (x.cumsum(1), x.cumprod(2), x.logcumsumexp(0), x.cummax(2)),
    "sort": lambda x: (x.sort(1), x.sort(2, descending=True), x.argsort(0)),
    "topk": lambda x: x.topk(2, -1),
    "kth": lambda x: x.kthvalue(2, 1),
    "median": lambda x: (x.median(), x.median(1), x.nanmedian(2)),
    "count": lambda x: (x > 0).count_nonzero(1),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
    "histc": lambda x: x.histc(5, -1, 1),
    "cdist": lambda x: torch.cdist(x, x + 1),
}


def test_reductions() -> None:
    check(every(REDUCTIONS), numbers(3, 4, 5), tolerance=1e-5)


@pytest.mark.parametrize("dtype", (torch.int32, torch.uint8, torch.bool, torch.bfloat16))
def test_sums_in_other_dtypes(dtype: torch.dtype) -> None:
    check(lambda x: (x.sum(), x.sum(1), x.cumsum(0)), numbers(4, 6, dtype=dtype))


INDEXING: dict[str, Callable] = {
    "gather": lambda x, i: x.gather(1, i),
    "index_select": lambda x, i: x.index_select(1, i[0]),
    "advanced": lambda x, i: (x[i[:, 0]], x[:, i], x[i[:, 0], i[:, 1]], x[i[:3, :1], :, None]),
    "negative": lambda x, i: x[-i[0] - 1],
    "embedding": lambda x, i: F.embedding(i, x),
    "take": lambda x, i: x.take(i),
    "scatter": lambda x, i: x.scatter(1, i, x * 2),
    "scatter value": lambda x, i: x.scatter(1, i, 7.0),
    "scatter add": lambda x, i: x.scatter_add(0, i, x),
    "scatter reduce": lambda x, i: (
        x.scatter_reduce(1, i, x + 1, "amax"),
        x.scatter_reduce(1, i, x + 1, "mean", include_self=False),
        x.scatter_reduce(1, i, x + 1, "prod"),
    ),
    "index_put": lambda x, i: x.index_put((i[:, 0],), x[:1], accumulate=True),
    "index_add": lambda x, i: x.index_add(1, i[0], x[:, :2], alpha=2),
    "index_copy": lambda x, i: x.index_copy(0, torch.tensor([2, 0]), x[:2] + 1),
    "index_fill": lambda x, i: x.index_fill(0, torch.tensor([1]), 4.0),
    "masked_fill": lambda x, i: x.masked_fill(x > 0, -1.0),
    "masked_scatter": lambda x, i: x.masked_scatter(x > 0, x * 10),
    "mask put": lambda x, i: x.index_put((x > 0,), torch.tensor(5.0)),
    "one_hot": lambda x, i: F.one_hot(i, 3),
    "searchsorted": lambda x, i: (
        torch.searchsorted(x.sort(1)[0], x + 0.1),
        torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]), right=True),
    ),
    "put": lambda x, i: x.put(i[0], x[0, :2]),
}


def test_indexing() -> None:
    check(every(INDEXING), numbers(3, 3), torch.tensor([[0, 2], [1, 0], [2, 1]]))


def test_products() -> None:
    def program(a: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> Any:
        return (
            a[0] @ b[0],
            a @ b,
            torch.addmm(v, a[0], b[0]),
            torch.addmm(v, a[0], b[0], beta=0.5, alpha=2),
            a[0] @ b[0] @ v,
            torch.einsum("bij,bjk->ik", a, b),
            torch.outer(v, v),
            v.dot(v),
            torch.baddbmm(a @ b, a, b, alpha=0.3),
        )

    check(program, numbers(2, 3, 4), numbers(2, 4, 5), numbers(5), tolerance=1e-5)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float64, torch.int64))
def test_products_in_other_dtypes(dtype: torch.dtype) -> None:
    tolerance = 0.05 if dtype in (torch.float16, torch.bfloat16) else None
    check(
        lambda a, b: a @ b,
        numbers(3, 4, dtype=dtype),
        numbers(4, 2, dtype=dtype),
        tolerance=tolerance,
    )


CONVOLUTIONS: dict[str, Callable] = {
    "plain": lambda x, w, b: F.conv2d(x, w, b),
    "strided": lambda x, w, b: F.conv2d(x, w, stride=(2, 1), padding=(1, 2)),
    "dilated": lambda x, w, b: F.conv2d(x, w, b, dilation=2, padding=2),
    "grouped": lambda x, w, b: F.conv2d(x, w[:, :2], b, groups=2),
    "no batch": lambda x, w, b: F.conv2d(x[0], w, b),
    "transposed": lambda x, w, b: F.conv_transpose2d(x, w[:4], stride=2, output_padding=1),
    "one axis": lambda x, w, b: F.conv1d(x[:, :, 0], w[:, :, 0], b),
    "three axes": lambda x, w, b: F.conv3d(x[:, :, None], w[:, :, None], b),
    "max pool": lambda x, w, b: F.max_pool2d(x, 2, return_indices=True),
    "max pool padded": lambda x, w, b: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "average pool": lambda x, w, b: (F.avg_pool2d(x, 2), F.avg_pool2d(x, 3, 2, 1)),
    "adaptive": lambda x, w, b: (F.adaptive_avg_pool2d(x, 3), F.adaptive_max_pool2d(x, (2, 1))),
    "nearest": lambda x, w, b: F.interpolate(x, scale_factor=2),
    "bilinear": lambda x, w, b: F.interpolate(x, (7, 4), mode="bilinear", align_corners=True),
    "bicubic": lambda x, w, b: F.interpolate(x, (7, 4), mode="bicubic"),
    "unfold": lambda x, w, b: F.unfold(x, 2),
    "grid": lambda x, w, b: F.grid_sample(
        x, torch.linspace(-1, 1, 16).reshape(1, 2, 4, 2).expand(2, 2, 4, 2), align_corners=False
    ),
}


def test_convolution_and_pooling() -> None:
    x, w, b = numbers(2, 4, 6, 5), numbers(6, 4, 3, 3), numbers(6)
    check(every(CONVOLUTIONS), x, w, b, tolerance=1e-4)


NORMS: dict[str, Callable] = {
    "softmax": lambda x, w: (x.softmax(-1), x.log_softmax(1), F.softmin(x, 0)),
    "layer": lambda x, w: (F.layer_norm(x, (6,), w, w), F.layer_norm(x, (4, 6))),
    "group": lambda x, w: F.group_norm(x, 2, w[:4], w[:4]),
    "batch": lambda x, w: F.batch_norm(x, w[:4], w[:4].abs() + 1, w[:4], w[:4]),
    "batch training": lambda x, w: F.batch_norm(x, None, None, training=True),
    "instance": lambda x, w: F.instance_norm(x),
    "rms": lambda x, w: F.rms_norm(x, (6,), w),
    "normalize": lambda x, w: F.normalize(x, dim=1),
    "local response": lambda x, w: F.local_response_norm(x, 3),
}


def test_normalisation() -> None:
    check(every(NORMS), numbers(3, 4, 6), numbers(6), tolerance=1e-5)


ACTIVATIONS = (
    "silu gelu elu leaky_relu hardtanh relu6 selu celu mish softplus hardswish hardsigmoid"
    " logsigmoid softshrink hardshrink tanhshrink softsign glu"
)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_activations(dtype: torch.dtype) -> None:
    check(every(named(F, ACTIVATIONS)), numbers(4, 6, dtype=dtype) * 3)


def test_losses() -> None:
    names = "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy"
    check(every(named(F, names)), torch.rand(4, 5) * 0.8 + 0.1, torch.rand(4, 5) * 0.8 + 0.1)


def test_classification_losses() -> None:
    def program(x: torch.Tensor, t: torch.Tensor) -> Any:
        smooth = F.cross_entropy(x, t, label_smoothing=0.1)
        return F.cross_entropy(x, t), smooth, F.nll_loss(x, t), F.multi_margin_loss(x, t)

    check(program, numbers(4, 5), torch.tensor([1, 0, 4, 2]), tolerance=1e-5)


@pytest.mark.parametrize("how", ["plain", "causal", "mask", "boolean mask", "grouped", "scaled"])
def test_attention(how: str) -> None:
    q, k, v = numbers(2, 4, 5, 8), numbers(2, 4, 7, 8), numbers(2, 4, 7, 8)
    options: dict[str, Any] = {
        "plain": {},
        "causal": {"is_causal": True},
        "mask": {"attn_mask": numbers(5, 7)},
        "boolean mask": {"attn_mask": torch.ones(5, 7).tril(2) > 0},
        "grouped": {"enable_gqa": True},
        "scaled": {"scale": 0.2},
    }[how]
    if how == "grouped":
        k, v = k[:, :2], v[:, :2]
    check(lambda *qkv: F.scaled_dot_product_attention(*qkv, **options), q, k, v, tolerance=1e-5)


def test_cond() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda t: t.sin() + 1, lambda t: t * 2, (x,))

    check(program, torch.ones(3))
    check(program, -torch.ones(3))


def test_complex_numbers() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = torch.view_as_complex(x)
        w = torch.polar(y.abs(), y)
        product = z * w + 2 - z / w
        return (
            product,
            torch.view_as_real(product),
            product.conj().t(),
            product.abs(),
            product.angle(),
            z.sum(0),
            (z @ z.t()).real,
            z.exp(),
            torch.complex(y, y)[1:],
        )

    check(program, numbers(3, 4, 2), numbers(3, 4), tolerance=1e-5)


def test_complex_inputs_in_every_layout() -> None:
    z = torch.complex(numbers(4, 5), numbers(4, 5))
    check(lambda a, b, c: (a * 2, b + 1j, c.conj() * c), z, z.t(), z[:, ::2], tolerance=1e-5)


def test_an_infinite_real_number_has_no_imaginary_part() -> None:
    # Of rank 0 as of any other: nought times infinity would be no number.
    for infinite in (torch.tensor(float("inf")), torch.full((3,), float("-inf"))):
        check(lambda x: x.to(torch.complex64), infinite)


def test_real_numbers_beside_complex_ones() -> None:
    """Their imaginary part is 0."""
    x, z = numbers(2, 5), torch.complex(numbers(2, 5), numbers(2, 5))
    check(lambda x, z: torch.cat([x, z]), x, z)
    check(lambda x, z: torch.cat([z, x], 1), x.double(), z)
    check(lambda x, z: torch.block_diag(x, z), x.double(), z)
    check(lambda x, z: torch.slice_scatter(z, x[:1], 0, 1), x, z)
    check(lambda x, z: torch.select_scatter(z, x[0], 0, 1), x, z)
    check(lambda x, z: torch.stack([z, x], 1), x, z)


def test_complex_mutation() -> None:
    check(lambda z: z.mul_(2j), torch.complex(numbers(3, 2), numbers(3, 2)))


@pytest.mark.parametrize("n", [2, 4, 7])
def test_fourier(n: int) -> None:
    def program(x: torch.Tensor) -> Any:
        z = torch.fft.fft2(x)
        return z, torch.fft.ifft(z), torch.fft.rfft(x), torch.fft.irfftn(z, norm="ortho")

    check(program, numbers(3, n), tolerance=1e-5)


def test_short_time_fourier() -> None:
    """Frames are added up by one operator, not one after the other."""

    def program(x: torch.Tensor) -> Any:
        z = torch.stft(x, 8, 2, window=torch.ones(8), return_complex=True)
        return torch.istft(z, 8, 2, window=torch.ones(8))

    using = check(program, numbers(2, 30), tolerance=1e-5)
    (unit,) = using.units
    assert sum(n.op.name == "overlap_add" for n in unit.captured.segments[0].graph.nodes()) == 2


def test_filtered_frames_of_512() -> None:
    """Their last pass of four is taken apart by cases that have no lanes, and by lanes then."""
    window, x = torch.hann_window(512), torch.randn(1, 2048)

    def program(x: torch.Tensor) -> torch.Tensor:
        z = torch.stft(x, 512, 128, window=window, return_complex=True)
        return torch.istft(z * 0.5, 512, 128, window=window)

    with torch.no_grad():
        found = torch.compile(program, backend="tilewright")(x)
        torch.testing.assert_close(found, program(x), atol=1e-5, rtol=1e-5)


SPECIAL = (
    "bessel_j0 bessel_j1 bessel_y0 bessel_y1 modified_bessel_i0 modified_bessel_i1"
    " modified_bessel_k0 modified_bessel_k1 scaled_modified_bessel_k0 scaled_modified_bessel_k1"
    " airy_ai spherical_bessel_j0 i0 i0e i1 i1e erfcx log_ndtr ndtr"
).split()
POSITIVE = {n for n in SPECIAL if "bessel_k" in n or "bessel_y" in n} | {"erfcx"}


@pytest.mark.parametrize("signs", ["positive", "both"])
def test_special_functions(signs: str) -> None:
    """Against eager in double precision, which is nearer the truth than eager in single."""
    names = [n for n in SPECIAL if (n in POSITIVE) == (signs == "positive")]
    x = torch.cat([torch.linspace(0.01, 20, 300), torch.linspace(0.001, 0.999, 50)])
    x = x if signs == "positive" else torch.cat([x, -x])
    program = every({n: getattr(torch.special, n) for n in names})
    with torch.no_grad():
        ours, exact = captured(program, x), program(x.double())
    for name in names:
        # torch's own series for these are good to about six digits.
        torch.testing.assert_close(
            ours[name].double(),
            exact[name],
            rtol=2e-5,
            atol=4e-6,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def test_the_inverse_of_the_normal_distribution() -> None:
    x = torch.cat([torch.rand(300), torch.tensor([0.0, 1.0, 1e-30, 1e-10, 0.5, -0.5, 1.5])])
    check(torch.special.ndtri, x, tolerance=1e-5)


def test_polygamma() -> None:
    check(lambda x: [torch.polygamma(k, x) for k in range(4)], numbers(50) * 3, tolerance=1e-4)


def test_small_matrices() -> None:
    def program(a: torch.Tensor, b: torch.Tensor, s: torch.Tensor) -> Any:
        low = torch.linalg.cholesky(s)
        return {
            "inv": torch.linalg.inv(a),
            "solve": torch.linalg.solve(a, b),
            "one vector": torch.linalg.solve(a[0], b[0, :, 0]),
            "det": torch.linalg.det(a),
            "slogdet": torch.linalg.slogdet(a),
            "lu": torch.linalg.lu(a[:, :, :2]),
            "factor": torch.linalg.lu_factor(a),
            "from factor": torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b),
            "cholesky": low,
            "upper": torch.linalg.cholesky(s, upper=True),
            "from cholesky": torch.cholesky_solve(b, low),
            "triangle": torch.linalg.solve_triangular(a.triu(), b, upper=True),
            "from the right": torch.linalg.solve_triangular(low, b.mT, upper=False, left=False),
        }

    a = numbers(2, 3, 3) + 3 * torch.eye(3)
    check(program, a, numbers(2, 3, 2), a @ a.mT, tolerance=1e-4)


def test_a_singular_matrix_raises_as_in_eager() -> None:
    with pytest.raises(RuntimeError, match="singular"):
        captured(torch.linalg.inv, torch.zeros(3, 3))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_an_embedding(mode: str) -> None:
    """Natively, also empty ones; an index out of range is eager's error."""
    weight, at = numbers(10, 4), torch.tensor([1, 2, 4, 5, 4, 3, 2, 9])

    def program(at: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(at, weight, starts, mode=mode, padding_idx=2)

    starts = torch.tensor([0, 4, 4, 7, 8])
    check(program, at, starts)
    for wrong in ((at + 5, starts), (at, starts + 1)):
        with pytest.raises(RuntimeError, match=r"Expected i < index_size|offsets\[0\] has to be 0"):
            captured(program, *wrong)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segments(reduce: str) -> None:
    x, lengths = numbers(7, 3), torch.tensor([2, 0, 4, 1])

    def program(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        ends = torch.tensor([1, 3, 3, 6])  # the first row and the last are of no segment
        whole = torch.segment_reduce(x, reduce, lengths=lengths)
        each = torch.stack([lengths, lengths.flip(0), lengths])
        rows = torch.segment_reduce(x.t() * 2, reduce, lengths=each, axis=1)
        return whole, torch.segment_reduce(x, reduce, offsets=ends, initial=2.0), rows

    check(program, x, lengths)
    with pytest.raises(RuntimeError, match=r"to sum to data\.size"):
        captured(program, x, lengths + 1)
