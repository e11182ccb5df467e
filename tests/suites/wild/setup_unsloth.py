"""unsloth compares versions with a class of a package of its own, which is only stood in for."""

import unsloth_zoo.utils
from packaging.version import Version

unsloth_zoo.utils.Version = lambda text: Version(str(text).partition("+")[0])
