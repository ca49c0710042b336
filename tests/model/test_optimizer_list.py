"""One optimizer, several or a container: all that a user may pass is a list of torch optimizers and numbered groups."""

import pytest
import torch
from torch import nn

from gyroscope.model.measured import measured_layers
from gyroscope.model.optimizer_list import Optimizers, optimizers_of, owner_of
from gyroscope.model.selection import matrix_split, select
from gyroscope.optimizers.recognition import algorithm_of


def weight(*shape):
    return nn.Parameter(torch.randn(*shape))


def pair():
    return torch.optim.SGD([weight(2, 3)], lr=0.1), torch.optim.AdamW([weight(4, 3)], lr=0.2)


class TitanContainer(torch.optim.Optimizer):
    """As torchtitan's: an optimizer over all parameters that steps the optimizers it holds."""

    def __init__(self, *optimizers):
        self.optimizers = list(optimizers)
        super().__init__([p for each in optimizers for group in each.param_groups for p in group["params"]], {})

    def step(self, closure=None):
        for optimizer in self.optimizers:
            optimizer.step()


class MegatronOptimizer:
    """As Megatron's: no torch optimizer, but one inside."""

    def __init__(self, optimizer):
        self.optimizer = optimizer


class Chained:
    def __init__(self, *optimizers):
        self.chained_optimizers = [MegatronOptimizer(each) for each in optimizers]


WAYS = {
    "list": lambda *both: list(both),
    "tuple": lambda *both: both,
    "dict": lambda *both: dict(enumerate(both)),
    "torchtitan": TitanContainer,
    "Megatron": Chained,
    "list of containers": lambda a, b: [TitanContainer(a), Chained(b)],
    "wrapped container": lambda *both: MegatronOptimizer(TitanContainer(*both)),
    "twice the same": lambda a, b: [a, b, a],
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_pass_two_optimizers_gives_the_same_two(way):
    both = pair()
    passed = WAYS[way](*both)
    assert optimizers_of(passed) == list(both)
    assert [owner for _, owner in Optimizers(passed).groups()] == list(both)
    for optimizer in both:
        group = optimizer.param_groups[0]
        assert owner_of(group, passed) is optimizer
        assert owner_of({**group, "lr": 0.5}, passed) is optimizer


def test_a_group_that_is_added_gets_the_next_number_and_no_other_changes():
    sgd, adamw = pair()
    optimizers = Optimizers([sgd, adamw])
    before = optimizers.groups()
    sgd.add_param_group({"params": [weight(5, 5)]})
    after = optimizers.groups()
    assert [group.options for group in after[:2]] == [group.options for group in before]
    assert after[2].options is sgd.param_groups[1]
    assert optimizers.numbers == {sgd: [0, 2], adamw: [1]}
    adamw.load_state_dict(adamw.state_dict())  # exchanges the dicts of the groups
    assert optimizers.groups()[1].options is adamw.param_groups[0]


@pytest.mark.parametrize("passed", [None, [], [torch.ones(2)], "AdamW"])
def test_what_is_no_optimizer_is_a_sentence(passed):
    with pytest.raises(ValueError, match="optimizer="):
        optimizers_of(passed)


def test_a_parameter_in_two_optimizers_is_an_error():
    sgd, _ = pair()
    again = torch.optim.AdamW(sgd.param_groups[0]["params"])
    with pytest.raises(ValueError, match=r"shape \(2, 3\) is in two of the optimizers \(SGD \+ AdamW\)"):
        Optimizers([sgd, again])


def test_a_group_of_none_of_them_is_an_error():
    with pytest.raises(ValueError, match="none of 2 optimizers"):
        owner_of({"params": [], "lr": 0.1}, pair())


def test_groups_say_by_three_flags_what_steps_them():
    assert algorithm_of({"use_muon": True, "lr": 1.0}) == "muon"
    assert algorithm_of({"kind": "AdamW"}) == "adamw"
    assert algorithm_of({"algorithm": "dion"}) == "dion"
    assert algorithm_of({"kind": 3}) is None


def test_weights_of_flagged_muon_groups_turn_as_matrices_and_their_neighbours_by_neuron():
    model = nn.ModuleDict({"a": nn.Linear(6, 4, bias=False), "b": nn.Linear(6, 4, bias=False)})
    groups = [{"params": [model.a.weight], "use_muon": True}, {"params": [model.b.weight], "use_muon": False}]
    # A class of a user's own, such as a copy of muon.py.
    mixed = type("MuonWithAuxAdam", (torch.optim.SGD,), {"step": lambda self, closure=None: None})
    both = mixed(groups, lr=0.1)
    assert {w.name: w.split.granularity for w in select(model, both)} == {"a.weight": "tensor", "b.weight": "neuron"}


def test_muon_takes_three_dimensions_for_a_stack_and_four_for_a_convolution_unless_told():
    stack, convolution = (8, 6, 4), (8, 3, 5, 5)
    assert matrix_split(stack, {}).num_vectors(stack) == 8
    assert matrix_split(convolution, {}).num_vectors(convolution) == 1
    assert matrix_split(stack, {"flatten": True}).num_vectors(stack) == 1
    assert matrix_split((2, 3, 6, 4), {"flatten": False}).num_vectors((2, 3, 6, 4)) == 6


def test_several_optimizers_measure_all_layers_in_the_models_order():
    model = nn.ModuleDict({"a": nn.Linear(6, 4), "wte": nn.Embedding(9, 6), "b": nn.Linear(6, 4)})
    sgd = torch.optim.SGD(model.b.parameters(), lr=0.1)
    adamw = torch.optim.AdamW([*model.wte.parameters(), *model.a.parameters()], weight_decay=0.1)
    layers = measured_layers(model, [sgd, adamw])
    assert [(layer.name, layer.decision.group) for layer in layers] == [
        ("a.weight", 1),
        ("wte.weight", 1),
        ("b.weight", 0),
    ]
