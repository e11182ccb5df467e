"""What the text of a statement says before it is translated: which names it assigns, whether it can
return. Cached on the node, since kernels are translated many times."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def assigned(node: ast.stmt) -> frozenset[str]:
    """Names that the statement, or one inside, gives a value."""
    found = getattr(node, "tile_assigned", None)
    if found is None:
        found = frozenset(n.id for n in _own(node) if isinstance(n, ast.Name) and _stored(n))
        node.tile_assigned = found  # type: ignore[attr-defined]
    return found


def returns(node: ast.stmt) -> bool:
    """Is there a return inside?"""
    found = getattr(node, "tile_returns", None)
    if found is None:
        found = any(isinstance(n, ast.Return) for n in _own(node))
        node.tile_returns = found  # type: ignore[attr-defined]
    return found


def _stored(n: ast.Name) -> bool:
    return isinstance(n.ctx, ast.Store)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """The node and all below, comprehensions' own variables left out."""
    waiting = [node]
    while waiting:
        n = waiting.pop()
        yield n
        if isinstance(n, (ast.ListComp, ast.GeneratorExp)):
            waiting.append(n.elt)
            waiting.extend(g.iter for g in n.generators)
        elif not isinstance(n, (ast.FunctionDef, ast.Lambda, ast.ClassDef)) or n is node:
            waiting.extend(ast.iter_child_nodes(n))
