"""Measuring on several machines."""

# What a fleet's address looks like.
ADDRESS = "HOST:PORT of a Ray cluster, or local:2 for two nodes on this machine"
