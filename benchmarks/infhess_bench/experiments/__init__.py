"""Experiments compute rows; plots read rows."""
