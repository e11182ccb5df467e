"""What random PyTorch programs are made of: each function adds a line or two to a program."""

from __future__ import annotations

from collections.abc import Callable

from tests.driver.torch_maker import Maker
from tests.driver.torch_programs import Input

Step = Callable[[Maker], object]

UNARY = (
    "torch.tanh({0})|torch.sigmoid({0})|torch.sin({0})|torch.cos({0})|torch.erf({0})|-{0}|{0} ** 2|"
    "torch.relu({0})|{0}.abs()|{0} * {0}|torch.exp(-{0}.abs())|torch.log1p({0}.abs())|1 - {0}|"
    "torch.atan({0})|torch.sqrt({0}.abs() + 1)|torch.rsqrt({0} * {0} + 0.5)|{0} * 0.5 + 1|{0} / 3|"
    "torch.expm1({0}.clamp(-3, 1))|F.gelu({0})|F.gelu({0}, approximate='tanh')|F.silu({0})|"
    "F.softplus({0})|F.leaky_relu({0}, 0.1)|F.elu({0})|F.mish({0})|F.hardswish({0})|F.relu6({0})|"
    "F.logsigmoid({0})|{0}.clamp(-1, 1.5)|{0}.clamp(min=0)|2 / ({0}.abs() + 1)|F.hardtanh({0})|"
    "({0}.abs() + 0.5) ** 0.7|torch.nan_to_num({0})|torch.reciprocal({0}.abs() + 1)|"
    "torch.log({0}.abs() + 0.25)|torch.sinh({0}.clamp(-2, 2))|torch.special.erfc({0})"
).split("|")

BINARY = (
    "{0} + {1}|{0} - {1}|{0} * {1}|torch.maximum({0}, {1})|torch.minimum({0}, {1})|"
    "{0} / ({1}.abs() + 1)|torch.atan2({0}, {1}.abs() + 1)|torch.lerp({0}, {1}, 0.3)|"
    "torch.addcmul({0}, {1}, {1}, value=0.5)|torch.hypot({0}, {1} + 4)|torch.logaddexp({0}, {1})|"
    "torch.add({0}, {1}, alpha=2)|torch.sub({0}, {1}, alpha=0.5)|torch.rsub({0}, {1})|"
    "({0}.abs() + 0.5) ** {1}.clamp(-2, 2)|torch.where({0} > 10, {1}, {0})|"
    "torch.fmod({0}, 100.0) + {1}"
).split("|")


def unary(m: Maker) -> None:
    if x := m.one():
        m.say(m.smooth, m.random.choice(UNARY).format(x))


def binary(m: Maker) -> None:
    x, y = m.one(), m.one()
    if x and y:
        m.say(m.smooth, m.random.choice(BINARY).format(x, y))


def promoted(m: Maker) -> None:
    """Floats with whole numbers, and numbers of Python's."""
    x, w = m.one(), m.one(m.whole)
    if x and w:
        texts = "{0} + {1}|{0} * {1} * 0.1|{1} - {0}|{0} / ({1}.abs() + 1)|{1} / 4 + {0}".split("|")
        if str(m.value(w).dtype) == "torch.bool":
            texts = ["{0} * {1}", "{0} + {1}"]
        m.say(m.smooth, m.random.choice(texts).format(x, w))


def numbered(m: Maker) -> None:
    """Python numbers among the arguments, which change from call to call."""
    x = m.one()
    if not x:
        return
    if not m.numbers or m.random.random() < 0.3:
        m.add_input(m.numbers, Input(m.random.choice(("int", "float")), (), "number"))
    n = m.random.choice(m.numbers)
    texts = (
        "{0} * {1} / 8|{0} + {1}|{0} / {1}|torch.where({0} > {1} + 20, {0}, {1} * 0.5)|{1} - {0}|"
    )
    texts += "torch.full_like({0}, {1}) + {0}|{0}.clamp(max={1} + 0.5)"
    m.say(m.smooth, m.random.choice(texts.split("|")).format(x, n))


