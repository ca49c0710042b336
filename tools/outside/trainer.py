"""Checkpoints of the Hugging Face Trainer: the autopsy of each layer against what the tracker measured."""

import logging
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gyroscope as gyro
from outside.tally import Tally, require

STEPS = 3
TOKENS = 31
# The tracker measures in float32, and so does the Trainer's step.
TOLERANCE = 1e-3


def models() -> dict[str, Any]:
    """Return a small configuration of each architecture by the name of its class."""
    import transformers

    small = {"vocab_size": TOKENS, "max_position_embeddings": 16, "hidden_size": 16, "intermediate_size": 32}
    return {
        # More than ten layers, because the alphabet puts h.10 before h.2.
        "GPT2LMHeadModel": transformers.GPT2Config(
            vocab_size=TOKENS, n_positions=16, n_embd=16, n_layer=11, n_head=2, bos_token_id=0, eos_token_id=0
        ),
        "LlamaForCausalLM": transformers.LlamaConfig(**small, num_hidden_layers=3, num_attention_heads=2),
        "T5ForConditionalGeneration": transformers.T5Config(
            vocab_size=TOKENS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
        ),
        "BertForMaskedLM": transformers.BertConfig(**small, num_hidden_layers=2, num_attention_heads=2),
    }


def check(tally: Tally) -> None:
    """Train each architecture for a few steps, and compare layer by layer."""
    import transformers

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    for name, config in models().items():
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = trained(getattr(transformers, name)(config), Path(folder))
            with tally.attempt(f"{name}: autopsy"):
                compare(tally, name, gyro.autopsy(checkpoint), Path(folder) / "run")


def trained(model: Any, folder: Path) -> Path:
    """Train with the Trainer's own groups and schedule, with a tracker beside it, and return the checkpoint."""
    import transformers

    tokens = torch.randint(1, TOKENS, (8 * STEPS, 12), generator=torch.Generator().manual_seed(0))
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        weight_decay=0.1,
        lr_scheduler_type="cosine",
        logging_steps=1,  # the last rate of a schedule that is a function is in the log alone
        save_steps=STEPS,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    data: Any = [{"input_ids": row, "labels": row} for row in tokens]
    train = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    train.create_optimizer()
    with gyro.Tracker(model, train.optimizer, folder / "run", every=1, raw="."):
        train.train()
    return folder / f"checkpoint-{STEPS}"


def compare(tally: Tally, name: str, autopsy: Any, folder: Path) -> None:
    """Compare the rotation of every neuron in the last step."""
    with gyro.store.open_run(folder) as run:
        shared = [layer for layer in run.layers if layer in autopsy.layers]
        require(len(shared) >= 12, f"only {len(shared)} layers are in both")
        for layer in shared:
            with tally.attempt(f"{name}: {layer}"):
                measured = np.asarray(run.raw(layer, "angular_update"))[-1]
                found = autopsy.layers[layer]
                np.testing.assert_allclose(found.rotations, measured, rtol=TOLERANCE, atol=1e-6)
                require(found.exact, "not exact")
