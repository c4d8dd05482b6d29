"""RateFree and Preconditioned in Transformers' Trainer itself."""

from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from safetensors.torch import load_file
from transformers import BatchEncoding, EarlyStoppingCallback
from transformers.integrations import TensorBoardCallback

import infhess
from infhess.integrations.transformers import CurvatureCallback
from rounding import DRAWS, rounded, spread, spread_of
from trainer_cases import inner, llama, sequences, trainer
from watch_cases import F64, diagonal, weights


def preconditioned(params):
    return infhess.Preconditioned(torch.optim.Adam(params, lr=1.0), blocks="layer")


def plain(batches, make, clip, draw=0):
    """The same training in a loop of one's own."""
    model = llama(F64)
    rounded(model.parameters(), F64, draw)
    opt = make(model.parameters())
    for batch in batches:
        opt.zero_grad()
        with opt.watch():
            model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        opt.step()
    if make is infhess.RateFree:
        opt.finish()
    return model


@pytest.mark.parametrize("make", [infhess.RateFree, preconditioned])
@pytest.mark.parametrize("clip", [1.0, 1e-3])
def test_a_trainer_is_a_loop_with_watch(make, clip, tmp_path):
    runs, batches = trainer(tmp_path, llama(F64), make, steps=8, max_grad_norm=clip), []
    names = ("input_ids", "labels")
    keep = lambda model, args, given: batches.append({name: given[name] for name in names})  # noqa: E731
    runs.model.register_forward_pre_hook(keep, with_kwargs=True)
    runs.train()
    spread(lambda draw: weights(plain(batches, make, clip, draw))).holds(weights(runs.model))


def test_micro_batches_are_one_batch(tmp_path):
    seen = []
    for size, number in ((16, 1), (8, 2)):
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": number}
        runs = trainer(tmp_path, llama(F64), diagonal, **options)
        runs.train()
        assert inner(runs)._rate_state.points == 16
        assert inner(runs)._rate_state.micro_batches == number
        seen.append(weights(runs.model))
    torch.testing.assert_close(seen[1], seen[0], rtol=1e-7, atol=1e-9)


OPTIONS = {
    "bf16": {"bf16": True},
    "activation checkpointing": {"activation_checkpointing": True},
    "torch_compile": {"torch_compile": True, "torch_compile_backend": "aot_eager"},
    "bf16, accumulated": {"bf16": True, "gradient_accumulation_steps": 3, "per_device_train_batch_size": 4},
}


def ends(folder, make, dtype=torch.float32, draw=0, **options):
    """The learning rate, the loss and how far the weights have come, from weights through `rounded`."""
    model = llama()
    rounded(model.parameters(), dtype, draw)
    start = weights(model).clone()
    runs = trainer(folder, model, make, **options)
    loss = runs.train().training_loss
    return inner(runs).rate.value, loss, weights(runs.model) - start


@cache
def without_options(make, dtype, folder):
    """The spread of each, where weights are rounded to the dtype that an option computes in."""
    return [spread_of(found) for found in zip(*(ends(folder, make, dtype, draw) for draw in range(DRAWS + 1)))]


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
@pytest.mark.parametrize("make", [infhess.RateFree, diagonal])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_options_of_the_trainer(options, make, tmp_path, tmp_path_factory):
    """They change what is computed by rounding alone; micro-batches take other sequences together."""
    found = ends(tmp_path, make, **options)
    assert found[0] > 0
    if "gradient_accumulation_steps" not in options:
        dtype = torch.bfloat16 if "bf16" in options else torch.float32
        for there, value in zip(without_options(make, dtype, tmp_path_factory.getbasetemp() / "without"), found):
            there.holds(value)


