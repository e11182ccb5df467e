"""Layers and blocks of networks: what random models are made of besides operators.

A layer is constructed by its text. Now and then one that stands in the model already is called
again, so that two places share its weights and their gradients add up.
"""

from __future__ import annotations

import re

from tests.driver.torch_layers import attention, embedding, like, linear, loss, norm, recurrent
from tests.driver.torch_maker import Maker
from tests.driver.torch_programs import Input
from tests.driver.torch_steps import (
    Step,
    binary,
    cast,
    changed,
    indexed,
    joined,
    jump,
    ordered,
    product,
    reduce,
    rows,
    unary,
    view,
)

ACTIVATIONS = (
    "nn.ReLU() nn.GELU() nn.SiLU() nn.Tanh() nn.Sigmoid() nn.LeakyReLU(0.1) nn.ELU() nn.Mish() "
    "nn.Hardswish() nn.Softplus() nn.PReLU() nn.SELU() nn.CELU(0.5) nn.Hardsigmoid() nn.Softsign() "
    "nn.Tanhshrink() nn.LogSigmoid() nn.GELU(approximate='tanh') nn.ReLU6()"
).split()


def layer(m: Maker, constructor: str, x: str) -> str:
    """A layer for the dtype of `x`: a new one, or one of the same text."""
    text = constructor + like(m, x)
    same = [name for name, made in m.modules.items() if made == text]
    if same and m.random.random() < 0.5:
        return f"self.{m.random.choice(same)}"
    return m.module(text)


def activation(m: Maker) -> None:
    if x := m.one():
        m.say(m.smooth, f"{layer(m, m.random.choice(ACTIVATIONS), x)}({x})")


def image(m: Maker, rank: int) -> str:
    """A value of a batch, channels and so many axes; often a new input."""
    r = m.random
    fit = [n for n in m.smooth if m.value(n).dim() == rank + 2 and min(m.value(n).shape[2:]) > 2]
    if fit and r.random() < 0.75:
        return r.choice(fit[-3:])
    most = {1: (9, 16, 25), 2: (6, 7, 8, 12), 3: (4, 5)}[rank]
    space = [r.choice(most) for _ in range(rank)]
    return m.input_like((r.choice((1, 2, 3)), r.choice((1, 2, 3, 4, 6, 8)), *space))


def convolution(m: Maker) -> None:
    r = m.random
    rank = r.choice((1, 2, 2, 2, 2, 3))
    x = image(m, rank)
    channels = m.value(x).shape[1]
    groups = r.choice([g for g in (1, 1, 2, 3, channels) if channels % g == 0])
    out = groups * r.choice((1, 2, 3, 5))
    kernel: int | tuple[int, ...] = r.choice((1, 2, 3, 3, 3, 5))
    if r.random() < 0.15:
        kernel = tuple(r.choice((1, 2, 3)) for _ in range(rank))
    stride, padding = r.choice((1, 1, 2, 3)), r.choice((0, 1, 1, 2))
    more = f", groups={groups}, bias={r.random() < 0.6}"
    if r.random() < 0.2:
        name = f"nn.ConvTranspose{rank}d"
        more += f", output_padding={r.choice((0, stride - 1))}"
    else:
        name = f"nn.Conv{rank}d"
        more += f", dilation={r.choice((1, 1, 1, 2))}"
        if r.random() < 0.15 and padding:
            more += f", padding_mode={r.choice(('reflect', 'replicate', 'circular'))!r}"
    text = f"{name}({channels}, {out}, {kernel}, stride={stride}, padding={padding}{more})"
    m.say(m.smooth, f"{layer(m, text, x)}({x})")


