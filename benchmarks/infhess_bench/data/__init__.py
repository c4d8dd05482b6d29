"""Data sets: real files, checked by sha256, from a folder, the cache or their original publisher."""

from infhess.example import digits
from infhess_bench.data.download import get
from infhess_bench.data.files import DataError, cache, found, use
from infhess_bench.data.readers import cifar10, mnist, sarcos
from infhess_bench.data.registry import DATASETS, Dataset, File

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "File",
    "cache",
    "cifar10",
    "digits",
    "found",
    "get",
    "mnist",
    "sarcos",
    "use",
]
