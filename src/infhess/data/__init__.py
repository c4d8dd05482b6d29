"""Data sets: real files, checked by sha256, from a folder, the cache or their original publisher."""

from infhess.data.download import get
from infhess.data.files import DataError, cache, found, use
from infhess.data.readers import cifar10, digits, mnist, sarcos
from infhess.data.registry import DATASETS, Dataset, File

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
