"""Data sets, from a local folder."""

from infhess.data.files import DataError, digits, mnist, sarcos, use

__all__ = ["DataError", "digits", "mnist", "sarcos", "use"]
