"""The data sets: what they are, where they come from, and their checksums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A file of a data set: its path below the data folder, its addresses, its checksum and size.

    `members` are the files that an archive is unpacked to, below its folder.
    """

    path: str
    urls: tuple[str, ...]
    sha256: str
    size: int
    members: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Dataset:
    """A data set and its files."""

    title: str
    licence: str
    files: tuple[File, ...]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)


_GPML = "https://gaussianprocess.org/gpml/data/"
_MNIST = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_CIFAR = "cifar10/cifar-10-batches-bin/"
BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")


def _sarcos(name: str, sha256: str, size: int) -> File:
    return File(f"sarcos/{name}", (_GPML + name,), sha256, size)


def _mnist(name: str, sha256: str, size: int) -> File:
    return File(f"mnist/{name}", tuple(root + name for root in _MNIST), sha256, size)


DATASETS = {
    "sarcos": Dataset(
        "SARCOS inverse dynamics: 44,484 + 4,449 rows, 21 inputs, 7 torques",
        "none stated; free for research (Vijayakumar & Schaal 2000)",
        (
            _sarcos("sarcos_inv.mat", "b8a249733253ba6097372fedee7696833fcf30de42037d5b4a7227f21a6d1d97", 9964616),
            _sarcos("sarcos_inv_test.mat", "161a59b5c3b4f4b404584323f181607b2acbe620eb134dc720760dc3f38f5cec", 996776),
        ),
    ),
    "mnist": Dataset(
        "MNIST handwritten digits: 60,000 + 10,000 images 28×28, 10 classes",
        "commonly given as CC BY-SA 3.0 (LeCun, Cortes, Burges)",
        (
            _mnist(
                "train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                9912422,
            ),
            _mnist(
                "train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28881
            ),
            _mnist(
                "t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1648877
            ),
            _mnist(
                "t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4542
            ),
        ),
    ),
    "cifar10": Dataset(
        "CIFAR-10: 50,000 + 10,000 images 3×32×32, 10 classes (binary version)",
        "none stated; cite the technical report (Krizhevsky 2009)",
        (
            File(
                "cifar10/cifar-10-binary.tar.gz",
                ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                170052171,
                tuple(_CIFAR + name for name in BATCHES),
            ),
        ),
    ),
}

# CIFAR-10's single batches: plain, as in the archive, or gzipped. Those without an entry come from an archive whose checksum
# was right, and are checked by their size.
BATCH_SIZE = 30730000
BATCH_SHA256 = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    "data_batch_1.bin.gz": "f27c826404183bf6fd3823fb45744b4f7fd83201dfa6253c32e8d2f8e60e8f1b",
    "test_batch.bin.gz": "27ae0e1ce42c156c20a7e87f67dc90a50876ca6a755a60c608fc646a4ec4b937",
}
