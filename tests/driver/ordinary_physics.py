"""More programs of a new user (see ordinary_table.py): simulations and solvers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.driver.ordinary_table import Ordinary, program

# ---- fields


@program
def waves() -> Ordinary:
    def f(now: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(8):
            near = now.roll(1, 0) + now.roll(-1, 0) + now.roll(1, 1) + now.roll(-1, 1)
            now, before = 1.998 * now - 0.998 * before + 0.2 * (near - 4 * now), now
        return now, before

    return Ordinary(f, (torch.randn(96, 96), torch.randn(96, 96)))


@program
def lattice_of_particles() -> Ordinary:
    """Lattice Boltzmann, nine directions: collisions, then moves."""
    way = torch.tensor(
        [[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1], [1, 1], [-1, 1], [-1, -1], [1, -1]]
    )
    weight = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)[:, None, None]

    def f(x: Tensor, wall: Tensor) -> Tensor:
        for _ in range(4):
            density = x.sum(0)
            speed = torch.einsum("qd,qhw->dhw", way.float(), x) / density
            along = torch.einsum("qd,dhw->qhw", way.float(), speed)
            rest = weight * density * (1 + 3 * along + 4.5 * along**2 - 1.5 * speed.square().sum(0))
            y = x + (rest - x) / 0.6
            y = torch.where(wall, x[[0, 3, 4, 1, 2, 7, 8, 5, 6]], y)
            x = torch.stack([y[q].roll((int(a), int(b)), (0, 1)) for q, (a, b) in enumerate(way)])
        return x

    return Ordinary(f, (torch.rand(9, 48, 64) + 1, torch.rand(48, 64) > 0.9))


@program
def pressure_by_iterations() -> Ordinary:
    """Jacobi's method with slices that are assigned, and what is left."""

    def f(b: Tensor) -> tuple[Tensor, Tensor]:
        p = torch.zeros_like(b)
        for _ in range(10):
            q = p.clone()
            q[1:-1, 1:-1] = (
                p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - b[1:-1, 1:-1]
            ) / 4
            q[0], q[-1], q[:, 0], q[:, -1] = q[1], q[-2], 0, q[:, -2]
            p = q
        inner = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * p[1:-1, 1:-1]
        return p, (inner - b[1:-1, 1:-1]).norm()

    return Ordinary(f, (torch.randn(64, 64),))


@program
def spots_and_stripes() -> Ordinary:
    """Gray-Scott: two substances that react, with a convolution around the edges."""
    kernel = torch.tensor([[0.05, 0.2, 0.05], [0.2, -1, 0.2], [0.05, 0.2, 0.05]]).expand(2, 1, 3, 3)
    rate = torch.tensor([1.0, 0.5])[:, None, None]

    def f(x: Tensor) -> Tensor:
        for _ in range(6):
            near = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), kernel, groups=2)
            a, b = x.unbind(1)
            turned = a * b * b
            gain = torch.stack([0.055 * (1 - a) - turned, turned - 0.117 * b], 1)
            x = x + rate * near + gain
        return x

    return Ordinary(f, (torch.rand(1, 2, 64, 64) * 0.5,))


