"""What steps of random loops do, each a function that adds it to a program."""

from __future__ import annotations

from collections.abc import Callable

from tests.capture.loop_maker import Maker


def state(m: Maker) -> None:
    """A tensor that is carried from step to step."""
    h, r = f"h{len(m.states)}", m.r
    plain = ("torch.zeros_like(y[0])", "x[:, 0] * 1", "y[0]", "y[0].clone()", "x[:, 0]")
    other = (
        *("0", "0.0", "torch.zeros(3, 4)", "torch.zeros(3, 4, dtype=torch.int64)", "y.sum(0)"),
        *("torch.zeros(4, 3).double().t()", "torch.zeros(1, 4).double().expand(3, 4)", "1.5"),
        *("torch.zeros(()).double()", "y[0].detach()", "torch.ones(3, 4).double()", "y[2].sum()"),
        *("x[:, 4].requires_grad_(False) * 1 if not x.requires_grad else x[:, 3]", "None"),
    )
    first = r.choice(plain) if r.random() < 0.85 else r.choice(other)
    if m.states and r.random() < 0.15:
        first = r.choice((m.states[-1], f"{m.states[-1]} * 1", f"{m.states[-1]}[:]"))
    m.before.append(f"{h} = {first}")
    m.states.append(h)
    if first == "None":
        m.body.append(f"if {h} is None:\n    {h} = y[1] * 1\nelse:\n    {h} = torch.sin({h})")
    m.body.append(f"{h} = {m.value()}")
    m.known.append(h)
    m.give(h)
    if r.random() < 0.1:
        m.after.append(r.choice((f"{h}.mul_(2)", f"{h} += 1", f"{h} = {h}.view(-1)")))


def temporary(m: Maker) -> None:
    v = m.name("v")
    m.body.append(f"{v} = {m.value()}")
    m.known.append(v)
    if m.r.random() < 0.4:
        m.give(v)
    elif m.r.random() < 0.1:
        m.body.append(f"del {v}")
        m.known.remove(v)


def swap(m: Maker) -> None:
    if len(m.states) < 2:
        state(m)
    a, b = m.r.sample(m.states, 2)
    forms = (f"{a}, {b} = {b}, {a}", f"{a}, {b} = {b}, {m.value()}", f"{a} = {b}")
    m.body.insert(m.r.randrange(len(m.body) + 1), m.r.choice((*forms, f"{a} = {b} * 1")))


def previous(m: Maker) -> None:
    """What a variable was in the step before."""
    p, r = m.name("p"), m.r
    m.before.append(f"{p} = {r.choice(('y[1]', 'torch.zeros_like(y[0])', 'h0', 'y[1] * 2'))}")
    where = r.randrange(len(m.body) + 1)
    m.body.insert(where, f"{p} = {r.choice((*m.states, m.slice(), m.value()))}")
    m.states.append(p)
    m.give(p)


def in_place(m: Maker) -> None:
    a = m.r.choice([*m.states, *m.known, "x", "y"])
    b = m.tensor(0) if a not in ("x", "y") else "0.01"
    forms = (
        *(f"{a}.mul_(0.5)", f"{a} += {b}", f"{a}.add_({b}, alpha=0.1)", f"{a}.tanh_()"),
        *(f"{a}[0] = {a}[1]", f"{a}[1:].zero_()", f"{a}.copy_({a} * 0.5)", f"{a} *= 0.9"),
        *(f"{a}.detach().mul_(0.5)", f"{a}.view(-1)[2:5].add_(0.25)", f"{a}.data.mul_(0.5)"),
        *(f"torch.sin({a}, out={a})", f"{a}[{a} > 0.5] = 0.25", f"{a}.masked_fill_({a} > 0.5, 0)"),
    )
    m.body.insert(m.r.randrange(len(m.body) + 1), m.r.choice(forms))


