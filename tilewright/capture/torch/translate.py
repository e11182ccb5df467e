"""fx graph → Captured: one walk over the nodes, then cutting into segments.

An operator without a translation becomes a host call; so does one whose translation disagrees with
the type that torch announced, so that a mistake here is a named fallback and never a wrong number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx.node import map_aggregate

from tilewright import ops
from tilewright.base.errors import TilewrightError, Unsupported
from tilewright.capture.torch.announced import announce
from tilewright.capture.torch.captured import Argument, Captured, HostCall, SymbolicScalar
from tilewright.capture.torch.context import SEED, Context
from tilewright.capture.torch.dtypes import FROM_COMPLEX, FROM_TORCH, real_dtype
from tilewright.capture.torch.facts import (
    CPU,
    announced_tensors,
    gives_complex,
    gives_views,
    has_symbols,
    is_number_elsewhere,
    is_on,
    is_plain,
)
from tilewright.capture.torch.host_calls import CHECK_ERRORS, HostCalls
from tilewright.capture.torch.layout import read_slot
from tilewright.capture.torch.outputs import Outputs
from tilewright.capture.torch.places import place_of
from tilewright.capture.torch.registry import Untranslated, rule_for, target_name
from tilewright.capture.torch.segments import (
    as_they_lie,
    cut,
    filled,
    slots_in,
    used_symbols,
)
from tilewright.capture.torch.shapes import Shapes
from tilewright.capture.torch.values import Complex, Opaque, is_complex, is_opaque, parted
from tilewright.ir import dim as D
from tilewright.ir.dim import Dim
from tilewright.ir.node import Graph, Node, Place, input
from tilewright.ir.slots import Check, symbol_from
from tilewright.ir.types import TensorType

# Checks of what the guards already established; they compute nothing.
ASSERTIONS = {
    "aten._assert_tensor_metadata.default",
    "aten.sym_constrain_range.default",
    "aten.sym_constrain_range_for_size.default",
}
# Constants of the graph up to this many elements become literals, larger ones stay tensors outside
# the graph.
LITERAL_LIMIT = 64


def translate(
    gm: torch.fx.GraphModule,
    *,
    weights: Collection[int] = (),
    random: str = "own",
    name: str = "main",
    checks: bool = True,
    checked_indices: Mapping[str, frozenset[tuple[str, bool]]] | None = None,
    strides: Mapping[str, tuple[Dim, ...]] | None = None,
    device: torch.device = CPU,
) -> Captured:
    """Translate a graph of ATen operators. `weights`: indices of inputs that may be folded.
    `checks`: preconditions that depend on data are checked, but for `checked_indices`: what another
    graph has checked, by the names of inputs. `strides`: of inputs by name that come with others
    than torch announced. `device` is what native code runs on: what torch does on another one stays
    torch's."""
    translation = Translation(gm, weights, random, name, checks, device)
    translation.checked_indices = checked_indices or {}
    translation.strides = strides or {}
    return translation.run()


