"""Dense references, straight from the definitions: np.kron and solve, small N, float64."""

from __future__ import annotations

import math

import numpy as np


def matrix(factor, n):
    """A float, a diagonal or a matrix as an (n, n) array."""
    factor = np.asarray(factor, dtype=float)
    return factor if factor.ndim == 2 else np.diag(np.broadcast_to(factor, (n,)))


class DensePosterior:
    """Gaussian conditioning of vec(B) (row-major) on vec(Y) = (I ⊗ Sᵀ) vec(B) + noise, with nothing clever in it."""

    def __init__(self, mean, covariance, noise, S, Y):
        (self.N, self.m), self.M = Y.shape, S.shape[0]
        project = np.kron(np.eye(self.N), S.T)
        gram = project @ covariance @ project.T + noise
        self.gram, self.delta = gram, Y.ravel() - project @ mean.ravel()
        gain = np.linalg.solve(gram, project @ covariance).T
        self.mean = (mean.ravel() + gain @ self.delta).reshape(self.N, self.M)
        self.covariance = covariance - gain @ project @ covariance

    def variance(self, u, v):
        w = np.kron(u, v)
        return w @ self.covariance @ w

    def log_evidence(self):
        quadratic = self.delta @ np.linalg.solve(self.gram, self.delta)
        return -0.5 * (quadratic + np.linalg.slogdet(self.gram)[1] + len(self.delta) * math.log(2 * math.pi))


def kronecker(mean, left, right, noise_left, noise_right, S, Y):
    """Cov(B_ij, B_kl) = W_ik V_jl; Cov(Y_ab, Y_cd) = L_ac (SᵀRS)_bb [b = d]."""
    N, M = Y.shape[0], S.shape[0]
    W, V, L, R = matrix(left, N), matrix(right, M), matrix(noise_left, N), matrix(noise_right, M)
    B0 = np.asarray(mean, float) if np.ndim(mean) == 2 else (np.diag(mean) if np.ndim(mean) else mean * np.eye(N, M))
    noise = np.kron(L, np.diag(np.diag(S.T @ R @ S)))
    return DensePosterior(B0, np.kron(W, V), noise, S, Y)


def isotropic(mean, scale, noise, S, Y):
    return kronecker(mean, scale, scale, noise, noise, S, Y)


def symmetric(mean, scale, noise, S, Y):
    """Cov(B_ij, B_kl) = w0²/2 ([i=k][j=l] + [i=l][j=k]); noise as isotropic."""
    N = Y.shape[0]
    eye = np.eye(N)
    swap = np.einsum("il,jk->ijkl", eye, eye).reshape(N * N, N * N)
    covariance = scale**2 / 2 * (np.eye(N * N) + swap)
    likelihood = np.kron(noise * eye, np.diag(noise * (S * S).sum(0)))
    return DensePosterior(mean * eye, covariance, likelihood, S, Y)


def scaled_identity_less(U, gain, root, factor):
    """factor · R (I − U diag(gain) Uᵀ) R, entry by entry."""
    U, R = np.asarray(U), np.diag(np.asarray(root))
    return factor * R @ (np.eye(len(U)) - U @ np.diag(np.asarray(gain)) @ U.T) @ R
