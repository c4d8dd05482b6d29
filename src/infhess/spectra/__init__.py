"""Eigenvalues, spectral density, trace, diagonal and largest eigenvalue, with intervals."""

from infhess.spectra.density import density
from infhess.spectra.density_result import Density, Share
from infhess.spectra.eigenvalues import largest, spectrum, spectrum_rounds
from infhess.spectra.entries import Diagonal, diagonal
from infhess.spectra.estimate import Estimate, trace
from infhess.spectra.spectrum import Along, Spectrum
from infhess.spectra.tracker import Moment, Tracker

__all__ = [
    "Along",
    "Density",
    "Diagonal",
    "Estimate",
    "Moment",
    "Share",
    "Spectrum",
    "Tracker",
    "density",
    "diagonal",
    "largest",
    "spectrum",
    "spectrum_rounds",
    "trace",
]
