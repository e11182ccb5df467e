"""Scalar functions as LLVM instructions, on one value or on the lanes of a vector.

In registers a bool is an i1 and floats of 8 and 16 bits are float: they are widened when loaded,
computed as float32 and rounded at once to what their dtype can hold. LLVM takes instructions for
16 bits instead where the machine has them and they give the same; on a machine that does not even
convert them, integer arithmetic does (`narrow`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tilewright.base.errors import Unsupported
from tilewright.ir.expr import Value
from tilewright.ir.types import DTYPES, DType, b1, bf16, f16, f32, f64, i64, u64
from tilewright.llvm import instead, narrow, vmath
from tilewright.llvm.instead import Has
from tilewright.llvm.scalar_types import literal, memory_type, register_type, suffix, vector
from tilewright.llvm.text import splat

# Calls of one vector function in a kernel, at most, that are written out.
OFTEN = 24


@dataclass
class Arith:
    """Appends instructions through `put(text) -> ssa` and collects what the module must declare or
    define."""

    fma: bool
    strict: bool = False  # every operation rounds: no product is added without it
    has_bf16: bool = False  # an instruction rounds to bfloat16, subnormal numbers too
    has: Has = field(default_factory=Has)
    declares: set[str] = field(default_factory=set)
    defines: dict[str, str] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)  # of vector functions, by symbol
    often: int = OFTEN  # more calls than these are not written out
    put: Callable[[str], str] = lambda text: text
    # Per function, registers and their form in memory: a copy neither widens nor rounds it.
    memory_forms: dict[object, dict[str, tuple[DType, str | None]]] = field(default_factory=dict)

    def splat_literal(self, text: str, t: str, lanes: int) -> str:
        if lanes == 1:
            return text
        return "<" + ", ".join([f"{t} {text}"] * lanes) + ">"

    def const(self, v: float | int | bool, d: DType, lanes: int) -> str:
        return self.splat_literal(literal(v, d), register_type(d), lanes)

    def splat(self, x: str, t: str, lanes: int) -> str:
        return splat(self.put, x, t, lanes)

    def intrinsic(self, name: str, t: str, lanes: int, *args: str, flag: str = "") -> str:
        v = vector(t, lanes)
        full = f"@llvm.{name}.{suffix(t, lanes)}"
        self.declares.add(f"declare {v} {full}({', '.join([v] * len(args))})")
        return self.put(f"call {flag}{v} {full}({', '.join(f'{v} {a}' for a in args)})")

    def math(self, name: str, d: DType, lanes: int, *args: str) -> str:
        elem = "f64" if d is f64 else "f32"
        v = vector(register_type(d), lanes)
        limits = self.has.maximum or lanes == 1
        self.defines.update(vmath.functions(name, elem, lanes, self.fma, limits))
        self.declares |= vmath.declarations(name, elem, lanes, self.fma, limits)
        call = ", ".join(f"{v} {a}" for a in args)
        own = vmath.symbol(name, elem, lanes)
        self.calls[own] += 1
        return self.put(f"call {v} @{own}({call})")

    def instead(self, v: Value) -> Value | None:
        """What a machine computes in place of a value; None: the value itself."""
        return None

    def is_light(self, v: Value) -> bool:
        """Does a value take next to nothing, so that it may be computed where it is not needed?"""
        return False

    def definitions(self) -> list[str]:
        """What the module defines besides its kernels. A function that is called very often is not
        written out at each call: that is what compiling such a kernel would take its time for."""
        often = {name for name, count in self.calls.items() if count > self.often}
        return [
            text.replace(" alwaysinline ", " noinline ", 1) if name in often else text
            for name, text in self.defines.items()
        ]

    # ---- the functions

    def combine(self, name: str, d: DType, lanes: int, args: list[str]) -> str:
        """What a reduction has so far and one more value. Which of two zeros it ends in is open,
        as it is with numpy: to distinguish them takes x86 three instructions for each vector."""
        return self.apply(name, d, lanes, args, "nsz ")

    def apply(self, name: str, d: DType, lanes: int, args: list[str], flag: str = "") -> str:
        """`d` is the dtype of the arguments (of the last two, for select); `flag` is one of LLVM's,
        for maxima and minima of floats."""
        t = register_type(d)
        v = vector(t, lanes)
        if name == "select":
            m = f"select {vector('i1', lanes)} {args[0]}"
            r = self.put(f"{m}, {v} {args[1]}, {v} {args[2]}")
            self.joined(r, args[1:], lanes, lambda u, x, y: f"{m}, {u} {x}, {u} {y}")
            return r
        if name in _COMPARE:
            return self._compare(name, d, v, args)
        if d.format is not None and name == "fma":
            n = narrow.Lanes(self.put, lanes)
            return self.round(narrow.to_odd(narrow.odd_fma(args, n), n), d, lanes)
        if d.is_float:
            r = self._float(name, d, t, lanes, args, flag)
            return r if _is_exact(name, d) else self.round(r, d, lanes, name in _ARITHMETIC)
        return self._bool(name, v, lanes, args) if d.is_bool else self._int(name, d, t, lanes, args)

    def _compare(self, name: str, d: DType, v: str, args: list[str]) -> str:
        if d.is_float:
            code = "une" if name == "ne" else "o" + name
            return self.put(f"fcmp {code} {v} {args[0]}, {args[1]}")
        sign = "" if name in ("eq", "ne") else "s" if d.kind == "i" else "u"
        return self.put(f"icmp {sign}{name} {v} {args[0]}, {args[1]}")

    def _float(self, name: str, d: DType, t: str, lanes: int, a: list[str], flag: str = "") -> str:
        v = vector(t, lanes)
        if name in ("add", "sub", "mul", "div"):
            # Of narrow floats a product is rounded before it is added.
            how = "" if self.strict or d.format is not None else "contract "
            return self.put(f"f{name} {how}{v} {a[0]}, {a[1]}")
        if name == "neg":
            return self.put(f"fneg {v} {a[0]}")
        if name in ("max", "min"):
            known = [x for x in a if not x.startswith("%")]
            if lanes > 1 and not self.has.maximum and len(known) == 1:
                (limit,), (x,) = known, [x for x in a if x.startswith("%")]
                nans = [self.const(v, d, lanes) for v in (math.nan, -math.nan)]
                if limit not in nans:
                    zero = self.const(0.0 if name == "max" else -0.0, d, lanes)
                    return instead.bounded(name, x, limit, zero, t, narrow.Lanes(self.put, lanes))
            apart = t == "double" and not flag and not self.has.f64_maximum
            r = self.intrinsic(_INTRINSICS[name], t, lanes, *a, flag="nsz " if apart else flag)
            n = narrow.Lanes(self.put, lanes)
            return instead.with_ordered_zeros(name, r, a[0], a[1], n) if apart else r
        if name in ("maxnum", "minnum"):
            # LLVM for x86 takes the NaN of one operand where it knows that the other is none.
            a = [x if not x.startswith("%") else self._unknown(x, t, lanes) for x in a]
            return self.intrinsic(_INTRINSICS[name], t, lanes, *a, flag=flag)
        if name == "fma" and a[2] == self.const(-0.0, d, lanes):
            # A product that is rounded alone: LLVM would join it with a sum that follows.
            return self._unknown(self.intrinsic(name, t, lanes, *a), t, lanes)
        if name == "fma" and not self.fma and t == "float":
            n = narrow.Lanes(self.put, lanes)
            return narrow.to_single(narrow.odd_fma(a, n), n)
        if name in instead.WHOLE and not self.has.whole:
            return instead.rounded(name, t, a[0], narrow.Lanes(self.put, lanes))
        if name in _INTRINSICS:
            return self.intrinsic(_INTRINSICS[name], t, lanes, *a)
        if name.startswith("toward_zero_"):
            return self._toward_zero(DTYPES[name.removeprefix("toward_zero_")], d, lanes, a[0])
        if name == "tf32":
            i = vector("i32", lanes)
            bits = self.put(f"bitcast {v} {a[0]} to {i}")
            kept = self.put(f"and {i} {bits}, {self.splat_literal(str(0xFFFFE000), 'i32', lanes)}")
            return self.put(f"bitcast {i} {kept} to {v}")
        if name.startswith("bits_of_"):
            stored, whole = memory_type(d), f"i{d.bits}"
            x = self.narrow(a[0], d, lanes)
            if stored == whole:
                return x
            return self.put(f"bitcast {vector(stored, lanes)} {x} to {vector(whole, lanes)}")
        if name == "floordiv":
            q = self.put(f"fdiv {v} {a[0]}, {a[1]}")
            return self._float("floor", d, t, lanes, [q])
        if name == "rem":
            return self.math("fmod", d, lanes, *a)
        if name == "mod":
            return self._float_mod(d, t, lanes, a)
        if name == "signbit":
            bits = 64 if d is f64 else 32
            i = vector(f"i{bits}", lanes)
            x = self.put(f"bitcast {v} {a[0]} to {i}")
            return self.put(f"icmp slt {i} {x}, {self.splat_literal('0', f'i{bits}', lanes)}")
        if name == "nextafter":
            return self._nextafter(d, t, lanes, a)
        if name in vmath.names():
            return self.math(name, d, lanes, *a)
        raise Unsupported(f"{name} of {d} has no native code")

    def _float_mod(self, d: DType, t: str, lanes: int, a: list[str]) -> str:
        """The remainder with the sign of the divisor, exactly as Python's %."""
        v, m = vector(t, lanes), vector("i1", lanes)
        zero = self.const(0.0, d, lanes)
        r = self.math("fmod", d, lanes, *a)
        nonzero = self.put(f"fcmp une {v} {r}, {zero}")
        neg_r = self.put(f"fcmp olt {v} {r}, {zero}")
        neg_b = self.put(f"fcmp olt {v} {a[1]}, {zero}")
        differ = self.put(f"xor {m} {neg_r}, {neg_b}")
        fix = self.put(f"and {m} {nonzero}, {differ}")
        moved = self.put(f"fadd {v} {r}, {a[1]}")
        r2 = self.put(f"select {m} {fix}, {v} {moved}, {v} {r}")
        signed = self.intrinsic("copysign", t, lanes, zero, a[1])
        return self.put(f"select {m} {nonzero}, {v} {r2}, {v} {signed}")

    def _nextafter(self, d: DType, t: str, lanes: int, a: list[str]) -> str:
        if d.format is not None:
            raise Unsupported(f"nextafter of {d} has no native code", hint="cast to f32")
        bits = 64 if d is f64 else 32
        v, m, i = vector(t, lanes), vector("i1", lanes), vector(f"i{bits}", lanes)
        c = lambda n: self.splat_literal(str(n), f"i{bits}", lanes)  # noqa: E731
        zero = self.const(0.0, d, lanes)
        x = self.put(f"bitcast {v} {a[0]} to {i}")
        up = self.put(f"fcmp ogt {v} {a[1]}, {a[0]}")
        neg = self.put(f"icmp slt {i} {x}, {c(0)}")
        grow = self.put(f"xor {m} {up}, {neg}")
        step = self.put(f"select {m} {grow}, {i} {c(1)}, {i} {c(-1)}")
        moved = self.put(f"bitcast {i} {self.put(f'add {i} {x}, {step}')} to {v}")
        tiny = self.put(f"bitcast {i} {c(1)} to {v}")
        tiny = self.intrinsic("copysign", t, lanes, tiny, a[1])
        at_zero = self.put(f"fcmp oeq {v} {a[0]}, {zero}")
        r = self.put(f"select {m} {at_zero}, {v} {tiny}, {v} {moved}")
        same = self.put(f"fcmp oeq {v} {a[0]}, {a[1]}")
        r = self.put(f"select {m} {same}, {v} {a[1]}, {v} {r}")
        nan = self.put(f"fcmp uno {v} {a[0]}, {a[1]}")
        both = self.put(f"fadd {v} {a[0]}, {a[1]}")
        return self.put(f"select {m} {nan}, {v} {both}, {v} {r}")

    def _bool(self, name: str, v: str, lanes: int, a: list[str]) -> str:
        code = _BOOL.get(name)
        if code:
            return self.put(f"{code} {v} {a[0]}, {a[1]}")
        if name == "not":
            return self.put(f"xor {v} {a[0]}, {self.const(True, b1, lanes)}")
        raise Unsupported(f"{name} of bool has no native code")

    def _int(self, name: str, d: DType, t: str, lanes: int, a: list[str]) -> str:
        v, m = vector(t, lanes), vector("i1", lanes)
        signed = d.kind == "i"
        c = lambda n: self.splat_literal(str(n), t, lanes)  # noqa: E731
        if name in ("add", "sub", "mul", "and", "or", "xor"):
            return self.put(f"{name} {v} {a[0]}, {a[1]}")
        if name in ("max", "min"):
            return self.intrinsic(("s" if signed else "u") + name, t, lanes, *a)
        if name == "neg":
            return self.put(f"sub {v} {c(0)}, {a[0]}")
        if name == "not":
            return self.put(f"xor {v} {a[0]}, {c(-1)}")
        if name == "abs":
            neg = self.put(f"sub {v} {c(0)}, {a[0]}")
            return self.intrinsic("smax", t, lanes, a[0], neg) if signed else a[0]
        if name in ("shl", "shr", "sar"):
            code = {"shl": "shl", "shr": "lshr", "sar": "ashr" if signed else "lshr"}[name]
            ok = self.put(f"icmp ult {v} {a[1]}, {c(d.bits)}")
            top = c(d.bits - 1)
            n = self.put(f"select {m} {ok}, {v} {a[1]}, {v} {top if code == 'ashr' else c(0)}")
            r = self.put(f"{code} {v} {a[0]}, {n}")
            return r if code == "ashr" else self.put(f"select {m} {ok}, {v} {r}, {v} {c(0)}")
        if name in ("floordiv", "quo", "mod", "rem"):
            return self._int_div(name, v, m, c, signed, a)
        if name == "mulhi":
            wide = vector(f"i{2 * d.bits}", lanes)
            code = "sext" if signed else "zext"
            x, y = (self.put(f"{code} {v} {e} to {wide}") for e in a)
            p = self.put(f"mul {wide} {x}, {y}")
            by = self.splat_literal(str(d.bits), f"i{2 * d.bits}", lanes)
            return self.put(f"trunc {wide} {self.put(f'lshr {wide} {p}, {by}')} to {v}")
        if name.endswith("_of_bits"):
            made = DTYPES[name.removesuffix("_of_bits")]
            stored = memory_type(made)
            x = a[0]
            if stored != t:
                x = self.put(f"bitcast {v} {x} to {vector(stored, lanes)}")
            return self.widen(x, made, lanes)
        raise Unsupported(f"{name} of {d} has no native code")

    def _int_div(
        self, name: str, v: str, m: str, c: Callable[[int], str], signed: bool, a: list[str]
    ) -> str:
        """Never traps: x / 0 is 0, and the least integer over -1 wraps."""
        x, y = a
        by_zero = self.put(f"icmp eq {v} {y}, {c(0)}")
        unsafe = by_zero
        minus = ""  # is the divisor -1?
        if signed:
            minus = self.put(f"icmp eq {v} {y}, {c(-1)}")
            unsafe = self.put(f"or {m} {by_zero}, {minus}")
        safe = self.put(f"select {m} {unsafe}, {v} {c(1)}, {v} {y}")
        s = "s" if signed else "u"
        q = self.put(f"{s}div {v} {x}, {safe}")
        r = self.put(f"sub {v} {x}, {self.put(f'mul {v} {q}, {safe}')}")
        if signed and name in ("floordiv", "mod"):
            # floor: one less where the remainder is not zero and has the other sign
            off = self.put(f"icmp slt {v} {self.put(f'xor {v} {r}, {safe}')}, {c(0)}")
            rest = self.put(f"icmp ne {v} {r}, {c(0)}")
            down = self.put(f"and {m} {off}, {rest}")
            less = self.put(f"sub {v} {q}, {c(1)}")
            q = self.put(f"select {m} {down}, {v} {less}, {v} {q}")
            more = self.put(f"add {v} {r}, {safe}")
            r = self.put(f"select {m} {down}, {v} {more}, {v} {r}")
        if name in ("floordiv", "quo"):
            if signed:
                neg = self.put(f"sub {v} {c(0)}, {x}")
                q = self.put(f"select {m} {minus}, {v} {neg}, {v} {q}")
            return self.put(f"select {m} {by_zero}, {v} {c(0)}, {v} {q}")
        return self.put(f"select {m} {unsafe}, {v} {c(0)}, {v} {r}")

    # ---- conversions

    def cast(self, x: str, src: DType, dst: DType, lanes: int) -> str:
        ts, td = register_type(src), register_type(dst)
        vs, vd = vector(ts, lanes), vector(td, lanes)
        if dst.is_bool:
            if src.is_float:
                return self.put(f"fcmp une {vs} {x}, {self.const(0.0, src, lanes)}")
            return self.put(f"icmp ne {vs} {x}, {self.splat_literal('0', ts, lanes)}")
        if src.is_float and dst.is_float:
            if ts == "double" and td == "float":
                cut = narrow.to_odd if dst.format is not None else narrow.to_single
                x = cut(x, narrow.Lanes(self.put, lanes))
            elif ts == "float" and td == "double":
                return self.put(f"fpext {vs} {x} to {vd}")
            if dst.bits == 8 and dst.format is not None:
                x = narrow.clamped(dst.format, x, narrow.Lanes(self.put, lanes))
            return self.round(x, dst, lanes)
        if src.is_float:
            wide = vector("i64", lanes)
            r = self._saturated("fptosi", x, src, lanes)
            if dst is u64:
                # A negative number wraps, as it does on its way to narrower integers.
                upper = self._saturated("fptoui", x, src, lanes)
                high = self.put(f"fcmp oge {vs} {x}, {self.const(2.0**63, src, lanes)}")
                return self.put(f"select {vector('i1', lanes)} {high}, {wide} {upper}, {wide} {r}")
            return r if dst is i64 else self.put(f"trunc {wide} {r} to {vd}")
        if dst.is_float:
            made = self.put(f"{'sitofp' if src.kind == 'i' else 'uitofp'} {vs} {x} to {vd}")
            digits = src.bits - (src.kind == "i") if src.is_int else 1
            fits = dst.format is not None and digits <= dst.format.fraction + 1
            return made if fits else self.round(made, dst, lanes)
        if ts == td:
            return x
        if src.is_bool or dst.bits > src.bits:
            return self.put(f"{'sext' if src.kind == 'i' else 'zext'} {vs} {x} to {vd}")
        return self.put(f"trunc {vs} {x} to {vd}")

    def _saturated(self, code: str, x: str, src: DType, lanes: int) -> str:
        """A float cut to 64 bits; the nearest integer where there is none, 0 for NaN."""
        ts, wide = register_type(src), vector("i64", lanes)
        if lanes > 1 and code == "fptosi" and not self.has.saturates:
            return instead.saturated(ts, x, narrow.Lanes(self.put, lanes))
        head = f"@llvm.{code}.sat.{suffix('i64', lanes)}.{suffix(ts, lanes)}({vector(ts, lanes)}"
        self.declares.add(f"declare {wide} {head})")
        return self.put(f"call {wide} {head} {x})")

    def _unknown(self, x: str, t: str, lanes: int) -> str:
        """The same numbers, of which LLVM knows nothing. It costs no instruction."""
        return self.intrinsic("arithmetic.fence", t, lanes, x)

    def _toward_zero(self, to: DType, d: DType, lanes: int, x: str) -> str:
        """A float of `d` toward zero to what `to` can hold."""
        single, double = vector("float", lanes), vector("double", lanes)
        if d is f64:
            i, m = vector("i32", lanes), vector("i1", lanes)
            near = self.put(f"fptrunc {double} {x} to {single}")
            back = self.put(f"fpext {single} {near} to {double}")
            sizes = [self.intrinsic("fabs", "double", lanes, e) for e in (back, x)]
            over = self.put(f"fcmp ogt {double} {sizes[0]}, {sizes[1]}")
            bits = self.put(f"bitcast {single} {near} to {i}")
            less = self.put(f"sub {i} {bits}, {self.splat_literal('1', 'i32', lanes)}")
            bits = self.put(f"select {m} {over}, {i} {less}, {i} {bits}")
            x = self.put(f"bitcast {i} {bits} to {single}")
        if to.format is not None:
            x = narrow.cut(to.format, x, narrow.Lanes(self.put, lanes))
        return self.put(f"fpext {single} {x} to {double}") if d is f64 else x

    def round(self, x: str, d: DType, lanes: int, plain: bool = False) -> str:
        """A float rounded to what a narrower one can hold; see `narrow`."""
        if d.format is None:
            return x
        known = self._here().get(x)
        if d is not bf16 or self.has_bf16 or (known is not None and known[0] is d):
            return self.widen(self.narrow(x, d, lanes, plain), d, lanes)
        # The upper half of a float is the number: there is no need to take it apart.
        i, mask = vector("i32", lanes), self.splat_literal(str(-0x10000), "i32", lanes)
        upper = self.put(f"and {i} {self._rounded_words(x, lanes, plain)}, {mask}")
        r = self.put(f"bitcast {i} {upper} to {vector('float', lanes)}")
        self._here()[r] = d, None
        return r

    def joined(
        self, r: str, parts: Sequence[str], lanes: int, join: Callable[[str, str, str], str]
    ) -> None:
        """r is one of two registers: of what they were in memory, `join` writes which."""
        known = self._here()
        d = next((known[x][0] for x in parts if x in known), None)
        if d is None or not all(self._is_known(x, d, lanes) for x in parts):
            return
        forms = [self._memory_form(x, d, lanes) for x in parts]
        if None in forms:
            known[r] = d, None
        else:
            v = vector(memory_type(d), lanes)
            known[r] = d, self.put(join(v, *(str(x) for x in forms)))

    def _here(self) -> dict[str, tuple[DType, str | None]]:
        """Registers of the current function with numbers of a narrower dtype, and what they
        were in memory, if they come from there."""
        return self.memory_forms.setdefault(getattr(self.put, "__self__", None), {})

    def _is_known(self, x: str, d: DType, lanes: int) -> bool:
        found = self._here().get(x)
        return found[0] is d if found is not None else x == self.const(0.0, d, lanes)

    def _memory_form(self, x: str, d: DType, lanes: int) -> str | None:
        """What a register was in memory, if it comes from there; zero is known without."""
        found = self._here().get(x)
        if found is not None:
            return found[1]
        return self.splat_literal("0xH0000" if d is f16 else "0", memory_type(d), lanes)

    def narrow(self, x: str, d: DType, lanes: int, plain: bool = False) -> str:
        """Register form → memory form. `plain`: an instruction made it of operands of `d`, so that
        a NaN among the results is one that `d` can hold, and rounding leaves it one."""
        found = self._here().get(x)
        if found is not None and found[0] is d and found[1] is not None:
            return found[1]
        if d.is_bool:
            return self.put(f"zext {vector('i1', lanes)} {x} to {vector('i8', lanes)}")
        if d is f16 and self.has.f16:
            return self.put(f"fptrunc {vector('float', lanes)} {x} to {vector('half', lanes)}")
        if d.format is None:
            return x
        if d is f16:
            code = narrow.narrowed(d.format, x, narrow.Lanes(self.put, lanes))
            return self.put(f"bitcast {vector('i16', lanes)} {code} to {vector('half', lanes)}")
        if d is not bf16:
            return narrow.narrowed(d.format, x, narrow.Lanes(self.put, lanes))
        single, half = vector("float", lanes), vector("i16", lanes)
        if self.has_bf16:
            r = self.put(f"fptrunc {single} {x} to {vector('bfloat', lanes)}")
            return self.put(f"bitcast {vector('bfloat', lanes)} {r} to {half}")
        i, by = vector("i32", lanes), self.splat_literal("16", "i32", lanes)
        if found is not None and found[0] is d:  # rounded before
            words = self.put(f"bitcast {single} {x} to {i}")
        else:
            words = self._rounded_words(x, lanes, plain)
        return self.put(f"trunc {i} {self.put(f'lshr {i} {words}, {by}')} to {half}")

    def _rounded_words(self, x: str, lanes: int, plain: bool) -> str:
        """The bits of floats whose upper halves are the nearest numbers of bf16."""
        single, i, m = vector("float", lanes), vector("i32", lanes), vector("i1", lanes)
        c = lambda n: self.splat_literal(str(n), "i32", lanes)  # noqa: E731
        u = self.put(f"bitcast {single} {x} to {i}")
        odd = self.put(f"and {i} {self.put(f'lshr {i} {u}, {c(16)}')}, {c(1)}")
        r = self.put(f"add {i} {self.put(f'add {i} {u}, {odd}')}, {c(0x7FFF)}")
        if plain:
            return r
        nan = self.put(f"fcmp uno {single} {x}, {x}")
        quiet = self.put(f"or {i} {u}, {c(0x400000)}")
        return self.put(f"select {m} {nan}, {i} {quiet}, {i} {r}")

    def widen(self, x: str, d: DType, lanes: int) -> str:
        """Memory form → register form."""
        r = self._widened(x, d, lanes)
        if d.format is not None or d is f16:
            self._here()[r] = d, x
        return r

    def _widened(self, x: str, d: DType, lanes: int) -> str:
        if d.is_bool:
            return self.put(
                f"icmp ne {vector('i8', lanes)} {x}, {self.splat_literal('0', 'i8', lanes)}"
            )
        if d is f16 and self.has.f16:
            return self.put(f"fpext {vector('half', lanes)} {x} to {vector('float', lanes)}")
        if d.format is None:
            return x
        if d is f16:
            x = self.put(f"bitcast {vector('half', lanes)} {x} to {vector('i16', lanes)}")
        if d is not bf16:
            return narrow.widened(d.format, x, narrow.Lanes(self.put, lanes))
        i = vector("i32", lanes)
        w = self.put(f"zext {vector('i16', lanes)} {x} to {i}")
        s = self.put(f"shl {i} {w}, {self.splat_literal('16', 'i32', lanes)}")
        return self.put(f"bitcast {i} {s} to {vector('float', lanes)}")

    def horizontal(self, combine: str, x: str, d: DType, lanes: int, of: Value) -> str:
        """All lanes combined into one value, those of an expression."""
        t = register_type(d)
        v = vector(t, lanes)
        name = _REDUCE_FLOAT.get(combine) if d.is_float else _reduce_int(combine, d)
        if name is None:
            raise Unsupported(f"a reduction over lanes with {combine} of {d} has no native code")
        while name in _HALVES and lanes > FEW_LANES and lanes % 2 == 0:
            x, lanes = self._half(_HALVES[name], x, t, lanes), lanes // 2
        v = vector(t, lanes)
        full = f"@llvm.vector.reduce.{name}.{suffix(t, lanes)}"
        if name in ("fadd", "fmul"):
            zero = "0x8000000000000000" if name == "fadd" else literal(1.0, f32)
            self.declares.add(f"declare {t} {full}({t}, {v})")
            return self.put(f"call reassoc {t} {full}({t} {zero}, {v} {x})")
        self.declares.add(f"declare {t} {full}({v})")
        flag = "nsz " if name in _HALVES else ""
        return self.put(f"call {flag}{t} {full}({v} {x})")

    def _half(self, name: str, x: str, t: str, lanes: int) -> str:
        """The upper half of a vector combined with its lower half. Which of two zeros a reduction
        ends in is open, as it is with numpy."""
        n, whole = lanes // 2, vector(t, lanes)
        parts = []
        for first in (0, n):
            which = ", ".join(f"i32 {k}" for k in range(first, first + n))
            cut = f"shufflevector {whole} {x}, {whole} poison, <{n} x i32> <{which}>"
            parts.append(self.put(cut))
        return self.intrinsic(name, t, n, *parts, flag="nsz ")


