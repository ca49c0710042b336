"""Every experiment at the paper's size can be started: settings, networks, optimizers and schedules; nothing is run."""

from functools import cache
from typing import Any

import pytest
import torch
from gyroscope_lab.ct._text_training import PAPER_MODEL, TextTraining
from gyroscope_lab.framework.catalogue import select
from gyroscope_lab.framework.experiment import Trial, load
from gyroscope_lab.framework.presets import preset
from gyroscope_lab.networks.registry import image_network, text_network, translation_network
from gyroscope_lab.tasks.text import standard_library
from gyroscope_lab.training import TrainConfig
from gyroscope_lab.training.optimizers import make_optimizers

from gyroscope.nn import add_gain

# (channels, height, width) and classes of the tasks with images.
IMAGES = {
    "digits": ((1, 8, 8), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
}
CHARACTERS = 100
# Images of CIFAR-10 for training.
CIFAR_IMAGES = 50_000
# Experiments that train no network of `TrainConfig`: weight vectors with simulated gradients, layers and loops of their
# own.
WITHOUT_TRAINING = {
    *("re/fig8", "re/table1", "re/appendix_i"),
    *("smd/fig4", "smd/fig5", "smd/theorem1", "smd/theorem2", "smd/theorem3", "smd/corollary3_1"),
    *("sp/eq44", "sp/section4_2", "sp/theorem2", "sp/theorem4", "ct/fig2"),
    *("beyond/falling_out", "beyond/one_law"),
    *(entry.id for entry in select(["advice", "transfer"])),
    *(entry.id for entry in select(["beyond"]) if "free_norms" in entry.id),
}
PAPERS = {entry.id: load(entry.id).PAPER for entry in select(["all"], size="paper")}
TEXT_TRAININGS = [name for name, config in PAPERS.items() if isinstance(config, TextTraining)]
TRAININGS = [name for name in PAPERS if name not in WITHOUT_TRAINING and name not in TEXT_TRAININGS]


class Started(Exception):  # noqa: N818
    """A training begins, with these settings."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self.config = config


@pytest.fixture
def started(monkeypatch):
    """What a trial of an experiment would train: its settings, checked as always."""
    check = TrainConfig.__post_init__

    def check_and_stop(config: TrainConfig) -> None:
        check(config)
        raise Started(config)

    def settings_of(name: str, part: Any) -> TrainConfig:
        with monkeypatch.context() as patched:
            patched.setattr(TrainConfig, "__post_init__", check_and_stop)
            with pytest.raises(Started) as raised:
                load(name).measure(Trial(PAPERS[name], seed=0, part=part))
        return raised.value.config

    return settings_of


@cache
def network(task: str, model: str, norm: str, shrink: int, gain: bool) -> torch.nn.Module:
    with torch.device("meta"):
        if task == "stdlib" or task.startswith("text:"):
            made: torch.nn.Module = text_network(model, CHARACTERS)
        elif model.startswith("transformer"):
            made = translation_network(model, CHARACTERS)
        else:
            (channels, height, width), classes = IMAGES[task]
            made = image_network(model, (channels, height // shrink, width // shrink), classes, norm)
        if gain:
            add_gain(made)
    return made


@pytest.mark.parametrize("name", TRAININGS)
def test_every_training_of_the_papers_size_can_be_started(name, started):
    for part in getattr(PAPERS[name], "parts", (None,)):
        config = started(name, part)
        model = network(config.task, config.model, config.norm, config.shrink, config.gain)
        optimizers = make_optimizers(config, model)
        stepped = [parameter for each in optimizers for group in each.param_groups for parameter in group["params"]]
        assert len(stepped) == len(list(model.parameters()))
        schedule = config.multiplier(CIFAR_IMAGES // config.batch_size)
        assert max(schedule(0), schedule(schedule.steps // 2)) > 0
        assert 0 <= schedule(schedule.steps - 1) <= 1


@pytest.mark.parametrize("name", TEXT_TRAININGS)
def test_every_text_training_of_the_papers_size_has_the_papers_network(name):
    config = PAPERS[name]
    assert config.seeds >= 1
    standard_library()  # outside of the context below: it keeps its tensors for all others
    with torch.device("meta"):
        model = config.model(seed=0)
    shape = model.shape
    assert {key: getattr(shape, key) for key in ("layers", "heads", "width", "context")}.items() <= PAPER_MODEL.items()


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# What the papers print: RE Table 4 and section 5, CT Appendix H, He et al. 2016 for ResNet-20, in millions. Of DeiT and
# the GPTs at the images and tokens of the papers, which are not those of the presets.
@pytest.mark.parametrize(
    ("name", "millions", "digits"),
    [
        ("re/resnet20-adamw", 0.27, 2),
        ("re/resnet18-adamw", 11.2, 1),
        ("sp/resnet20-adam-srt", 0.27, 2),
        ("sp/vgg16-adam-srt", 14.7, 1),
        ("smd/stages", 11.2, 1),
        ("re/deit-tiny", 5.7, 1),
        ("re/gpt", 124, 0),
        ("ct/gpt-adam", 30, 0),
    ],
)
def test_the_network_of_a_preset_has_the_size_that_is_published(name, millions, digits):
    settings = preset(name)
    with torch.device("meta"):
        if settings["model"].startswith("gpt"):
            model: torch.nn.Module = text_network(settings["model"], 50_257)
        elif settings["model"].startswith("vit"):
            model = image_network(f"{settings['model']},patch=16", (3, 224, 224), 1000)
        else:
            model = image_network(settings["model"], *IMAGES[settings["task"]])
    assert round(parameters(model) / 1e6, digits) == millions
