"""Eigenvalues, trace and largest, with intervals."""

from infhess.spectrum.estimate import Estimate, trace
from infhess.spectrum.spectrum import Along, Spectrum, largest, spectrum, spectrum_rounds

__all__ = ["Along", "Estimate", "Spectrum", "largest", "spectrum", "spectrum_rounds", "trace"]