_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "sqrt"})  # one instruction each
# Functions whose results any float of 16 bits can hold if it holds the arguments.
_EXACT = frozenset("neg abs max min maxnum minnum floor ceil trunc round copysign rem".split())


def _is_exact(name: str, d: DType) -> bool:
    """Is a function's result one that the dtype of its arguments holds exactly, or no float?"""
    return name.startswith("bits_of_") or name == "signbit" or (d.bits == 16 and name in _EXACT)


_COMPARE = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_INTRINSICS = {
    "abs": "fabs",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "roundeven",
    "sqrt": "sqrt",
    "copysign": "copysign",
    "fma": "fma",
    "max": "maximum",
    "min": "minimum",
    "maxnum": "maximumnum",
    "minnum": "minimumnum",
}
_BOOL = {
    "add": "or",
    "max": "or",
    "or": "or",
    "mul": "and",
    "min": "and",
    "and": "and",
    "xor": "xor",
}
_REDUCE_FLOAT = {
    "add": "fadd",
    "mul": "fmul",
    "max": "fmaximum",
    "min": "fminimum",
    "maxnum": "fmax",
    "minnum": "fmin",
}


# Maxima of many lanes are those of halves, halved again until a few are left. Without an
# instruction for all lanes LLVM would take one lane after the other, each waiting for the last.
_HALVES = {"fmax": "maxnum", "fmin": "minnum", "fmaximum": "maximum", "fminimum": "minimum"}
FEW_LANES = 4  # the smallest vectors: those that have instructions for all lanes have them here


def _reduce_int(combine: str, d: DType) -> str | None:
    if d.is_bool:
        return _BOOL.get(combine)
    if combine in ("max", "min"):
        return ("s" if d.kind == "i" else "u") + combine
    return combine if combine in ("add", "mul", "and", "or", "xor") else None
