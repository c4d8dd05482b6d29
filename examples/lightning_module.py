"""Lightning: an optimizer and a callback; validation, checkpoints and the test see the averaged weights."""

import sys
import tempfile

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import infhess
from infhess.integrations.lightning import CurvatureCallback

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 20


class Digits(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    test_step = validation_step

    def configure_optimizers(self):
        return infhess.RateFree(self.parameters())


pl.seed_everything(0)
x, y = (torch.as_tensor(a) for a in load_digits(return_X_y=True))
train, held_out = (TensorDataset(x[part].float() / 16, y[part]) for part in (slice(1400), slice(1400, None)))
folder = tempfile.mkdtemp()
best = ModelCheckpoint(folder, monitor="accuracy", mode="max")
trainer = pl.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    accumulate_grad_batches=2,  # both micro-batches of a step are watched
    gradient_clip_val=1.0,
    callbacks=[CurvatureCallback(every=100), best],  # sharpness with its interval every 100 steps
    logger=TensorBoardLogger(folder),  # has curvature/rate with its interval, sharpness/value/1
    enable_progress_bar=False,
)
model = Digits()
trainer.fit(model, DataLoader(train, batch_size=32, shuffle=True), DataLoader(held_out, batch_size=400))
trainer.test(model, DataLoader(held_out, batch_size=400))
print(f"accuracy {best.best_model_score:.3f}, learning rate {trainer.optimizers[0].rate}")
