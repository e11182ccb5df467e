"""Groups as fusion makes them: the shapes that default schedules must handle, one file each.

A file of groups/ holds a group's text and a line `dims S=3` for each choice of symbolic dims.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.kernel.fuzz import Sizes, parse_case
from tilewright.kernel.group import Group

FOLDER = Path(__file__).resolve().parent / "groups"


@dataclass(frozen=True)
class Example:
    text: str  # of the group alone
    group: Group
    dims: list[Sizes]


def _read(path: Path) -> Example:
    text = path.read_text()
    group, dims, _ = parse_case(text)
    return Example(text.split("dims ")[0], group, dims)


EXAMPLES = {path.stem: _read(path) for path in sorted(FOLDER.glob("*.txt"))}
