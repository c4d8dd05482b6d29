"""Experiments: each computes rows; plots read rows."""
