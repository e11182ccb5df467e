"""Default schedules: the traces a compiler without a tuner starts from."""
