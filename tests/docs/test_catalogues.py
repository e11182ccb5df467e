"""Catalogues and reference name all that is registered; generated pages show what they should."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from docs.generator import operators, options, reference, rules, steps, switches, targets, tutorials
from tilewright.base import knobs
from tilewright.driver.cli.commands import COMMANDS
from tilewright.driver.program.options import Options
from tilewright.driver.torch.options import TorchOptions
from tilewright.ir.operator import OPERATORS
from tilewright.ir.operator import PROPERTIES as KNOWN_PROPERTIES
from tilewright.kernel.intrinsic import INTRINSICS
from tilewright.kernel.step import STEPS
from tilewright.rewrites import all_rules
from tilewright.targets import names

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "operators": operators.page,
    "rules": rules.page,
    "steps": steps.page,
    "targets": targets.page,
    "options": options.page,
    "variables": switches.variables,
    "commands": switches.commands,
}


@cache
def page(name: str) -> str:
    return PAGES[name]()


def cells(text: str) -> list[str]:
    """The first cell of every row of a page's tables, without the signs of code."""
    return [m.strip().strip("`") for m in re.findall(r"^\| ([^|]*)\|", text, re.M)]


def headings(text: str) -> list[str]:
    return [m.strip("` ") for m in re.findall(r"^##+ (.*)$", text, re.M)]


def test_every_operator_is_there() -> None:
    assert set(OPERATORS) <= set(cells(page("operators")))
    assert all(operators.about(cls) for cls in OPERATORS.values())
    assert set(operators.PROPERTIES) == set(KNOWN_PROPERTIES)
    (row,) = [x for x in page("operators").splitlines() if x.startswith("| `matmul` |")]
    assert "f32[5,7], f32[7,3] → f32[5,3]" in row and "`compute`" in row


def test_every_rule_is_there() -> None:
    assert {r.name for r in all_rules()} <= set(cells(page("rules")))
    assert all(rules.proof(r) for r in all_rules())
    (row,) = [x for x in page("rules").splitlines() if x.startswith("| `neg-neg` |")]
    assert "`neg(neg(x)) → x`" in row and "| nothing |" in row


def test_every_step_is_there_with_its_loops() -> None:
    text = page("steps")
    assert headings(text) == sorted(STEPS)
    assert text.count('title="before"') == text.count('title="after"') >= len(STEPS)


def test_every_target_and_instruction_is_there() -> None:
    text = page("targets")
    assert set(INTRINSICS) <= set(headings(text))
    for name in names():
        assert f"`{name}`" in text


def test_every_variable_and_option_is_there() -> None:
    assert {k.name for k in knobs.every()} <= set(cells(page("variables")))
    for cls in (TorchOptions, Options):
        assert {f.name for f in fields(cls)} <= set(cells(page("options")))
        without = [name for name, said in options.comments(cls).items() if not said]
        assert not without, f"{cls.__name__} does not say what {without} are"


def test_every_command_is_there() -> None:
    found = headings(page("commands"))
    assert {f"tilewright {name}" for name in COMMANDS} <= set(found)
    assert "tilewright run model.pt2" in page("commands"), "examples are there"
    assert "python -m tilewright.triton" in found and "`--strict`" in page("commands")


@pytest.mark.parametrize("face", reference.FACES, ids=lambda f: f.short)
def test_every_public_name_is_there(face: reference.Face) -> None:
    assert not reference.missing(face, reference.page(face))


def test_the_glossary_names_what_exists() -> None:
    """Every file or folder in its tables is there."""
    text = (ROOT / "docs" / "glossary.md").read_text()
    named = re.findall(r"`([\w/]+(?:\.py|/))`", text)
    assert len(named) > 15
    assert not [n for n in named if not (ROOT / "tilewright" / n).exists()]


# ---- tutorials


SOURCE = '''"""What this is about."""

import math

# ---- 1. Roots
#
# A root is `math.sqrt`.
#
#     of 4: 2


def root():
    return math.sqrt(4)


# ---- 2. Powers


def power():
    return 2**3
'''
PRINTED = """\
1. roots ─────────────
2.0

──────── power: of two ────────
8
──────── all in all ────────
10
"""


def test_sections_of_a_tutorial() -> None:
    first, roots, powers = tutorials.sections(SOURCE)
    assert (first.title, first.code) == ("", "import math")
    assert roots.title == "1. Roots" and roots.text.endswith("    of 4: 2")
    assert roots.code.startswith("def root") and powers.text == ""


def test_output_goes_with_its_section() -> None:
    _, roots, powers = tutorials.sections(SOURCE)
    found = tutorials.printed(PRINTED)
    assert found == [("1. roots", "2.0"), ("power: of two", "8"), ("all in all", "10")]
    assert [tutorials.belongs(title, roots) for title, _ in found] == [True, False, False]
    assert [tutorials.belongs(title, powers) for title, _ in found] == [False, True, False]


def test_the_tour_is_its_own_text() -> None:
    made = tutorials.Output("Intro.\n\n=== 1. One ===\n\nText.\n\n    code\n      more\n", "here")
    shown = tutorials.page(tutorials.TOUR, made)
    assert "## 1. One\n\nText.\n\n```text\ncode\n  more\n```" in shown


@pytest.mark.parametrize("t", tutorials.TUTORIALS, ids=lambda t: t.name)
def test_a_page_without_output_says_so(t: tutorials.Tutorial) -> None:
    assert "without running the tutorial" in tutorials.page(t, None)
