"""Averaged weights in Lightning's validation, test and checkpoints, and runs that go on from them."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn import functional as F

from lightning_cases import OWN_WARNINGS, Net, data, fit, loader
from watch_cases import weights

pytestmark = [pytest.mark.filterwarnings(text) for text in OWN_WARNINGS]


def value(module):
    """The loss on all data."""
    module.eval()
    with torch.no_grad():
        return float(F.cross_entropy(module.net(data()[:][0]), data()[:][1]))


def saved(path, norm):
    module = Net(norm)
    module.load_state_dict(torch.load(path, weights_only=True)["state_dict"])
    return module


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("weights_only", [False, True])
def test_a_checkpoint_holds_what_was_validated(norm, weights_only, tmp_path):
    keep = ModelCheckpoint(tmp_path, monitor="val", save_top_k=-1, save_weights_only=weights_only)
    runs, module = fit(tmp_path, Net(norm), callbacks=[keep], enable_checkpointing=True, max_epochs=3)
    assert len(keep.best_k_models) == 3
    for path, validated in keep.best_k_models.items():
        assert value(saved(path, norm)) == pytest.approx(float(validated), rel=1e-5)
    averaged = [own["averaged"].flatten() for own in runs.optimizers[0].state.values()]
    assert torch.equal(weights(saved(keep.last_model_path or path, norm)), torch.cat(averaged))
    assert value(module) == pytest.approx(float(runs.callback_metrics["val"]), rel=1e-5)


@pytest.mark.parametrize("weights_only", [False, True])
def test_so_does_one_between_validations(weights_only, tmp_path):
    keep = ModelCheckpoint(tmp_path, every_n_train_steps=7, save_top_k=-1, save_weights_only=weights_only)
    fit(tmp_path, Net(True), callbacks=[keep], enable_checkpointing=True)
    between = saved(next(tmp_path.glob("*.ckpt")), True)
    _, there = fit(tmp_path, Net(True), max_steps=7, max_epochs=-1)
    assert torch.equal(weights(between), weights(there))
    for name, buffer in between.named_buffers():
        torch.testing.assert_close(buffer, dict(there.named_buffers())[name])


def test_the_test_is_of_the_averaged_weights(tmp_path):
    runs, module = fit(tmp_path)
    assert runs.test(module, loader(64), verbose=False)[0]["test"] == pytest.approx(value(module), rel=1e-5)
    averaged = torch.cat([own["averaged"].flatten() for own in runs.optimizers[0].state.values()])
    assert torch.equal(weights(module), averaged)


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2, "size": 16}])
@pytest.mark.parametrize("when", [{"every_n_train_steps": 10}, {"every_n_epochs": 1}], ids=["trained", "validated"])
def test_a_run_resumes_bit_for_bit(options, when, tmp_path):
    """Weights and BatchNorm's statistics, also in the weights that train."""
    keep = ModelCheckpoint(tmp_path, filename="first", save_top_k=1, **when)
    fit(tmp_path, Net(True), callbacks=[keep], enable_checkpointing=True, **options)
    runs, whole = fit(tmp_path, Net(True), max_epochs=2, **options)
    first = next(tmp_path.glob("first*.ckpt"))
    again, module = fit(
        tmp_path, Net(True), callbacks=[keep], resume=first, enable_checkpointing=True, max_epochs=2, **options
    )
    runs.optimizers[0].train()
    again.optimizers[0].train()
    assert again.global_step == runs.global_step
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, module.state_dict()[name]), name
    assert float(again.optimizers[0].rate) == float(runs.optimizers[0].rate)


def test_hooks_of_the_module_are_kept(tmp_path):
    class Saves(Net):
        def on_save_checkpoint(self, checkpoint):
            checkpoint["mine"] = 1

    _, module = fit(tmp_path, Saves(), callbacks=[ModelCheckpoint(tmp_path)], enable_checkpointing=True)
    assert torch.load(next(tmp_path.glob("*.ckpt")), weights_only=True)["mine"] == 1
    assert not {"on_save_checkpoint", "training_step", "log"} & set(vars(module))


@pytest.mark.parametrize("names", ["batch", "batch, batch_idx", "b, i", "batch, *args"])
def test_training_step_may_name_its_arguments_as_it_likes(names, tmp_path):
    """It runs again for BatchNorm's statistics."""
    scope = {"F": F}
    first = names.split(",")[0]
    exec(f"def training_step(self, {names}): return F.cross_entropy(self.net({first}[0]), {first}[1])", scope)
    named = type("Named", (Net,), {"training_step": scope["training_step"]})(True)
    runs, module = fit(tmp_path, named)
    assert value(module) == pytest.approx(float(runs.callback_metrics["val"]), rel=1e-5)
