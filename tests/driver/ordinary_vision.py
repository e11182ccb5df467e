"""More programs of a new user (see ordinary_table.py): detection and filters."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.driver.ordinary_table import Ordinary, program, whole


def _boxes(count: int, size: float = 200.0) -> Tensor:
    low = torch.rand(count, 2) * size
    return torch.cat([low, low + 5 + torch.rand(count, 2) * size / 4], 1)


# ---- boxes


@program
def anchors_and_offsets() -> Ordinary:
    """Boxes of two levels of a pyramid, moved by what a head predicts and cut at the image."""

    def f(*levels: Tensor) -> Tensor:
        every = []
        for level, step in zip(levels, (8, 16), strict=True):
            h, w = level.shape[-2:]
            y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            centre = torch.stack([x, y], -1).reshape(-1, 1, 2).float() * step + step / 2
            side = torch.tensor([1.0, 2.0, 4.0])[None, :, None] * step
            gap = level.view(3, 4, h * w).permute(2, 0, 1)
            centre = centre + gap[..., :2] * side
            side = side * gap[..., 2:].clamp(max=4.135).exp()
            every.append(torch.cat([centre - side / 2, centre + side / 2], -1).flatten(0, 1))
        return torch.cat(every).clamp(0, 320)

    return Ordinary(f, (0.3 * torch.randn(12, 40, 40), 0.3 * torch.randn(12, 20, 20)))


@program
def generalised_overlap_loss() -> Ordinary:
    def f(a: Tensor, b: Tensor) -> Tensor:
        area = lambda x: (x[:, 2] - x[:, 0]).clamp(min=0) * (x[:, 3] - x[:, 1]).clamp(min=0)  # noqa: E731
        inside = torch.cat(
            [torch.maximum(a[:, :2], b[:, :2]), torch.minimum(a[:, 2:], b[:, 2:])], 1
        )
        around = torch.cat(
            [torch.minimum(a[:, :2], b[:, :2]), torch.maximum(a[:, 2:], b[:, 2:])], 1
        )
        both, hull = area(inside), area(around)
        union = area(a) + area(b) - both
        return (1 - both / union + (hull - union) / hull).mean()

    a = _boxes(500)
    b = a + torch.randn(500, 4)
    return Ordinary(f, (a.requires_grad_(), b), True)


@program
def points_to_boxes() -> Ordinary:
    """Each point of an image learns the smallest box that contains it."""

    def f(points: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        low = points[:, None] - boxes[None, :, :2]
        high = boxes[None, :, 2:] - points[:, None]
        sides = torch.cat([low, high], -1)
        inside = sides.amin(-1) > 0
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        area = torch.where(inside, area[None], torch.inf)
        own, at = area.min(1)
        chosen = sides[torch.arange(points.shape[0]), at]
        a, b = chosen[:, 0::2], chosen[:, 1::2]
        centred = (a.amin(1) / a.amax(1) * b.amin(1) / b.amax(1)).abs().sqrt()
        return torch.where(own < torch.inf, at, -1), chosen, centred

    return Ordinary(f, (torch.rand(1500, 2) * 240, _boxes(30)))


@program
def suppression_by_score() -> Ordinary:
    """Soft-NMS: scores fall with what was chosen before."""

    def f(boxes: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        kept, values = [], []
        area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
        for _ in range(12):
            at = scores.argmax()
            kept.append(at)
            values.append(scores[at])
            box = boxes[at]
            low = torch.maximum(boxes[:, :2], box[:2])
            high = torch.minimum(boxes[:, 2:], box[2:])
            both = (high - low).clamp(min=0).prod(1)
            share = both / (area + area[at] - both)
            scores = scores * torch.exp(-share.square() / 0.5)
            scores = scores.scatter(0, at[None], -1.0)
        return torch.stack(kept), torch.stack(values)

    return Ordinary(f, (_boxes(200), torch.rand(200)))


@program
def regions_by_sampling() -> Ordinary:
    """Features of boxes, read between pixels (RoI align)."""

    def f(x: Tensor, boxes: Tensor) -> Tensor:
        h, w = x.shape[-2:]
        steps = (torch.arange(14) + 0.5) / 14
        at_x = boxes[:, 0, None] + steps * (boxes[:, 2] - boxes[:, 0])[:, None]
        at_y = boxes[:, 1, None] + steps * (boxes[:, 3] - boxes[:, 1])[:, None]
        grid = torch.stack(
            [
                (at_x * 2 / w - 1)[:, None, :].expand(-1, 14, -1),
                (at_y * 2 / h - 1)[:, :, None].expand(-1, -1, 14),
            ],
            -1,
        )
        every = x.expand(boxes.shape[0], -1, -1, -1)
        return F.avg_pool2d(F.grid_sample(every, grid, align_corners=False), 2)

    return Ordinary(f, (torch.randn(1, 32, 50, 50), _boxes(40) / 5))


@program
def hard_negatives() -> Ordinary:
    """SSD: for each right box, the loss of the three worst wrong ones."""

    def f(logits: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(logits.permute(0, 2, 1), y, reduction="none")
        good = y > 0
        wrong = torch.where(good, -torch.inf, loss)
        rank = wrong.argsort(1, descending=True).argsort(1)
        bad = rank < 3 * good.sum(1, keepdim=True)
        return (loss[good].sum() + loss[bad].sum()) / good.sum()

    y = whole(4, 4, 800) * (torch.rand(4, 800) < 0.05)
    return Ordinary(f, (torch.randn(4, 800, 6, requires_grad=True), y), True)


@program
def boxes_above_threshold() -> Ordinary:
    """YOLO: boxes of three levels, those with a high score only."""
    anchors = torch.tensor(
        [[[10.0, 13.0], [16, 30]], [[30, 61], [62, 45]], [[116, 90], [156, 198]]]
    )

    def f(levels: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        boxes, scores = [], []
        for k, level in enumerate(levels):
            n, _, h, w = level.shape
            p = level.view(n, 2, 9, h, w).permute(0, 1, 3, 4, 2).sigmoid()
            y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            centre = (p[..., :2] * 2 - 0.5 + torch.stack([x, y], -1)) * (8 * 2**k)
            side = (p[..., 2:4] * 2) ** 2 * anchors[k].view(1, 2, 1, 1, 2)
            boxes.append(torch.cat([centre, side], -1).view(-1, 4))
            scores.append((p[..., 4:5] * p[..., 5:]).reshape(-1, 4))
        best, kind = torch.cat(scores).max(1)
        keep = best > 0.6
        return torch.cat(boxes)[keep], best[keep], kind[keep]

    return Ordinary(f, ([torch.randn(1, 18, 32 >> k, 32 >> k) for k in range(3)],))


@program
def greedy_matches() -> Ordinary:
    """Pairs of largest scores, each row and column once."""

    def f(score: Tensor) -> Tensor:
        rows, columns = torch.arange(score.shape[0]), torch.arange(score.shape[1])
        found = []
        for _ in range(10):
            at = score.flatten().argmax()
            i, j = at // score.shape[1], at % score.shape[1]
            found.append(torch.stack([i, j]))
            taken = (rows[:, None] == i) | (columns == j)
            score = score.masked_fill(taken, -torch.inf)
        return torch.stack(found)

    return Ordinary(f, (torch.rand(20, 16),))


# ---- filters


@program
def bilateral_filter() -> Ordinary:
    y, x = torch.meshgrid(torch.arange(-2.0, 3), torch.arange(-2.0, 3), indexing="ij")
    near = torch.exp(-(x * x + y * y) / 8).flatten()

    def f(x: Tensor) -> Tensor:
        parts = F.pad(x, (2, 2, 2, 2), mode="reflect").unfold(2, 5, 1).unfold(3, 5, 1)
        parts = parts.flatten(-2)
        weight = near * torch.exp(-(parts - x[..., None]).square() / 0.02)
        return (weight * parts).sum(-1) / weight.sum(-1)

    return Ordinary(f, (torch.rand(1, 3, 64, 64),))


@program
def colours_as_seen() -> Ordinary:
    """From sRGB to CIELAB."""
    turn = torch.tensor(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    )

    def f(x: Tensor) -> Tensor:
        x = torch.where(x > 0.04045, ((x + 0.055) / 1.055) ** 2.4, x / 12.92)
        xyz = torch.einsum("ij,bjhw->bihw", turn, x)
        xyz = xyz / torch.tensor([0.9505, 1.0, 1.089])[:, None, None]
        t = torch.where(xyz > 0.008856, xyz.clamp(min=1e-4) ** (1 / 3), 7.787 * xyz + 4 / 29)
        a, b, c = t.unbind(1)
        return torch.stack([116 * b - 16, 500 * (a - b), 200 * (b - c)], 1)

    return Ordinary(f, (torch.rand(2, 3, 64, 64),))


@program
def corners_of_image() -> Ordinary:
    """Harris: local maxima of a response, the best of them."""
    side = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
    kernel = torch.stack([side, side.T])[:, None]

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        dx, dy = F.conv2d(x, kernel, padding=1).unbind(1)
        parts = F.avg_pool2d(torch.stack([dx * dx, dy * dy, dx * dy], 1), 5, 1, 2)
        a, b, c = parts.unbind(1)
        found = a * b - c * c - 0.04 * (a + b) ** 2
        peak = F.max_pool2d(found[:, None], 5, 1, 2)[:, 0] == found
        best = found.masked_fill(~peak, 0).flatten(1).topk(50)
        return best.values, best.indices

    return Ordinary(f, (torch.rand(1, 1, 96, 96),))


@program
def otsu_threshold() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        share = torch.histc(x, 128, 0, 1) / x.numel()
        centre = (torch.arange(128) + 0.5) / 128
        low = share.cumsum(0)
        mean = (share * centre).cumsum(0)
        between = (mean[-1] * low - mean).square() / (low * (1 - low)).clamp(min=1e-6)
        best = centre[between.argmax()]
        return best, (x > best).float()

    return Ordinary(f, (torch.cat([torch.rand(64, 64) * 0.4, 0.5 + torch.rand(64, 64) * 0.5]),))


@program
def connected_regions() -> Ordinary:
    """Each pixel takes the largest number beside it, step by step."""

    def f(x: Tensor) -> Tensor:
        label = torch.arange(1.0, x.numel() + 1).view_as(x) * x
        for _ in range(12):
            label = F.max_pool2d(label, 3, 1, 1) * x
        return label

    return Ordinary(f, ((torch.rand(1, 1, 48, 48) > 0.6).float(),))


@program
def sums_of_rectangles() -> Ordinary:
    """An integral image, read at four corners."""

    def f(x: Tensor, boxes: Tensor) -> Tensor:
        table = F.pad(x.cumsum(0).cumsum(1), (1, 0, 1, 0))
        a, b, c, d = boxes.unbind(1)
        return table[c, d] - table[a, d] - table[c, b] + table[a, b]

    low, side = whole(64, 1000, 2), 1 + whole(60, 1000, 2)
    return Ordinary(f, (torch.rand(128, 128), torch.cat([low, low + side], 1)))


@program
def cosine_blocks() -> Ordinary:
    """JPEG: blocks of 8 pixels as cosines, rounded, and back."""
    k, n = torch.arange(8.0)[:, None], torch.arange(8.0)
    turn = torch.cos(math.pi * (2 * n + 1) * k / 16) * torch.where(k == 0, 0.125, 0.25).sqrt()
    step = 8 + 4 * (k + n)

    def f(x: Tensor) -> Tensor:
        h, w = x.shape
        parts = x.view(h // 8, 8, w // 8, 8).transpose(1, 2) * 255 - 128
        rounded = (turn @ parts @ turn.T / step).round() * step
        back = turn.T @ rounded @ turn
        return ((back + 128) / 255).clamp(0, 1).transpose(1, 2).reshape(h, w)

    return Ordinary(f, (torch.rand(96, 96),))


@program
def orientations() -> Ordinary:
    """HOG: edges of each cell counted by their angle."""

    def f(x: Tensor) -> Tensor:
        dx, dy = x[1:-1, 2:] - x[1:-1, :-2], x[2:, 1:-1] - x[:-2, 1:-1]
        size = torch.hypot(dx, dy)
        angle = torch.atan2(dy, dx) % math.pi
        kind = (angle / math.pi * 9).long().clamp(max=8)
        row, column = torch.meshgrid(torch.arange(96) // 8, torch.arange(96) // 8, indexing="ij")
        cell = (row * 12 + column) * 9 + kind
        found = torch.zeros(12 * 12 * 9).index_add(0, cell.flatten(), size.flatten())
        return F.normalize(found.view(144, 9), dim=1)

    return Ordinary(f, (torch.rand(98, 98),))


@program
def perspective_warp() -> Ordinary:
    """A homography of four pairs of points, and the image as it is seen."""

    def f(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        one, none = torch.ones(4), torch.zeros(4)
        (u, v), (s, t) = a.T, b.T
        top = torch.stack([u, v, one, none, none, none, -s * u, -s * v], 1)
        low = torch.stack([none, none, none, u, v, one, -t * u, -t * v], 1)
        h = torch.linalg.solve(torch.cat([top, low]), torch.cat([s, t]))
        h = torch.cat([h, torch.ones(1)]).view(3, 3)
        y, z = torch.meshgrid(torch.linspace(-1, 1, 64), torch.linspace(-1, 1, 64), indexing="ij")
        at = torch.stack([z, y, torch.ones(64, 64)], -1) @ h.T
        return F.grid_sample(x, (at[..., :2] / at[..., 2:])[None], align_corners=True)

    corners = torch.tensor([[-1.0, -1], [1, -1], [1, 1], [-1, 1]])
    return Ordinary(f, (torch.rand(1, 3, 64, 64), corners, corners + 0.2 * torch.rand(4, 2)))


@program
def heat_maps() -> Ordinary:
    """Points as bumps, a loss against what a network gives, and points of its bumps."""

    def f(x: Tensor, points: Tensor) -> Tensor:
        at = torch.arange(48.0)
        dx = (at - points[..., :1]).square()[:, :, None, :]
        dy = (at - points[..., 1:]).square()[:, :, :, None]
        wanted = torch.exp(-(dx + dy) / 8)
        share = x.flatten(2).softmax(-1).view_as(x)
        found = torch.stack([(share.sum(2) * at).sum(-1), (share.sum(3) * at).sum(-1)], -1)
        return F.mse_loss(x, wanted) + 0.01 * (found - points).abs().mean()

    return Ordinary(
        f, (torch.randn(2, 17, 48, 48, requires_grad=True), torch.rand(2, 17, 2) * 48), True
    )


@program
def patch_of_other_image() -> Ordinary:
    """CutMix, written with slices that are assigned."""

    def f(x: Tensor, order: Tensor, top: int, left: int) -> tuple[Tensor, float]:
        out = x.clone()
        out[:, :, top : top + 20, left : left + 24] = x[order, :, top : top + 20, left : left + 24]
        return out, 1 - 20 * 24 / (x.shape[2] * x.shape[3])

    return Ordinary(f, (torch.rand(8, 3, 48, 48), torch.randperm(8), 7, 11))
