"""What is said of packages and calls that are refused: the same table as in the C header, and what
only Python says."""

from __future__ import annotations

SENTENCES = {
    "FILE": "%s cannot be read: %s",
    "PACKAGE": "%s is no package: %s",
    "FORMAT": "%s is a package of format %d, and this runtime reads formats up to %d",
    "OUTSIDE": "%s: its manifest names the file %s, which is outside of the package",
    "SIZE": "%s: %s has %d bytes, and the manifest says %d: the file is truncated or another one",
    "ALTERED": "%s: %s is not the file that was packaged: its checksum differs",
    "ARCHITECTURE": "%s has code for %s, and this machine is %s",
    "FEATURE": "%s: code for %s needs %s, which this processor lacks or the system does not permit",
    "LOAD": "%s: %s cannot be loaded: %s",
    "MEMORY": "%d bytes of memory are not available",
    "INPUTS": "the package has %d inputs, and %d were given",
    "OUTPUTS": "the package has %d outputs, and memory for %d was given",
    "DTYPE": "%s is of dtype %s, and %s was given",
    "SHAPE": "%s has the shape %s, and %s was given",
    "BOUNDS": "the dim %s is %d, and the package is for %s",
    "CHECK": "%s",
    "ARGUMENT": "%s",
}
SIGNATURES = {
    "UNSIGNED": "%s is not signed: `tilewright sign` makes a signature",
    "SIGNATURE": "%s: its signature is not one of this key for this manifest: it was signed with "
    "another key, or altered",
}
_ALL = {**SENTENCES, **SIGNATURES}


class PackageError(ValueError):
    """A package, or a call of one, that is refused. `code` is the sentence's name in the table."""

    def __init__(self, code: str, *values: object):
        self.code = code
        self.values = values
        super().__init__(_ALL[code] % values)

    def __reduce__(self) -> tuple[object, ...]:
        return PackageError, (self.code, *self.values)
