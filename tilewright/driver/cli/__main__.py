"""`python -m tilewright.driver.cli`: the same as `tilewright`."""

from __future__ import annotations

import sys

from tilewright.driver.cli import main

if __name__ == "__main__":
    sys.exit(main())
