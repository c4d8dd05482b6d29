"""Transformers: a Trainer with an optimizer and a callback. The model is small and made here; nothing is downloaded."""

import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import infhess
from infhess.integrations.transformers import CurvatureCallback

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200

torch.manual_seed(0)
small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
model = LlamaForCausalLM(LlamaConfig(vocab_size=29, max_position_embeddings=32, **small))
counting = (torch.randint(29, (512, 1)) + torch.randint(1, 6, (512, 1)) * torch.arange(16)) % 29
data = [{"input_ids": ids, "labels": ids} for ids in counting]

args = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=STEPS,
    per_device_train_batch_size=16,
    gradient_accumulation_steps=2,  # both micro-batches of a step are watched
    lr_scheduler_type="constant",  # the default goes down to 0: the callback says so
    bf16=True,
    activation_checkpointing=True,
    eval_strategy="steps",
    eval_steps=STEPS // 4,
    save_strategy="steps",
    save_steps=STEPS // 4,
    logging_steps=STEPS // 4,
    report_to="none",  # for TensorBoard: callbacks=[CurvatureCallback(), TensorBoardCallback()]
    use_cpu=True,
    disable_tqdm=True,
)
trainer = Trainer(
    model,
    args,
    train_dataset=data[:480],
    eval_dataset=data[480:],
    optimizers=(infhess.RateFree(model.parameters()), None),
    callbacks=[CurvatureCallback()],
)
trainer.train()
print(f"loss {trainer.evaluate()['eval_loss']:.3f}, learning rate {trainer.optimizer.optimizer.rate}")
