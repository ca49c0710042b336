"""Saved states: what fits loads, and what does not is refused with a sentence before anything is changed."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.optim.lr_scheduler import OneCycleLR

import gyroscope as gyro
from gyroscope.optim import AdamS, KAdam, Lion, Rotational, RotationalAdamW, RotationalSGD, regrouped
from tests.optim.catalogue import every_optimizer, every_own

keeps_decay = pytest.mark.filterwarnings("ignore:weight_decay=.* is kept and the saved")


def trained(make, shapes=((4, 6), (6,)), seed=0):
    torch.manual_seed(seed)
    params = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    optimizer = make(params)
    for _ in range(2):
        for p in params:
            p.grad = torch.randn_like(p)
        optimizer.step()
    return params, optimizer


@every_optimizer
def test_another_number_of_groups_says_which_and_how_to_load_by_name(row):
    params, optimizer = trained(row.make)
    other = row.make([{"params": [p]} for p in params])
    message = r"saved state has 1 parameter groups \(of 2 parameters\) .* has 2 \(of 1, 1\).*set_optimizer_state_dict"
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(optimizer.state_dict())


@every_optimizer
def test_another_number_of_parameters_says_in_which_group(row):
    params, optimizer = trained(lambda params: row.make([{"params": params[:1]}, {"params": params[1:]}]))
    extra = nn.Parameter(torch.ones(3))
    other = row.make([{"params": params[:1]}, {"params": [*params[1:], extra]}])
    with pytest.raises(ValueError, match=r"group 1 of the saved state has 1 parameters and group 1 of this .* has 2"):
        other.load_state_dict(optimizer.state_dict())


@every_own
def test_a_transposed_state_is_refused_and_nothing_is_changed(row):
    _, optimizer = trained(row.make, ((6, 4),))
    params, other = trained(row.make, ((4, 6),), seed=1)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=r"of parameter 0 has shape \(.*\) in the saved state and \(.*\) in this"):
        other.load_state_dict(optimizer.state_dict())
    after = other.state_dict()
    for key, value in before["state"][0].items():
        assert torch.equal(after["state"][0][key], value)
    params[0].grad = torch.ones(4, 6)
    other.step()


@pytest.mark.parametrize(
    ("made_by", "loaded_into", "missing"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), RotationalAdamW, "exp_avg"),
        (lambda p: Lion(p), RotationalAdamW, "exp_avg_sq"),
        (lambda p: RotationalAdamW(p), lambda p: RotationalSGD(p, lr=0.1), "momentum_buffer"),
    ],
)
def test_the_state_of_another_rule_is_refused(made_by, loaded_into, missing):
    params, optimizer = trained(made_by)
    message = rf"parameter 0, of shape \(4, 6\), has no '{missing}', only .*another optimizer made it"
    with pytest.raises(ValueError, match=message):
        loaded_into(params).load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("loaded_into", [AdamS, KAdam])
def test_adams_second_moment_per_entry_is_not_taken_for_another(loaded_into):
    params, optimizer = trained(lambda p: torch.optim.Adam(p))
    with pytest.raises(ValueError, match=r"'exp_avg.*' of parameter 0 has shape"):
        loaded_into(params).load_state_dict(optimizer.state_dict())


@every_own
def test_a_state_loads_by_name_into_other_groups(row):
    def made(reverse):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
        layers = [net[1], net[0]] if reverse else [net[0], net[1]]
        optimizer = row.make([{"params": list(layer.parameters())} for layer in layers])
        return net, optimizer

    net, optimizer = made(reverse=False)
    net(torch.ones(2, 5)).square().mean().backward()
    optimizer.step()
    other_net, other = made(reverse=True)
    set_optimizer_state_dict(other_net, other, get_optimizer_state_dict(net, optimizer))
    for p, q in zip(net.parameters(), other_net.parameters(), strict=True):
        for key, value in optimizer.state[p].items():
            assert torch.equal(other.state[q][key], value)


@every_own
def test_loaded_moments_lie_in_memory_as_the_weights_do(row):
    params, optimizer = trained(row.make, ((4, 3, 5, 5),))
    weight = nn.Parameter(params[0].detach().to(memory_format=torch.channels_last))
    other = row.make([weight])
    other.load_state_dict(optimizer.state_dict())
    for value in other.state[weight].values():
        if value.shape == weight.shape:
            assert value.stride() == weight.stride()


def small_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 3))


def saved_adamw(net, groups, lr=1e-3):
    """The state of torch's AdamW after two steps of a network."""
    adamw = torch.optim.AdamW(groups, lr=lr)
    for step in range(2):
        torch.manual_seed(step)
        net(torch.randn(8, 6)).square().mean().backward()
        adamw.step()
        adamw.zero_grad()
    return adamw


