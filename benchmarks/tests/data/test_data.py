"""Data sets: readers of the real files, and downloads from a local server that also truncates, corrupts and stalls."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
import torch

from commands import run_here
from infhess_bench import data
from infhess_bench.data import DATASETS, DataError, Dataset, File
from infhess_bench.data.registry import BATCH_SIZE, BATCHES

CONTENT = bytes(range(256)) * 40


def sha(content):
    return hashlib.sha256(content).hexdigest()


SHA256 = sha(CONTENT)


class Handler(BaseHTTPRequestHandler):
    """The first part of the address is how to behave."""

    requests: ClassVar[list[str]] = []
    released: ClassVar[threading.Event] = threading.Event()
    files: ClassVar[dict[str, bytes]] = {}

    def do_GET(self):
        self.requests.append(self.path)
        _, how, name = self.path.split("/", 2)
        content = self.files.get(name)
        if content is None or how == "missing":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if how == "truncate":
            self.wfile.write(content[: len(content) // 2])
        elif how == "corrupt":
            self.wfile.write(content[:-1] + b"x")
        elif how == "stall":
            self.wfile.write(content[:10])
            self.wfile.flush()
            self.released.wait()  # until the test is over: without a limit of its own, a download never ends
        else:
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    Handler.requests, Handler.files, Handler.released = [], {"tiny.bin": CONTENT}, threading.Event()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_address[1]}"
    Handler.released.set()
    httpd.shutdown()
    httpd.server_close()
    thread.join()


@pytest.fixture
def tiny(server, monkeypatch):
    def register(*how, sha256=SHA256):
        urls = tuple(f"{server}/{h}/tiny.bin" for h in how)
        monkeypatch.setitem(
            DATASETS, "tiny", Dataset("a test", "none", (File("tiny/tiny.bin", urls, sha256, len(CONTENT)),))
        )

    return register


def everything(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_a_download_is_checked_and_not_repeated(tiny, tmp_path):
    tiny("good")
    (path,) = data.get("tiny", tmp_path)
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o644  # a cache may be shared
    assert everything(tmp_path) == ["tiny/tiny.bin"]
    list(data.get("tiny", tmp_path))
    assert len(Handler.requests) == 1
    path.write_bytes(b"damaged")
    list(data.get("tiny", tmp_path))
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("how", "reason"), [("truncate", "tiny.bin"), ("corrupt", "sha256"), ("missing", "404"), ("stall", "tiny.bin")]
)
def test_what_goes_wrong_is_named_and_leaves_nothing(tiny, tmp_path, how, reason):
    tiny(how)
    limit = {"timeout": 0.5} if how == "stall" else {}
    with pytest.raises(DataError, match="could not be fetched") as error:
        list(data.get("tiny", tmp_path, **limit))
    assert reason in str(error.value)
    assert "--mirror" in str(error.value)
    assert everything(tmp_path) == []


def test_the_command_says_in_one_line_what_failed(tiny, tmp_path, capfd):
    tiny("corrupt")
    said = run_here("data", "get", "tiny", "--out", str(tmp_path), status=2)
    assert said.splitlines()[0] == f"fetching tiny.bin, {len(CONTENT) / 1e6:.1f} MB …"
    assert said.count("\n") == 2
    assert "sha256" in said
    assert "Downloading" not in capfd.readouterr().err  # as pooch has it, with temporary names


def test_the_next_address_is_tried_and_a_mirror_first(tiny, server, tmp_path):
    tiny("corrupt", "good")
    list(data.get("tiny", tmp_path))
    assert [r.split("/")[1] for r in Handler.requests] == ["corrupt", "good"]
    list(data.get("tiny", tmp_path / "other", mirror=f"{server}/mirror"))
    assert Handler.requests[-1] == "/mirror/tiny.bin"


def test_a_damaged_file_does_not_replace_a_right_one(tiny, tmp_path):
    tiny("good")
    (path,) = data.get("tiny", tmp_path)
    tiny("corrupt", sha256=sha(b"other"))
    with pytest.raises(DataError):
        list(data.get("tiny", tmp_path))
    assert path.read_bytes() == CONTENT


def test_progress_is_told(tiny, tmp_path):
    tiny("good")
    seen = []

    class Bar:
        total = 0

        def update(self, n):
            seen.append(n)

        def reset(self):
            seen.clear()

        def close(self):
            pass

    list(data.get("tiny", tmp_path, bar=lambda file: Bar()))
    assert sum(seen) == len(CONTENT)


def cifar_archive():
    """An archive of the right shape: six batches of 10,000 records."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for i, name in enumerate(BATCHES):
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = BATCH_SIZE
            tar.addfile(info, io.BytesIO(bytes([i]) * BATCH_SIZE))
    return buffer.getvalue()


