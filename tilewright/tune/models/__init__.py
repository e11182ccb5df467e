"""Models that guess which schedule is faster: analytic, or learned from measurements."""