def list_of_results(m: Maker) -> None:
    o, r = m.name("o"), m.r
    first = r.choice(("[]", "[]", "[]", "[y[0]]", "[h0]", "[x[:, 1] * 1]"))
    m.before.append(f"{o} = {first}")
    what = r.choice(
        (
            *(r.choice(m.states), r.choice(m.known), r.choice(m.known), m.tensor(1), m.tensor(1)),
            *(f"{r.choice(m.known)}.view(4, 3).t()", f"{r.choice(m.known)}[:]", m.slice(), "y[0]"),
            *(f"({r.choice(m.known)} * 2).unsqueeze(0)[0]", f"{m.tensor(1)}.contiguous()"),
        )
    )
    if r.random() < 0.12:
        tuples(m, o, what)
        return
    m.body.insert(r.randrange(len(m.body) + 1), f"{o}.append({what})")
    if r.random() < 0.12:
        again = r.choice((what, r.choice(m.known), f"{r.choice(m.known)}.view(3, 4)"))
        m.body.append(f"{o}.append({again})")
    if r.random() < 0.15:
        read = (f"h0 = h0 + {o}[-1]", f"h0 = h0 * 0.1 * len({o})", f"if not {o}:\n    h0 = h0 * 2")
        more = (f"h0 = {o}[0] + h0", f"h0 = torch.stack({o}).mean(0)", f"{o}.reverse()")
        rare = (f"{o} = {o} + [h0]", f"{o} += [h0]", f"{o}.extend([h0])", f"{o} = list({o})")
        m.body.insert(r.randrange(len(m.body) + 1), r.choice((*read, *more, *rare)))
    after_list(m, o)


def after_list(m: Maker, o: str) -> None:
    r = m.r
    dim = r.choice((0, 1, 2, -1, -2))
    near = r.choice((0, 1, -1))
    joins = (
        *(f"torch.stack({o}, {dim})", f"torch.stack({o}, dim={dim})", f"torch.cat({o}, {near})"),
        *(f"torch.cat({o}, dim={near})", f"torch.stack({o}[::-1])", f"torch.stack({o}[2:9], 1)"),
        *(
            f"torch.stack({o}[::2])",
            f"torch.stack({o}[:5] + {o}[3:], 1)",
            f"torch.stack({o}, axis=1)",
        ),
        *(f"torch.cat([y[0], *{o}, h0], 1)", f"torch.stack([h0, *reversed({o})])", f"{o}"),
        *(f"torch.cat({o}, axis=1)", f"torch.concatenate({o}, axis=-1)", f"torch.vstack({o})"),
        *(f"torch.hstack({o})", f"sum({o})", f"{o}[3]", f"{o}[-1]", f"len({o})", f"{o}[-2] is h0"),
    )
    if r.random() < 0.2:
        k = r.choice((0, 1, 3, -1))
        m.after.append(
            r.choice((f"{o}[{k}].mul_(2)", f"{o}[{k}] += 1", f"{o}[{k}] = h0", f"{o}.pop()"))
        )
    m.give(*r.sample(joins, 2))


def tuples(m: Maker, o: str, what: str) -> None:
    m.body.append(f"{o}.append(({what}, {m.r.choice(m.known)} * 0.5))")
    m.give(f"torch.stack([q[-1] for q in {o}[1:]], 1)", f"{o}[4]")


def list_elsewhere(m: Maker) -> None:
    """A list that is no local variable of the function."""
    r, o = m.r, m.name("o")
    what = r.choice((*m.known, m.tensor(1), "t"))
    way = r.randrange(6)
    if way == 0:
        m.body.append(f"given.append({what})")
    elif way == 1:
        m.outside.append(f"{o} = []")
        m.body.append(f"{o}.append({what})")
        m.after.append(f"v{o} = list({o})\n{o}.clear()")
        m.give(f"v{o}")
        return
    elif way == 2:
        m.before.append(f"{o} = {{'a': []}}")
        m.body.append(f"{o}['a'].append({what})")
        m.give(o)
    elif way == 3:
        m.before.append(f"{o} = []\ndef f{o}(q):\n    {o}.append(q)\n    return q * 0.5")
        m.body.append(f"h0 = torch.sin(f{o}(h0))")
        m.give(f"torch.stack({o})")
    elif way == 4:
        m.before.append(f"{o} = ([], [])")
        m.body.append(f"{o}[0].append({what})")
        m.give(o)
    else:
        m.before.append(f"{o} = z{o} = []")
        m.body.append(f"{o}.append({what})\nz{o}.append(h0)")
        m.give(o)


