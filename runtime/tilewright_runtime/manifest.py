"""The text of a manifest as values.

The module json takes ten milliseconds to import, most of it for regular expressions: as much as
everything else here. So its scanner, which is C, is used as it is; where that is missing, json.
"""

from __future__ import annotations

from tilewright_runtime.sentences import PackageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SPACE = " \t\n\r"


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON")


class _Rules:
    """What a scanner asks for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = staticmethod(_no_constant)

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}


_scan: Any
try:
    from _json import make_scanner
except ImportError:  # a Python without the parts of json that are C
    from json import JSONDecoder

    _scan = JSONDecoder().raw_decode
else:
    made: Any = make_scanner
    _scan = made(_Rules())


def parsed(path: str, content: bytes) -> dict[str, Any]:
    """The manifest of the package at `path`."""
    try:
        text = content.decode()
        found, end = _scan(text, len(text) - len(text.lstrip(_SPACE)))
    except StopIteration:
        raise PackageError("PACKAGE", path, "its manifest is not JSON: it is empty") from None
    except (ValueError, RecursionError) as problem:
        raise PackageError("PACKAGE", path, f"its manifest is not JSON: {problem}") from None
    if text[end:].strip(_SPACE) or not isinstance(found, dict):
        raise PackageError("PACKAGE", path, "its manifest is not one JSON object")
    return found
