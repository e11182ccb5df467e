"""From Python source to tile IR."""
