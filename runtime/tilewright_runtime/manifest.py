"""The text of a manifest as values.

The module json takes ten milliseconds to import, most of it for regular expressions: as much as
everything else here. So its scanner, which is C, is used as it is; where that is missing, json.
"""

from __future__ import annotations

from tilewright_runtime.sentences import PackageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FORMAT = 2  # the newest that is read
_SPACE = " \t\n\r"


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number of JSON")


def _whole(digits: str) -> int:
    """The runtime in C has 64 bits for each."""
    if len(digits) > 18 and not -(1 << 63) <= int(digits) < 1 << 63:
        raise ValueError("an odd number")
    return int(digits)


class _Rules:
    """What a scanner asks for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = staticmethod(_whole)
    parse_constant = staticmethod(_no_constant)

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}


_scan: Any
try:
    from _json import make_scanner
except ImportError:  # a Python without the parts of json that are C
    from json import JSONDecoder

    _scan = JSONDecoder(parse_int=_whole).raw_decode
else:
    made: Any = make_scanner
    _scan = made(_Rules())


def parsed(path: str, content: bytes) -> dict[str, Any]:
    """The manifest of the package at `path`, which has to be of the format that is read here."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise PackageError("PACKAGE", path, "its manifest is not UTF-8") from None
    try:
        found, end = _scan(text, len(text) - len(text.lstrip(_SPACE)))
        if "\\u" in text:
            _require_characters(found)
    except StopIteration:
        raise PackageError("PACKAGE", path, "its manifest is not JSON: it is empty") from None
    except (ValueError, RecursionError) as problem:
        raise PackageError("PACKAGE", path, f"its manifest is not JSON: {problem}") from None
    if text[end:].strip(_SPACE) or not isinstance(found, dict):
        raise PackageError("PACKAGE", path, "its manifest is not one JSON object")
    number = found.get("format")
    if type(number) is not int or number < 0:
        raise PackageError("PACKAGE", path, "its manifest lacks its format")
    if not 1 <= number <= FORMAT:
        raise PackageError("FORMAT", path, number, FORMAT)
    return found


def _require_characters(value: Any) -> None:
    """An error where a text has half of a character, or the end of a text in C: `\\u` writes
    both."""
    if isinstance(value, str):
        value.encode()
        if "\0" in value:
            raise ValueError("a character is malformed")
    elif isinstance(value, (list, dict)):
        for inner in value:
            _require_characters(inner)
        if isinstance(value, dict):
            _require_characters(list(value.values()))
