"""`tilewright bench`: ours beside the peers, in one run, as ratios."""
