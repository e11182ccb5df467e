"""Layers, losses and long programs: what random PyTorch programs are made of besides operators."""

from __future__ import annotations

from tests.driver.torch_maker import Maker
from tests.driver.torch_programs import Input
from tests.driver.torch_steps import STEPS as OPERATORS
from tests.driver.torch_steps import Step


def like(m: Maker, x: str) -> str:
    """What gives a layer the dtype of its input."""
    kind = str(m.value(x).dtype)
    return "" if kind == "torch.float32" else f".to({kind})"


def linear(m: Maker) -> None:
    x = m.one(rank=1)
    if x and (not m.dynamic or _static(m, x)):
        bias = m.random.choice((True, True, False))
        n, width = m.value(x).shape[-1], m.random.choice((1, 3, 8, 17))
        layer = m.module(f"nn.Linear({n}, {width}, bias={bias}){like(m, x)}")
        m.say(m.smooth, f"{layer}({x})")


def _static(m: Maker, x: str) -> bool:
    """Is the last axis one whose size does not change? The sizes that do are known by number."""
    return m.value(x).shape[-1] not in m.sizes.values()


def convolution(m: Maker) -> None:
    r = m.random
    rank = r.choice((1, 2, 2))
    x = next((n for n in reversed(m.smooth) if m.value(n).dim() == rank + 2), None)
    if x is None or r.random() < 0.5:
        groups = r.choice((1, 1, 2))
        space: list[int | str] = [r.choice((5, 7, 8)) for _ in range(rank)]
        batch: int | str = "s0" if m.dynamic else r.choice((1, 2))
        x = m.input_like((batch, groups * r.choice((1, 3)), *space))
    else:
        groups = 1
    channels = m.value(x).shape[1]
    groups = groups if channels % groups == 0 else 1
    if m.dynamic and channels in m.sizes.values():
        return
    out = groups * r.choice((1, 2, 5))
    kernel, stride, padding = r.choice((1, 3)), r.choice((1, 2)), r.choice((0, 1))
    name = f"nn.Conv{rank}d" if r.random() < 0.85 else f"nn.ConvTranspose{rank}d"
    layer = m.module(
        f"{name}({channels}, {out}, {kernel}, stride={stride}, padding={padding}, "
        f"groups={groups}){like(m, x)}"
    )
    m.say(m.smooth, f"{layer}({x}) * 0.5")


def pooling(m: Maker) -> None:
    x = next((n for n in reversed(m.smooth) if m.value(n).dim() == 4), None)
    if x and not m.dynamic:
        texts = [f"F.max_pool2d({x}, 2)", f"F.avg_pool2d({x}, 2, stride=1)"]
        texts += [f"F.adaptive_avg_pool2d({x}, 1)", f"F.interpolate({x}, scale_factor=2.0)"]
        texts += [f"F.max_pool2d({x}, 3, stride=2, padding=1)"]
        m.say(m.smooth, m.random.choice(texts))


def norm(m: Maker) -> None:
    x = m.one(rank=2)
    if not x or (m.dynamic and not _static(m, x)):
        return
    shape = m.value(x).shape
    texts = [f"nn.LayerNorm({shape[-1]}, eps=0.1)", f"nn.RMSNorm({shape[-1]}, eps=0.1)"]
    if len(shape) >= 3 and not m.dynamic:
        texts += [f"nn.GroupNorm(1, {shape[1]}, eps=0.1)"]
        # In training the statistics are those of the batch, and running ones change.
        if len(shape) <= 4:
            texts += [f"nn.BatchNorm{len(shape) - 2}d({shape[1]}, eps=0.1)"] * 2
    layer = m.module(m.random.choice(texts) + like(m, x))
    m.say(m.smooth, f"{layer}({x})")


def embedding(m: Maker) -> None:
    r = m.random
    i = m.index(m.shape(r.choice((1, 2))), 9)
    layer = m.module(f"nn.Embedding(9, {r.choice((3, 8))})")
    m.say(m.smooth, f"{layer}({i})")


def attention(m: Maker) -> None:
    r = m.random
    heads, width = r.choice(((1, 4), (2, 8), (3, 6)))
    batch: int | str = "s0" if m.dynamic else 2
    x = m.add_input(m.smooth, Input("float32", (batch, 5, width), grad=m.grad))
    if r.random() < 0.5:
        layer = m.module(f"nn.MultiheadAttention({width}, {heads}, batch_first=True)")
        m.say(m.smooth, f"{layer}({x}, {x}, {x}, need_weights=False)[0]")
    else:
        split = f"{x}.unflatten(-1, ({heads}, -1)).transpose(1, 2)"
        causal = r.choice((True, False))
        m.say(
            m.smooth,
            f"F.scaled_dot_product_attention({split}, {split}, {split}, is_causal={causal})",
        )


