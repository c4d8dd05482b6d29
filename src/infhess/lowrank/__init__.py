"""Matrices known by their products: scaled identity (or diagonal) plus low rank."""

from infhess.lowrank.blocks import BlockDiagonal
from infhess.lowrank.lowrank import LowRank
from infhess.lowrank.operator import Dense, Eigenpairs, Operator, SingularError, SingularTriplets
from infhess.lowrank.tall import Tall

__all__ = ["BlockDiagonal", "Dense", "Eigenpairs", "LowRank", "Operator", "SingularError", "SingularTriplets", "Tall"]
