"""Eigenvalues, their density, trace, diagonal and largest, with intervals."""

from infhess.spectra.by_layer import spectrum
from infhess.spectra.density import Density, Share, density
from infhess.spectra.entries import Diagonal, diagonal
from infhess.spectra.estimate import Estimate, trace
from infhess.spectra.spectrum import Along, Spectrum, largest, spectrum_rounds

__all__ = [
    "Along",
    "Density",
    "Diagonal",
    "Estimate",
    "Share",
    "Spectrum",
    "density",
    "diagonal",
    "largest",
    "spectrum",
    "spectrum_rounds",
    "trace",
]
