"""A Hugging Face Trainer trains, and the callback measures; its models are sorted, and its factory makes optimizers."""

import numpy as np
import pytest
import torch

import gyroscope as gyro
from gyroscope.planner.transfer_run import read_run
from gyroscope.store import open_run

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'gyroscope[transformers]'"
)
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'gyroscope[transformers]'")
# What the libraries say about each other's versions.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

TOKENS = 17


def gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=TOKENS, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama(tied=False):
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=TOKENS, max_position_embeddings=8, tie_word_embeddings=tied, **sizes)
    return transformers.LlamaForCausalLM(config)


def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=TOKENS, **sizes))


def sequences(count=16):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(TOKENS, (count, 6), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def train(model, folder, *, steps=6, resume=None, callbacks=(), report_to="none", accumulate=1, **options):
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=accumulate,
        learning_rate=1e-2,
        weight_decay=0.1,
        logging_steps=2,
        save_steps=4,
        report_to=report_to,
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    trainer = transformers.Trainer(
        model=model, args=arguments, train_dataset=sequences(), callbacks=list(callbacks), **options
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def callback(*args, **options):
    from gyroscope.integrations.transformers import RotationCallback

    return RotationCallback(*args, **options)


def split(groups):
    found = {}
    for group in groups:
        turns = group["granularity"] != "none"
        found |= dict.fromkeys(group["param_names"], (group["granularity"], group["axis"]) if turns else None)
    return found


def test_layers_of_transformers_are_sorted_by_what_they_are():
    found = split(gyro.param_groups(gpt2(), weight_decay=0.1))
    turning = {name: axis for name, axis in found.items() if axis is not None}
    layers = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert turning == {f"transformer.h.0.{layer}.weight": ("neuron", 1) for layer in layers}, "Conv1D, tied embeddings"
    found = split(gyro.param_groups(llama(), weight_decay=0.1))
    assert found["lm_head.weight"] == ("neuron", 0)
    assert found["model.embed_tokens.weight"] is None
    assert found["model.layers.0.input_layernorm.weight"] is None
    assert split(gyro.param_groups(llama(tied=True), weight_decay=0.1))["model.embed_tokens.weight"] is None


@pytest.mark.parametrize("make", [gpt2, llama, bert])
def test_named_parameters_are_sorted_as_the_model_is(make):
    model = make()
    assert split(gyro.optim.RotationalAdamW(model.named_parameters()).param_groups) == split(
        gyro.optim.RotationalAdamW(model).param_groups
    )


def test_a_trainer_is_measured_through_accelerates_optimizer(tmp_path):
    watch = callback(every=2)
    trainer = train(gpt2(), tmp_path, callbacks=[watch])
    assert type(trainer.optimizer).__name__ == "AcceleratedOptimizer"
    run = open_run(tmp_path / "rotation")
    assert run.steps.tolist() == [0, 2, 4]
    assert run.status == "finished"
    assert run.config["optimizer"] == "AdamW"
    assert run.layer("transformer.h.0.mlp.c_fc.weight").axis == 1
    assert np.isfinite(run.series("transformer.h.0.mlp.c_fc.weight", "predicted_angular_update")).any()
    assert run.scalar("loss")[0].tolist() == [1, 3, 5]
    assert str(watch.diagnosis) == str(run.diagnose())


def test_the_run_knows_its_batch_and_how_often_losses_are_logged(tmp_path):
    watch = callback(every=1, config={"note": "mine", "logging_steps": 7})
    train(gpt2(), tmp_path, callbacks=[watch], accumulate=3)
    run = open_run(tmp_path / "rotation")
    assert run.config["user"] == {"batch_size": 2, "accumulate": 3, "logging_steps": 7, "note": "mine"}
    assert read_run(run.path).batch == 6


def test_training_that_goes_on_from_a_checkpoint_goes_on_with_the_run(tmp_path):
    train(gpt2(), tmp_path, steps=4, callbacks=[callback(every=1)])
    train(gpt2(), tmp_path, steps=6, resume=str(tmp_path / "checkpoint-4"), callbacks=[callback(every=1)])
    assert open_run(tmp_path / "rotation").steps.tolist() == [0, 1, 2, 3, 4, 5]


def test_the_factory_makes_our_optimizers_of_the_model(tmp_path):
    from gyroscope.integrations.transformers import OptimizerFactory

    options = {"name": "rotational-adamw", "lr": 1e-2, "weight_decay": 0.1}
    watch = callback(every=1)
    train(gpt2(), tmp_path, steps=3, callbacks=[watch], optimizer_cls_and_kwargs=(OptimizerFactory, options))
    run = open_run(tmp_path / "rotation")
    assert run.config["optimizer"] == "RotationalAdamW"
    norms = run.series("transformer.h.0.attn.c_proj.weight", "norm", "rms")
    assert norms == pytest.approx(norms[0])
    assert "transformer.wte.weight" not in run.layers


@pytest.mark.parametrize("way", ["optimizers", "optimizer_cls_and_kwargs"])
def test_the_trainers_other_ways_take_our_classes_too(way, tmp_path):
    model = gpt2()
    if way == "optimizers":
        options = {"optimizers": (gyro.optim.RotationalAdamW(model, lr=1e-2), None)}
    else:
        options = {"optimizer_cls_and_kwargs": (gyro.optim.RotationalAdamW, {"model": model, "lr": 1e-2})}
    before = model.transformer.h[0].mlp.c_fc.weight.detach().norm(dim=0)
    train(model, tmp_path, steps=2, **options)
    torch.testing.assert_close(model.transformer.h[0].mlp.c_fc.weight.detach().norm(dim=0), before)


@pytest.mark.parametrize("is_chosen", [False, True])
def test_tensorboard_gets_the_numbers_in_the_run_of_the_trainer(is_chosen, tmp_path, monkeypatch):
    events = pytest.importorskip("tensorboard.backend.event_processing.plugin_event_multiplexer")
    board = tmp_path / "trained"
    if is_chosen:
        board = tmp_path / "board"
        monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(board))
    train(gpt2(), tmp_path / "trained", steps=3, callbacks=[callback(every=1)], report_to="tensorboard")
    read = events.EventMultiplexer().AddRunsFromDirectory(str(board))
    read.Reload()
    (run,) = read.Runs()
    assert [event.step for event in read.Tensors(run, "gyroscope/angular_update")] == [0, 1, 2]
    assert [event.step for event in read.Tensors(run, "train/loss")] == [2]


def test_accelerates_prepared_optimizer_is_measured_in_a_loop_of_ones_own(tmp_path):
    from accelerate import Accelerator

    model = llama()
    optimizer = gyro.optim.RotationalAdamW(model, lr=1e-2)
    accelerator = Accelerator(cpu=True)
    prepared, stepping = accelerator.prepare(model, optimizer)
    with gyro.Tracker(prepared, stepping, tmp_path, every=1) as tracker:
        for batch in sequences(2):
            loss = prepared(input_ids=batch["input_ids"][None], labels=batch["labels"][None]).loss
            accelerator.backward(loss)
            stepping.step()
            stepping.zero_grad()
    run = tracker.run
    assert run.steps.tolist() == [0, 1]
    assert run.layers[0] == "model.layers.0.self_attn.q_proj.weight"


def test_a_checkpoint_is_saved_after_all_that_was_measured(tmp_path, monkeypatch):
    stored = []
    save = transformers.Trainer._save_checkpoint

    def look_and_save(self, *arguments, **options):
        with open_run(tmp_path / "rotation") as run:
            stored.append((run.steps.tolist(), run.scalar("loss")[0].tolist()))
        return save(self, *arguments, **options)

    monkeypatch.setattr(transformers.Trainer, "_save_checkpoint", look_and_save)
    train(gpt2(), tmp_path, callbacks=[callback(every=1)])
    assert stored[0] == ([0, 1, 2, 3], [1, 3])