def stage(m: Maker) -> None:
    """A convolution, a norm and an activation; with the input added where that fits."""
    r = m.random
    x = image(m, 2)
    channels = m.value(x).shape[1]
    groups = r.choice((1, channels))
    conv = f"nn.Conv2d({channels}, {channels}, 3, padding=1, groups={groups}, bias=False)"
    norms = (f"nn.BatchNorm2d({channels}, eps=0.1)", f"nn.GroupNorm(1, {channels}, eps=0.1)")
    norms += (f"nn.InstanceNorm2d({channels}, affine=True, eps=0.1)",)
    parts = [layer(m, conv, x), layer(m, r.choice(norms), x), layer(m, r.choice(ACTIVATIONS), x)]
    called = x
    for part in parts:
        called = f"{part}({called})"
    m.say(m.smooth, f"{x} + {called}" if r.random() < 0.6 else called)


def pooling(m: Maker) -> None:
    r = m.random
    rank = r.choice((1, 2, 2, 2, 3))
    x = image(m, rank)
    size, stride = r.choice((2, 3)), r.choice((1, 2, 3))
    padding = r.choice((0, 0, 1))
    texts = [
        f"F.max_pool{rank}d({x}, {size}, stride={stride}, padding={padding})",
        f"F.max_pool{rank}d({x}, {size}, stride={stride}, ceil_mode=True)",
        f"F.avg_pool{rank}d({x}, {size}, stride={stride}, padding={padding})",
        f"F.avg_pool{rank}d({x}, {size}, stride={stride}, padding={padding}, "
        "count_include_pad=False)",
        f"F.adaptive_avg_pool{rank}d({x}, {r.choice((1, 2, 3))})",
        f"F.adaptive_max_pool{rank}d({x}, {r.choice((1, 2, 3))})",
        f"F.lp_pool{rank}d({x}.abs() + 0.5, 2, {size}, stride={stride})",
    ]
    m.say(m.smooth, r.choice(texts))


def resized(m: Maker) -> None:
    r = m.random
    x = image(m, 2)
    channels, _, width = m.value(x).shape[1:]
    scale = r.choice(("scale_factor=2.0", "scale_factor=1.5", "size=(5, 4)", "size=(9, 3)"))
    corners = r.choice((True, False))
    texts = [
        f"F.interpolate({x}, {scale})",
        f"F.interpolate({x}, {scale}, mode='bilinear', align_corners={corners})",
        f"F.interpolate({x}, {scale}, mode='bicubic', align_corners={corners})",
        f"F.interpolate({x}, {scale}, mode='area')",
        f"F.interpolate({x}, {scale}, mode='nearest-exact')",
        f"F.pad({x}, (1, 2, 0, 1), mode='reflect')",
        f"F.pad({x}, (1, 1, 2, 0), mode='replicate')",
        f"F.pad({x}, (1, {min(2, width)}, 0, 0), mode='circular')",
        f"F.unfold({x}, 2, stride=2)",
        f"F.channel_shuffle({x}, {2 if channels % 2 == 0 else 1})",
        f"F.pixel_unshuffle({x}[:, :, :4, :4], 2)",
        f"F.pixel_shuffle(torch.cat(({x},) * 4, 1), 2)",
    ]
    m.say(m.smooth, r.choice(texts))


def sampled(m: Maker) -> None:
    """Read where a network says."""
    x = image(m, 2)
    batch = m.value(x).shape[0]
    grid = m.add_input(m.smooth, Input("float32", (batch, 4, 5, 2), grad=True))
    mode, edge = m.random.choice(("zeros", "border", "reflection")), m.random.choice((True, False))
    text = f"F.grid_sample({x}.float(), torch.tanh({grid}) * 0.9, padding_mode={mode!r}"
    m.say(m.smooth, f"{text}, align_corners={edge})")


def hidden(m: Maker, width: int) -> str:
    """Rows of a sequence of this width; often a new input."""
    fit = [n for n in m.smooth if m.value(n).dim() == 3 and m.value(n).shape[-1] == width]
    fit = [n for n in fit if str(m.value(n).dtype) == "torch.float32"]
    if fit and m.random.random() < 0.7:
        return m.random.choice(fit)
    shape = (m.random.choice((1, 2)), m.random.choice((3, 5, 9)), width)
    return m.add_input(m.smooth, Input("float32", shape, grad=True))


