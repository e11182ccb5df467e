"""The names of all checks, in order."""

from tests.gpu.checks import checks

if __name__ == "__main__":
    for c in checks(False):
        print(c.name)