def reduce(m: Maker) -> None:
    x = m.one()
    if not x:
        return
    rank = m.value(x).dim()
    name = m.random.choice("mean sum amax amin var std logsumexp norm max min median".split())
    keep = m.random.random() < 0.5
    if rank == 0 or (name in ("mean", "sum", "norm", "max") and m.random.random() < 0.15):
        m.say(m.smooth, f"{x}.{name if name in ('mean', 'sum', 'max') else 'mean'}()")
        return
    if name in ("max", "min", "median"):
        name = "max" if name == "median" else name
        m.say(m.smooth, f"{x}.{name}(dim={m.axis(x)}, keepdim={keep}).values")
        return
    axes = tuple(sorted(m.random.sample(range(rank), m.random.randint(1, rank))))
    if name in ("var", "std"):
        if m.value(x).numel() < 2:
            return
        text = f"torch.var({x}, dim={axes}, correction=0, keepdim={keep})"
        # The root is taken away from 0, where it has no slope.
        m.say(m.smooth, text if name == "var" else f"torch.sqrt({text} + 0.5)")
        return
    if name == "norm":
        m.say(m.smooth, f"torch.linalg.vector_norm({x}, dim={axes}, keepdim={keep})")
        return
    m.say(m.smooth, f"torch.{name}({x}, dim={axes}, keepdim={keep})")


def view(m: Maker) -> None:
    pool = m.either()
    x = m.one(pool)
    if not x:
        return
    r, v = m.random, m.value(x)
    if v.dim() == 0:
        m.say(pool, r.choice([f"{x}.expand(3)", f"{x}.reshape(1, 1)", f"{x}.repeat(2, 3)"]))
        return
    a, b = m.axis(x), m.axis(x)
    low, high = min(a, b), max(a, b)
    start, step = r.randrange(v.shape[a]) if not m.dynamic else 0, r.randint(1, 3)
    order = r.sample(range(v.dim()), v.dim())
    colons = ", ".join([":"] * a)
    colons = f"{colons}, " if colons else ""
    texts = [
        f"{x}.permute({order})",
        f"{x}.transpose({a}, {b})",
        f"{x}.flatten({low}, {high})",
        f"{x}.reshape(-1)",
        f"{x}.reshape({m.size(x, 0)}, -1)",
        f"{x}.unsqueeze({a})",
        f"{x}.flip({a})",
        f"{x}.roll({step}, {a})",
        f"{x}.select({a}, {start})",
        f"{x}[{colons}{start}::{step}]",
        f"{x}[{colons}-1]",
        f"{x}[..., None]",
        f"{x}[{colons}:-1]",
        f"{x}.chunk(2, {a})[0]",
        f"{x}.chunk(2, {a})[-1]",
        f"{x}.unbind({a})[0]",
        f"{x}.narrow({a}, {start}, 1)",
        f"{x}.movedim({a}, {b})",
        f"{x}.squeeze()",
        f"{x}.squeeze({a})",
        f"{x}.expand(2, *{x}.shape)",
        f"{x}.repeat_interleave(2, dim={a})",
        f"{x}.tile(2)",
        f"F.pad({x}, (1, 2))",
        f"{x}.unfold({a}, 1, 1)",
        f"{x}.contiguous()",
    ]
    if v.dim() >= 2:
        texts += [f"{x}.mT", f"{x}.diagonal(0, -2, -1)", f"torch.tril({x})", f"torch.triu({x}, 1)"]
        texts += [f"torch.rot90({x})", f"F.pad({x}, (-1, 1, 1, 0))"]
    if v.dtype.is_floating_point:
        texts += [f"F.pad({x}, (1, 1), value=0.5)", f"{x}.clone()", f"{x}.detach()"]
    m.say(pool, r.choice(texts))