@program
def vortices() -> Ordinary:
    """A step of a fluid in two dimensions, by transforms."""
    n = 64
    k = torch.fft.fftfreq(n, 1 / n)
    kx, ky = k[:, None], k[None, : n // 2 + 1].abs()
    square = kx**2 + ky**2
    keep = ((kx.abs() < n / 3) & (ky < n / 3)).float()

    def f(w: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(w)
        for _ in range(2):
            stream = spectrum / square.clamp(min=1) * (square > 0)
            u, v = torch.fft.irfft2(1j * ky * stream), torch.fft.irfft2(-1j * kx * stream)
            dx, dy = torch.fft.irfft2(1j * kx * spectrum), torch.fft.irfft2(1j * ky * spectrum)
            moved = torch.fft.rfft2(u * dx + v * dy) * keep
            spectrum = (spectrum - 0.01 * moved) / (1 + 1e-4 * square)
        return torch.fft.irfft2(spectrum)

    return Ordinary(f, (torch.randn(n, n),))


@program
def smoke() -> Ordinary:
    """A density that is carried by a field, looked up where it came from."""

    def f(x: Tensor, flow: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        at = torch.stack(torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij"), -1)
        for _ in range(3):
            p = at - flow
            i, j = p[..., 0].clamp(0, h - 1.001), p[..., 1].clamp(0, w - 1.001)
            a, b = i.floor().long(), j.floor().long()
            s, t = i - a, j - b
            top = x[a, b] * (1 - t) + x[a, b + 1] * t
            x = top * (1 - s) + (x[a + 1, b] * (1 - t) + x[a + 1, b + 1] * t) * s
        return x

    return Ordinary(f, (torch.rand(64, 64), 2 * torch.randn(64, 64, 2)))


@program
def magnets() -> Ordinary:
    """Ising: fields of a chessboard turn, by given random numbers."""

    def f(spin: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        i, j = torch.arange(64)[:, None], torch.arange(64)
        for t in range(4):
            near = sum(spin.roll(s, d) for s in (1, -1) for d in (0, 1))
            gain = 2 * spin * near
            turn = (u[t] < torch.exp(-0.44 * gain)) & ((i + j) % 2 == t % 2)
            spin = torch.where(turn, -spin, spin)
        return spin, spin.mean()

    return Ordinary(f, (torch.randint(0, 2, (64, 64)).float() * 2 - 1, torch.rand(4, 64, 64)))


# ---- particles


@program
def springs() -> Ordinary:
    """Cloth: points joined by springs, Verlet's steps, one that is held."""

    def f(x: Tensor, before: Tensor, ends: Tensor, rest: Tensor) -> Tensor:
        a, b = ends
        fixed = (torch.arange(x.shape[0]) < 20)[:, None]
        for _ in range(4):
            gap = x[b] - x[a]
            size = gap.norm(dim=1, keepdim=True)
            pull = 50 * (size - rest[:, None]) * gap / size.clamp(min=1e-6)
            force = torch.zeros_like(x).index_add_(0, a, pull).index_add_(0, b, -pull)
            force[:, 1] -= 9.8
            x, before = torch.where(fixed, x, 2 * x - before + 1e-4 * force), x
        return x

    x = torch.rand(400, 3)
    ends = torch.stack([torch.arange(399), torch.arange(1, 400)])
    return Ordinary(f, (x, x.clone(), ends, torch.rand(399)))


@program
def forces_of_energy() -> Ordinary:
    """Lennard-Jones: forces are gradients of an energy, inside of the program."""

    def energy(x: Tensor) -> Tensor:
        i, j = torch.triu_indices(x.shape[0], x.shape[0], 1)
        square = (x[i] - x[j]).square().sum(-1) + 0.5
        s = 1 / square**3
        return 4 * (s * s - s).sum()

    def f(x: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        force = torch.func.grad(energy)
        for _ in range(2):
            v = v - 0.005 * force(x)
            x = x + 0.01 * v
            v = v - 0.005 * force(x)
        return x, v

    return Ordinary(f, (torch.randn(60, 3) * 2, torch.randn(60, 3)))


@program
def smoothed_particles() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        gap = torch.cdist(x, x)
        q = (1 - gap / 0.3).clamp(min=0)
        density = (q**3).sum(1)
        pressure = (density - 5).relu()
        way = (x[:, None] - x[None]) / gap.clamp(min=1e-4)[..., None]
        push = ((pressure[:, None] + pressure) * q / density)[..., None] * way
        return density, push.sum(1)

    return Ordinary(f, (torch.rand(200, 2),))


# ---- solvers


@program
def conjugate_gradients() -> Ordinary:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        x, r = torch.zeros_like(b), b
        p, size = r, r @ r
        for _ in range(8):
            q = a @ p
            step = size / (p @ q)
            x, r = x + step * p, r - step * q
            new = r @ r
            p, size = r + new / size * p, new
        return x, size

    a = torch.randn(120, 120)
    return Ordinary(f, (a @ a.T / 120 + torch.eye(120), torch.randn(120)))


@program
def three_diagonals() -> Ordinary:
    """Thomas' algorithm for many systems at once."""

    def f(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        n, upper, right = b.shape[1], [c[:, 0] / b[:, 0]], [d[:, 0] / b[:, 0]]
        for i in range(1, n):
            rest = b[:, i] - a[:, i] * upper[-1]
            upper.append(c[:, i] / rest)
            right.append((d[:, i] - a[:, i] * right[-1]) / rest)
        x = [right[-1]]
        for i in range(n - 2, -1, -1):
            x.append(right[i] - upper[i] * x[-1])
        return torch.stack(x[::-1], 1)

    side = torch.rand(2, 64, 24)
    return Ordinary(f, (side[0], 3 + torch.rand(64, 24), side[1], torch.randn(64, 24)))


@program
def filter_of_kalman() -> Ordinary:
    """Sixteen steps of several tracks, with the likelihood of what was seen."""
    move = torch.eye(4) + 0.1 * torch.eye(4).roll(2, 1).triu()
    see, noise, drift = torch.eye(2, 4), 0.5 * torch.eye(2), 0.01 * torch.eye(4)

    def f(seen: Tensor) -> tuple[Tensor, Tensor]:
        n = seen.shape[1]
        x, p, total = torch.zeros(n, 4, 1), torch.eye(4).expand(n, 4, 4), torch.zeros(n)
        out = []
        for z in seen.unbind(0):
            x, p = move @ x, move @ p @ move.T + drift
            gap, s = z[..., None] - see @ x, see @ p @ see.T + noise
            low = torch.linalg.cholesky(s)
            gain = torch.cholesky_solve(see @ p, low).mT
            x, p = x + gain @ gap, p - gain @ see @ p
            white = torch.linalg.solve_triangular(low, gap, upper=False)
            spread = low.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            total = total - 0.5 * white.square().sum((1, 2)) - spread - math.log(2 * math.pi)
            out.append(x.squeeze(-1))
        return torch.stack(out), total

    return Ordinary(f, (torch.randn(8, 16, 2).cumsum(0),))


@program
def likelihood_of_process() -> Ordinary:
    """Of a Gaussian process, with gradients by its scales."""

    def f(x: Tensor, y: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
        z = x / scale.exp()
        square = (z[:, None] - z).square().sum(-1)
        k = torch.exp(-0.5 * square) + (noise.exp() + 1e-4) * torch.eye(x.shape[0])
        low = torch.linalg.cholesky(k)
        a = torch.linalg.solve_triangular(low, y[:, None], upper=False)
        return 0.5 * a.square().sum() + low.diagonal().log().sum()

    scale, noise = torch.zeros(3, requires_grad=True), torch.tensor(-1.0, requires_grad=True)
    return Ordinary(f, (torch.randn(60, 3), torch.randn(60), scale, noise), True)


@program
def least_squares() -> Ordinary:
    """By QR, with a ridge, and the share that is explained."""

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([x, torch.ones(x.shape[0], 1)], 1)
        wide = torch.cat([x, 0.1 * torch.eye(x.shape[1])])
        q, r = torch.linalg.qr(wide)
        w = torch.linalg.solve_triangular(r, q[: x.shape[0]].T @ y, upper=True)
        left = y - x @ w
        return w, 1 - left.square().sum(0) / (y - y.mean(0)).square().sum(0)

    return Ordinary(f, (torch.randn(400, 12), torch.randn(400, 3)))


@program
def white_features() -> Ordinary:
    """Without correlations, by eigenvectors."""

    def f(x: Tensor) -> Tensor:
        x = x - x.mean(0)
        value, vector = torch.linalg.eigh(x.T @ x / (x.shape[0] - 1) + 0.1 * torch.eye(x.shape[1]))
        return x @ (vector * value.rsqrt()) @ vector.T

    return Ordinary(f, (torch.randn(300, 16),))


@program
def newton_until_close() -> Ordinary:
    """Kepler's equation: steps until all are close."""

    def f(mean: Tensor, e: Tensor) -> Tensor:
        x = mean.clone()
        for _ in range(20):
            gap = x - e * x.sin() - mean
            if gap.abs().max() < 1e-4:
                break
            x = x - gap / (1 - e * x.cos())
        return x

    return Ordinary(f, (torch.rand(1000) * 6, torch.rand(1000) * 0.5))


@program
def prices_of_paths() -> Ordinary:
    """Options on given random paths: one on the mean, one that ends at a barrier."""

    def f(z: Tensor) -> tuple[Tensor, Tensor]:
        dt = 1 / z.shape[1]
        path = 100 * torch.exp(((0.03 - 0.02) * dt + 0.2 * math.sqrt(dt) * z).cumsum(1))
        mean = (path.mean(1) - 100).clamp(min=0).mean()
        alive = (path.amin(1) > 85).float()
        return mean * math.exp(-0.03), ((path[:, -1] - 100).relu() * alive).mean()

    return Ordinary(f, (torch.randn(4000, 50),))