def dictionary(m: Maker) -> None:
    d, r = m.name("d"), m.r
    m.before.append(f"{d} = {{}}")
    key = r.choice(("t", "'a'", "str(t)", "t % 3", "len(given)"))
    m.body.append(f"{d}[{key}] = {r.choice((*m.known, m.tensor(1)))}")
    m.give(f"list({d}.values())[-1]", f"list({d})")


def writes(m: Maker) -> None:
    o, r, i = m.name("o"), m.r, m.index()
    first = r.choice(
        ("torch.zeros(20, 3, 4).double()", "y.clone()", "y * 1", "torch.zeros(20, 3, 4)")
    )
    if r.random() < 0.2:
        first = r.choice(("y", "torch.empty(20, 3, 4).double().fill_(2)", "x.transpose(0, 1) * 1"))
    m.before.append(f"{o} = {first}")
    what = r.choice((*m.known, m.tensor(1), m.slice(), f"{r.choice(m.known)}[0]", "1.5"))
    forms = (
        *(
            f"{o}[{i}] = {what}",
            f"{o}[{i}] = {what}",
            f"{o}[{i}, :] = {what}",
            f"{o}[{i}] += {what}",
        ),
        *(
            f"{o}[{i}, 1:2] = ({what} + h0)[:1]",
            f"{o}[{i}].copy_({what} + h0)",
            f"{o}[{i}, 0] = h0[1]",
        ),
        *(f"{o}[t:t + 1] = ({what} + h0)[None]", f"{o}[{i}, ..., 1] = ({what} + h0)[:, 1]"),
    )
    m.body.insert(r.randrange(len(m.body) + 1), r.choice(forms))
    if r.random() < 0.15:
        m.body.append(r.choice((f"{o}[{m.index()}] = h0", f"h0 = h0 + {o}[{m.index()}]")))
    m.give(o)


def number(m: Maker) -> None:
    k, r = m.name("k"), m.r
    first = r.choice(("0", "1", "0.0", "True", "1.0", "-1"))
    m.before.append(f"{k} = {first}")
    forms = (
        *(
            f"{k} = {k} + 1",
            f"{k} += t",
            f"{k} = {k} * 2 % 7",
            f"{k} = -{k}",
            f"{k} = t",
            f"{k} *= 0.5",
        ),
        *(
            f"{k} = not {k}",
            f"{k} = max({k}, 0)",
            f"{k} = {k} ** 2",
            f"{k} = t + 1",
            f"{k} = 3 - t",
        ),
        *(f"{k} = min({k} + 1, 3)", f"{k} = 3", f"{k} = t - {k}", f"{k} = h0.shape[0]"),
    )
    m.body.insert(r.randrange(len(m.body) + 1), r.choice(forms))
    m.numbers.append(k)
    if r.random() < 0.5:
        m.body.append(f"h0 = h0 * (1 + 0.01 * {k})")
    if r.random() < 0.2:
        m.body.append(f"h0 = torch.atan2(torch.full_like(h0, {k}), -h0.abs() - 0.1)")
    m.give(k)


def used_number(m: Maker) -> None:
    """The number of a step in the text of a step."""
    forms = (
        *(
            "h0 = h0 * 0.1 * t",
            "h0 = h0 + torch.tensor(t)",
            "h0 = h0 * len(f'{t}')",
            "h0 = h0 + 1 / (t + 30)",
        ),
        *("h0 = h0 * [0.5, 0.25][t % 2]", "h0 = torch.roll(h0, t, 0)", "h0 = h0 ** (t % 2 + 1)"),
        *(
            "h0 = h0 + torch.arange(30)[t]",
            "h0 = h0 * 0.5 ** t",
            "h0 = h0 * (t + 1 - t)",
            "h0 = h0 * (t > 3)",
        ),
        *(
            "h0 = torch.full_like(h0, t) * h0",
            "h0 = h0 + float(t)",
            "h0 = h0 * bool(t)",
            "h0 = h0 + int(t)",
        ),
        *(
            "h0 = torch.add(h0, h0, alpha=t)",
            "h0 = h0 * {3: 0.1}.get(t, 1.0)",
            "h0 = h0 + sum([t, 1])",
        ),
        *("h0 = F.pad(h0, (t, 0))[:, :4]", "h0 = h0 * round(t)", "h0 = h0.clamp(max=t + 1)"),
        *(
            "h0 = h0 * (0.1 * t if isinstance(t, bool) else 1.0)",
            "h0 = h0 * (t & 1)",
            "h0 = h0 + (-t)",
        ),
        *("h0 = h0 * (2 if type(t) is int else 3)", "h0 = h0 + divmod(t, 3)[1]", "h0 = h0 * (~t)"),
    )
    m.body.insert(m.r.randrange(len(m.body) + 1), m.r.choice(forms))


