"""No C compiler is needed: the demo's smallest model where the PATH has none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def test_demo_without_a_compiler(tmp_path: Path) -> None:
    for name in ("gcc", "cc", "clang", "ld"):
        assert shutil.which(name, path=str(tmp_path)) is None
    environment = {k: v for k, v in os.environ.items() if k not in ("CC", "CXX")}
    environment |= {"PATH": str(tmp_path), "TILEWRIGHT_CACHE_DIR": str(tmp_path / "cache")}
    program = "import sys; from tilewright.driver.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "demo", "tiny", "--rounds", "3"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    for word in ("cold compile", "time per call", "speedup", "memory"):
        assert word in run.stdout
