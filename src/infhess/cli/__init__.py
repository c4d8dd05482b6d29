"""The command line."""

from infhess.cli.app import app

__all__ = ["app"]
