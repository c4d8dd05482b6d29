"""Matrices known by their products: scaled identity (or diagonal) plus low rank."""

from infhess.lowrank.blocks import BlockDiagonal
from infhess.lowrank.column_blocks import ColumnBlocks
from infhess.lowrank.lowrank import LowRank
from infhess.lowrank.operator import Dense, Eigenpairs, Operator, SingularError, SingularTriplets

__all__ = [
    "BlockDiagonal",
    "Dense",
    "Eigenpairs",
    "LowRank",
    "Operator",
    "SingularError",
    "SingularTriplets",
    "ColumnBlocks",
]
