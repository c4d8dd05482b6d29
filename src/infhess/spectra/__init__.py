"""Eigenvalues, trace and largest, with intervals."""

from infhess.spectra.estimate import Estimate, trace
from infhess.spectra.spectrum import Along, Spectrum, largest, spectrum, spectrum_rounds
from infhess.spectra.tracker import Moment, Tracker

__all__ = ["Along", "Estimate", "Moment", "Spectrum", "Tracker", "largest", "spectrum", "spectrum_rounds", "trace"]
