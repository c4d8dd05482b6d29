"""P² inside an optimizer: its state per parameter, applying it, and whether it is still valid."""
