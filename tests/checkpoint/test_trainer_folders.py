"""Folders of the Hugging Face Trainer: safetensors sorts names, optimizer.pt numbers them in the model's order."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gyroscope as gyro
from gyroscope.cli import main

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
# The Trainer's advice on padding, loggers and the like.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
STEPS = 3
TOKENS = 31
SMALL = {"vocab_size": TOKENS, "max_position_embeddings": 16}
MODELS = {
    "GPT2LMHeadModel": lambda: transformers.GPT2Config(
        vocab_size=TOKENS, n_positions=16, n_embd=16, n_layer=11, n_head=2, bos_token_id=0, eos_token_id=0
    ),
    "LlamaForCausalLM": lambda: transformers.LlamaConfig(
        **SMALL, hidden_size=16, intermediate_size=32, num_hidden_layers=3, num_attention_heads=2
    ),
    "T5ForConditionalGeneration": lambda: transformers.T5Config(
        vocab_size=TOKENS, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0
    ),
    "BertForMaskedLM": lambda: transformers.BertConfig(
        **SMALL, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    ),
}


def examples() -> list[dict[str, torch.Tensor]]:
    tokens = torch.randint(1, TOKENS, (8 * STEPS, 12), generator=torch.Generator().manual_seed(0))
    return [{"input_ids": row, "labels": row} for row in tokens]


def trained(model: nn.Module, folder: Path, data: list[dict[str, torch.Tensor]]) -> Path:
    """Train with the Trainer's own groups and schedule, with a tracker beside it, and return its checkpoint."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=8,
        learning_rate=1e-2,
        weight_decay=0.1,
        lr_scheduler_type="cosine",
        logging_steps=1,
        save_steps=STEPS,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    trainer.create_optimizer()
    with gyro.Tracker(model, trainer.optimizer, folder / "run", every=1, raw="."):
        trainer.train()
    return folder / f"checkpoint-{STEPS}"


def assert_same_rotation(autopsy: Any, run_folder: Path) -> list[str]:
    """The rotation of every neuron in the last step, from the checkpoint and from the tracker; returns the layers."""
    with gyro.store.open_run(run_folder) as run:
        compared = [name for name in run.layers if name in autopsy.layers]
        for name in compared:
            measured = np.asarray(run.raw(name, "angular_update"))[-1]
            np.testing.assert_allclose(autopsy.layers[name].rotations, measured, rtol=1e-3, atol=1e-6, err_msg=name)
            assert autopsy.layers[name].exact
    return compared


@pytest.fixture(scope="module", params=MODELS)
def checkpoint(request, tmp_path_factory) -> Path:
    torch.manual_seed(0)
    model = getattr(transformers, request.param)(MODELS[request.param]())
    return trained(model, tmp_path_factory.mktemp(request.param), examples())


def test_every_layer_has_the_rotation_that_the_tracker_measured(checkpoint):
    autopsy = gyro.autopsy(checkpoint)
    compared = assert_same_rotation(autopsy, checkpoint.parent / "run")
    # The autopsy knows layers by name, and the tracker by type: T5's position bias is an embedding by type only.
    embeddings = [name for name in autopsy.layers if autopsy.layers[name].is_embedding or "relative_attention" in name]
    assert set(autopsy.layers) - set(compared) <= set(embeddings)
    assert len(compared) >= 12


def test_the_model_or_its_names_stand_in_for_a_config_that_is_gone(checkpoint, tmp_path, capsys):
    folder = shutil.copytree(checkpoint, tmp_path / "bare")
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="--model-order FILE"):
        gyro.autopsy(folder)
    config = transformers.AutoConfig.from_pretrained(checkpoint)
    model = getattr(transformers, config.architectures[0])(config)
    by_module = gyro.autopsy(folder, model=model)
    assert_same_rotation(by_module, checkpoint.parent / "run")
    names = tmp_path / "names.txt"
    names.write_text("\n".join(name for name, _ in model.named_parameters()))
    assert main(["autopsy", str(folder), "--model-order", str(names), "--json"]) == 0
    layers = {layer["name"]: layer["rotation"] for layer in json.loads(capsys.readouterr().out)["layers"]}
    assert layers == pytest.approx({name: layer.rotation for name, layer in by_module.layers.items()}, nan_ok=True)


class Attention(nn.Module):
    """Four matrices of one shape, whose alphabetical order is not the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = (self.query(x) @ self.key(x).transpose(-1, -2)).softmax(-1)
        return {"loss": (self.out(scores @ self.value(x)) - x.flip(-1)).square().mean()}


def test_matrices_of_one_shape_in_a_model_of_ones_own_are_refused_unless_the_model_is_passed(tmp_path):
    torch.manual_seed(0)
    model = Attention()
    folder = trained(model, tmp_path, [{"x": x} for x in torch.randn(8 * STEPS, 5, 8)])
    with pytest.raises(ValueError, match=r"several weights have the shape \(8, 8\)"):
        gyro.autopsy(folder)
    assert len(assert_same_rotation(gyro.autopsy(folder, model=model), tmp_path / "run")) == 4
    with pytest.raises(ValueError, match=r"not a checkpoint of the given model: the file has no '0\.weight'"):
        gyro.autopsy(folder, model=nn.Sequential(nn.Linear(8, 8)))


def test_a_config_with_a_billion_layers_or_of_an_unknown_class_is_no_order(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text())
    layers = {key: 10**9 for key in config if key in ("n_layer", "num_hidden_layers", "num_layers")}
    for change in (layers, {"architectures": ["os.system"]}, {"architectures": None}, {"architectures": ["Trainer"]}):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(ValueError, match="--model-order FILE"):
            gyro.autopsy(folder)