def test_reentrant_checkpointing_is_refused_in_words(tmp_path):
    options = {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": True}}
    with pytest.raises(infhess.DoubleBackwardError, match="use_reentrant=False"):
        trainer(tmp_path, **options).train()
    assert torch.overrides._get_current_function_mode() is None


def test_a_schedule_that_goes_down_is_said(tmp_path):
    with pytest.warns(UserWarning, match="lr_scheduler_type='constant'"):
        trainer(tmp_path, steps=1, lr_scheduler_type="linear").train()
    for kind in ("constant", "constant_with_warmup"):  # warnings are errors
        trainer(tmp_path, steps=1, lr_scheduler_type=kind).train()


def test_another_optimizer_is_refused_in_words(tmp_path):
    with pytest.raises(TypeError, match="expected a RateFree or Preconditioned optimizer"):
        trainer(tmp_path, make=lambda p: torch.optim.SGD(p, lr=0.1)).train()


def averaged(runs):
    return torch.cat([own["averaged"].flatten() for own in inner(runs).state.values()])


def test_what_is_evaluated_are_the_averaged_weights_and_they_stay(tmp_path):
    runs = trainer(tmp_path)
    runs.train()
    assert torch.equal(weights(runs.model), averaged(runs))
    there = runs.evaluate()["eval_loss"]
    assert torch.equal(weights(runs.model), averaged(runs))
    during = trainer(tmp_path, eval_strategy="steps", eval_steps=3)
    during.train()
    found = [row["eval_loss"] for row in during.state.log_history if "eval_loss" in row]
    assert found[-1] == pytest.approx(there, rel=1e-6)
    assert torch.equal(weights(during.model), weights(runs.model))


@pytest.mark.parametrize("evaluates", [{}, {"eval_strategy": "steps", "eval_steps": 4}])
@pytest.mark.parametrize("micro", [{}, {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 8}])
def test_a_run_resumes_bit_for_bit(evaluates, micro, tmp_path):
    options = {"save_strategy": "steps", "save_steps": 4, **evaluates, **micro}
    whole = trainer(tmp_path, **options)
    whole.train()
    assert torch.equal(
        load_file(tmp_path / "checkpoint-12/model.safetensors")["model.norm.weight"], whole.model.model.norm.weight
    )
    again = trainer(tmp_path, **options)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert torch.equal(weights(again.model), weights(whole.model))
    for runs in (whole, again):
        inner(runs).train()
    assert torch.equal(weights(again.model), weights(whole.model))
    assert float(inner(again).rate) == float(inner(whole).rate)


def test_the_best_weights_stay_where_they_are_asked_for(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
    runs = trainer(
        tmp_path, **options, load_best_model_at_end=True, metric_for_best_model="loss", greater_is_better=True
    )
    runs.train()  # the worst loss is the first one
    assert runs.state.best_model_checkpoint.endswith("checkpoint-4")
    assert runs.evaluate()["eval_loss"] == pytest.approx(runs.state.best_metric, rel=1e-6)


def test_early_stopping(tmp_path):
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    runs = trainer(
        tmp_path,
        callbacks=[CurvatureCallback(), EarlyStoppingCallback(1)],
        **options,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        greater_is_better=True,
    )
    runs.train()
    assert runs.state.global_step == 4
    assert runs.evaluate()["eval_loss"] == pytest.approx(runs.state.best_metric, rel=1e-6)


def test_logs_have_the_learning_rate_and_sharpness(tmp_path):
    runs = trainer(tmp_path / "out", callbacks=[CurvatureCallback(every=8, k=2)])
    runs.train()
    rows = [row for row in runs.state.log_history if "loss" in row]
    assert rows[0]["curvature/rate/low"] < rows[0]["curvature/rate"] < rows[0]["curvature/rate/high"]
    assert rows[-1]["learning_rate"] == inner(runs).rate.value
    sharp = [row for row in rows if "sharpness/value/2" in row]
    assert [row["step"] for row in sharp] == [8]
    assert sharp[0]["sharpness/low/1"] < sharp[0]["sharpness/value/1"] < sharp[0]["sharpness/high/1"]
    json.dumps(rows)
    without = trainer(tmp_path)
    without.train()
    assert torch.equal(weights(runs.model), weights(without.model))


def test_reporters_after_the_callback_see_them(tmp_path):
    from torch.utils.tensorboard import SummaryWriter

    seen = []

    class Writer(SummaryWriter):
        def add_scalar(self, tag, *args, **kwargs):
            seen.append(tag)
            super().add_scalar(tag, *args, **kwargs)

    callbacks = [CurvatureCallback(), TensorBoardCallback(tb_writer=Writer(tmp_path / "events"))]
    trainer(tmp_path, callbacks=callbacks, steps=4).train()
    assert "train/curvature/rate" in seen


def test_an_error_in_training_leaves_the_next_run_whole(tmp_path):
    model = llama()
    runs = trainer(tmp_path, model)
    handle = model.model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runs.train()
    handle.remove()
    runs.train()
    assert torch.overrides._get_current_function_mode() is None


# ---- a batch as tokenizers give it


def encoding(points=8):
    ids = torch.stack([row["input_ids"] for row in sequences(points)])
    return BatchEncoding({"input_ids": ids, "labels": ids.clone(), "attention_mask": torch.ones_like(ids)})


def test_batch_encodings_are_batches():
    model = llama(F64)
    params = list(model.parameters())
    loss = lambda batch: model(**batch).loss  # noqa: E731
    v = torch.randn(sum(p.numel() for p in params), dtype=F64, generator=torch.Generator().manual_seed(0))
    batch = encoding()
    there = infhess.Hessian(loss, params, [dict(batch)]).matvec(v)
    found = infhess.Hessian(loss, params, [batch])
    torch.testing.assert_close(found.matvec(v), there)
    assert found.data_points == 8
    tokens = lambda out, labels: torch.nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten())  # noqa: E731
    source = infhess.GaussNewton(model, tokens, params, [batch])
    assert float(v @ source.matvec(v)) > 0
    assert source.data_points == 8
    opt = diagonal(params)
    loss(batch).backward()
    assert opt.observe(loss, batch).product_points == 8
    opt.step()