def by_decay(net):
    named = list(net.named_parameters())
    decayed = [(name, p) for name, p in named if p.dim() > 1]
    others = [(name, p) for name, p in named if p.dim() < 2]
    return [{"params": decayed, "weight_decay": 0.2}, {"params": others, "weight_decay": 0.0}]


GROUPINGS = {
    "the same order": by_decay,
    "groups in another order": lambda net: by_decay(net)[::-1],
    "parameters in another order": lambda net: [{**group, "params": group["params"][::-1]} for group in by_decay(net)],
    "one group": lambda net: [{"params": list(net.named_parameters()), "weight_decay": 0.3}],
    "groups of the library": lambda net: gyro.param_groups(net, weight_decay=0.1),
    "a compiler's names": lambda net: [
        {**group, "params": [(f"_orig_mod.{name}", p) for name, p in group["params"]]} for group in by_decay(net)[::-1]
    ],
}


@keeps_decay
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("make", [RotationalAdamW, lambda groups: Rotational(torch.optim.AdamW(groups))])
def test_a_checkpoint_of_adamw_loads_by_name(make, grouping):
    net = small_net()
    adamw = saved_adamw(net, by_decay(net))
    groups = GROUPINGS[grouping](net)
    other = make(groups)
    other.load_state_dict(adamw.state_dict())
    for name, p in net.named_parameters():
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(other.state[p][key], adamw.state[p][key]), (name, key)
    names = [name for group in other.param_groups for name in group["param_names"]]
    assert sorted(name.removeprefix("_orig_mod.") for name in names) == sorted(dict(net.named_parameters()))
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    other.step()


@keeps_decay
def test_options_follow_their_group_and_are_kept_where_groups_are_cut_otherwise():
    net = small_net()
    adamw = saved_adamw(net, by_decay(net))
    for group in adamw.param_groups:
        group["lr"] = 2e-4  # as a schedule leaves it
    reordered = RotationalAdamW(by_decay(net)[::-1], lr=1e-3)
    reordered.load_state_dict(adamw.state_dict())
    assert [(group["lr"], group["weight_decay"]) for group in reordered.param_groups] == [(2e-4, 0.0), (2e-4, 0.2)]
    whole = saved_adamw(net, [{"params": list(net.named_parameters()), "weight_decay": 0.3, "betas": (0.8, 0.9)}])
    whole.param_groups[0]["lr"] = 2e-4
    cut = RotationalAdamW(gyro.param_groups(net, weight_decay=0.1), lr=1e-3)
    cut.load_state_dict(whole.state_dict())
    assert [(group["lr"], group["weight_decay"]) for group in cut.param_groups] == [(2e-4, 0.1), (2e-4, 0.0)]
    assert [group["betas"] for group in cut.param_groups] == [(0.8, 0.9)] * 2
    assert [group["granularity"] for group in cut.param_groups] == ["neuron", "none"]


@pytest.mark.parametrize("make", [RotationalAdamW, lambda groups: Rotational(torch.optim.AdamW(groups))])
def test_a_value_that_is_kept_gives_a_warning_with_both(make):
    net = small_net()
    whole = saved_adamw(net, [{"params": list(net.named_parameters()), "weight_decay": 0.3}])
    cut = make(gyro.param_groups(net, weight_decay=0.1))
    with pytest.warns(
        UserWarning, match=r"weight_decay=0\.1 is kept and the saved weight_decay=0\.3 is not loaded"
    ) as seen:
        cut.load_state_dict(whole.state_dict())
    assert len(seen) == 1
    assert [group["weight_decay"] for group in cut.param_groups] == [0.1, 0.0]


def test_values_that_some_saved_group_has_give_no_warning():
    net = small_net()
    whole = saved_adamw(net, [{"params": list(net.named_parameters()), "weight_decay": 0.1}])
    cut = RotationalAdamW(gyro.param_groups(net, weight_decay=0.1))
    cut.load_state_dict(whole.state_dict())
    joined = RotationalAdamW([{"params": list(net.named_parameters()), "weight_decay": 0.1}])
    joined.load_state_dict(cut.state_dict())
    assert joined.param_groups[0]["weight_decay"] == 0.1


def test_other_names_load_in_order_as_without_names():
    net = small_net()
    adamw = saved_adamw(net, by_decay(net))
    renamed = [{**group, "params": [(f"net.{n}", p) for n, p in group["params"]]} for group in by_decay(net)]
    other = RotationalAdamW(renamed)
    other.load_state_dict(adamw.state_dict())
    for p in net.parameters():
        assert torch.equal(other.state[p]["exp_avg"], adamw.state[p]["exp_avg"])
    with pytest.raises(ValueError, match="group 0 of the saved state has 3 parameters"):
        RotationalAdamW(renamed[::-1]).load_state_dict(adamw.state_dict())