class Translation:
    def __init__(
        self,
        gm: torch.fx.GraphModule,
        weights: Collection[int],
        random: str,
        name: str,
        checks: bool,
        device: torch.device = CPU,
    ) -> None:
        self.gm, self.weights, self.name = gm, set(weights), name
        self.shapes, self.device = Shapes(), device
        self.context = Context(self.shapes, random, checks, device)
        self.context.subgraph = self._subgraph
        self.env: dict[torch.fx.Node, Any] = {}
        self.arguments: list[Argument] = []
        self.argument_of: dict[torch.fx.Node, int] = {}
        self.host_calls = HostCalls(self.context, self.env, self.arguments, self.argument_of)
        self.context.check_errors = self.host_calls.add_check
        self.context.bounded = self.host_calls.bounded
        self.constants: dict[str, torch.Tensor] = {}
        self.scalars: dict[Any, SymbolicScalar] = {}
        self.mutated: dict[torch.fx.Node, Node | Complex] = {}
        self.places: dict[Node, set[Place]] = {}
        self.checked_indices: Mapping[str, frozenset[tuple[str, bool]]] = {}
        self.strides: Mapping[str, tuple[Dim, ...]] = {}

    def run(self) -> Captured:
        return self._finish(self.walk())

    def walk(self) -> torch.fx.Node:
        """Translates every node; gives that of the results."""
        output: torch.fx.Node | None = None
        for n in self.gm.graph.nodes:
            announce(n)
        for n in self.gm.graph.nodes:
            if n.op == "placeholder":
                self._placeholder(n)
            elif n.op == "get_attr":
                self.env[n] = self._attribute(n)
            elif n.op == "output":
                output = n
            else:
                self.env[n] = self._call(n)
        assert output is not None
        return output

    # ---- inputs

    def slot(self, n: torch.fx.Node, index: int) -> str:
        """The name of an input in our graph."""
        return f"in{index}"

    def _placeholder(self, n: torch.fx.Node) -> None:
        self._read_argument(n)
        # Sizes that data decided in another graph are those of what that one gave.
        given = self.arguments[-1]
        known = (symbol_from(d) for d in (given.value, *given.shape))
        self.shapes.bind(found[0] for found in known if found is not None)

    def _read_argument(self, n: torch.fx.Node) -> None:
        index = len(self.arguments)
        slot, v = self.slot(n, index), n.meta.get("val")
        self.argument_of[n] = index
        if isinstance(v, torch.Tensor):
            self.arguments.append(self._tensor_argument(n, slot, v, index in self.weights))
            x = self.env[n]
            if n.name in self.checked_indices and isinstance(x, Node):
                self.context.checks.assume_checked(x, self.checked_indices[n.name])
            return
        if isinstance(v, torch.SymInt) or (isinstance(v, int) and not isinstance(v, bool)):
            value = self.shapes.dim(v)
            symbol = str(v.node.expr) if isinstance(v, torch.SymInt) else None
            self.arguments.append(Argument(slot, "int", value=value, symbol=symbol))
            self.env[n] = value
        elif isinstance(v, (torch.SymFloat, float)) and not isinstance(v, bool):
            symbol = str(v.node.expr) if isinstance(v, torch.SymFloat) else None
            self.arguments.append(Argument(slot, "float", symbol=symbol))
            self.env[n] = self.context.number_in(slot)
        else:
            self.arguments.append(Argument(slot, "other", used=bool(n.users)))
            self.env[n] = Opaque(slot) if v is not None else None

    def _tensor_argument(
        self, n: torch.fx.Node, slot: str, v: torch.Tensor, weight: bool
    ) -> Argument:
        used = bool(n.users)
        moved = is_number_elsewhere(v, self.device)
        if not is_plain(v, v.device if moved else self.device):
            self.env[n] = Opaque(slot)
            return Argument(slot, "tensor", used=used, native=False)
        dtype, shape = real_dtype(v.dtype), self.shapes.dims(v.shape)
        stride = self.strides.get(n.name) or self.shapes.dims(v.stride())
        paired = v.dtype in FROM_COMPLEX
        weight = weight and not moved
        self.env[n] = read_slot(slot, dtype, shape, stride, paired, "weight" if weight else "arg")
        return Argument(
            slot,
            "tensor",
            dtype,
            shape,
            stride,
            weight=weight,
            used=used,
            paired=paired,
            moved=moved,
        )

    def _attribute(self, n: torch.fx.Node) -> Any:
        value: Any = self.gm
        for part in str(n.target).split("."):
            value = getattr(value, part)
        with unset_fake_temporarily():
            return self._constant(value)

    def _constant(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        moved = is_number_elsewhere(value, self.device)
        if not is_plain(value, value.device if moved else self.device):
            slot = f"graph_constant{len(self.constants)}"
            self.constants[slot] = value
            return Opaque(slot)
        if value.dtype in FROM_COMPLEX:
            value = torch.view_as_real(value)
            found = self._constant(value)
            return parted(found)
        dtype = FROM_TORCH[value.dtype]
        value = value.detach()
        if value.numel() <= LITERAL_LIMIT:
            array = (value.float() if value.dtype is torch.bfloat16 else value).cpu().numpy()
            return self.context.literal(array, dtype)
        slot = f"graph_constant{len(self.constants)}"
        self.constants[slot] = value.contiguous()
        return input(slot, TensorType(dtype, tuple(value.shape)), "arg")

    # ---- operators

    def _call(self, n: torch.fx.Node) -> Any:
        name = target_name(n.target)
        if name.startswith("aten._assert_async."):
            return self.host_calls.assert_tensor(n)
        if name == "aten._assert_scalar.default":
            return self.host_calls.assert_scalar(n)
        if name in ASSERTIONS or (
            name.startswith("aten.")
            and n.meta.get("val") is None
            and not n.users
            and "assert" in name
        ):
            return None
        if name == "operator.getitem":
            return self._getitem(n)
        ordered = name == "higher_order::with_effects" and n.args[1] is CHECK_ERRORS
        if ordered or n.target is CHECK_ERRORS:
            return self.host_calls.check_errors(n)
        if name == "aten.copy_.default" and self._is_input(n.args[0]):
            return self._mutate(n)
        simple = self._number_of(n)
        if simple is not None:
            return simple
        checks = self.context.checks
        before, calls = checks.mark(), len(self.host_calls.pending)
        try:
            out = self._translate(n)
        except (Untranslated, TilewrightError) as problem:
            self.host_calls.undo(calls)
            checks.undo(before)  # eager checks what it runs
            return self.host_calls.call(n, str(getattr(problem, "what", problem)))
        self._remember(n, out)
        return out

    def _translate(self, n: torch.fx.Node) -> Any:
        self.context.fx = self.context.checks.fx = n
        seed_used = self.context.seed_used
        try:
            return self._translated(n)
        except (Untranslated, TilewrightError):
            # What was not translated needs no seed: drawing one would move eager's numbers.
            self.context.seed_used = seed_used
            raise

    def _translated(self, n: torch.fx.Node) -> Any:
        args = map_aggregate(n.args, self._native)
        kwargs = map_aggregate(n.kwargs, self._native)
        pairs = is_complex((args, kwargs)) or gives_complex(n.meta.get("val"))
        rule = rule_for(n.target, "complex" if pairs else "real")
        if rule is None:
            raise Untranslated(f"it has no native form{' on complex numbers' if pairs else ''}")
        try:
            out = rule(self.context, *args, **kwargs)  # type: ignore[misc]
        except TypeError as problem:
            if not has_symbols((args, kwargs)):
                raise
            raise Untranslated(
                f"one of its operands is a number that is known only at the call: {problem}"
            ) from None
        out = tuple(out) if isinstance(out, list) else out
        self._learn(n, out)
        self._check(n, out)
        return out

    def _learn(self, n: torch.fx.Node, out: Any) -> None:
        """Sizes that torch calls by a name of their own, since they depend on data, are those that
        the translation computed.
        """
        found: dict[Any, Dim] = {}
        for v, x in announced_tensors(n.meta.get("val"), out):
            if not isinstance(x, (Node, Complex)):
                continue
            for size, d in zip(v.shape, x.shape):
                if isinstance(size, torch.SymInt) and self.shapes.unbound(size.node.expr):
                    if size.node.expr.is_Symbol:
                        found.setdefault(size.node.expr, d)
        names = {str(s) for s in found}
        for s, d in found.items():
            if any(x.name in names for x in D.symbols(d)):
                raise Untranslated(f"{s}, a size of its result, is known when it has run")
            self.shapes.define(s, d)

    def _native(self, x: Any) -> Any:
        if not isinstance(x, torch.fx.Node):
            return x
        v = self.env[x]
        if is_opaque(v):
            raise Untranslated(f"{x.meta.get('val', x)!s} has no native form"[:80])
        return v

    def _check(self, n: torch.fx.Node, out: Any) -> None:
        """The types must be what torch announced."""
        for v, x in announced_tensors(n.meta.get("val"), out):
            if not isinstance(x, Complex if v.dtype in FROM_COMPLEX else Node):
                raise Untranslated(f"the translation gave {x!r} for a tensor")
            if not is_on(v, self.device):
                raise Untranslated(f"its result is on {v.device}")
            want = TensorType(real_dtype(v.dtype), self.shapes.dims(v.shape))
            same = len(want.shape) == x.rank and not any(
                self._differ(a, b) for a, b in zip(want.shape, x.shape)
            )
            if not same or x.dtype is not want.dtype:
                found = TensorType(x.dtype, x.shape)
                raise Untranslated(f"the translation gives {found!r} where torch says {want!r}")

    def _differ(self, a: Dim, b: Dim) -> bool:
        """Are two sizes known to differ, for all values of symbols or for those at hand?"""
        if a == b:
            return False
        x, y = self.shapes.example(a), self.shapes.example(b)
        return D.known_ne(a, b) or (x is not None and y is not None and x != y)

    def _number_of(self, n: torch.fx.Node) -> Any:
        """The value of a node whose result is a number of torch's shape arithmetic; None for
        others.
        """
        v = n.meta.get("val")
        if isinstance(v, torch.SymInt):
            e = v.node.expr
            if not isinstance(n.target, torch._ops.OpOverload) or not self.shapes.unbound(e):
                return self.shapes.dim(v)
            return None
        if isinstance(v, (torch.SymFloat, torch.SymBool)):
            e = v.node.expr
            if self.shapes.unbound(e) or any(str(s).startswith("zuf") for s in e.free_symbols):
                return None
            if e not in self.scalars:
                slot = f"scalar{len(self.scalars)}"
                self.scalars[e] = SymbolicScalar(slot, e)
                self.context.number_in(slot)
            return self.context.number_in(self.scalars[e].slot)
        if isinstance(v, (int, float, bool)) and not any(
            isinstance(self.env.get(a), (Node, Complex, Opaque)) for a in n.all_input_nodes
        ):
            return v
        return None

    def _getitem(self, n: torch.fx.Node) -> Any:
        base, k = n.args
        assert isinstance(base, torch.fx.Node)
        value = self.env[base]
        if isinstance(value, Opaque):
            return self.host_calls.call(n, f"{target_name(base.target)} has no native form")
        return value[k]

    def _is_input(self, x: Any) -> bool:
        return isinstance(x, torch.fx.Node) and x.op == "placeholder"

    def _mutate(self, n: torch.fx.Node) -> Any:
        target, source = n.args[0], n.args[1]
        assert isinstance(target, torch.fx.Node)
        old = self.env[target]
        new: Any = self.env[source] if isinstance(source, torch.fx.Node) else source
        if is_opaque(old) or is_opaque(new):
            return self.host_calls.call(n, "it changes a tensor that has no native form")
        fresh: Node | Complex
        if isinstance(old, Complex):
            if not isinstance(new, Complex) or new.shape != old.shape or new.dtype is not old.dtype:
                return self.host_calls.call(
                    n, "it changes a complex tensor in a way that has no native form"
                )
            fresh = new
        else:
            fresh = self.context.node(new, old.dtype)
            if fresh.shape != old.shape:
                fresh = ops.expand(fresh, old.shape)
        if fresh is not old:
            self.mutated[target] = fresh
            self._remember(n, fresh)
        return fresh

    def _remember(self, n: torch.fx.Node, out: Any) -> None:
        place = place_of(n)
        if place is None:
            return
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, Complex):
                self._mark(x.re, place)
                self._mark(x.im, place)
            elif isinstance(x, Node):
                self._mark(x, place)

    def _mark(self, x: Node, place: Place) -> None:
        """The line belongs to every node the translation made, down to those that have one."""
        stack = [x]
        while stack:
            y = stack.pop()
            known = self.places.get(y)
            if known is not None and y is not x:
                continue
            self.places.setdefault(y, set()).add(place)
            stack.extend(z for z in y.inputs if z not in self.places)

    # ---- the end

    def _finish(self, output: torch.fx.Node) -> Captured:
        hosts = self.host_calls.pending
        views = [r.slot for h in hosts if gives_views(h.call) for r in filled(h.call.returned)]
        made = Outputs(
            self.shapes,
            self.env,
            self.arguments,
            self.argument_of,
            self.mutated,
            self.host_calls.results,
            views,
        )
        leaves = output.args[0]
        results = [
            made.add(x) for x in (leaves if isinstance(leaves, (tuple, list)) else (leaves,))
        ]
        resolved = tuple(made.resolve(r) for r in results)
        changed = [made.write_back(n, x) for n, x in self.mutated.items()]
        checks = self.context.checks.found
        for n, check in checks.items():
            if check.place is not None:
                self.places.setdefault(n, set()).add(check.place)
        places = {n: frozenset(p) for n, p in self.places.items()}
        whole = cut(self.name, hosts, made.wanted, places, self._derived(), checks)
        lies = self.host_calls.results
        steps = tuple(s if isinstance(s, HostCall) else as_they_lie(s, lies) for s in whole)
        read = {
            x.op.label  # type: ignore[attr-defined]
            for s in steps
            if not isinstance(s, HostCall)
            for x in s.graph.inputs
        }
        arguments = tuple(_with_use(a, read) for a in self.arguments)
        read |= {x for s in steps if isinstance(s, HostCall) for x in slots_in((s.args, s.kwargs))}
        read |= set(slots_in(resolved))
        # Sizes first: numbers may be computed from them.
        scalars = [SymbolicScalar(f"dim:{name}", e) for e, name in self.shapes.opaque.items()]
        scalars += [s for s in self.scalars.values() if s.slot in read]
        scalars = [replace(s, dims=self.shapes.symbols(s.expression)) for s in scalars]
        captured = Captured(
            self.name,
            arguments,
            steps,
            resolved,
            tuple(changed),
            self.constants,
            tuple(scalars),
            SEED if self.context.seed_used else None,
            self.context.checks.checked_indices(
                {x.name: v for x in output.all_input_nodes if isinstance(v := self.env[x], Node)}
            ),
        )
        self._require_values(captured)
        return captured

    def _require_values(self, captured: Captured) -> None:
        """Every symbol that is used must get its value from somewhere."""
        dims = [d for a in captured.arguments for d in (a.value, *a.shape)]
        known = {found[0] for found in map(symbol_from, dims) if found is not None}
        known |= set(self.shapes.opaque.values()).union(*(h.binds for h in self.host_calls.pending))
        missing = used_symbols(captured) - known
        if missing:
            raise Unsupported(
                f"torch gives no value for {', '.join(sorted(missing))}, on which sizes depend",
                hint="compile with dynamic=False, or pass the number as a tensor",
            )

    def _derived(self) -> dict[str, frozenset[str]]:
        """What is computed from symbols at the call, by the name of its slot or symbol."""
        found = {s.slot: s.expression for s in self.scalars.values()}
        found |= {name: e for e, name in self.shapes.opaque.items()}
        return {
            name: frozenset(s.name for d in self.shapes.symbols(e).values() for s in D.symbols(d))
            for name, e in found.items()
        }

    def _subgraph(
        self, gm: torch.fx.GraphModule, operands: Sequence[Any], name: str
    ) -> tuple[Graph, dict[Node, Check]]:
        """A branch or a body as a graph over inputs x0, x1, … for the tensors and types among its
        operands (numbers are known), and what it has to check; Untranslated where it needs a host
        call."""
        inner = Translation(
            gm, (), self.context.random, name, self.context.checks.wanted, self.device
        )
        inner.shapes = inner.context.shapes = self.shapes
        return inner.branch(operands), inner.context.checks.found

    def branch(self, operands: Sequence[Any]) -> Graph:
        output: Any = None
        seen = [
            input(f"x{k}", x if isinstance(x, TensorType) else x.ttype)
            if isinstance(x, (Node, TensorType))
            else x
            for k, x in enumerate(operands)
        ]
        ins = [x for x in seen if isinstance(x, Node)]
        given = iter(seen)
        for n in self.gm.graph.nodes:
            if n.op == "placeholder":
                self.env[n] = next(given)
            elif n.op == "get_attr":
                self.env[n] = self._attribute(n)
            elif n.op == "output":
                output = n.args[0]
            else:
                self.env[n] = self._call(n)
        if self.host_calls.pending:
            raise Untranslated(
                f"{self.host_calls.pending[0].call.operator} inside a branch has no native form"
            )
        if self.constants or self.context.seed_used:
            raise Untranslated("a branch holds a large constant or a random operator")
        leaves = output if isinstance(output, (tuple, list)) else (output,)
        outs = tuple(self.env[x] for x in leaves)
        if not all(isinstance(x, Node) for x in outs):
            raise Untranslated("a branch returns something that is not a tensor")
        return Graph(self.name, tuple(ins), outs, {n: frozenset(p) for n, p in self.places.items()})


def _with_use(a: Argument, read: set[str]) -> Argument:
    if a.kind != "tensor":
        return a
    return replace(a, native=a.slot in read)
