"""Random programs of several objects: functions that call each other directly and through tables,
variables that point to each other. What they give is known without any compiler."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Program:
    """LLVM text of each object; calls (32 bits in and out) and what they give, in order."""

    texts: list[str]
    exports: list[str]
    calls: list[tuple[str, int]]
    expected: list[int]


@dataclass
class _Name:
    name: str
    home: int  # the object that defines it
    linkage: str
    declared: str
    users: set[int] = field(default_factory=set)


def _wrapped(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


class _Maker:
    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.count = self.random.randint(1, 4)
        self.texts = [""] * self.count
        self.names: list[_Name] = []
        self.memory: dict[str, list[int]] = {}
        self.functions: dict[str, Callable[[int], int]] = {}
        self.arrays: list[tuple[_Name, int]] = []
        self.pointers: list[tuple[_Name, str, int]] = []
        self.tables: list[tuple[_Name, list[str]]] = []
        self.known: list[_Name] = []  # functions

    def name(self, kind: str, declared: str, *linkages: str) -> _Name:
        linkage = self.random.choice(("", "internal", "hidden", *linkages))
        home = self.random.randrange(self.count)
        made = _Name(f"{kind}{len(self.names)}", home, linkage, declared)
        self.names.append(made)
        return made

    def seen(self, module: int, name: _Name) -> bool:
        """Can the object use the name? Then it declares it, where it is another's."""
        if name.linkage == "internal" and name.home != module:
            return False
        if name.home != module:
            name.users.add(module)
        return True

    def array(self) -> None:
        size = self.random.randint(1, 20)
        found = self.name("a", f"external {{}} global [{size} x i32]")
        values = [self.random.choice((0, self.random.randint(-(2**31), 2**31 - 1)))] * size
        if not self.random.randrange(3):
            values = [0] * size
        align = self.random.choice((4, 8, 64, 256))
        words = ", ".join(f"i32 {v}" for v in values)
        self.texts[found.home] += (
            f"@{found.name} = {found.linkage} global [{size} x i32] [{words}], align {align}\n"
        )
        self.memory[found.name] = list(values)
        self.arrays.append((found, size))

    def pointer(self) -> None:
        found = self.name("p", "external {} global ptr")
        array, size = self.random.choice(self.arrays)
        if not self.seen(found.home, array):
            return
        k = self.random.randrange(size)
        kind = self.random.choice(("global", "constant"))
        self.texts[found.home] += (
            f"@{found.name} = {found.linkage} {kind} ptr "
            f"getelementptr (i8, ptr @{array.name}, i32 {4 * k})\n"
        )
        self.pointers.append((found, array.name, k))

    def table(self) -> None:
        found = self.name("t", "external {} global [0 x ptr]")
        members = [f for f in self.known if self.seen(found.home, f)]
        if not members:
            return
        picked = [self.random.choice(members).name for _ in range(self.random.randint(1, 5))]
        words = ", ".join(f"ptr @{m}" for m in picked)
        self.texts[found.home] += (
            f"@{found.name} = {found.linkage} constant [{len(picked)} x ptr] [{words}]\n"
        )
        self.tables.append((found, picked))

    def function(self) -> None:
        found = self.name("f", "declare {} i32", "weak_odr")
        steps: list[Callable[[int], int]] = []
        lines = []
        calls = 0
        for k in range(self.random.randint(1, 7)):
            x, y = f"%v{k}", f"%v{k + 1}"
            kind = self.random.choice(("number", "load", "store", "pointer", "call", "table"))
            if kind in ("call", "table") and calls == 2:
                kind = "number"
            calls += kind in ("call", "table")
            made = self.step(kind, found.home, k, x, y)
            if made is None:
                made = self.step("number", found.home, k, x, y)
                assert made is not None
            lines.append(made[0])
            steps.append(made[1])
        align = self.random.choice(("", " align 32"))
        self.texts[found.home] += (
            f"define {found.linkage} i32 @{found.name}(i32 %v0) noinline{align} {{\n"
            + "".join(lines)
            + f"  ret i32 %v{len(lines)}\n}}\n"
        )

        def run(value: int) -> int:
            for step in steps:
                value = _wrapped(step(value))
            return value

        self.functions[found.name] = run
        self.known.append(found)

    def step(
        self, kind: str, home: int, k: int, x: str, y: str
    ) -> tuple[str, Callable[[int], int]] | None:
        memory = self.memory
        if kind == "number":
            c, d = self.random.randint(-1000, 1000), self.random.randint(-(10**9), 10**9)
            text = f"  %m{k} = mul i32 {x}, {c}\n  {y} = add i32 %m{k}, {d}\n"
            return text, lambda v: v * c + d
        if kind in ("load", "store"):
            array, size = self.random.choice(self.arrays)
            if not self.seen(home, array):
                return None
            n, name = self.random.randrange(size), array.name
            text = f"  %q{k} = getelementptr [{size} x i32], ptr @{name}, i32 0, i32 {n}\n"
            text += f"  %l{k} = load i32, ptr %q{k}\n  {y} = xor i32 {x}, %l{k}\n"
            if kind == "load":
                return text, lambda v: v ^ memory[name][n]

            def store(value: int) -> int:
                value = _wrapped(value ^ memory[name][n])
                memory[name][n] = value
                return value

            return text + f"  store i32 {y}, ptr %q{k}\n", store
        if kind == "pointer" and self.pointers:
            pointer, target, n = self.random.choice(self.pointers)
            if not self.seen(home, pointer):
                return None
            text = f"  %q{k} = load ptr, ptr @{pointer.name}\n  %l{k} = load i32, ptr %q{k}\n"
            return text + f"  {y} = sub i32 {x}, %l{k}\n", lambda v: v - memory[target][n]
        if kind == "call" and self.known:
            other = self.random.choice(self.known)
            if not self.seen(home, other):
                return None
            function = self.functions[other.name]
            return f"  {y} = call i32 @{other.name}(i32 {x})\n", function
        if kind == "table" and self.tables:
            table, members = self.random.choice(self.tables)
            if not self.seen(home, table):
                return None
            n = self.random.randrange(len(members))
            text = f"  %q{k} = getelementptr [0 x ptr], ptr @{table.name}, i32 0, i32 {n}\n"
            text += f"  %c{k} = load ptr, ptr %q{k}\n  {y} = call i32 %c{k}(i32 {x})\n"
            return text, self.functions[members[n]]
        return None

    def program(self) -> Program:
        for _ in range(self.random.randint(1, 5)):
            self.array()
        for _ in range(self.random.randint(0, 5)):
            self.pointer()
        for _ in range(self.random.randint(2, 12)):
            self.function()
            if not self.random.randrange(3):
                self.table()
        for name in self.names:
            hidden = "hidden" if name.linkage == "hidden" else ""
            for user in sorted(name.users):
                form = name.declared.format(hidden)
                declares = form.startswith("declare")
                line = f"{form} @{name.name}(i32)" if declares else f"@{name.name} = {form}"
                self.texts[user] += line + "\n"
        exports = [f.name for f in self.known if f.linkage != "internal"]
        if not exports:
            last = self.known[-1]
            self.texts[last.home] += (
                f"define i32 @out(i32 %x) {{\n  %r = call i32 @{last.name}(i32 %x)\n"
                "  ret i32 %r\n}\n"
            )
            self.functions["out"] = self.functions[last.name]
            exports = ["out"]
        calls = [
            (self.random.choice(exports), self.random.randint(-(2**31), 2**31 - 1))
            for _ in range(10)
        ]
        return Program(self.texts, exports, calls, [self.functions[n](x) for n, x in calls])


def random_program(seed: int) -> Program:
    return _Maker(seed).program()
