"""`tilewright doctor`: runs a model, and says what was not compiled and what to change."""

from __future__ import annotations

import argparse

from tilewright.driver.cli.command import Command
from tilewright.driver.cli.models import NOTES, asked, model_arguments
from tilewright.driver.cli.problems import FAILED, RIGHT
from tilewright.driver.looking.shown import Shown
from tilewright.driver.looking.summary import SHOWN
from tilewright.driver.looking.tables import count


def _doctor(given: argparse.Namespace, out: Shown) -> int:
    model, how = asked(given)
    with out.step(f"running {model.name}"):
        found = model.tried(how).summary
    out.put(model=model.name, **found.facts())
    for line in found.lines():
        out.say(line)
    for p in found.problems[SHOWN:]:
        at = f"{p.places[0]}: " if p.places else ""
        out.say(f"  {at}{p.what}\n    change: {p.remedy}")
    if found.whole:
        out.say(f"all of {model.name} is compiled")
        return RIGHT
    broken = sum(max(1, len(p.places)) for p in found.problems if p.kind != "recompile")
    out.say(f"{model.name} is not compiled as a whole: {count(broken, 'place')} to change")
    return FAILED


COMMAND = Command(
    model_arguments,
    _doctor,
    ("doctor model.py:net --input 'f32[8,128]'", "doctor model.py:net --json"),
    f"{NOTES} The model is called twice. The exit code is 0 where all of it was compiled, and 1 "
    "otherwise.",
)