def elsewhere(m: Maker) -> None:
    """What a step changes outside of its local variables."""
    r, n = m.r, m.name("n")
    way = r.randrange(9)
    if way == 0:
        m.before.append(f"{n} = 0\ndef f{n}():\n    nonlocal {n}\n    {n} += 1\n    return {n}")
        m.body.append(f"h0 = h0 * 0.1 * f{n}()")
    elif way == 1:
        m.outside.append(f"class {n.upper()}:\n    n, h = 0, None")
        m.before.append(f"{n} = {n.upper()}()")
        m.body.append(r.choice((f"{n}.n += 1\nh0 = h0 * 0.1 * {n}.n", f"{n}.h = h0", f"{n}.n = t")))
        m.give(f"{n}.n", f"{n}.h")
    elif way == 2:
        m.outside.append(f"{n} = 0\ndef f{n}():\n    global {n}\n    {n} += 1\n    return {n}")
        m.body.append(f"f{n}()\nh0 = h0 * 0.1 * (1 + {n} % 3)")
    elif way == 3:
        m.outside.append(f"def f{n}(h, k=[]):\n    k.append(1)\n    return h * (1 + len(k) % 3)")
        m.body.append(f"h0 = torch.sin(f{n}(h0))")
    elif way == 4:
        kind = r.choice(("iter(range(99))", "iter([1, 2, 3] * 30)", "itertools.count()"))
        m.before.append(f"{n} = {kind}")
        m.body.append(f"h0 = h0 * 0.1 * next({n})")
    elif way == 5:
        m.before.append(f"{n} = h0\ndef f{n}(q):\n    nonlocal {n}\n    {n} = torch.sin({n} + q)")
        m.body.append(f"f{n}({m.tensor(0)})")
        m.give(n)
    elif way == 6:
        m.before.append(f"{n} = [1, 2, 3]")
        m.body.append(
            r.choice((f"{n}.append({n}.pop(0))\nh0 = h0 * {n}[0]", f"{n} = {n}[1:] + {n}[:1]"))
        )
        m.give(f"{n}[0]")
    elif way == 7:
        m.before.append(f"{n} = [y[0] * 1, y[1] * 1]")
        m.body.append(
            r.choice((f"{n}[0] = {m.value()}", f"{n} = [{n}[1], {m.value()}]", f"{n}[t % 2] = h0"))
        )
        m.give(f"{n}[0]", f"{n}[1]")
    else:
        m.outside.append(
            f"f{n} = torch.nn.Parameter(torch.ones(3, 4).double(), requires_grad=False)"
        )
        m.body.append(r.choice((f"f{n}.mul_(0.9)", f"h0 = h0 * f{n}", f"h0 = h0 + f{n}.add_(0.1)")))
        m.give(f"f{n} * 1")


def module(m: Maker) -> None:
    r, n = m.r, m.name("m")
    kinds = (
        *(
            "nn.Linear(4, 4)",
            "nn.Linear(4, 4)",
            "nn.GRUCell(4, 4)",
            "nn.LSTMCell(4, 4)",
            "nn.RNNCell(4, 4)",
        ),
        *(
            "nn.BatchNorm1d(4)",
            "nn.BatchNorm1d(4).eval()",
            "nn.Dropout(0.5).eval()",
            "nn.LayerNorm(4)",
        ),
        *(
            "nn.Sequential(nn.Linear(4, 4), nn.Tanh())",
            "nn.BatchNorm1d(4, track_running_stats=False)",
        ),
        *("Counting()", "Keeping()", "nn.BatchNorm1d(4, momentum=None)"),
    )
    kind = r.choice(kinds)
    m.outside.append(f"torch.manual_seed(1)\n{n} = {kind}.double()")
    m.states.append("h0")
    if "LSTM" in kind:
        m.before.append(f"s{n} = y[0] * 1, y[1] * 1")
        m.body.append(f"s{n} = {n}({m.tensor(0)}, s{n})")
        m.give(f"s{n}[0]", f"s{n}[1]")
        return
    two = "Cell" in kind
    m.body.append(f"h0 = {n}({m.tensor(0)}{', h0' if two else ''})")
    if "Norm1d" in kind and "track" not in kind:
        m.give(f"{n}.running_mean * 1", f"{n}.num_batches_tracked * 1")
    if "ing()" in kind:
        m.give(f"{n}.count")


