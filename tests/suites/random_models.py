"""Random networks with gradients against eager and float64, each in a process that may die.

    python -m tests.suites.random_models --count 2000 --seed 0   # seeds 0 to 1999
    python -m tests.suites.random_models --minutes 10            # as many as that allows
    python -m tests.suites.random_models --seed 1200 --count 800 # goes on after 1200 draws

Convolutions, norms, pools, attention, recurrent and linear layers, embeddings, reshapes, slices,
concatenation, reductions, selection, indices, casts, residuals and shared weights, drawn by
tests/driver/random_models.py: results, gradients of all inputs and weights, running statistics and
changed arguments are judged. What fails is made small and written to `--out` as a file that shows
it again. The table tells wrong results from errors, aborts, hangs and slow compiles; what eager or
torch's own capture refuses is counted apart. The exit code is 1 where anything failed.
"""

import sys

from tests.seeds import run_generator

if __name__ == "__main__":
    sys.exit(run_generator("models", 2000, __doc__))