def rows(m: Maker) -> None:
    x = m.one(rank=1)
    if not x:
        return
    width, a = m.value(x).shape[-1], m.axis(x)
    texts = [
        f"{x}.softmax({a})",
        f"F.log_softmax({x}, {a})",
        f"{x}.cumsum({a}) / 4",
        f"torch.sigmoid({x}).cumprod({a})",
        f"F.normalize({x} + 0.5, dim={a}, eps=0.1)",
        f"{x} - {x}.mean({a}, keepdim=True)",
        f"{x} / ({x}.abs().amax({a}, keepdim=True) + 0.5)",
        f"torch.logcumsumexp({x}, {a})",
        f"F.glu(torch.cat(({x}, {x}), {a}), {a})",
        f"torch.diff({x}, dim={a})",
    ]
    if not m.dynamic or isinstance(width, int):
        texts.append(f"F.layer_norm({x}, ({m.size(x, -1)},), eps=0.1)")
        texts.append(f"F.rms_norm({x}, ({m.size(x, -1)},), eps=0.1)")
    m.say(m.smooth, m.random.choice(texts))


def product(m: Maker) -> None:
    x = m.one(rank=2)
    if not x:
        return
    v, r = m.value(x), m.random
    scale = f"{v.shape[-1] ** -0.5:.3f}"
    y = m.one(rank=1)
    texts = [
        f"({x} @ {x}.mT) * {scale}",
        f"({x} @ {y}) * {scale}",
        f"({x} @ {y}.mT) * {scale}" if y and m.value(y).dim() > 1 else f"({x} @ {y}) * {scale}",
        f"torch.einsum('...ij,...kj->...ik', {x}, {x}) * {scale}",
        f"torch.einsum('...ij->...ji', {x})",
        f"F.linear({x}, {x}.reshape(-1, {m.size(x, -1)})[:3]) * {scale}",
        f"F.scaled_dot_product_attention({x}[None, None], {x}[None, None], {x}[None, None])"
        if v.dim() == 2
        else f"F.scaled_dot_product_attention({x}, {x}, {x}, is_causal=True)",
    ]
    if r.random() < 0.3 and not m.dynamic:
        new = m.input_like((v.shape[-1], r.choice((1, 3, 8, 17))))
        texts = [f"({x} @ {new}.to({x}.dtype)) * {scale}"]
    m.say(m.smooth, r.choice(texts))


def joined(m: Maker) -> None:
    pool = m.either()
    x = m.one(pool)
    if not x:
        return
    y = m.alike(x) or x
    a = m.axis(x)
    if m.value(x).dim() and m.random.random() < 0.6:
        m.say(pool, f"torch.cat(({x}, {y}, {x}), {a})")
    else:
        m.say(pool, f"torch.stack(({x}, {y}), {m.random.choice((0, -1))})")


def cast(m: Maker) -> None:
    if m.random.random() < 0.75:
        if x := m.one():
            m.say(m.smooth, f"{x}.to(torch.{m.random.choice(m.floats)})")
    elif w := m.one(m.whole):
        kinds = ("int64", "int32", "int16", "int8", "bool")
        m.say(m.whole, f"{w}.to(torch.{m.random.choice(kinds)})")