def chance(m: Maker) -> None:
    forms = (
        *(
            "h0 = F.dropout(h0, 0.5)",
            "h0 = h0 + torch.rand_like(h0)",
            "h0 = h0 + torch.randn(3, 4)",
        ),
        *("h0 = torch.bernoulli(h0.sigmoid())", "h0 = h0 + torch.empty_like(h0).uniform_()"),
        *("h0 = h0[torch.randperm(3)]", "h0 = F.rrelu(h0, training=True)"),
    )
    m.body.insert(m.r.randrange(len(m.body) + 1), m.r.choice(forms))


def other_kinds(m: Maker) -> None:
    """Carried values of another dtype or shape."""
    r, c = m.r, m.name("c")
    first, step = r.choice(
        (
            ("y[0] > 0", "~({c}) | (h0 > 0.3)"),
            ("torch.zeros(3, dtype=torch.int64)", "({c} + h0.argmax(-1)) % 4"),
            ("0", "{c} + (h0 > 0).sum()"),
            ("y[0].sum()", "torch.sin({c} + h0.sum())"),
            ("torch.zeros(3, 4)", "({c} + h0).float() * 0.5"),
            ("torch.zeros(3, 4)", "{c} * 0.5 + h0"),
            ("torch.zeros(3, 4, dtype=torch.int32)", "{c} * 2 % 5 + 1"),
            ("torch.zeros(3, 4, dtype=torch.complex128)", "{c} * 0.5j + h0"),
            ("y[0][:1]", "torch.sin({c} + h0)"),
            ("y[0][:, :1]", "torch.cat([{c}, h0], 1)[:, -6:]"),
            ("(y[0] * 1, y[1])", "({c}[1], torch.sin({c}[0] + h0))"),
            ("[y[0] * 1, y[1]]", "[{c}[1], torch.sin({c}[0] + h0)]"),
            ("(y[0] * 1, (y[1], 0))", "({c}[1][0], (torch.sin({c}[0] + h0), {c}[1][1] + 1))"),
            ("{'a': y[0]}", "{{'a': torch.sin({c}['a'] + h0)}}"),
            ("None", "h0"),
        )
    )
    m.before.append(f"{c} = {first}")
    m.body.append(f"{c} = {step.format(c=c)}")
    m.give(c)


def short_loop(m: Maker) -> None:
    n = m.r.choice((2, 3, 18))
    where = m.r.randrange(len(m.body) + 1)
    m.body.insert(where, f"for j in range({n}):\n    h0 = torch.sin(h0 + {m.tensor(0)} * 0.5)")


def function(m: Maker) -> None:
    """A step in a function, or the rest of the values by closures."""
    f = m.name("f")
    m.before.append(
        f"def {f}(h, t, scale=0.5):\n    v = h * scale + {m.slice()}\n    return v.tanh()"
    )
    m.body.insert(m.r.randrange(len(m.body) + 1), f"h0 = {f}(h0, t)")


def text_of_all(m: Maker) -> None:
    m.give("sorted(k for k in locals() if k not in ('x', 'y', 'w', 'given'))")


FEATURES: tuple[tuple[Callable[[Maker], None], float], ...] = (
    (state, 3),
    (temporary, 3),
    (swap, 1.5),
    (previous, 2),
    (in_place, 0.8),
    (list_of_results, 5),
    (list_elsewhere, 0.5),
    (dictionary, 0.2),
    (writes, 2.5),
    (number, 1),
    (used_number, 0.4),
    (elsewhere, 0.5),
    (module, 1.5),
    (chance, 0.15),
    (other_kinds, 2),
    (short_loop, 0.7),
    (function, 1),
    (text_of_all, 0.2),
)
