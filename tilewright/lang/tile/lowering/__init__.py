"""From tile IR to nests."""
