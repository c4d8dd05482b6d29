"""RateFree and Preconditioned in Lightning itself: without a callback, and with ours."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.callbacks import LearningRateMonitor
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import infhess
from infhess.integrations.lightning import CurvatureCallback
from lightning_cases import OWN_WARNINGS, POINTS, Memory, Net, data, fit, loader, trainer
from rounding import rounded, spread
from watch_cases import F64, diagonal, weights

pytestmark = [pytest.mark.filterwarnings(text) for text in OWN_WARNINGS]


def plain(size=32, epochs=1, dtype=torch.float32, make=infhess.RateFree, clip=None, draw=0):
    """The same training without Lightning."""
    module, points = Net().to(dtype), data(dtype)
    rounded(module.parameters(), dtype, draw)
    opt = make(module.net.parameters())
    for _ in range(epochs):
        for start in range(0, POINTS, size):
            opt.zero_grad()
            x, y = points[start : start + size]
            with opt.watch():
                F.cross_entropy(module.net(x), y).backward()
            if clip:
                nn.utils.clip_grad_norm_(module.net.parameters(), clip)
            opt.step()
    return module, opt


def spread_of_plain(finish=False, **options):
    """Where that training ends; `finish` puts the averaged weights in."""

    def end(draw):
        module, opt = plain(**options, draw=draw)
        if finish:
            opt.finish()
        return weights(module)

    return spread(end)


def preconditioned(params):
    return infhess.Preconditioned(torch.optim.Adam(params, lr=1.0), blocks="layer")


@pytest.mark.parametrize("make", [infhess.RateFree, preconditioned])
def test_nothing_is_needed_but_the_optimizer(make, tmp_path):
    module = Net(make=make).to(F64)
    runs = trainer(tmp_path, callback=False)
    runs.fit(module, loader(dtype=F64), loader(64, dtype=F64))
    spread_of_plain(dtype=F64, make=make).holds(weights(module), steps=10)
    assert module.runs == POINTS // 32


@pytest.mark.parametrize("make", [diagonal, preconditioned])
def test_micro_batches_are_one_batch(make, tmp_path):
    runs, module = fit(tmp_path, Net(make=make), size=16, dtype=F64, accumulate_grad_batches=2)
    if make is diagonal:
        assert runs.optimizers[0]._rate_state.points == 32
    spread_of_plain(make is diagonal, dtype=F64, make=make).holds(weights(module), steps=10)


def test_a_last_step_of_fewer_micro_batches(tmp_path):
    """20 batches in threes: the last step of an epoch has two; 10 batches: it has one, which is a step by itself."""
    for size, last in ((16, 2.0), (32, 1.0)):
        runs, module = fit(tmp_path, size=size, accumulate_grad_batches=3)
        assert runs.optimizers[0]._rate_state.micro_batches == last
        assert not any(p._backward_hooks for p in module.parameters())


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_a_batch_that_training_step_skips_is_no_micro_batch(bad, tmp_path):
    class Skips(Net):
        def training_step(self, batch, batch_idx):
            return None if batch_idx % 3 == bad else super().training_step(batch, batch_idx)

    runs, module = fit(tmp_path, Skips(), size=16, accumulate_grad_batches=3)
    assert runs.optimizers[0].rate.value > 0
    assert not any(p._backward_hooks for p in module.parameters())
    assert torch.overrides._get_current_function_mode() is None


def test_an_error_within_a_micro_batch_leaves_nothing_open(tmp_path):
    class Fails(Net):
        def training_step(self, batch, batch_idx):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        fit(tmp_path, Fails(), size=16, accumulate_grad_batches=4)
    assert torch.overrides._get_current_function_mode() is None


def test_validation_between_micro_batches(tmp_path):
    """The averaged weights stand in the model for a while, and the graph of the micro-batch before holds all the same."""
    options = {"size": 16, "dtype": F64, "accumulate_grad_batches": 2, "val_check_interval": 1}
    options |= {"limit_train_batches": 10, "limit_val_batches": 1}
    _, module = fit(tmp_path, **options)
    _, without = fit(tmp_path, **options | {"limit_val_batches": 0})
    assert torch.equal(weights(module), weights(without))


def test_clipping_changes_no_learning_rate(tmp_path):
    _, module = fit(tmp_path, dtype=F64, gradient_clip_val=1e-3)
    spread_of_plain(True, dtype=F64, clip=1e-3).holds(weights(module), steps=10)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_precisions(precision, tmp_path):
    runs, _ = fit(tmp_path, precision=precision, dtype=F64 if precision == "64-true" else torch.float32)
    assert runs.optimizers[0].rate.value > 0
    assert runs.callback_metrics["val"] < 1.12


def test_what_training_step_logs_is_not_touched(tmp_path):
    """Neither by curvature probes nor by BatchNorm's statistics nor by sharpness."""
    found = []
    for ours in (False, True):
        logger = Memory()
        runs = trainer(
            tmp_path, [CurvatureCallback(every=4)] if ours else [], False, logger=logger, log_every_n_steps=1
        )
        runs.fit(Net(norm=True), loader(), loader(64))
        found.append((logger.of("loss"), logger.of("accuracy")))
    assert found[0] == found[1]
    assert len(found[0][0]) == POINTS // 32


