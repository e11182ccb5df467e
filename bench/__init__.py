"""Side-by-side runs against the peers, in one run, as ratios. No absolute time is asserted."""
