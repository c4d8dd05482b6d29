"""The command line; it needs the extra `cli`, and importing this package imports none of it."""
