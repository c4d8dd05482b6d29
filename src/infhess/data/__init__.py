"""Data sets, from a local folder."""

from infhess.data.files import DataError, digits, mnist, sarcos

__all__ = ["DataError", "digits", "mnist", "sarcos"]