def test_a_closure_that_runs_again_logs_once(tmp_path):
    """Reentrant checkpoints have no double backward: curvature is a difference of gradients there."""

    class Checkpointed(Net):
        def training_step(self, batch, batch_idx):
            first = checkpoint(self.net[0], batch[0].clone().requires_grad_(), use_reentrant=True)
            out = self.net[2](self.net[1](first))
            self.accuracy.update(out, batch[1])
            self.log("accuracy", self.accuracy, on_epoch=True, on_step=False)
            self.log("points", float(len(batch[0])), on_epoch=True, on_step=False, reduce_fx="sum")
            self.runs += 1
            return F.cross_entropy(out, batch[1])

    logger = Memory()
    module, runs = Checkpointed(), trainer(tmp_path, logger=logger)
    runs.fit(module, loader(), loader(64))
    assert module.runs > POINTS // 32
    assert logger.of("points") == [POINTS]
    assert runs.optimizers[0].rate.value > 0


def test_loggers_get_the_learning_rate_with_its_uncertainty_and_sharpness(tmp_path):
    logger = Memory()
    runs = trainer(tmp_path, [CurvatureCallback(every=5, k=2)], callback=False, logger=logger, log_every_n_steps=5)
    module = Net()
    runs.fit(module, loader(), loader(64))
    low, rate, high = (logger.of(f"curvature/rate{end}") for end in ("/low", "", "/high"))
    assert 0 < low[-1] < rate[-1] < high[-1]
    assert [row["step"] for row in logger.rows if "sharpness/value/2" in row] == [4, 9]
    low, value, high = (logger.of(f"sharpness/{end}/1")[-1] for end in ("low", "value", "high"))
    assert low < value < high


class Scheduled(Net):
    """`lr` goes down in each step; what is used is kept."""

    def on_train_batch_start(self, batch, batch_idx):
        opt = self.trainer.optimizers[0]
        self.used.append(opt.rate.value)
        self.factors.append(opt.param_groups[0]["lr"])

    def configure_optimizers(self):
        self.used, self.factors = [], []
        opt = self.make(self.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 1 / (1 + t))
        return [opt], [{"scheduler": schedule, "interval": "step"}]


@pytest.mark.parametrize("interval", ["step", None])
@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_learning_rate_monitor_shows_what_is_used(interval, first, tmp_path):
    callbacks, logger, module = [CurvatureCallback(), LearningRateMonitor(interval)], Memory(), Scheduled()
    runs = trainer(tmp_path, callbacks[:: 1 if first else -1], callback=False, logger=logger, log_every_n_steps=1)
    runs.fit(module, loader(), loader(64))
    shown = logger.of("lr-RateFree")
    assert shown[:2] == [0.0, 0.0]  # the first gradients give the scaling, and no step
    assert shown[2:] == module.used[2:]
    assert module.factors == pytest.approx([1 / (1 + t) for t in range(POINTS // 32)])  # `lr` is the user's


def test_sharpness_changes_nothing_and_knows_validation_data(tmp_path):
    seen, plainly = [], []
    for callback in (CurvatureCallback(), CurvatureCallback(every=9), CurvatureCallback(every=9, validation=True)):
        runs = trainer(tmp_path, [callback], callback=False, max_epochs=2, logger=(logger := Memory()))
        module = Net()
        torch.manual_seed(1)
        runs.fit(module, loader(shuffle=True), loader(64))
        seen.append(weights(module))
        plainly.append(logger.of("sharpness/value/1"))
    assert torch.equal(seen[1], seen[0])
    assert torch.equal(seen[2], seen[0])
    assert [len(values) for values in plainly] == [0, 2, 2]


def test_files_of_loggers(tmp_path):
    for logger in (TensorBoardLogger(tmp_path), CSVLogger(tmp_path)):
        runs = trainer(tmp_path, logger=logger, log_every_n_steps=2)
        runs.fit(Net(), loader(), loader(64))
    assert list(tmp_path.rglob("events.out.tfevents.*"))
    assert "curvature/rate/low" in next(tmp_path.rglob("metrics.csv")).read_text()


def test_manual_optimization(tmp_path):
    class Manual(Net):
        automatic_optimization = False

        def training_step(self, batch, batch_idx):
            opt = self.optimizers()
            opt.zero_grad()
            with opt.watch():
                self.manual_backward(F.cross_entropy(self.net(batch[0]), batch[1]))
            opt.step()

    _, module = fit(tmp_path, Manual(), dtype=F64)
    spread_of_plain(True, dtype=F64).holds(weights(module), steps=10)


def test_other_optimizers_are_left_alone(tmp_path):
    """Sharpness is logged for any of them."""
    seen = []
    for callbacks in ([], [CurvatureCallback(every=5)]):
        module, logger = Net(make=lambda p: torch.optim.SGD(p, lr=0.1)), Memory()
        trainer(tmp_path, callbacks, callback=False, logger=logger).fit(module, loader(), loader(64))
        seen.append((weights(module), len(logger.of("sharpness/value/1"))))
    assert torch.equal(seen[0][0], seen[1][0])
    assert (seen[0][1], seen[1][1]) == (0, 2)