def jump(m: Maker) -> None:
    """What depends on whole numbers: comparisons, divisions, order."""
    w, x = m.one(m.whole), m.one()
    if not w or not x:
        return
    kind = str(m.value(w).dtype)
    other = m.one(m.whole) or w
    if kind == "torch.bool":
        texts = [
            "~{0}",
            "{0} & {1}.bool()",
            "{0} ^ ({1} > 0)",
            "{0}.any()",
            "{0}.int()",
            "{0} | {0}",
        ]
        smooth = ["torch.where({0}, {2}, 0.5)", "{2}.masked_fill({0}, -1.0)"]
    else:
        texts = "{0} + {1}|{0} - {1}|{0} // 2|{0} % 3|{0} // ({1}.abs() + 1)|{0} % ({1}.abs() + 1)|"
        texts += "torch.div({0}, 3, rounding_mode='trunc')|torch.remainder({0}, -3)|"
        texts += "torch.fmod({0}, 3)|{0} & 5|{0} ^ 3|{0} >> 1|{0}.clamp(-2, 3)|torch.sign({0})|"
        texts += "torch.maximum({0}, {1})|({0} > {1}).int()|{0} == {1}|({0} >= 1).sum(-1)|"
        texts += "torch.where({0} > 1, {0}, {1})|{0}.abs()|-{0}|torch.gcd({0}, {1})|{0} << 1"
        texts = texts.split("|")
        if m.value(w).dim():
            a = m.axis(w)
            texts += ["torch.sort({0}).values", "torch.sort({0}, descending=True).values"]
            texts += [f"torch.sort({{0}}, dim={a}, stable=True).indices", f"{{0}}.cumsum({a})"]
            texts += ["{0}.topk(1).values", f"{{0}}.amax({a})", f"{{0}}.sum({a})"]
            texts += ["torch.argmax({0} * 64 + torch.arange({0}.shape[-1]), -1)"]
            texts += ["{0}.any(-1)", "({0} > 0).all(-1)", f"torch.cummax({{0}}, {a}).values"]
        smooth = ["torch.where({0} > 0, {2}, 0.5)", "torch.where({0} == 1, {2}, {2} * 2)"]
        smooth += ["{2}.masked_fill({0} < 0, 0.25)", "torch.where({0} % 2 == 0, {2}, -{2})"]
        smooth += ["{0}.float() * 0.25", "{0} / 8", "torch.float_power({0}.abs() + 1, 0.5).float()"]
    if m.random.random() < 0.35:
        m.say(m.smooth, m.random.choice(smooth).format(w, other, x))
    else:
        m.say(m.whole, m.random.choice(texts).format(w, other, x))


def indexed(m: Maker) -> None:
    x = m.one(rank=1)
    if not x or m.dynamic:
        return
    r, v = m.random, m.value(x)
    a = m.axis(x)
    size = v.shape[a]
    i = m.index((r.choice((1, 3, 6)),), size)
    n = m.value(i).shape[0]
    colons = ":, " * a
    # The index as an array of x's rank, along its axis; and as much of it as x has.
    along = f"{i}.long().reshape({', '.join('-1' if k == a else '1' for k in range(v.dim()))})"
    part = ", ".join(f":{size}" if k == a else ":1" for k in range(v.dim()))
    texts = [
        f"{x}[{colons}{i}.long()]",
        f"{x}.index_select({a}, {i})",
        f"torch.take_along_dim({x}, {along}, {a})",
        f"{x}.index_fill({a}, {i}.long(), 0.5)",
        f"torch.zeros({size + r.choice((0, 2))}).index_add(0, {i}, {x}.float().sum().expand({n}))",
        f"{x}.index_add({a}, {i}, {x}.narrow({a}, 0, 1).repeat_interleave({n}, {a}) * 0.5)",
        f"{x}.scatter({a}, {along}[{part}], 0.5)",
        f"{x}.masked_fill({x} > 10, 0.0)",
    ]
    j = m.index(tuple(v.shape), size)
    texts += [
        f"torch.gather({x}, {a}, {j}.long())",
        f"{x}.scatter_add({a}, {j}.long(), {x} * 0.1)",
        f"torch.zeros_like({x}).scatter_reduce({a}, {j}.long(), {x}, 'amax')",
    ]
    if v.dim() >= 2 and a == 0:
        k = m.index((n,), v.shape[1])
        texts += [
            f"{x}[{i}.long(), {k}.long()]",
            f"{x}[{i}.long()[:, None], {k}.long()]",
            f"{x}.index_put(({i}.long(), {k}.long()), {x}.flatten()[0] * 0.5, accumulate=True)",
            f"{x}[-1 - {i}.long()]",
        ]
    m.say(m.smooth, r.choice(texts))


