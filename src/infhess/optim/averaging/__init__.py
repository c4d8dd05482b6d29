"""Averaged weights, and the statistics of BatchNorm that go with them."""
