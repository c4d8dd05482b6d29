"""Eigenvalues, trace and largest, with intervals."""

from infhess.spectra.estimate import Estimate, trace
from infhess.spectra.spectrum import Along, Spectrum, largest, spectrum, spectrum_rounds

__all__ = ["Along", "Estimate", "Spectrum", "largest", "spectrum", "spectrum_rounds", "trace"]