def recurrent(m: Maker) -> None:
    """Cells unrolled over an axis."""
    r = m.random
    width, hidden, steps = r.choice((3, 4)), r.choice((4, 5)), r.choice((3, 6, 12))
    x = m.add_input(m.smooth, Input("float32", (2, steps, width), grad=m.grad))
    name = m.new()
    kind = r.choice(("RNNCell", "GRUCell", "LSTMCell", "own"))
    start = f"h = torch.zeros({x}.shape[0], {hidden})"
    if kind == "own":
        layer = m.module(f"nn.Linear({width + hidden}, {hidden})")
        step = f"h = torch.tanh({layer}(torch.cat(({x}[:, t], h), 1)))"
    elif kind == "LSTMCell":
        layer = m.module(f"nn.LSTMCell({width}, {hidden})")
        start += f"\nc = torch.zeros({x}.shape[0], {hidden})"
        step = f"h, c = {layer}({x}[:, t], (h, c))"
    else:
        layer = m.module(f"nn.{kind}({width}, {hidden})")
        step = f"h = {layer}({x}[:, t], h)"
    text = (
        f"{start}\nall_steps = []\nfor t in range({steps}):\n    {step}\n    all_steps.append(h)\n"
    )
    m.write([name], text + f"{name} = torch.stack(all_steps, 1)", m.smooth)


def loss(m: Maker) -> None:
    x = next((n for n in reversed(m.smooth) if m.value(n).dim() == 2), None)
    if x is None or m.dynamic:
        return
    rows, classes = m.value(x).shape
    target = m.index((rows,), classes)
    texts = [
        f"F.cross_entropy({x}, {target}.long())",
        f"F.cross_entropy({x}, {target}.long(), reduction='none', label_smoothing=0.1)",
        f"F.nll_loss(F.log_softmax({x}, 1), {target}.long(), reduction='sum') * 0.1",
        f"F.mse_loss({x}, {x}.detach() * 0.5)",
        f"F.binary_cross_entropy_with_logits({x}, torch.sigmoid({x}).detach())",
        f"F.smooth_l1_loss({x}, {x}.detach() * 0.9 + 0.2)",
        f"F.one_hot({target}.long(), {classes}).to({x}.dtype) * {x}",
        f"F.kl_div(F.log_softmax({x}, 1), {x}.softmax(1).detach() * 0.9 + 0.01, reduction='sum')",
    ]
    m.say(m.smooth, m.random.choice(texts))


# ---- long and wide


def deep(m: Maker) -> None:
    x = m.one()
    if not x:
        return
    name, n = m.new(), m.random.choice((30, 60, 120, 250))
    body = m.random.choice(
        [
            f"{name} = torch.tanh({name}) * 0.9 + {x} * 0.1",
            f"{name} = torch.where({name} > 0.1 * k - 3, {name} * 0.5, {name} + 0.1)",
            f"{name} = {name}.roll(1, -1) * 0.9" if m.value(x).dim() else f"{name} = {name} * 0.9",
            f"{name} = torch.sin({name}) + {name}.mean()",
            f"{name} = {name} + {x} / (k + 1)**2",
        ]
    )
    m.write([name], f"{name} = {x}\nfor k in range({n}):\n    {body}", m.smooth)


def wide(m: Maker) -> None:
    """Many operators side by side, and put together."""
    x = m.one()
    if not x or m.value(x).numel() > 64:
        return
    name, n = m.new(), m.random.choice((30, 60, 120, 200))
    join = m.random.choice(("torch.stack(parts)", "torch.cat([p.reshape(-1) for p in parts])"))
    join = m.random.choice((join, join, "sum(parts) / len(parts)"))
    text = f"parts = [torch.sin({x} + 0.01 * k) for k in range({n})]\n{name} = {join}"
    m.write([name], text, m.smooth)


def scanned(m: Maker) -> None:
    """A recurrence over an axis, written out step by step."""
    x = m.one(rank=1)
    if not x or m.dynamic:
        return
    name, a = m.new(), m.axis(x)
    n = m.value(x).shape[a]
    if n > 200:  # torch's own capture of thousands of steps takes minutes
        return
    text = (
        f"h = torch.zeros_like({x}.select({a}, 0))\nsteps = []\nfor t in range({n}):\n"
        f"    h = h * torch.sigmoid({x}.select({a}, t)) + {x}.select({a}, t)\n    steps.append(h)\n"
        f"{name} = torch.stack(steps, {a})"
    )
    m.write([name], text, m.smooth)


STEPS: tuple[tuple[Step, float], ...] = (
    *OPERATORS,
    (linear, 3),
    (convolution, 1.5),
    (pooling, 1),
    (norm, 2),
    (embedding, 1),
    (attention, 0.7),
    (recurrent, 0.5),
    (loss, 1.5),
)

LONG: tuple[tuple[Step, float], ...] = ((deep, 0.25), (wide, 0.25), (scanned, 0.4))