def heads(m: Maker) -> None:
    """Attention with masks, biases, and fewer heads of keys."""
    r = m.random
    count, width = r.choice(((1, 4), (2, 8), (4, 8), (3, 12)))
    x = hidden(m, width)
    length = m.value(x).shape[1]
    q = layer(m, f"nn.Linear({width}, {width})", x)
    kv_heads = r.choice([k for k in (1, count) if count % k == 0])
    size = width // count
    kv = layer(m, f"nn.Linear({width}, {2 * kv_heads * size}, bias=False)", x)
    mask = r.choice(
        (
            "",
            ", is_causal=True",
            f", attn_mask=torch.ones({length}, {length}, dtype=torch.bool).tril(1)",
            f", attn_mask=(torch.arange({length}) - torch.arange({length})[:, None]) / -4",
        )
    )
    name = m.new()
    text = (
        f"q = {q}({x}).unflatten(-1, ({count}, {size})).transpose(1, 2)\n"
        f"k, v = {kv}({x}).unflatten(-1, (2, {kv_heads}, {size})).permute(2, 0, 3, 1, 4)\n"
        f"a = F.scaled_dot_product_attention(q, k, v, enable_gqa={kv_heads != count}{mask})\n"
        f"{name} = {x} + a.transpose(1, 2).flatten(2)"
    )
    m.write([name], text, m.smooth)


def rotary(m: Maker) -> None:
    """Positions as angles."""
    x = hidden(m, m.random.choice((4, 8)))
    length, width = m.value(x).shape[1:]
    name = m.new()
    text = (
        f"angle = torch.arange({length})[:, None] * 10 ** -torch.linspace(0, 1, {width // 2})\n"
        f"one, two = {x}.chunk(2, -1)\n"
        f"{name} = torch.cat((one * angle.cos() - two * angle.sin(), "
        f"two * angle.cos() + one * angle.sin()), -1)"
    )
    m.write([name], text, m.smooth)


def transformer(m: Maker) -> None:
    r = m.random
    width = r.choice((4, 8))
    x = hidden(m, width)
    first, act = r.choice((True, False)), r.choice(("relu", "gelu"))
    options = f"dropout=0.0, batch_first=True, norm_first={first}, activation={act!r}"
    text = f"nn.TransformerEncoderLayer({width}, 2, {r.choice((8, 12))}, {options})"
    m.say(m.smooth, f"{layer(m, text, x)}({x})")


def mixture(m: Maker) -> None:
    """Experts chosen by whole numbers, gates by a softmax."""
    r = m.random
    width = r.choice((4, 8))
    x = hidden(m, width)
    rows, length = m.value(x).shape[:2]
    experts = [layer(m, f"nn.Linear({width}, {width})", x) for _ in range(2)]
    gate = layer(m, f"nn.Linear({width}, 2)", x)
    chosen = m.index((rows, length), 2)
    name = m.new()
    text = (
        f"g = {gate}({x}).softmax(-1)\nboth = torch.stack([f({x}) for f in ({', '.join(experts)})])"
        f"\none = torch.where(({chosen} == 0)[..., None], both[0], both[1])\n"
        f"{name} = (g.movedim(-1, 0)[..., None] * both).sum(0) + one * 0.5"
    )
    m.write([name], text, m.smooth)


def layers_of_rows(m: Maker) -> None:
    """What is recurrent, as torch's own layers."""
    r = m.random
    width, size = r.choice((4, 8)), r.choice((3, 4))
    x = hidden(m, width)
    kind = r.choice(("RNN", "GRU", "LSTM"))
    options = f"num_layers={r.choice((1, 2))}, bidirectional={r.random() < 0.3}, batch_first=True"
    m.say(m.smooth, f"{layer(m, f'nn.{kind}({width}, {size}, {options})', x)}({x})[0]")


