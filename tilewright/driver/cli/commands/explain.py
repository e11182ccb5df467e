"""`tilewright explain`: the report of `tw.explain`, or one kernel in full."""

from __future__ import annotations

import argparse

from rich.syntax import Syntax

from tilewright.driver.cli.command import Command
from tilewright.driver.cli.models import NOTES, asked, model_arguments
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.tables import rendered

FORMS = ("group", "trace", "nest", "llvm", "assembly")
_LANGUAGES = {"llvm": "llvm", "trace": "python"}


def _arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument("--kernel", type=int, metavar="K", help="one kernel in full")
    parser.add_argument("--form", choices=FORMS, help="of that kernel (all)")


def _explain(given: argparse.Namespace, out: Shown) -> int:
    model, how = asked(given)
    made = model.explained(how)
    out.put(model=model.name)
    if given.kernel is None:
        out.put(**made.facts())
        out.text(rendered(made))
        return 0
    forms = FORMS if given.form is None else (given.form,)
    texts = {form: getattr(made, form)(given.kernel) for form in forms}
    out.put(kernel=given.kernel, **texts)
    for form, text in texts.items():
        if out.json:
            continue
        out.console.rule(f"kernel {given.kernel}: {form}")
        if form in _LANGUAGES and out.console.is_terminal:
            out.console.print(Syntax(text, _LANGUAGES[form]))
        else:
            out.text(text)
    return 0


COMMAND = Command(
    _arguments,
    _explain,
    (
        "explain model.py:net --input 'f32[8,128]'",
        "explain model.onnx --kernel 0 --form nest",
        "explain model.pt2 --json",
    ),
    NOTES,
)
