"""Random programs give what they should after linking; damaged objects give errors."""

from __future__ import annotations

import ctypes
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.generators import checked
from tests.link.machines import MACHINES, RELAXED, Machine, called, native
from tests.link.random_programs import random_program
from tests.link.test_elf import EXPORTS, LIBC, objects_of
from tests.seeds import drawn
from tilewright.base.errors import TilewrightError
from tilewright.link.elf import shared_object
from tilewright.runtime.library import Library

ALL = (*MACHINES.values(), RELAXED)
OTHERS = [m for m in ALL if not m.native]


def check(machine: Machine, seed: int, folder: Path) -> None:
    program = random_program(seed)
    objects = [machine.compiled(text) for text in program.texts]
    path = folder / f"{machine.target.name}-{seed}.so"
    path.write_bytes(shared_object(objects, program.exports, name=path.name))
    assert called(machine, path, program.calls) == program.expected, f"seed {seed}"


def check_seed(seed: int) -> None:
    with TemporaryDirectory() as folder:
        check(native(), seed, Path(folder))


GENERATOR = checked("linking", check_seed)


@pytest.mark.parametrize("seed", drawn(range(400), 60))
def test_random_programs_run(seed: int, tmp_path: Path) -> None:
    check(native(), seed, tmp_path)


@pytest.mark.parametrize("seed", drawn(range(100), 4))
@pytest.mark.parametrize("machine", OTHERS, ids=lambda m: m.target.name)
def test_random_programs_run_elsewhere(machine: Machine, seed: int, tmp_path: Path) -> None:
    check(machine, seed, tmp_path)


@pytest.mark.parametrize("seed", drawn(range(100), 10))
def test_llvm_loads_them_alike(seed: int) -> None:
    """LLVM's own loader is the other witness."""
    program = random_program(seed)
    library = Library([native().compiled(text) for text in program.texts if text])
    found = []
    for name, argument in program.calls:
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)
        found.append(kind(library.address(name))(argument))
    assert found == program.expected


@contextmanager
def seconds(limit: int) -> Iterator[None]:
    """An error where what is inside does not end."""

    def late(*_: object) -> None:
        raise AssertionError(f"not done after {limit} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(limit)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def only_errors(image: bytes, others: list[bytes]) -> None:
    try:
        with seconds(10):
            shared_object([image, *others], EXPORTS, name="a.so", needs=LIBC)
    except TilewrightError as error:
        assert error.what


@pytest.mark.parametrize("machine", ALL, ids=lambda m: m.target.name)
def test_truncated_objects_give_errors(machine: Machine) -> None:
    first, *others = objects_of(machine)
    for size in range(0, len(first), 61):
        with pytest.raises(TilewrightError):
            shared_object([first[:size], *others], EXPORTS, name="a.so", needs=LIBC)


@pytest.mark.parametrize("seed", drawn(range(40), 2))
@pytest.mark.parametrize("machine", ALL, ids=lambda m: m.target.name)
def test_damaged_objects_give_errors_or_a_file(machine: Machine, seed: int) -> None:
    rng = random.Random(seed)
    first, *others = objects_of(machine)
    for _ in range(120):
        image = bytearray(first)
        for _ in range(rng.choice((1, 1, 1, 3, 20))):
            # Mostly in the header and the tables, which are at the end.
            at = rng.choice((rng.randrange(64), rng.randrange(len(image))))
            if rng.randrange(2):
                at = rng.randrange(len(image) * 2 // 3, len(image))
            image[at] = rng.choice((0, 255, image[at] ^ 1 << rng.randrange(8)))
        only_errors(bytes(image), others)