def mlp():
    """Two groups of equally many tensors, as any network of linear layers has: weights and biases."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 6))


# What torch's AdamW was made of, and what is made to go on with its state.
SOURCES = {
    "parameters": lambda net: net.parameters(),
    "named parameters": lambda net: net.named_parameters(),
    "two groups": by_decay,
}
TARGETS = {
    "of a model": RotationalAdamW,
    "of named parameters": lambda net: RotationalAdamW(net.named_parameters()),
    "of parameters": lambda net: RotationalAdamW(net.parameters()),
    "of two groups": lambda net: RotationalAdamW(by_decay(net)),
    "wrapped, of parameters": lambda net: Rotational(torch.optim.AdamW(net.parameters(), weight_decay=0.1)),
    "wrapped, of named parameters": lambda net: Rotational(torch.optim.AdamW(net.named_parameters(), weight_decay=0.1)),
}
# Groups that are cut otherwise, and nothing says which parameter is which.
UNKNOWN = {
    ("parameters", "of two groups"),
    ("two groups", "of parameters"),
    ("two groups", "wrapped, of parameters"),
}


def assert_same_moments(optimizer, other, net):
    for name, p in net.named_parameters():
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert torch.equal(optimizer.state[p][key], other.state[p][key]), (name, key)


@keeps_decay
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_any_state_of_adamw_loads_or_is_refused_with_a_sentence(source, target):
    net = mlp()
    adamw = saved_adamw(net, SOURCES[source](net))
    adamw.param_groups[-1]["lr"] = 2e-4
    optimizer = TARGETS[target](net)
    if (source, target) in UNKNOWN:
        with pytest.raises(ValueError, match="To load by parameter name"):
            optimizer.load_state_dict(adamw.state_dict())
        return
    optimizer.load_state_dict(adamw.state_dict())
    assert_same_moments(optimizer, adamw, net)
    if len(adamw.param_groups) == 1:
        assert {group["lr"] for group in optimizer.param_groups} == {2e-4}
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()


@keeps_decay
@pytest.mark.parametrize("source", TARGETS)
@pytest.mark.parametrize("target", SOURCES)
def test_adamw_loads_what_it_gave_away(source, target):
    net = mlp()
    optimizer = TARGETS[source](net)
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    adamw = torch.optim.AdamW(SOURCES[target](net), lr=7e-4)
    adamw.register_load_state_dict_pre_hook(regrouped)
    sorted_source = source in ("of a model", "of named parameters")
    if (target, source) in UNKNOWN or (target == "parameters" and sorted_source):
        with pytest.raises(ValueError, match="To load by parameter name"):
            adamw.load_state_dict(optimizer.state_dict())
        return
    adamw.load_state_dict(optimizer.state_dict())
    assert_same_moments(optimizer, adamw, net)
    assert {group["lr"] for group in adamw.param_groups} == {1e-3}
    adamw.step()


@keeps_decay
def test_a_state_in_the_order_of_the_model_loads_after_a_copy_and_a_pickle_too():
    net = mlp()
    adamw = saved_adamw(net, net.parameters())
    for remade in (copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))):
        other_net, other = remade((net, RotationalAdamW(net)))
        other.load_state_dict(adamw.state_dict())
        for p, q in zip(net.parameters(), other_net.parameters(), strict=True):
            assert torch.equal(adamw.state[p]["exp_avg"], other.state[q]["exp_avg"])


@pytest.mark.parametrize("make", [Lion, KAdam, lambda named: KAdam(named, compile=False, betas=[(0.9, 0.99)] * 2)])
def test_what_does_not_sort_its_parameters_keeps_one_group(make):
    net = mlp()
    optimizer = make(net.named_parameters())
    assert [group["param_names"] for group in optimizer.param_groups] == [[name for name, _ in net.named_parameters()]]
    OneCycleLR(optimizer, [0.1], total_steps=10, cycle_momentum=False)
    net(torch.ones(2, 6)).square().mean().backward()
    optimizer.step()
    for params in (net.parameters(), net.named_parameters()):
        other = make(params)
        other.load_state_dict(optimizer.state_dict())
        again = make(net.named_parameters())
        again.load_state_dict(other.state_dict())
        for p in net.parameters():
            assert torch.equal(optimizer.state[p]["exp_avg"], again.state[p]["exp_avg"])
