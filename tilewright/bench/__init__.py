"""`tilewright bench`: Tilewright compared with other compilers, in one run, as ratios."""
