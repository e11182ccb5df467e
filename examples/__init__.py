"""Programs to read and run; nothing in the package imports them."""