def bag(m: Maker) -> None:
    r = m.random
    i = m.index((r.choice((2, 3)), r.choice((1, 4))), 9)
    text = m.module(f"nn.EmbeddingBag(9, {r.choice((3, 8))}, mode={r.choice(('sum', 'mean'))!r})")
    m.say(m.smooth, f"{text}({i})")


def bilinear(m: Maker) -> None:
    x = m.one(rank=2)
    if x:
        n = m.value(x).shape[-1]
        m.say(m.smooth, f"{layer(m, f'nn.Bilinear({n}, {n}, 3)', x)}({x}, {x}) * 0.1")


def residual(m: Maker) -> None:
    """A value with what a layer makes of it added."""
    x = m.one(rank=1)
    if not x:
        return
    n = m.value(x).shape[-1]
    act = m.random.choice(("torch.tanh", "F.gelu", "F.silu", "torch.sigmoid"))
    up = layer(m, f"nn.Linear({n}, {n})", x)
    m.say(m.smooth, f"{x} + {act}({up}({x}))")


def again(m: Maker) -> None:
    """A layer once more, on what resembles its input: its weights are shared."""
    called = [c for line in m.lines for c in re.findall(r"(self\.m\d+)\(([vx]\d+)\)", line.text)]
    if called:
        made, x = m.random.choice(called)
        m.say(m.smooth, f"{made}({x}.flip(0) * 0.5)")


def losses(m: Maker) -> None:
    x = next((n for n in reversed(m.smooth) if m.value(n).dim() == 2), None)
    if x is None or m.random.random() < 0.4:
        loss(m)
        return
    n = m.value(x).shape[0]
    texts = [
        f"F.huber_loss({x}, {x}.detach() * 0.5 + 0.3)",
        f"F.gaussian_nll_loss({x}, {x}.detach() + 0.2, {x}.detach().abs() + 0.5)",
        f"F.cosine_embedding_loss({x} + 0.5, {x}.detach().flip(0) + 0.2, torch.ones({n}))",
        f"F.margin_ranking_loss({x}, {x}.detach().roll(1, 0) + 4, torch.ones_like({x}))",
        f"F.triplet_margin_loss({x}, {x}.detach() + 1, {x}.detach() * 0.5 - 0.3)",
        f"F.soft_margin_loss({x}, torch.ones_like({x}))",
        f"F.poisson_nll_loss({x}.clamp(-3, 3), {x}.detach().abs())",
        f"F.l1_loss({x}, {x}.detach() + 1)",
        f"F.cosine_similarity({x} + 0.5, {x}.roll(1, 0) - 0.25, dim=-1)",
        f"F.pairwise_distance({x}, {x}.detach() + 1)",
    ]
    m.say(m.smooth, m.random.choice(texts))


def halves(m: Maker) -> None:
    """A part of the model in 16 bits."""
    x = m.one(rank=1)
    if not x:
        return
    kind = m.random.choice(("bfloat16", "float16"))
    act = m.random.choice(("torch.tanh({0})", "{0} * 0.5", "{0}.softmax(-1)", "F.silu({0})"))
    m.say(m.smooth, f"({act.format(f'{x}.to(torch.{kind})')}).to({x}.dtype)")


STEPS: tuple[tuple[Step, float], ...] = (
    (activation, 4),
    (convolution, 6),
    (stage, 3),
    (pooling, 3),
    (resized, 3),
    (sampled, 0.5),
    (heads, 2),
    (rotary, 1),
    (transformer, 0.5),
    (mixture, 0.7),
    (layers_of_rows, 0.7),
    (recurrent, 0.3),
    (bag, 0.7),
    (embedding, 1),
    (bilinear, 0.4),
    (residual, 2),
    (again, 2),
    (losses, 2),
    (halves, 1),
    (linear, 3),
    (norm, 3),
    (attention, 0.7),
    (unary, 3),
    (binary, 4),
    (reduce, 3),
    (view, 4),
    (rows, 2),
    (product, 2),
    (joined, 2),
    (cast, 1),
    (jump, 3),
    (indexed, 2),
    (ordered, 0.5),
    (changed, 1),
)
