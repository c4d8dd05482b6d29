"""A small Llama, sequences that it can learn, and runs of Transformers' Trainer: nothing is downloaded."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import infhess
from infhess.integrations.transformers import CurvatureCallback

transformers.logging.set_verbosity_error()
TOKENS = 17


def llama(dtype=torch.float32, **options):
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=TOKENS, **small, **heads, **options)).to(dtype)


def sequences(number=128, length=12):
    """Each counts on by threes from a random start."""
    starts = torch.randint(TOKENS, (number, 1), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": ids, "labels": ids} for ids in (starts + 3 * torch.arange(length)) % TOKENS]


def trainer(folder, model=None, make=infhess.RateFree, callbacks=None, scheduler=None, steps=12, **options):
    model = model or llama()
    options = {"lr_scheduler_type": "constant", "per_device_train_batch_size": 16, "save_strategy": "no"} | options
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False}
    return Trainer(
        model,
        TrainingArguments(output_dir=str(folder), max_steps=steps, logging_steps=4, **quiet, **options),
        train_dataset=sequences(),
        eval_dataset=sequences(32),
        optimizers=(make(model.parameters()), scheduler),
        callbacks=[CurvatureCallback()] if callbacks is None else callbacks,
    )


def inner(runs):
    return runs.optimizer.optimizer