def ordered(m: Maker) -> None:
    """Floats in order: values only, which do not jump."""
    x = m.one(rank=1)
    if not x:
        return
    a = m.axis(x)
    k = min(2, m.value(x).shape[a])
    texts = [
        f"torch.sort({x}, dim={a}).values",
        f"{x}.topk({k if not m.dynamic else 1}, dim={a}).values",
    ]
    texts += [f"torch.sort({x}, dim={a}, descending=True).values", f"torch.cummax({x}, {a}).values"]
    m.say(m.smooth, m.random.choice(texts))


def changed(m: Maker) -> None:
    """In place: on a copy, on a view of it, or on an input."""
    x = m.one()
    if not x:
        return
    r, v, name = m.random, m.value(x), m.new()
    texts = ["{0}.mul_(0.5)", "{0}.add_(1)", "{0}.relu_()", "{0}.clamp_(-1, 1)", "{0}.tanh_()"]
    texts += ["{0}.sub_({1}, alpha=0.5)", "{0}.copy_({1} * 0.5)", "{0}.masked_fill_({1} > 10, 1.0)"]
    texts += ["{0} += {1}", "{0} *= 0.5", "{0}.fill_(0.5)", "{0}.zero_()", "{0}.neg_()"]
    if v.dim():
        texts += ["{0}[0] = 0.5", "{0}[-1] = {0}[0] * 0.5", "{0}[..., 0] += 1", "{0}[:1] *= 2"]
        texts += ["{0}[..., ::2].mul_(0.5)", "{0}.select(-1, 0).add_(0.25)", "{0}[0].zero_()"]
        texts += ["{0}[..., :1].copy_({0}[..., -1:])", "{0}.unsqueeze(0)[0].mul_(0.5)"]
    if v.dim() > 1:
        texts += [
            "{0}.transpose(0, 1)[0].add_(1)",
            "{0}.flatten(0, 1)[0] = 1.0",
            "{0}.mT.mul_(0.5)",
        ]
    parts = [f"{name} = {x}.clone()"]
    plain = [
        n for n, i in m.inputs.items() if not i.grad and i.values == "normal" and n in m.smooth
    ]
    if plain and r.random() < 0.2:
        target = r.choice(plain)
        parts = [t.format(target, target) for t in r.sample(texts[:4], 1)]
        m.write([name], "\n".join([*parts, f"{name} = {target} + 1"]), m.smooth)
        return
    count = r.randint(1, 3)
    parts += [t.format(name, x) for t in r.sample(texts, count)]
    m.write([name], "\n".join(parts), m.smooth)


def apart(m: Maker) -> None:
    """Without gradients."""
    x = m.one()
    if not x:
        return
    name = m.new()
    texts = [f"{name} = {x}.detach() * {x}", f"with torch.no_grad():\n    {name} = torch.tanh({x})"]
    texts += [f"with torch.no_grad():\n    {name} = {x} * 0.5\n{name} = {name} + {x}"]
    m.write([name], m.random.choice(texts), m.smooth)


def constants(m: Maker) -> None:
    x = m.one(rank=1)
    if not x:
        return
    n, shape = m.size(x, -1), f"{x}.shape"
    texts = [
        f"{x} + torch.arange({n}) / 8",
        f"{x} * torch.linspace(0, 1, {n})",
        f"{x} + torch.ones({shape})",
        f"{x} * torch.zeros_like({x}) + torch.full({shape}, 0.5)",
        f"{x} + torch.eye({n})[0]",
        f"{x}.masked_fill(torch.arange({n}) > 1, 0.5)",
        f"torch.where(torch.arange({n}) % 2 == 0, {x}, 0.0)",
        f"{x} + torch.tensor([0.5])",
        f"{x} + {x}.new_full(({n},), 0.25)",
    ]
    m.say(m.smooth, m.random.choice(texts))


STEPS: tuple[tuple[Step, int], ...] = (
    (unary, 8),
    (binary, 7),
    (promoted, 3),
    (numbered, 1),
    (reduce, 5),
    (view, 8),
    (rows, 4),
    (product, 4),
    (joined, 3),
    (cast, 3),
    (jump, 9),
    (indexed, 4),
    (ordered, 1),
    (changed, 4),
    (apart, 1),
    (constants, 2),
)
