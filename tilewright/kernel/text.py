"""Groups and nests as text, and back.

group k where s0: 1..
  in a0: f32[s0,768]
  out y0: f32[s0]
  local t0: f32[s0]
  t0[t0.i0] max= a0[t0.i0,t0.r0] for t0.i0 in s0, t0.r0 in 768 from -inf
  y0[y0.i0] = t0[y0.i0] for y0.i0 in s0

nest k where s0: 1..
  …
  parallel y0.i0 in s0 grain 4:
    alloc t0
    t0[0] = -inf
    for t0.r0 in 768:
      t0: t0[0] max= a0[y0.i0,t0.r0]

Of arguments that are pointers nothing but the element is said (`in p: *f32`). The statements that
steps do not cross:

  if t0[0] < n[0]:
    s: add relaxed p[0] with t0[0] into old[0]
  else:
    print 3 of t0[0]; n[0]
  while w0 on t0[0] < n[0]:
    assert 4 on t0[0] > 0.0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.base.errors import Invalid
from tilewright.ir import dim as D
from tilewright.ir.combine import Combine, Combiner
from tilewright.ir.dim import Dim, Sym
from tilewright.ir.expr import Const, Load, Value, extent
from tilewright.ir.maps import Map
from tilewright.ir.reader import Reader
from tilewright.ir.types import dtype_named
from tilewright.ir.value_text import (
    Scope,
    declare,
    dim_text,
    parse_dim,
    parse_value,
    read_dim,
    read_sym,
    sym_text,
    value_text,
)
from tilewright.kernel.axis import axis_named, first_name
from tilewright.kernel.group import Buffer, Group, PackedAs, Stage, pointer_buffer
from tilewright.kernel.nest import (
    ATOMICS,
    KINDS,
    ORDERS,
    SCOPES,
    Acquire,
    Alloc,
    Atomic,
    Await,
    Barrier,
    Commit,
    If,
    Loop,
    Nest,
    Prefetch,
    Release,
    Report,
    Stmt,
    Store,
    Wait,
    While,
    bodies,
    walk,
)
from tilewright.kernel.swizzle import Swizzled

_LOOP = {k: "for" if k == "serial" else k for k in KINDS}


# ---- printing


def _head(what: str, name: str, dims: set[Sym], precision: str) -> str:
    where = ", ".join(sym_text(s) for s in declare(dims))
    how = "" if precision == "reassociate" else f" {precision}"
    return f"{what} {name}{how}" + (f" where {where}" if where else "")


def _buffer_text(b: Buffer) -> str:
    if b.pointer:
        aligned = f" aligned {b.alignment}" if b.alignment else ""
        return f"  {b.scope} {b.name}: *{b.dtype}{aligned}"
    text = f"  {b.scope} {b.name}: {b.dtype}{_shape_text(b.shape)}"
    if b.told:
        text += " told"
    if b.swizzle is not None:
        text += f" swizzled {b.swizzle}"
    if b.layout is not None:
        text += f" laid out by {b.layout}"
    return (
        f"{text} as {b.packed_as.map} of {_shape_text(b.packed_as.shape)}" if b.packed_as else text
    )


def _shape_text(shape: tuple[Dim, ...]) -> str:
    return f"[{','.join(map(dim_text, shape))}]"


def _at(name: str, index: tuple[Dim, ...]) -> str:
    return f"{name}[{','.join(map(dim_text, index))}]"


def stage_text(s: Stage) -> str:
    loops = ", ".join(f"{a.name} in {dim_text(extent(a))}" for a in (*s.axes, *s.raxes))
    text = f"{_at(s.name, s.where)} {s.combine or ''}= {value_text(s.value)}"
    text += f" for {loops}" if loops else " for once"
    if s.ordered:
        text += " in order of runs" if s.runs else " in order"
    if s.chain:
        text += f" in chains of {s.chain}"
    if s.init is not None:
        text += f" from {value_text(s.init)}"
    return text


def _combiner_text(c: Combiner) -> str:
    """`combine argmax: RESULT; RESULT from NEUTRAL; NEUTRAL`, over l0[], r0[] and so on."""
    results, neutral = ("; ".join(map(value_text, x)) for x in (c.results, c.neutral))
    return f"  combine {c.name}: {results} from {neutral}"


def _combiners(uses: Iterable[Combine | None]) -> list[str]:
    found = dict.fromkeys(c for c in uses if isinstance(c, Combiner))
    if len({c.name for c in found}) != len(found):
        raise Invalid(f"two combiners are called {', '.join(sorted(c.name for c in found))}")
    return [_combiner_text(c) for c in found]


def _roles_text(roles: tuple[tuple[str, str], ...]) -> list[str]:
    return ["  roles " + ", ".join(f"{role} {name}" for role, name in roles)] if roles else []


def group_text(g: Group) -> str:
    lines = [_head("group", g.name, g.dim_symbols(), g.precision)]
    lines += _roles_text(g.roles)
    lines += map(_buffer_text, g.buffers)
    lines += _combiners(s.combine for s in g.stages)
    return "\n".join([*lines, *(f"  {stage_text(s)}" for s in g.stages)]) + "\n"


def nest_text(n: Nest) -> str:
    return "\n".join(line for line, _ in nest_lines(n)) + "\n"


def nest_lines(n: Nest) -> list[tuple[str, Stmt | None]]:
    """The lines of `nest_text`, each with the statement that it prints."""
    lines: list[tuple[str, Stmt | None]] = [(_head("nest", n.name, set(n.dims), n.precision), None)]
    lines += ((x, None) for x in _roles_text(n.roles))
    lines += ((_buffer_text(b), None) for b in n.buffers)
    own = _combiners(s.combine for s, _ in walk(n.body) if isinstance(s, Store))
    lines += ((x, None) for x in own)
    _body(n.body, 1, lines)
    return lines


def _body(body: tuple[Stmt, ...], depth: int, out: list[tuple[str, Stmt | None]]) -> None:
    for s in body:
        out.append(("  " * depth + line_text(s), s))
        for k, inside in enumerate(bodies(s)):
            if k and inside:
                out.append(("  " * depth + "else:", None))
            _body(inside, depth + 1, out)


def line_text(s: Stmt) -> str:
    """A statement on one line; of one with others inside, its head."""
    if isinstance(s, Loop):
        grain = f" grain {s.grain}" if s.kind == "parallel" else ""
        by = f" by {s.instruction}" if s.instruction else ""
        hints = ", ".join(f"{key} {value}" for key, value in s.pragmas)
        of = "" if s.of is None else f" of {s.of}"
        after = f"{of}{grain}{by}" + (f" pragma {hints}" if hints else "")
        return f"{_LOOP[s.kind]} {s.name} in {dim_text(s.extent)}{after}:"
    if isinstance(s, Alloc):
        return f"alloc {s.buffer}"
    if isinstance(s, Barrier):
        return "barrier"
    if isinstance(s, Commit):
        return "commit"
    if isinstance(s, Wait):
        return f"wait {'products ' if s.products else ''}{s.pending}"
    if isinstance(s, Acquire):
        return f"acquire {s.versions}"
    if isinstance(s, Release):
        return f"release {s.pending}"
    if isinstance(s, Await):
        return " ".join(("await", *s.fetched))
    if isinstance(s, Prefetch):
        extra = [("lines", s.lines), ("level", s.level)]
        return f"prefetch {value_text(s.load)}" + "".join(f" {x} {k}" for x, k in extra if k > 1)
    if isinstance(s, If):
        return f"if {value_text(s.condition)}:"
    if isinstance(s, While):
        waits = " waits" if s.waits else ""
        return f"while {s.name}{waits} on {value_text(s.condition)}:"
    if isinstance(s, Report):
        which = "" if s.condition is None else f" on {value_text(s.condition)}"
        said = "; ".join(map(value_text, s.values))
        return f"{s.kind} {s.site}{which}" + (f" of {said}" if said else "")
    if isinstance(s, Atomic):
        text = f"{s.stage}: {s.kind} {s.order} {_at(s.buffer, s.index)} with {value_text(s.value)}"
        text += "" if s.compare is None else f" where {value_text(s.compare)}"
        return text + ("" if s.result is None else f" into {_at(*s.result)}")
    mark = "async " if s.asynchronous else "atomic " if s.atomic else ""
    return f"{s.stage}: {mark}{_at(s.buffer, s.index)} {s.combine or ''}= {value_text(s.value)}"


# ---- parsing


@dataclass
class _Lines:
    """Non-empty lines with their number and depth of indentation."""

    lines: list[tuple[int, int, str]]

    @staticmethod
    def of(text: str) -> _Lines:
        out = []
        for k, line in enumerate(text.splitlines(), 1):
            if line.strip() and not line.strip().startswith("#"):
                out.append((k, (len(line) - len(line.lstrip())) // 2, line.strip()))
        return _Lines(out)


def _fail(number: int, line: str, what: str) -> Invalid:
    return Invalid(f"line {number}: {what}: {line!r}")


def _read_head(what: str, lines: _Lines) -> tuple[str, Scope, list[Sym], str]:
    if not lines.lines:
        raise Invalid(f"empty text where a {what} was expected")
    number, _, line = lines.lines.pop(0)
    r = Reader(line, what)
    if r.name("a word") != what:
        raise _fail(number, line, f"expected '{what} NAME'")
    name = r.name("a name")
    precision = "strict" if r.take("strict") else "reassociate"
    scope = Scope()
    dims: list[Sym] = []
    if r.take("where"):
        while True:
            s = read_sym(r, scope)
            dims.append(s)
            scope = scope.binding(s)
            if not r.take(","):
                break
    r.end()
    return name, scope, dims, precision


def _read_buffers(lines: _Lines, scope: Scope) -> tuple[list[Buffer], Scope]:
    out: list[Buffer] = []
    while lines.lines:
        number, depth, line = lines.lines[0]
        scope_name, _, rest = line.partition(" ")
        if depth != 1 or scope_name not in SCOPES or ": " not in rest:
            break
        lines.lines.pop(0)
        name, _, t = rest.partition(": ")
        t, _, layout = t.partition(" as ")
        t, _, lies = t.partition(" laid out by ")
        t, _, swizzle = t.partition(" swizzled ")
        t, _, aligned = t.partition(" aligned ")
        told, t = t.endswith(" told"), t.removesuffix(" told")
        dtype, _, shape = t.removeprefix("*").partition("[")
        known = dtype_named(dtype)
        if known is not None and t == f"*{dtype}":
            if aligned and not aligned.isdecimal():
                raise _fail(number, line, "expected a number of bytes after aligned")
            out.append(pointer_buffer(name, known, scope_name, int(aligned or 0)))
            continue
        if known is None or not shape.endswith("]"):
            raise _fail(number, line, "expected NAME: dtype[dims] or NAME: *dtype")
        packed_as = None
        if layout:
            by, _, source = layout.partition(" of [")
            packed_as = PackedAs(Map.parse(by), _read_index(source[:-1], scope))
        by = None
        if swizzle:
            if not re.fullmatch(r"\d+,\d+,\d+", swizzle):
                raise _fail(number, line, "expected swizzled BITS,BASE,SHIFT")
            by = Swizzled.parse(swizzle)
        shape_ = _read_index(shape[:-1], scope)
        at = Map.parse(lies) if lies else None
        found = Buffer(name, known, shape_, scope_name, packed_as, swizzle=by, layout=at, told=told)
        out.append(found)
    buffers = {b.name: b.dtype for b in out}
    return out, Scope(buffers, scope.symbols)


def _read_combiners(lines: _Lines) -> dict[str, Combiner]:
    out: dict[str, Combiner] = {}
    while lines.lines and lines.lines[0][2].startswith("combine "):
        number, _, line = lines.lines.pop(0)
        name, colon, rest = line.removeprefix("combine ").partition(": ")
        results, mark, neutral = rest.rpartition(" from ")
        if not colon or not mark:
            raise _fail(number, line, "expected combine NAME: results from neutral elements")
        zero = tuple(parse_value(x, Scope()) for x in neutral.split("; "))
        sides = {f"{s}{k}": x.dtype for s in "lr" for k, x in enumerate(zero)}
        made = tuple(parse_value(x, Scope(sides)) for x in results.split("; "))
        constants = tuple(x for x in zero if isinstance(x, Const))
        if len(constants) != len(zero) or len(made) != len(zero):
            raise _fail(number, line, "expected one constant per component after from")
        out[name] = Combiner(name, made, constants)
    return out


def _combine(text: str, known: Mapping[str, Combiner]) -> Combine | None:
    return known.get(text.strip(), text.strip()) or None


def _split_access(text: str, number: int, line: str) -> tuple[str, str, str]:
    """`name[index] rest` → (name, index, rest); brackets nest."""
    at = text.find("[")
    if at < 0:
        raise _fail(number, line, "expected NAME[index]")
    level = 0
    for k in range(at, len(text)):
        level += {"[": 1, "]": -1}.get(text[k], 0)
        if level == 0:
            return text[:at], text[at + 1 : k], text[k + 1 :].strip()
    raise _fail(number, line, "a bracket is not closed")


def _read_index(text: str, scope: Scope) -> tuple[Dim, ...]:
    r = Reader(text + "]", "index")
    return tuple(r.several(lambda: read_dim(r, scope), "]"))


def _last(text: str, mark: str) -> tuple[str, str] | None:
    """Split at the last top-level ` mark `."""
    level = 0
    for k in range(len(text) - 1, -1, -1):
        level += {")": 1, "]": 1, "}": 1, "(": -1, "[": -1, "{": -1}.get(text[k], 0)
        if level == 0 and text.startswith(f" {mark} ", k):
            return text[:k], text[k + len(mark) + 2 :]
    return None


def parse_group(text: str) -> Group:
    lines = _Lines.of(text)
    name, scope, _, precision = _read_head("group", lines)
    roles = _read_roles(lines)
    buffers, scope = _read_buffers(lines, scope)
    own = _read_combiners(lines)
    stages = [_read_stage(number, line, scope, buffers, own) for number, _, line in lines.lines]
    return Group(name, tuple(buffers), tuple(stages), precision, roles)


def _read_roles(lines: _Lines) -> tuple[tuple[str, str], ...]:
    """`roles scores t1, sums t4`, where the line is there."""
    if not lines.lines or not lines.lines[0][2].startswith("roles "):
        return ()
    number, _, line = lines.lines.pop(0)
    pairs = [tuple(x.split()) for x in line.removeprefix("roles ").split(",")]
    if any(len(p) != 2 for p in pairs):
        raise _fail(number, line, "expected roles ROLE STAGE, ROLE STAGE")
    return tuple((role, stage) for role, stage in pairs)


def _read_stage(
    number: int, line: str, scope: Scope, buffers: list[Buffer], own: Mapping[str, Combiner]
) -> Stage:
    name, index, rest = _split_access(line, number, line)
    combine, eq, rest = rest.partition("= ")
    shape = next((b.shape for b in buffers if b.name == name), None)
    if not eq or shape is None:
        raise _fail(number, line, "expected BUFFER[index] combine= value for …")
    init_text = None
    parts = _last(rest, "from")
    if parts:
        rest, init_text = parts
    chain = re.search(r" in chains of (\d+)$", rest)
    if chain:
        rest = rest[: chain.start()]
    runs = rest.endswith(" in order of runs")
    rest = rest.removesuffix(" of runs") if runs else rest
    ordered = rest.endswith(" in order")
    rest = rest.removesuffix(" in order")
    parts = _last(rest, "for")
    if not parts:
        raise _fail(number, line, "expected 'for VARIABLE in EXTENT, …' or 'for once'")
    body_text, loops = parts
    axes: list[Sym] = []
    inner = scope
    for piece in [] if loops == "once" else loops.split(", "):
        var, _, e = piece.partition(" in ")
        s = D.the_sym(D.var(var, parse_dim(e, scope)))
        axes.append(s)
        inner = inner.binding(s)
    init: Value | None = None
    if init_text is not None:
        over = [D.the_sym(D.var(first_name(name, k), d)) for k, d in enumerate(shape)]
        init = parse_value(init_text, scope.binding(*over))
    where = _read_index(index, inner)
    value, how = parse_value(body_text, inner), _combine(combine, own)
    # What a reduction is not written along is reduced over.
    written = frozenset(axes if ordered or how is None else ()).union(*map(D.symbols, where))
    data, red = (tuple(a for a in axes if (a in written) == wanted) for wanted in (True, False))
    longest = int(chain[1]) if chain else 0
    return Stage(name, data, red, where, value, how, init, ordered, longest, runs)


def parse_nest(text: str) -> Nest:
    lines = _Lines.of(text)
    name, scope, dims, precision = _read_head("nest", lines)
    roles = _read_roles(lines)
    buffers, scope = _read_buffers(lines, scope)
    body = _read_body(lines, 1, scope, _read_combiners(lines))
    if lines.lines:
        number, _, line = lines.lines[0]
        raise _fail(number, line, "unexpected indentation")
    known = tuple(sorted(dims, key=lambda s: s.name))
    return Nest(name, tuple(buffers), body, known, precision, roles)


def _read_body(
    lines: _Lines, depth: int, scope: Scope, own: Mapping[str, Combiner]
) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    kinds = {_LOOP[k]: k for k in KINDS}
    while lines.lines and lines.lines[0][1] == depth:
        number, _, line = lines.lines.pop(0)
        word, _, rest = line.partition(" ")
        if word == "alloc":
            out.append(Alloc(rest))
        elif line == "barrier":
            out.append(Barrier())
        elif line == "commit":
            out.append(Commit())
        elif word == "wait" and (count := rest.removeprefix("products ")).isdecimal():
            out.append(Wait(int(count), rest.startswith("products ")))
        elif word in ("acquire", "release") and rest.isdecimal():
            out.append(Acquire(int(rest)) if word == "acquire" else Release(int(rest)))
        elif word == "await":
            out.append(Await(tuple(rest.split())))
        elif word == "prefetch":
            at, _, level = rest.partition(" level ")
            at, _, many = at.partition(" lines ")
            counts = (int(x) if x.isdecimal() else 1 for x in (many, level))
            out.append(Prefetch(_read_load(at, scope, number, line), *counts))
        elif word in kinds and line.endswith(":"):
            head, _, e = rest[:-1].partition(" in ")
            e, _, hints = e.partition(" pragma ")
            e, _, by = e.partition(" by ")
            e, _, grain = e.partition(" grain ")
            e, _, of = e.partition(" of ")
            s = D.the_sym(D.var(head, parse_dim(e, scope)))
            body = _read_body(lines, depth + 1, scope.binding(s), own)
            pragmas = _read_pragmas(hints, number, line)
            along = axis_named(of) if of else None
            out.append(Loop(s, kinds[word], body, int(grain or 1), by, pragmas, along))
        elif word == "if" and line.endswith(":"):
            condition = parse_value(rest[:-1], scope)
            then = _read_body(lines, depth + 1, scope, own)
            other: tuple[Stmt, ...] = ()
            if lines.lines and lines.lines[0][1:] == (depth, "else:"):
                lines.lines.pop(0)
                other = _read_body(lines, depth + 1, scope, own)
            out.append(If(condition, then, other))
        elif word == "while" and line.endswith(":"):
            head, _, test = rest[:-1].partition(" on ")
            inside = _read_body(lines, depth + 1, scope, own)
            name, waits, _ = head.partition(" waits")
            out.append(While(name, parse_value(test, scope), inside, bool(waits)))
        elif word in ("print", "assert"):
            out.append(_read_report(word, rest, scope, number, line))
        else:
            stage, colon, rest = line.partition(": ")
            if not colon:
                raise _fail(number, line, "expected a loop, an alloc, a barrier or a store")
            kind, _, after = rest.partition(" ")
            if kind in ATOMICS and after.partition(" ")[0] in ORDERS:
                out.append(_read_atomic(stage, kind, after, scope, number, line))
                continue
            marks = [x for x in ("async", "atomic") if rest.startswith(f"{x} ")]
            access = rest.removeprefix(f"{marks[0]} ") if marks else rest
            name, index, rest = _split_access(access, number, line)
            combine, _, value = rest.partition("= ")
            v, how = parse_value(value, scope), _combine(combine, own)
            copies, atomic = ("async" in marks), ("atomic" in marks)
            out.append(Store(stage, name, _read_index(index, scope), v, how, copies, atomic))
    return tuple(out)


def _read_atomic(stage: str, kind: str, text: str, scope: Scope, number: int, line: str) -> Atomic:
    """`ORDER BUFFER[index] with VALUE where VALUE into BUFFER[index]`"""
    order, _, rest = text.partition(" ")
    result = compare = None
    if parts := _last(rest, "into"):
        rest, into = parts
        name, index, _ = _split_access(into, number, line)
        result = name, _read_index(index, scope)
    if parts := _last(rest, "where"):
        rest, compare = parts[0], parse_value(parts[1], scope)
    name, index, rest = _split_access(rest, number, line)
    if not rest.startswith("with "):
        raise _fail(number, line, "expected KIND ORDER BUFFER[index] with VALUE")
    value = parse_value(rest.removeprefix("with "), scope)
    return Atomic(stage, kind, name, _read_index(index, scope), value, compare, result, order)


def _read_report(kind: str, text: str, scope: Scope, number: int, line: str) -> Report:
    """`SITE on CONDITION of VALUE; VALUE`"""
    parts = _last(f"{text} ", "of")
    head, said = parts if parts else (text, "")
    site, _, which = head.strip().partition(" on ")
    if not site.isdecimal():
        raise _fail(number, line, f"expected {kind} NUMBER")
    values = tuple(parse_value(x, scope) for x in _pieces(said)) if said else ()
    return Report(kind, int(site), values, parse_value(which, scope) if which else None)


def _pieces(text: str) -> list[str]:
    """What is between the semicolons that no bracket holds."""
    out = [""]
    level = 0
    for c in text:
        level += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(c, 0)
        if c == ";" and not level:
            out.append("")
        else:
            out[-1] += c
    return out


def _read_load(text: str, scope: Scope, number: int, line: str) -> Load:
    v = parse_value(text, scope)
    if not isinstance(v, Load):
        raise _fail(number, line, "expected BUFFER[index] after prefetch")
    return v


def _read_pragmas(text: str, number: int, line: str) -> tuple[tuple[str, int], ...]:
    """`unroll 4, nontemporal 1`"""
    words = [x.split() for x in text.split(", ")] if text else []
    if not all(len(w) == 2 and w[1].isdecimal() for w in words):
        raise _fail(number, line, "expected KEY NUMBER, … after pragma")
    return tuple((key, int(value)) for key, value in words)
