"""Eigenvalues, their density, trace and largest, with intervals."""

from infhess.spectra.density import Density, Share, density
from infhess.spectra.estimate import Estimate, trace
from infhess.spectra.spectrum import Along, Spectrum, largest, spectrum, spectrum_rounds

__all__ = [
    "Along", "Density", "Estimate", "Share", "Spectrum", "density", "largest", "spectrum", "spectrum_rounds", "trace",
]  # fmt: skip
