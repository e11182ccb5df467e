"""One process of the suite of wild kernels: pytest over files of a library, on Tilewright.

    python worker.py SETTINGS.json

It is a script and no module of a package: libraries have packages called `tests` too.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import ExitStack
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import standins

import tilewright.triton


def of_the_suite(name: str) -> ModuleType:
    """A module of the suite, by its file."""
    spec = spec_from_file_location(name, Path(__file__).parents[1] / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def emulator_of_the_suite() -> Any:
    """What runs the code of a GPU here. It needs others of our tests, which are forgotten again:
    the library's may have the same names."""
    emulator = import_module("tests.suites.emulated").Emulator()
    for name in [x for x in sys.modules if x.partition(".")[0] == "tests"]:
        del sys.modules[name]
    return emulator


def announce(versions: dict[str, str], folder: Path) -> None:
    """Libraries that ask for their own version find one, though nothing is installed."""
    for name, version in versions.items():
        about = folder / f"{name}-{version}.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    sys.path.append(str(folder))


def main(settings: dict) -> int:
    most = settings["memory"] << 30
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    emulator = emulator_of_the_suite() if settings["emulated"] else None
    roots = [Path(p) for p in settings["roots"]]
    sys.path[1:1] = settings["sources"]
    os.environ.update(settings["environment"])
    announce(settings["versions"], Path(settings["record"]).parent)
    tilewright.triton.install(settings["device"], settings["triton"])
    stood = standins.install(settings["bare"], settings["absent"], [*roots, Path(__file__).parent])
    # Imported after the installation: it patches what libraries launch.
    import torch
    from wild_plugin import Recorder, Spares

    from tilewright.triton import pytest_plugin

    standins.install_operators(roots)
    torch.set_num_threads(1)
    for name in settings["before"]:
        __import__(name)
    chooser = of_the_suite("checkout_plugin")  # picks the smallest cases
    held = ExitStack()  # to the end of the process
    if settings["lowered"]:
        held.enter_context(of_the_suite("shadow").Shadow(strict=True).installed())
    if emulator is not None:
        held.enter_context(emulator.installed())
    recorder = Recorder(
        record=Path(settings["record"]),
        done=set(json.loads(Path(settings["done"]).read_text())),
        limit=settings["limit"],
        sources=settings["sources"],
        most=settings["most"],
        size=chooser.size,
        configs=settings["configs"],
        skip=settings["skip"],
    )
    status = pytest.main(
        settings["arguments"], plugins=[pytest_plugin, chooser, recorder, Spares(recorder)]
    )
    recorder.say("finished", status=int(status), stood_in=sorted(stood.made))
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(Path(sys.argv[1]).read_text())))
