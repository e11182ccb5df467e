"""One process that runs checks, in order, and tells of each in a line of JSON."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from typing import Any

import torch

from tests.gpu.checks import checks


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", help="names of checks; all where it is left out")
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--inductor-until", type=float, default=float("inf"))
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    for c, without in zip(checks(given.inductor), checks(False), strict=True):
        if given.only is not None and c.name not in given.only:
            continue
        c = c if time.time() < given.inductor_until else without
        print(json.dumps({"begin": c.name, "seconds": c.seconds}), flush=True)
        began = time.time()
        try:
            found: dict[str, Any] = {"name": c.name, "ok": True, **c.run()}
        except BaseException as e:
            trace = "".join(traceback.format_exception(e))
            said = f"{type(e).__name__}: {e}"
            found = {"name": c.name, "ok": False, "says": said, "trace": trace}
        found["took"] = time.time() - began
        print(json.dumps(found), flush=True)
        torch.cuda.empty_cache() if found["ok"] and not c.last else None
        if c.last:
            sys.exit(0)


if __name__ == "__main__":
    main()
