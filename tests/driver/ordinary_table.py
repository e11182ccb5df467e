"""Programs as a new user writes them, small functions with their inputs; there are more in the
files ordinary_*.py beside this one.

One that is added here is judged and timed by `python -m tests.driver.ordinary_programs`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Function = Callable[..., Any]


@dataclass(frozen=True)
class Ordinary:
    """A function with its arguments.

    `gradient`: a call is the function and the gradients of its result by inputs that require one
    and by the parameters of a module. `judge`: says what is wrong with a result that is random.
    """

    function: Function
    inputs: tuple[Any, ...]
    gradient: bool = False
    judge: Callable[[Any], str | None] | None = None


PROGRAMS: dict[str, Callable[[], Ordinary]] = {}


def program(make: Callable[[], Ordinary]) -> Callable[[], Ordinary]:
    PROGRAMS[make.__name__] = make
    return make


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape)


# ---- tiny programs: what a call costs


@program
def add_of_4() -> Ordinary:
    return Ordinary(lambda x, y: x + y, (torch.randn(4), torch.randn(4)))


@program
def mlp_batch_1() -> Ordinary:
    layers = nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    return Ordinary(nn.Sequential(*layers).eval(), (torch.randn(1, 64),))


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.net(x), y)


@program
def mlp_step() -> Ordinary:
    return Ordinary(Classifier(), (torch.randn(32, 64), whole(10, 32)), gradient=True)


@program
def scalar_functions() -> Ordinary:
    return Ordinary(lambda x: (x.sin() + x.exp().log1p()).sqrt().mean(), (torch.rand(1000),))


@program
def number_argument() -> Ordinary:
    return Ordinary(lambda x, t: (x / t).softmax(-1), (torch.randn(8, 32), torch.tensor(0.7)))


@torch.library.custom_op("tilewright_tests::halved", mutates_args=())
def halved(x: Tensor) -> Tensor:
    return x * 0.5


@halved.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@program
def custom_operator() -> Ordinary:
    return Ordinary(lambda x: halved(x + 1).relu() - 1, (torch.randn(64),))


@program
def several_custom_operators() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        for _ in range(4):
            x = halved(x * 3).tanh()
        return x

    return Ordinary(f, (torch.randn(64),))


# ---- language models: sampling and searching


@program
def beam_step() -> Ordinary:
    def f(scores: Tensor, logits: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        beams, words = logits.shape[1:]
        every = scores[:, :, None] + logits.log_softmax(-1)
        best, at = every.flatten(1).topk(2 * beams, 1)
        beam, word = at // words, at % words
        chosen = tokens.gather(1, beam[:, :, None].expand(-1, -1, tokens.shape[2]))
        return best, torch.cat([chosen, word[:, :, None]], 2)

    return Ordinary(f, (torch.randn(2, 4), torch.randn(2, 4, 8000), whole(8000, 2, 4, 16)))


def _top_p(logits: Tensor, p: float) -> Tensor:
    ordered, at = logits.sort(-1, descending=True)
    beyond = ordered.softmax(-1).cumsum(-1) > p
    beyond = torch.cat([torch.zeros_like(beyond[:, :1]), beyond[:, :-1]], -1)
    return logits.masked_fill(beyond.scatter(1, at, beyond), -torch.inf)


@program
def top_p() -> Ordinary:
    return Ordinary(lambda x: _top_p(x, 0.9).softmax(-1), (torch.randn(4, 16000),))


@program
def top_p_draw() -> Ordinary:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        chances = _top_p(x, 0.9).softmax(-1)
        return chances, torch.multinomial(chances, 1)

    def judge(found: tuple[Tensor, Tensor]) -> str | None:
        chances, drawn = found
        return None if bool((chances.gather(1, drawn) > 0).all()) else "draws what has no chance"

    return Ordinary(f, (torch.randn(2, 8000),), judge=judge)


@program
def top_k_filter() -> Ordinary:
    def f(x: Tensor) -> Tensor:
        least = x.topk(50, -1).values[:, -1:]
        return x.masked_fill(x < least, -torch.inf).softmax(-1)

    return Ordinary(f, (torch.randn(4, 16000),))


@program
def top_k_of_short_rows() -> Ordinary:
    return Ordinary(lambda x: x.topk(8, -1), (torch.randn(2048, 64),))


@program
def sampling_loop() -> Ordinary:
    """Eight greedy steps of a small recurrent language model, with a penalty for repetitions."""
    table, cell, head = nn.Embedding(500, 64), nn.GRUCell(64, 64), nn.Linear(64, 500)

    def f(token: Tensor, state: Tensor) -> Tensor:
        seen = torch.zeros(token.shape[0], 500)
        out = []
        for _ in range(8):
            state = cell(table(token), state)
            logits = head(state) - 2 * seen
            token = logits.argmax(-1)
            seen = seen.scatter(1, token[:, None], 1.0)
            out.append(token)
        return torch.stack(out, 1)

    return Ordinary(f, (whole(500, 4), torch.zeros(4, 64)))


@program
def embedding_bag() -> Ordinary:
    bag = nn.EmbeddingBag(5000, 64, mode="mean")
    return Ordinary(bag, (whole(5000, 4096), torch.arange(0, 4096, 16)))


# ---- attention


@program
def flex_attention() -> Ordinary:
    from torch.nn.attention.flex_attention import flex_attention as flex

    def bias(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where(q >= k, score - 0.1 * (q - k), -torch.inf)

    return Ordinary(lambda q, k, v: flex(q, k, v, score_mod=bias), _heads(1, 4, 256, 64))


def _heads(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(shape), torch.randn(shape), torch.randn(shape)


@program
def attention_ragged_mask() -> Ordinary:
    def f(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
        inside = torch.arange(k.shape[2])[None, :] < lengths[:, None]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=inside[:, None, None, :])

    return Ordinary(f, (*_heads(4, 4, 128, 32), torch.tensor([128, 77, 13, 100])))


@program
def softmax_ragged() -> Ordinary:
    def f(x: Tensor, lengths: Tensor) -> Tensor:
        outside = torch.arange(x.shape[1]) >= lengths[:, None]
        return x.masked_fill(outside, -torch.inf).softmax(-1).nan_to_num()

    return Ordinary(f, (torch.randn(256, 200), whole(200, 256)))


@program
def complex_rotary() -> Ordinary:
    def f(x: Tensor, turn: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn[None, :, None]).flatten(3).type_as(x)

    turn = torch.polar(torch.ones(128, 32), torch.randn(128, 32))
    return Ordinary(f, (torch.randn(2, 128, 8, 64), turn))


@program
def transformer_encoder() -> Ordinary:
    layer = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
    net = nn.TransformerEncoder(layer, 2).eval()
    return Ordinary(net, (torch.randn(4, 64, 128),))


@program
def multihead_attention() -> Ordinary:
    net = nn.MultiheadAttention(128, 4, batch_first=True).eval()
    return Ordinary(lambda x: net(x, x, x, need_weights=False)[0], (torch.randn(4, 64, 128),))


# ---- recurrent networks, losses, parametrizations


@program
def lstm() -> Ordinary:
    return Ordinary(nn.LSTM(64, 128, 2, batch_first=True).eval(), (torch.randn(4, 50, 64),))


@program
def gru() -> Ordinary:
    return Ordinary(nn.GRU(64, 128, bidirectional=True).eval(), (torch.randn(50, 4, 64),))


def _ctc(x: Tensor, targets: Tensor, lengths: Tensor, sizes: Tensor) -> Tensor:
    return F.ctc_loss(x.log_softmax(-1), targets, lengths, sizes)


def _ctc_inputs(grad: bool) -> tuple[Tensor, ...]:
    x = torch.randn(50, 8, 30, requires_grad=grad)
    sizes = torch.full((8,), 50), torch.tensor([20, 15, 12, 20, 9, 18, 20, 7])
    return x, 1 + whole(29, 8, 20), *sizes


@program
def ctc_loss() -> Ordinary:
    return Ordinary(_ctc, _ctc_inputs(False))


@program
def ctc_gradient() -> Ordinary:
    return Ordinary(_ctc, _ctc_inputs(True), gradient=True)


@program
def orthogonal_layer() -> Ordinary:
    from torch.nn.utils.parametrizations import orthogonal

    return Ordinary(orthogonal(nn.Linear(64, 64)).eval(), (torch.randn(16, 64),))


@program
def weight_norm_layer() -> Ordinary:
    from torch.nn.utils.parametrizations import weight_norm

    return Ordinary(weight_norm(nn.Linear(128, 128)).eval(), (torch.randn(16, 128),))


@program
def cross_entropy() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x, y, label_smoothing=0.1, ignore_index=3)

    return Ordinary(f, (torch.randn(256, 1000), whole(1000, 256)))


@program
def kl_divergence() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return F.kl_div(
            x.log_softmax(-1), y.log_softmax(-1), reduction="batchmean", log_target=True
        )

    return Ordinary(f, (torch.randn(128, 1000), torch.randn(128, 1000)))


@program
def focal_loss() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        entropy = F.binary_cross_entropy_with_logits(x, y, reduction="none")
        return ((1 - torch.exp(-entropy)) ** 2 * entropy).mean()

    return Ordinary(
        f, (torch.randn(64, 1000, requires_grad=True), whole(2, 64, 1000).float()), True
    )


# ---- graphs and routing


def _edges(nodes: int, count: int) -> Tensor:
    return whole(nodes, 2, count)


@program
def gcn_layer() -> Ordinary:
    layer = nn.Linear(64, 64)

    def f(x: Tensor, edges: Tensor) -> Tensor:
        a, b = edges
        degree = torch.ones(x.shape[0]).index_add(0, b, torch.ones(b.shape[0])).rsqrt()
        h = layer(x)
        message = h[a] * (degree[a] * degree[b])[:, None]
        return torch.zeros_like(h).index_add(0, b, message).relu()

    return Ordinary(f, (torch.randn(1000, 64), _edges(1000, 8000)))


@program
def gat_layer() -> Ordinary:
    layer, left, right = nn.Linear(64, 64), torch.randn(4, 16), torch.randn(4, 16)

    def f(x: Tensor, edges: Tensor) -> Tensor:
        a, b = edges
        h = layer(x).view(-1, 4, 16)
        score = F.leaky_relu((h * left).sum(-1)[a] + (h * right).sum(-1)[b], 0.2)
        at = b[:, None].expand_as(score)
        high = torch.full((x.shape[0], 4), -torch.inf).scatter_reduce(0, at, score, "amax")
        e = (score - high[b]).exp()
        total = torch.zeros(x.shape[0], 4).scatter_add(0, at, e)
        message = h[a] * (e / total[b])[:, :, None]
        return torch.zeros_like(h).index_add(0, b, message).flatten(1)

    return Ordinary(f, (torch.randn(1000, 64), _edges(1000, 8000)))


class Experts(nn.Module):
    def __init__(self, by_sort: bool) -> None:
        super().__init__()
        self.gate, self.by_sort = nn.Linear(64, 8), by_sort
        self.up = nn.Parameter(torch.randn(8, 64, 128) / 8)
        self.down = nn.Parameter(torch.randn(8, 128, 64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        share, chosen = self.gate(x).softmax(-1).topk(2, -1)
        return self.sorted(x, share, chosen) if self.by_sort else self.listed(x, share, chosen)

    def listed(self, x: Tensor, share: Tensor, chosen: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        for k in range(8):
            row, which = (chosen == k).nonzero(as_tuple=True)
            y = F.silu(x[row] @ self.up[k]) @ self.down[k]
            out = out.index_add(0, row, y * share[row, which, None])
        return out

    def sorted(self, x: Tensor, share: Tensor, chosen: Tensor) -> Tensor:
        """As many rows for each expert: those beyond are dropped."""
        room = x.shape[0] // 2
        expert, order = chosen.flatten().sort(stable=True)
        begin = torch.searchsorted(expert, torch.arange(8))
        at = begin[:, None] + torch.arange(room)
        inside = at < torch.cat([begin[1:], begin.new_full((1,), expert.numel())])[:, None]
        pick = order[at.clamp(max=expert.numel() - 1)]
        rows = pick // 2
        y = F.silu(x[rows] @ self.up) @ self.down
        y = y * (share.flatten()[pick] * inside)[:, :, None]
        return torch.zeros_like(x).index_add(0, rows.flatten(), y.flatten(0, 1))


@program
def experts_by_nonzero() -> Ordinary:
    return Ordinary(Experts(False).eval(), (torch.randn(256, 64),))


@program
def experts_by_sort() -> Ordinary:
    return Ordinary(Experts(True).eval(), (torch.randn(256, 64),))


# ---- signals and images


@program
def spectrogram() -> Ordinary:
    window = torch.hann_window(400)

    def f(x: Tensor) -> Tensor:
        return torch.stft(x, 400, 160, window=window, return_complex=True).abs().square().log1p()

    return Ordinary(f, (torch.randn(2, 16000),))


@program
def rfft() -> Ordinary:
    return Ordinary(lambda x: torch.fft.rfft(x), (torch.randn(64, 1024),))


@program
def fft_filter() -> Ordinary:
    def f(x: Tensor, h: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x, 2048) * torch.fft.rfft(h, 2048), 2048)[..., :1024]

    return Ordinary(f, (torch.randn(16, 1024), torch.randn(1024)))


@program
def complex_steps() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        z = torch.complex(x, y)
        return (z * z.conj() + z.exp()).abs(), z.angle()

    return Ordinary(f, (torch.randn(64, 500), torch.randn(64, 500)))


@program
def small_convnet() -> Ordinary:
    layers = (
        *(nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.SiLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(32, 10)),
    )
    return Ordinary(nn.Sequential(*layers).eval(), (torch.randn(4, 3, 32, 32),))


@program
def group_norm() -> Ordinary:
    return Ordinary(nn.GroupNorm(8, 64), (torch.randn(8, 64, 32, 32),))


@program
def interpolate() -> Ordinary:
    f = lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)  # noqa: E731
    return Ordinary(f, (torch.randn(2, 16, 64, 64),))


@program
def grid_sample() -> Ordinary:
    f = lambda x, g: F.grid_sample(x, g, align_corners=False)  # noqa: E731
    return Ordinary(f, (torch.randn(2, 16, 64, 64), torch.rand(2, 64, 64, 2) * 2.2 - 1.1))


@program
def non_maximum_suppression() -> Ordinary:
    def f(boxes: Tensor, scores: Tensor) -> Tensor:
        order = scores.argsort(descending=True)
        b = boxes[order]
        area = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
        low = torch.maximum(b[:, None, :2], b[None, :, :2])
        high = torch.minimum(b[:, None, 2:], b[None, :, 2:])
        both = (high - low).clamp(min=0).prod(-1)
        over = both / (area[:, None] + area[None] - both) > 0.5
        keep = torch.ones(len(b), dtype=torch.bool)
        for k in range(len(b)):
            keep = keep & ~(over[k] & keep[k] & (torch.arange(len(b)) > k))
        return order[keep]

    corner = torch.rand(60, 2)
    return Ordinary(f, (torch.cat([corner, corner + torch.rand(60, 2) * 0.5], 1), torch.rand(60)))


@program
def unfold_patches() -> Ordinary:
    return Ordinary(
        lambda x: F.unfold(x, 4, stride=4).transpose(1, 2), (torch.randn(4, 3, 64, 64),)
    )


@program
def roll_and_flip() -> Ordinary:
    return Ordinary(lambda x: x.roll((3, 5), (1, 2)) + x.flip(2), (torch.randn(16, 128, 128),))


# ---- tables and numbers


@program
def pairwise_distance() -> Ordinary:
    return Ordinary(lambda x, y: torch.cdist(x, y), (torch.randn(256, 32), torch.randn(300, 32)))


@program
def nearest_neighbours() -> Ordinary:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x[:, None] - y[None]).square().sum(-1).topk(5, largest=False).indices

    return Ordinary(f, (torch.randn(128, 8), torch.randn(200, 8)))


@program
def k_means_step() -> Ordinary:
    def f(x: Tensor, c: Tensor) -> Tensor:
        own = torch.cdist(x, c).argmin(1)
        total = torch.zeros_like(c).index_add(0, own, x)
        return total / torch.bincount(own, minlength=c.shape[0]).clamp(min=1)[:, None]

    return Ordinary(f, (torch.randn(2000, 16), torch.randn(32, 16)))


@program
def cumulative_sum() -> Ordinary:
    return Ordinary(lambda x: x.cumsum(-1), (torch.randn(64, 4096),))


@program
def bincount() -> Ordinary:
    return Ordinary(lambda x: torch.bincount(x, minlength=100), (whole(100, 20000),))


@program
def histogram() -> Ordinary:
    return Ordinary(lambda x: torch.histc(x, 64, -3, 3), (torch.randn(20000),))


@program
def quantiles() -> Ordinary:
    q = torch.tensor([0.1, 0.5, 0.9])
    return Ordinary(lambda x: torch.quantile(x, q, dim=1), (torch.randn(128, 1000),))


@program
def median() -> Ordinary:
    return Ordinary(lambda x: x.median(1), (torch.randn(128, 1001),))


@program
def einsum() -> Ordinary:
    f = lambda x, w: torch.einsum("bthd,hde->bte", x, w)  # noqa: E731
    return Ordinary(f, (torch.randn(4, 64, 8, 32), torch.randn(8, 32, 128)))


@program
def one_hot() -> Ordinary:
    return Ordinary(lambda i: F.one_hot(i, 50).float().mean(0), (whole(50, 4096),))


@program
def gather_rows() -> Ordinary:
    f = lambda x, i: torch.gather(x, 1, i).exp()  # noqa: E731
    return Ordinary(f, (torch.randn(512, 256), whole(256, 512, 256)))


@program
def scatter_mean() -> Ordinary:
    f = lambda z, i, x: z.scatter_reduce(0, i, x, "mean", include_self=False)  # noqa: E731
    return Ordinary(
        f, (torch.zeros(500, 32), whole(500, 4000, 1).expand(-1, 32), torch.randn(4000, 32))
    )


@program
def masked_rows() -> Ordinary:
    return Ordinary(lambda x, m: x[m].sum(0), (torch.randn(2000, 32), torch.rand(2000) > 0.5))


@program
def unique_values() -> Ordinary:
    return Ordinary(lambda x: torch.unique(x, return_counts=True), (whole(200, 4000),))


@program
def linear_solve() -> Ordinary:
    a = torch.randn(64, 64) + 16 * torch.eye(64)
    return Ordinary(lambda a, b: torch.linalg.solve(a, b).relu(), (a, torch.randn(64, 8)))
