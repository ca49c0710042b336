"""Names and shapes decide as layer types do, on some sixty architectures; each exception has its reason."""

import re
import time
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from gyroscope.geometry import Split
from gyroscope.model.by_name import splits_by_name
from gyroscope.model.groups import optimizer_groups
from tests.model.architectures import TRANSFORMERS, differences, lab_models, plain_layers, transformers_model

# What names and shapes cannot tell: architecture -> (expression that matches all such names, reason).
EXCEPTIONS = {
    "aria_text": (r"experts\.(gate_up|down)_proj$", "experts [experts, inputs, outputs] without a bias that shows it"),
    "ctrl": (r"^transformer\.w\.weight$", "an embedding called w"),
    "mask2former": (r"queries_features\.weight$", "an embedding of queries, named after features"),
    "depth_pro": (
        r"^neck\.feature_upsample\..*\.layers\.\d+\.weight$",
        "a ConvTranspose as wide as its input, in a numbered list: taken for a convolution",
    ),
    "speecht5": (r"pe_k\.weight$", "an embedding of relative positions called pe_k"),
}


@pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_names_decide_as_layer_types_do(kind):
    count, found = differences(transformers_model(kind))
    pattern, _ = EXCEPTIONS.get(kind, (r"$^", ""))
    unexplained = {name: answers for name, answers in found.items() if not re.search(pattern, name)}
    assert count > 5
    assert unexplained == {}
    # An exception that is none any more leaves the list.
    assert bool(found) == (kind in EXCEPTIONS)


def test_names_decide_as_layer_types_do_in_the_labs_networks():
    for name, model in lab_models():
        assert differences(model)[1] == {}, name


def test_names_decide_as_layer_types_do_in_plain_layers_with_misleading_names():
    _, found = differences(plain_layers())
    assert found == {}


@pytest.mark.parametrize(
    ("layer", "default"),
    [
        (nn.ConvTranspose2d(8, 8, 3), "as wide as its input"),
        (nn.ConvTranspose2d(8, 4, 3, bias=False), "without a bias"),
        (nn.ConvTranspose1d(4, 4, 2, groups=2), "grouped, as wide as its input"),
    ],
)
def test_a_transposed_convolution_that_nothing_shows_is_taken_for_a_convolution(layer, default):
    shapes = {f"layers.0.{name}": p.shape for name, p in layer.named_parameters()}
    assert splits_by_name(shapes)["layers.0.weight"].split == Split(), default


@pytest.mark.parametrize(
    ("name", "shape", "granularity"),
    [
        ("blocks.0.mlp.weight", (8, 4), "neuron"),
        ("ln_f.weight", (8,), "none"),
        ("norm.weight", (8, 4), "none"),
        ("experts.down_bias", (4, 8), "none"),
        ("cls_token", (1, 1, 8), "none"),
        ("head.weight", (1, 8), "neuron"),
        ("normalizer.weight", (8, 4), "neuron"),
        ("conv.parametrizations.weight.original", (1, 8, 3), "neuron"),
        ("pos_embed", (1, 9, 8), "none"),
        ("positional_embedding", (9, 8), "none"),
    ],
)
def test_names_and_shapes_decide_which_tensors_have_vectors(name, shape, granularity):
    assert splits_by_name({name: shape})[name].split.granularity == granularity


def test_experts_are_one_vector_per_expert_and_output():
    assert splits_by_name({"moe.experts.w1": (4, 8, 16)})["moe.experts.w1"].split.num_vectors((4, 8, 16)) == 32


def test_an_old_weight_norm_has_one_weight_and_one_gain():
    """The gain of a ConvTranspose has one entry per input, so that its shape alone would be one vector."""
    shapes = {"up.weight_g": (8, 1, 1), "up.weight_v": (8, 4, 3), "up.bias": (4,)}
    splits = {name: each.split for name, each in splits_by_name(shapes).items()}
    assert splits == {"up.weight_g": Split("none"), "up.weight_v": Split(axis=1), "up.bias": Split("none")}


def test_a_square_convolution_in_a_list_does_not_follow_its_transposed_neighbour():
    decoder = nn.Sequential(nn.ConvTranspose1d(8, 4, 3), nn.Conv1d(4, 4, 3))
    splits = splits_by_name({f"decoder.{name}": p.shape for name, p in decoder.named_parameters()})
    assert splits["decoder.0.weight"].split == Split(axis=1)
    assert splits["decoder.1.weight"].split == Split()


def test_named_parameters_are_sorted_as_the_model_is():
    """A Linear called normalizer rotates, a shared embedding does not, and a ConvTranspose is cut along its outputs."""
    model = nn.ModuleDict(
        {"shared": nn.Embedding(9, 8), "normalizer": nn.Linear(8, 4), "up": nn.ConvTranspose1d(4, 3, 2)}
    )
    by_model = optimizer_groups(model, weight_decay=0.1)
    by_name = optimizer_groups(model.named_parameters(), weight_decay=0.1)
    expected = {name: (Split.of(group), group["weight_decay"]) for group in by_model for name in group["param_names"]}
    found = {name: (Split.of(group), group["weight_decay"]) for group in by_name for name, _ in group["params"]}
    assert found == expected
    assert found["shared.weight"] == (Split("none"), 0.0)
    assert found["up.weight"] == (Split(axis=1), 0.1)


def test_a_table_of_a_layer_of_unknown_type_is_an_embedding_by_its_name():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.pos_emb = nn.Parameter(torch.ones(9, 8))
            self.mix = nn.Parameter(torch.ones(4, 8))

    _, found = differences(Model())
    assert found == {}
    assert [group["param_names"] for group in optimizer_groups(Model(), weight_decay=0.1)] == [["pos_emb"], ["mix"]]


def test_ten_thousand_tensors_in_one_layer_are_decided_in_seconds():
    """A file may have any names: each tensor must not look at all others of its layer."""
    shapes = {f"list.{number}w": (4, 8, 6) for number in range(10_000)}
    start = time.process_time()
    splits = splits_by_name(shapes)
    assert {each.split for each in splits.values()} == {Split(axis=(0, 1))}
    assert time.process_time() - start < 5
