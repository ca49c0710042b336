"""GPT-2, tiny, in Hugging Face's Trainer with RotationalAdamW, measured by a callback; no network is needed.

python examples/trainer_gpt2.py [steps]
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from gyroscope.integrations.transformers import OptimizerFactory, RotationCallback

CONTEXT = 32

torch.manual_seed(0)
text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
rows = text[: len(text) // CONTEXT * CONTEXT].view(-1, CONTEXT)
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=256, n_positions=CONTEXT, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
)
arguments = TrainingArguments(
    output_dir="runs/trainer",
    max_steps=int(sys.argv[1]) if len(sys.argv) > 1 else 200,
    per_device_train_batch_size=4,
    lr_scheduler_type="cosine",
    logging_steps=10,
    save_strategy="no",
    report_to="none",
    use_cpu=True,
    disable_tqdm=True,
)
rotation = RotationCallback(every=5)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    callbacks=[rotation],
    # The factory gets the model: embeddings do not turn, and GPT-2's Conv1D turns along its outputs.
    optimizer_cls_and_kwargs=(OptimizerFactory, {"name": "rotational-adamw", "lr": 3e-3, "weight_decay": 0.5}),
)
trainer.train()
print(rotation.diagnosis)  # noqa: T201
