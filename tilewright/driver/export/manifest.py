"""The manifest of a package: everything that a runtime and a reader have to know, as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from llvmlite import binding

from tilewright.driver.export.levels import Level
from tilewright.driver.export.model import Described, Model
from tilewright.driver.program.saved import own_version
from tilewright.ir import dim as D
from tilewright_runtime.checksums import Blake2bp
from tilewright_runtime.manifest import FORMAT

PLAIN = 1  # the format of packages in which inputs decide all sizes


def checksum(content: bytes) -> str:
    """BLAKE2b with 32 bytes of result, in hexadecimal digits."""
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def in_lanes(content: bytes) -> str:
    """BLAKE2bp with 64 bytes of result, in hexadecimal digits."""
    digest = Blake2bp()
    digest.update(content)
    return digest.hexdigest()


def file_of(name: str, content: bytes) -> dict[str, Any]:
    return {"file": name, "bytes": len(content), "blake2b": checksum(content)}


def manifest_of(
    model: Model,
    levels: Sequence[Level],
    pools: Mapping[str, tuple[str, bytes]],
    weights: Mapping[str, Any],
    options: Mapping[str, Any],
) -> dict[str, Any]:
    counted = {
        str(model.shown(c.size)): model.shown(model.most[D.the_sym(c.size)])
        for c in model.counted_in_outputs()
    }
    return {
        "format": FORMAT if counted else PLAIN,
        "name": model.name,
        "inputs": [_described(model, x) for x in model.inputs],
        "outputs": [_described(model, x) for x in model.outputs],
        "dims": {str(model.shown(D.as_int(s))): list(model.bounds(s)) for s in model.symbols},
        **({"counted": counted} if counted else {}),
        "checks": [
            {"words": c.words, "size": None if c.size is None else model.shown(c.size)}
            for c in model.checks
        ],
        "levels": [_level(x) for x in levels],
        "pool": {arch: file_of(file, code) for arch, (file, code) in pools.items()},
        "weights": dict(weights),
        "versions": {
            "tilewright": own_version(),
            "llvm": ".".join(map(str, binding.llvm_version_info)),
        },
        "options": dict(options),
        "specialised": {name: _plain(value) for name, value in model.specialised.items()},
    }


def _described(model: Model, x: Described) -> dict[str, Any]:
    return {"name": x.name, "dtype": x.dtype.name, "shape": [model.shown(d) for d in x.shape]}


def _level(x: Level) -> dict[str, Any]:
    return {
        "target": x.target.name,
        "architecture": x.machine,
        "features": x.features,
        "file": x.file,
        "bytes": len(x.code),
        "blake2b": checksum(x.code),
        "blake2bp": in_lanes(x.code),  # which the C interface compares
        "sha256": hashlib.sha256(x.code).hexdigest(),  # which browsers compute
        "pool": x.needs_pool,
    }


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def text_of(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode()
