"""`python -m infhess`."""

from infhess.cli import app

app(prog_name="infhess")
