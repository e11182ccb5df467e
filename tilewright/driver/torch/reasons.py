"""Why torch cut a graph or an operator runs in eager, and what to change in the user's line.

Torch explains a cut in paragraphs for its developers. The table below has the classes that users
meet, by words of torch's text; for others torch's own hint is passed on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HINT = re.compile(r"^\s*Hint: (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Reason:
    """What happens in a line, and what to write there."""

    what: str
    remedy: str


# Words of torch's text, what they mean, what to change; the first that is found is taken.
_BREAKS: tuple[tuple[str, Reason], ...] = (
    (
        r"builtin operator `print`|\blogging\b|Logger|warnings\.warn",
        Reason(
            "it prints, which no graph can do",
            "print after the call, or add print to "
            "torch._dynamo.config.reorderable_logging_functions",
        ),
    ),
    (
        r"Tensor\.(item|tolist)\(|_local_scalar_dense|Data dependent operator",
        Reason(
            "a number is read out of a tensor",
            "compute with the tensor, without .item(); or "
            "torch._dynamo.config.capture_scalar_outputs = True",
        ),
    ),
    (
        r"^(Data-dependent branching|generic_jump)",
        Reason(
            "which way it goes depends on a tensor's data",
            "choose by torch.where(condition, a, b) or torch.cond; loop by torch.while_loop",
        ),
    ),
    (
        r"Data-dependent assert",
        Reason(
            "an assertion about a tensor's data",
            "write torch._assert_async(condition, message), or check before the call",
        ),
    ),
    (
        r"^Dynamic (shape operator|slicing)",
        Reason(
            "the size of a result depends on a tensor's data",
            "torch.where(mask, x, 0) keeps the size; or "
            "torch._dynamo.config.capture_dynamic_output_shape_ops = True",
        ),
    ),
    (
        r"torch\._dynamo\.(graph_break|skip_frame|step_unsupported)\(\)",
        Reason("the program itself asks for a cut", "remove this call"),
    ),
    (
        r"torch\.compiler\.disable",
        Reason(
            "a function is called that torch.compiler.disable keeps out of graphs",
            "remove torch.compiler.disable, or call the function before or after",
        ),
    ),
    (
        r"context manager",
        Reason(
            "a with statement that no graph can hold",
            "put the with statement around the call of the compiled function",
        ),
    ),
    (
        r"[Gg]enerator",
        Reason("generator functions are left to eager", "return a list of the values"),
    ),
    (
        r"graph break in loop",
        Reason(
            "a loop has a cut in it, so the whole function runs in eager",
            "remove the cut from the loop, or compile the body as a function of its own",
        ),
    ),
    (
        r"STORE_ATTR|STORE_GLOBAL|global|side effect|Side effect|mutation",
        Reason(
            "it changes something outside of the function",
            "return the new value, and store it after the call",
        ),
    ),
    (
        r"builtin operator `open`|builtin operator `input`",
        Reason("it reads or writes outside of the program", "do it before the call, and pass data"),
    ),
    (
        r"\bRNN\b|\bLSTM\b|\bGRU\b",
        Reason("torch passes over recurrent layers", "compile it with tw.compile"),
    ),
    (
        r"[Ss]parse",
        Reason(
            "a tensor of a sparse layout, which no graph has",
            "pass tw.SparseMatrix.of(tensor), which is multiplied natively; or make it dense",
        ),
    ),
    (
        r"NestedTensor",
        Reason("tensors of a layout that no graph has", "use dense tensors, with a mask if needed"),
    ),
    (
        r"backward\(|autograd\.grad|requires_grad_\(",
        Reason(
            "gradients are asked for inside",
            "compile the forward only, and call backward() after it",
        ),
    ),
    (
        r"marked as skipped|C/C\+\+|builtin operator|Python builtin|torch\.jit",
        Reason(
            "it calls code that torch cannot look into",
            "write it with operators of torch, call it outside, or use torch.library.custom_op",
        ),
    ),
    (
        r"Observed exception|raise",
        Reason(
            "an exception is raised while the graph is captured",
            "take out of the function what raises, or reads a tensor's data (text, address)",
        ),
    ),
)

_NO_HINT = "take this line out of the compiled function, or write it with operators of torch"


def title_of(text: str) -> str:
    """What torch calls it."""
    first = next((line.strip() for line in text.strip().splitlines() if line.strip()), text)
    return "Data-dependent branching" if first.startswith("generic_jump") else first


def break_reason(text: str) -> Reason:
    """The class of a cut in torch's words; torch's own where it is none of the known ones."""
    words = re.split(r"\n\s*(?:Hint:|Developer debug context)", text)[0]
    for pattern, reason in _BREAKS:
        if re.search(pattern, words):
            return reason
    hint = _HINT.search(text)
    return Reason(title_of(text), hint[1].strip() if hint else _NO_HINT)


def fallback_remedy(operator: str) -> str:
    """What to do about an operator that runs in eager."""
    space = operator.split(".", 1)[0]
    if space in ("aten", "prims"):
        return "write it with operators that have a native form, or keep it out of loops"
    return "a custom operator: write it with operators of torch, or as a kernel (@tw.jit)"
