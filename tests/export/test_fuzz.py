"""Packages with damage at random places are opened without an error of memory, by a build of the
header that finds such errors."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
import torch

import tilewright as tw
from tests.export.harness import built, header_folder

OPENER = r"""
#define TILEWRIGHT_IMPLEMENTATION
#include "tilewright.h"
int main(int argc, char **argv) {
  int k;
  for (k = 1; k < argc; k++) {
    tw_package *p;
    if (tw_open(argv[k], 0, &p)) puts(tw_error_text());
    else tw_close(p);
  }
  return 0;
}
"""
# Names and numbers that a manifest gets in the place of its own.
ODD = ['"', "\\u", "-1", "99999999999999999999", "[", "]", "{", "}", ",", "null", '"\\ud800"', "\0"]


def opener() -> Path:
    source = header_folder() / "opener.c"
    source.write_text(OPENER)
    return built(source, "opener", "-g", "-O1", "-fsanitize=address,undefined")


def damaged(raw: bytes, draw: random.Random, text: bool) -> bytes:
    """Changed bytes, a part taken out, or an odd word in some place."""
    made = bytearray(raw)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(made))
        match draw.randrange(4):
            case 0:
                made[at] ^= 1 << draw.randrange(8)
            case 1:
                del made[at : at + draw.randint(1, 40)]
            case 2:
                del made[at:]
            case 3:
                odd = draw.choice(ODD).encode() if text else draw.randbytes(4)
                made[at : at + draw.randint(0, 3)] = odd
        made = made or bytearray(b" ")
    return bytes(made)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_damage_at_random(seed: int, tmp_path: Path) -> None:
    draw, model = random.Random(seed), torch.nn.Linear(4, 4)
    tw.export(model, torch.randn(2, 4), path=tmp_path / "net")
    tw.export(model, torch.randn(2, 4), path=tmp_path / "net.twp")
    manifest = (tmp_path / "net/manifest.json").read_bytes()
    whole = (tmp_path / "net.twp").read_bytes()
    tail = whole.rindex(b"PK\x01\x02", 0, whole.index(b"PK\x01\x02") + 4)
    for _ in range(4):
        paths = []
        for k in range(20):
            folder = tmp_path / f"m{k}"
            folder.mkdir(exist_ok=True)
            for name in ("code", "lib", "weights.bin"):
                if not (folder / name).exists():
                    (folder / name).symlink_to(tmp_path / "net" / name)
            (folder / "manifest.json").write_bytes(damaged(manifest, draw, True))
            file = tmp_path / f"z{k}.twp"
            file.write_bytes(whole[:tail] + damaged(whole[tail:], draw, False))
            paths += [str(folder), str(file)]
        done = subprocess.run([opener(), *paths], capture_output=True, text=True, errors="replace")
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stderr == "", done.stderr[-3000:]
