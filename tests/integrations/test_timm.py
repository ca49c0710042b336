"""timm makes our optimizers by name: sorted by itself, by our function or by names; refused where nothing decays."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from gyroscope import optim
from gyroscope.integrations.timm import group_fn, register_timm
from gyroscope.optim.registry import CLASSES
from tests.model.architectures import differences

# Classes by name; timm has a Lion of its own.
NAMES = {CLASSES[name].__name__: name for name in optim.names() if name != "lion"}
STEPS = 4
ARCHITECTURES = [
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "beit_base_patch16_224",
    "swin_tiny_patch4_window7_224",
    "mixer_s32_224",
    "convnext_atto",
    "resnet18",
    "efficientnet_b0",
    "mobilenetv3_small_050",
    "regnetx_002",
    "levit_128s",
    "xcit_nano_12_p16_224",
    "poolformer_s12",
    "cait_xxs24_224",
]

# Deprecations within timm.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def factory(timm):
    assert sorted(register_timm()) == sorted(NAMES.values())
    return timm.optim.create_optimizer_v2


def turning(optimizer):
    return [p for group in optimizer.param_groups if group["granularity"] != "none" for p in group["params"]]


@pytest.mark.parametrize("name", NAMES.values())
def test_timm_makes_our_optimizers_by_name(factory, name):
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    optimizer = factory(model, name, lr=1e-3, weight_decay=0.1, param_group_fn=group_fn(0.1))
    assert type(optimizer).__name__.lower() == name.replace("-", "")
    assert [id(p) for p in turning(optimizer)] == [id(model[1].weight)]
    model(torch.tensor([1])).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("optimizer", NAMES)
def test_an_optimizer_that_timm_made_takes_the_steps_of_a_plain_loop(factory, optimizer):
    settings = {"lr": 1e-2, "weight_decay": 0.1}

    def trained(make):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        x = torch.randn(8, 6)
        made = make(model)
        for _ in range(STEPS):
            made.zero_grad()
            (model(x) - x[:, :3]).square().mean().backward()
            made.step()
        return model.state_dict()

    plain = trained(lambda model: CLASSES[NAMES[optimizer]](model, **settings))
    ours = trained(lambda model: factory(model, NAMES[optimizer], **settings, param_group_fn=group_fn(0.1)))
    theirs = trained(lambda model: factory(model, NAMES[optimizer], **settings))
    for name, weight in plain.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=0)
        torch.testing.assert_close(theirs[name], weight, rtol=0, atol=0)


@pytest.mark.parametrize("layer_decay", [None, 0.7])
@pytest.mark.parametrize("name", NAMES.values())
def test_of_timms_own_groups_weights_turn_but_not_positions_nor_class_tokens(timm, factory, name, layer_decay):
    shape = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2, "num_classes": 3}
    model = timm.models.VisionTransformer(**shape)
    optimizer = factory(model, name, lr=1e-3, weight_decay=0.1, layer_decay=layer_decay)
    weights = {id(p) for p in model.parameters() if p.dim() > 1} - {id(model.pos_embed), id(model.cls_token)}
    assert {id(p) for p in turning(optimizer) if p.dim() > 1} == weights
    model(torch.randn(2, 3, 16, 16)).square().mean().backward()
    before = model.cls_token.detach().clone()
    optimizer.step()
    assert not torch.equal(model.cls_token, before), "it takes the plain step"


def test_named_parameters_pass_through_timm_and_are_sorted_by_names(factory):
    model = nn.ModuleDict({"wte": nn.Embedding(9, 8), "out": nn.Linear(8, 4)})
    optimizer = factory(model.named_parameters(), "rotational-adamw", lr=1e-3, weight_decay=0.1)
    assert [id(p) for p in turning(optimizer)] == [id(model["out"].weight)]


def test_timms_default_of_no_decay_at_all_is_refused_and_not_silently_plain(factory):
    with pytest.raises(ValueError, match="weight_decay=0 in a group that rotates"):
        factory(nn.Linear(4, 4), "rotational-adamw", lr=1e-3)


def test_the_options_of_timms_scripts_choose_our_optimizers(timm, factory):
    arguments = SimpleNamespace(opt="rotational-sgd", lr=0.1, weight_decay=5e-4, momentum=0.8, opt_eps=None)
    optimizer = timm.optim.create_optimizer(arguments, nn.Linear(4, 4))
    assert isinstance(optimizer, optim.RotationalSGD)
    assert optimizer.defaults["momentum"] == 0.8


def test_a_name_of_timms_own_stays_timms(factory):
    assert register_timm() == []
    assert not isinstance(factory(nn.Linear(4, 4), "lion", lr=1e-3), optim.Lion)


@pytest.mark.parametrize("name", NAMES.values())
def test_the_registry_has_a_class_that_makes_optimizers_which_can_be_pickled(timm, factory, name):
    made_class: Any = timm.optim.get_optimizer_class(name)
    assert isinstance(made_class, type)
    optimizer = made_class(nn.Linear(4, 4).parameters(), lr=1e-3, weight_decay=0.1)
    assert issubclass(made_class, torch.optim.Optimizer)
    assert type(optimizer) is CLASSES[name]
    assert type(pickle.loads(pickle.dumps(optimizer))) is CLASSES[name]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_names_decide_as_layer_types_do_in_timms_models(timm, architecture):
    with torch.device("meta"):
        count, found = differences(timm.create_model(architecture))
    assert count > 20
    assert found == {}


def test_the_registry_lists_what_ours_are(timm, factory):
    assert "AdamW held in equilibrium" in timm.optim.get_optimizer_info("rotational-adamw").description
