"""Schedule steps, one per file; importing the package registers them all."""

from tilewright.base.discover import import_all

import_all(__name__)
