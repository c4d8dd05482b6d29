"""A small Lightning module, its data, and runs of it."""

from __future__ import annotations

import logging

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

import infhess
from infhess.integrations.lightning import CurvatureCallback
from watch_cases import F64

for name in ("lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
# Lightning's own: of its use of torch, of small data, and of folders that it made itself.
OWN_WARNINGS = (
    "ignore:`isinstance\\(treespec, LeafSpec\\)` is deprecated",
    "ignore:The '.*_dataloader' does not have many workers",
    "ignore:The number of training batches",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:`training_step` returned `None`",
    "ignore:Found .* module\\(s\\) in eval mode",
)
POINTS = 320


class Net(pl.LightningModule):
    """Two layers, with BatchNorm or without; it logs a loss and counts a metric."""

    def __init__(self, norm=False, make=infhess.RateFree):
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(6, 16), *([nn.BatchNorm1d(16)] if norm else []), nn.ReLU(), nn.Linear(16, 3)]
        self.net, self.make, self.runs = nn.Sequential(*layers), make, 0
        self.accuracy = MulticlassAccuracy(3)

    def training_step(self, batch, batch_idx):
        self.runs += 1
        out = self.net(batch[0])
        loss = F.cross_entropy(out, batch[1])
        self.accuracy.update(out, batch[1])
        self.log("loss", loss)
        self.log("accuracy", self.accuracy, on_epoch=True, on_step=False)
        return {"loss": loss}

    def validation_step(self, batch, batch_idx):
        self.log("val", F.cross_entropy(self.net(batch[0]), batch[1]))

    def test_step(self, batch, batch_idx):
        self.log("test", F.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return self.make(self.parameters())


class Memory(Logger):
    """A logger that keeps rows."""

    def __init__(self):
        super().__init__()
        self.rows = []

    name, version = "memory", 0

    def log_hyperparams(self, *args, **kwargs):
        pass

    def log_metrics(self, metrics, step=None):
        self.rows.append({**metrics, "step": step})

    def of(self, key):
        return [row[key] for row in self.rows if key in row]


def data(dtype=torch.float32):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(POINTS, 6, generator=g, dtype=F64)
    return TensorDataset(x.to(dtype), (x[:, :3] + 0.3 * torch.randn(POINTS, 3, generator=g)).argmax(1))


def trainer(folder, callbacks=(), callback=True, **options):
    ours = [CurvatureCallback()] if callback else []
    usual = {"max_epochs": 1, "logger": False, "enable_checkpointing": False, "num_sanity_val_steps": 0, "devices": 1}
    options = usual | options
    return pl.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=[*ours, *callbacks],
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def loader(size=32, shuffle=False, dtype=torch.float32):
    return DataLoader(data(dtype), batch_size=size, shuffle=shuffle)


def fit(folder, module=None, size=32, dtype=torch.float32, callbacks=(), resume=None, shuffle=False, **options):
    """Train, with validation; the trainer and the module."""
    module = module or Net()
    runs = trainer(folder, callbacks, **options)
    runs.fit(
        module.to(dtype), loader(size, shuffle, dtype), loader(64, dtype=dtype), ckpt_path=resume, weights_only=True
    )
    return runs, module
