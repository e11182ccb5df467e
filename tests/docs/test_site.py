"""The site builds strictly: no page, link, anchor or name is missing. No tutorial is run here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow  # continuous integration builds the site with its tutorials, strictly too
def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: {ROOT / 'docs'}\n"
        "extra: {run_tutorials: false}\n"
        f"hooks: [{ROOT / 'docs' / 'generator' / 'hooks.py'}]\n"
    )
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config)]
    command += ["-d", str(tmp_path / "site")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    steps = (tmp_path / "site" / "catalogues" / "steps" / "index.html").read_text()
    assert 'id="vectorize"' in steps
    face = (tmp_path / "site" / "reference" / "tilewright" / "index.html").read_text()
    assert "Compile a function or" in face  # mkdocstrings found the docstring of tw.compile


def test_documents_at_the_root_name_what_exists() -> None:
    """Files of the repository that README and CONTRIBUTING name are there."""
    homes = [ROOT, ROOT / "tilewright", ROOT / "tests" / "suites"]
    for page in ("README.md", "CONTRIBUTING.md"):
        named = re.findall(r"`([\w/]+/[\w/.]+\.(?:py|md|json))`", (ROOT / page).read_text())
        missing = [name for name in named if not any((home / name).exists() for home in homes)]
        assert not missing, f"{page} names what is not there: {missing}"