def test_an_archive_is_unpacked_and_read(server, monkeypatch, tmp_path):
    archive = cifar_archive()
    Handler.files["cifar-10-binary.tar.gz"] = archive
    original = DATASETS["cifar10"].files[0]
    file = File(original.path, (f"{server}/good/cifar-10-binary.tar.gz",), sha(archive), len(archive), original.members)
    monkeypatch.setitem(DATASETS, "cifar10", Dataset("c", "n", (file,)))
    paths = list(data.get("cifar10", tmp_path))
    assert [p.name for p in paths] == list(BATCHES)
    assert everything(tmp_path) == sorted(f"cifar10/cifar-10-batches-bin/{name}" for name in BATCHES)
    list(data.get("cifar10", tmp_path))
    assert len(Handler.requests) == 1
    monkeypatch.setenv("INFHESS_DATA", str(tmp_path))
    images, labels = data.cifar10(["data_batch_2", "data_batch_3"])
    assert images.shape == (20000, 3, 32, 32)
    assert labels.unique().tolist() == [1, 2]
    with pytest.raises(DataError, match="sha256"):
        data.cifar10(["data_batch_1"])
    paths[1].write_bytes(b"short")
    with pytest.raises(DataError, match="expected 30730000 bytes"):
        data.cifar10(["data_batch_2"])
    (tmp_path / "cifar10/cifar-10-batches-bin/data_batch_4.bin").unlink()
    (tmp_path / "cifar10/cifar-10-batches-bin/data_batch_4.bin.gz").write_bytes(gzip.compress(b"\x07" * BATCH_SIZE, 1))
    assert data.cifar10(["data_batch_4"])[1].unique().tolist() == [7]
    (tmp_path / "cifar10/cifar-10-batches-bin/data_batch_5.bin").write_bytes(b"\xff" * BATCH_SIZE)
    with pytest.raises(DataError, match="10,000 records"):
        data.cifar10(["data_batch_5"])


def test_missing_and_unknown_data_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("INFHESS_DATA", str(tmp_path))
    monkeypatch.setenv("INFHESS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="infhess data get mnist"):
        data.mnist()
    with pytest.raises(DataError, match="infhess data get cifar10"):
        data.cifar10()
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/train-images-idx3-ubyte.gz").write_bytes(b"damaged")
    with pytest.raises(DataError, match="damaged"):
        data.mnist()
    with pytest.raises(DataError, match="expected one of sarcos, mnist, cifar10"):
        list(data.get("imagenet"))
    with pytest.raises(DataError, match="expected a folder"):
        data.use(tmp_path / "absent")


def test_the_cache_is_searched_last(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("INFHESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("INFHESS_DATA", str(tmp_path / "named"))
    tiny("good")
    (path,) = data.get("tiny")
    assert path == tmp_path / "cache/tiny/tiny.bin"
    assert data.found("tiny", "tiny/tiny.bin") == path
    (tmp_path / "named/tiny").mkdir(parents=True)
    (tmp_path / "named/tiny/tiny.bin").write_bytes(CONTENT)
    assert data.found("tiny", "tiny/tiny.bin") == tmp_path / "named/tiny/tiny.bin"


def test_digits_come_with_scikit_learn():
    images, labels = data.digits()
    assert images.shape == (1797, 8, 8)
    assert labels.bincount().tolist()[:3] == [178, 182, 177]


@pytest.mark.skipif(not os.environ.get("INFHESS_DATA"), reason="$INFHESS_DATA is not set: the real files are not here")
def test_the_real_files():
    images, _ = data.mnist()
    assert images.shape == (60000, 28, 28)
    assert abs(float(images.double().mean()) / 255 - 0.1307) < 1e-4
    assert len(data.mnist("t10k")[1]) == 10000
    x, torques = data.sarcos()
    assert x.shape == (44484, 21)
    assert torques.shape == (44484, 7)
    test, _ = data.sarcos("test")
    assert float((test - x[::10]).abs().max()) < 1e-5
    pixels, classes = data.cifar10(["test_batch"])
    assert classes.bincount().tolist() == [1000] * 10
    assert pixels.dtype == torch.uint8


def test_the_commands(server, tmp_path):
    def run(*arguments, status=0):
        environment = {**os.environ, "INFHESS_CACHE": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-m", "infhess", "data", *arguments],
            capture_output=True,
            text=True,
            env=environment,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    assert "sarcos" in run("list").stdout
    error = run("get", "imagenet", status=2).stderr
    assert "expected one of" in error
    assert "Traceback" not in error
