"""The zoo: param_groups, plan, tracker, to_equilibrium_, EquilibriumRescale and optimizers agree on what turns."""

from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR

import gyroscope as gyro
from gyroscope.geometry import Split
from gyroscope.measure._pipeline.layers import find_layers
from gyroscope.model.parameters import model_parameters
from gyroscope.model.selection import Invariance, decide, select
from gyroscope.optim import EquilibriumRescale, to_equilibrium_
from tests.model.zoo import Conv1D, Experts, TransposedExperts, parameter_names, tied, untied
from tests.needs import needs_muon

ROWS = Split("neuron", 0)
COLUMNS = Split("neuron", 1)
EXPERTS = Split("neuron", (0, 1))
MATRIX = Split("tensor")


class Positions(nn.Module):
    """A ViT's class token and positions, written to broadcast, beside a matrix of unknown type."""

    def __init__(self):
        super().__init__()
        self.cls_token = nn.Parameter(torch.randn(1, 1, 4))
        self.positions = nn.Parameter(torch.randn(1, 5, 4))
        self.matrix = nn.Parameter(torch.randn(3, 4))


def half_frozen():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    return model


def compiled():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3))
    model[1] = torch.compile(model[1], backend="eager")
    return torch.compile(model, backend="eager")


def data_parallel():
    return DistributedDataParallel(nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)))


def sharded():
    model = nn.Sequential(nn.Embedding(5, 4), nn.ConvTranspose1d(4, 3, 2), nn.LayerNorm(3), nn.Linear(3, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


def sharded_experts():
    model = Experts()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    return model


# Name -> how to make the model, and what its types of layers say: name -> split.
ZOO = {
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv1d(4, 4, 3, groups=4)),
        {"0.weight": ROWS, "2.weight": ROWS},
    ),
    "transposed conv": (
        lambda: nn.Sequential(nn.ConvTranspose1d(4, 3, 2), nn.ConvTranspose2d(4, 3, 2)),
        {"0.weight": COLUMNS, "1.weight": COLUMNS},
    ),
    "transposed conv, grouped": (
        lambda: nn.Sequential(nn.ConvTranspose1d(4, 6, 2, groups=2), nn.ConvTranspose2d(4, 4, 3, groups=4)),
        {"0.weight": Split("group", 0, 2), "1.weight": ROWS},
    ),
    "embedding, linear, transposed conv": (
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.ConvTranspose1d(4, 3, 2)),
        {"1.weight": ROWS, "2.weight": COLUMNS},
    ),
    "Conv1D of Hugging Face": (lambda: Conv1D(6, 4), {"weight": COLUMNS}),
    "fused qkv": (lambda: nn.ModuleDict({"qkv": nn.Linear(4, 12)}), {"qkv.weight": ROWS}),
    "fused qkv of Hugging Face": (lambda: nn.ModuleDict({"c_attn": Conv1D(12, 4)}), {"c_attn.weight": COLUMNS}),
    "attention": (
        lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True),
        {"in_proj_weight": ROWS, "out_proj.weight": ROWS},
    ),
    "embeddings, tied": (tied, {"mix.weight": ROWS}),
    "embeddings, untied": (untied, {"mix.weight": ROWS, "head.weight": ROWS}),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.LayerNorm((4, 4))),
        {"0.weight": ROWS},
    ),
    "LSTM": (lambda: nn.LSTM(4, 3), {"weight_ih_l0": ROWS, "weight_hh_l0": ROWS}),
    "experts": (Experts, {"up_proj": EXPERTS, "w2": EXPERTS, "router": ROWS}),
    "experts, transposed": (TransposedExperts, {"gate_up_proj": ROWS, "down_proj": ROWS}),
    "experts, FSDP2": (sharded_experts, {"up_proj": EXPERTS, "w2": EXPERTS, "router": ROWS}),
    "positions": (Positions, {"matrix": ROWS}),
    "frozen": (half_frozen, {"1.weight": ROWS}),
    "weight norm": (
        lambda: nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(4, 3, 3)),
        {"parametrizations.weight.original1": COLUMNS},
    ),
    "gain": (lambda: gyro.nn.add_gain(nn.Linear(4, 3)), {"parametrizations.weight.original": ROWS}),
    "standardised, with a gain": (
        lambda: gyro.nn.add_gain(gyro.nn.standardise(nn.ConvTranspose2d(4, 3, 3))),
        {"parametrizations.weight.original": COLUMNS},
    ),
    "compiled": (compiled, {"1.weight": ROWS}),
    "DDP": (data_parallel, {"1.weight": ROWS}),
    "FSDP2": (sharded, {"1.weight": COLUMNS, "3.weight": ROWS}),
}


def bare(model):
    return model.parameters()


def groups(model):
    return gyro.param_groups(model, weight_decay=0.1)


ADAMW = {"lr": 1e-2, "weight_decay": 0.1}
SETTINGS = {
    "AdamW": lambda model, params: torch.optim.AdamW(params(model), **ADAMW),
    "Lion": lambda model, params: gyro.optim.Lion(params(model), **ADAMW),
    "RotationalAdamW": lambda model, params: gyro.optim.RotationalAdamW(params(model), **ADAMW),
    "Rotational(AdamW)": lambda model, params: gyro.optim.Rotational(torch.optim.AdamW(params(model), **ADAMW)),
    "AdamS": lambda model, params: gyro.optim.AdamS(params(model), lr=1e-2, weight_decay=0.1),
}
TURN_BY_GROUP = ("RotationalAdamW", "Rotational(AdamW)", "AdamS")
KEEP_NORMS = ("RotationalAdamW", "Rotational(AdamW)")


@pytest.fixture(scope="module", autouse=True)
def process_group(tmp_path_factory):
    """One process on gloo, for DDP and FSDP2."""
    store = tmp_path_factory.mktemp("gloo") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def whole(x):
    x = x.detach()
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).clone()


def expected(model, by_type, optimizer, params):
    """By type, or in an optimizer that turns what it gets: every tensor of two or more dimensions, along dim 0."""
    if optimizer not in TURN_BY_GROUP or params is groups:
        return by_type
    trained = [(name, p) for p, name in parameter_names(model).items() if p.requires_grad]
    return {name: ROWS for name, p in trained if ROWS.rotates(p.shape)}


def factors(model, before):
    """By name, the factor of each entry of each parameter that was rescaled."""
    changed = {}
    for p, name in parameter_names(model).items():
        ratio = whole(p).double() / before[name].double()
        if (ratio - 1).abs().max() > 1e-4:
            changed[name] = ratio
    return changed


def constant_within(split, ratio):
    mean = split.broadcast(split.mean(ratio), ratio.shape)
    return bool(((ratio / mean - 1).abs() < 1e-4).all())


cases = pytest.mark.parametrize(
    ("animal", "setting", "params"),
    [(animal, setting, params) for animal in ZOO for setting in SETTINGS for params in (bare, groups)],
    ids=lambda value: getattr(value, "__name__", value),
)


def made(animal, setting, params):
    torch.manual_seed(0)
    make, by_type = ZOO[animal]
    model = make()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)  # biases that start at zero could not be seen to be rescaled
            # Rows and columns of sizes of their own: a rescaling then shows along which of them it went.
            for dim, size in enumerate(p.shape[:2]):
                spread = torch.linspace(0.5, 2.0, size)
                p.mul_(_like(spread.reshape([-1 if d == dim else 1 for d in range(p.dim())]), p))
    optimizer = SETTINGS[setting](model, params)
    return model, optimizer, expected(model, by_type, setting, params)


def _like(values, p):
    if not hasattr(p, "device_mesh"):
        return values
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(values.expand(p.shape).contiguous(), p.device_mesh, p.placements)


@cases
def test_the_selection_is_by_type_or_as_the_optimizer_turns(animal, setting, params):
    model, optimizer, answer = made(animal, setting, params)
    assert {weight.name: weight.split for weight in select(model, optimizer)} == answer
    for decision in decide(model, optimizer):
        assert any(p is decision.parameter for p in optimizer.param_groups[decision.group]["params"])


@cases
def test_the_tracker_watches_the_selection(animal, setting, params):
    model, optimizer, answer = made(animal, setting, params)
    layers = [layer for layer in find_layers(model, optimizer) if layer.parameter.requires_grad]
    # Beside it, embeddings that decay; and fused weights in parts.
    watched = {layer.name.partition("[")[0]: layer.split for layer in layers if layer.vector != "token"}
    tokens = {layer.name: layer.split for layer in layers if layer.vector == "token"}
    assert {**watched, **{name: tokens[name] for name in tokens.keys() & answer.keys()}} == answer
    embeddings = {decision.name for decision in decide(model, optimizer) if decision.is_embedding}
    assert set(tokens) == (embeddings & set(answer) if params is groups else embeddings)


@cases
def test_a_plan_is_of_the_selection_and_of_embeddings_that_decay(animal, setting, params):
    model, optimizer, answer = made(animal, setting, params)
    initial = {name: whole(p) for p, name in parameter_names(model).items()}
    plan = gyro.plan(model, optimizer, steps=3)
    if params is bare:
        answer = {**answer, **{known.name: ROWS for known in model_parameters(model) if known.is_embedding}}
    assert set(plan.layers) == set(answer) - set(plan.missing)
    assert set(plan.missing) <= set(answer)
    for name, course in plan.layers.items():
        norms = answer[name].norm(initial[name]).double()
        assert course.initial_norm == pytest.approx(float(norms.square().mean().sqrt()), rel=1e-5)


@cases
def test_to_equilibrium_brings_the_selection_to_its_norm(animal, setting, params):
    model, optimizer, answer = made(animal, setting, params)
    before = {name: whole(p) for p, name in parameter_names(model).items()}
    to_equilibrium_(model, optimizer, unit_grad_norm=1.0)
    changed = factors(model, before)
    assert set(changed) == set(answer)
    after = {name: whole(p) for p, name in parameter_names(model).items()}
    for name, ratio in changed.items():
        norms = answer[name].norm(after[name])
        assert constant_within(answer[name], ratio)
        assert torch.allclose(norms, norms[:1].expand_as(norms), rtol=1e-4)


@cases
def test_a_new_lr_rescales_the_selection(animal, setting, params):
    model, optimizer, answer = made(animal, setting, params)
    schedule = StepLR(optimizer, 1, 0.25)
    if setting in KEEP_NORMS:
        with pytest.raises(ValueError, match="keeps norms fixed"):
            EquilibriumRescale(optimizer, schedule, model=model)
        return
    before = {name: whole(p) for p, name in parameter_names(model).items()}
    schedule = EquilibriumRescale(optimizer, schedule, model=model)
    optimizer.step()
    schedule.step()
    assert set(factors(model, before)) == set(answer)


@cases
def test_groups_rotate_the_selection(animal, setting, params):
    """Of a model without an optimizer, and what is frozen included: it may be thawed."""
    model, _, _ = made(animal, setting, params)
    selected = {weight.name: weight.split for weight in select(model, frozen=True)}
    by_group = {name: Split.of(group) for group in groups(model) for name in group["param_names"]}
    assert {name: split for name, split in by_group.items() if split.granularity != "none"} == selected
    trained = {known.name for known in model_parameters(model) if known.parameter.requires_grad}
    assert {name: split for name, split in selected.items() if name in trained} == ZOO[animal][1]


@pytest.mark.parametrize("params", [bare, groups])
@pytest.mark.parametrize("setting", KEEP_NORMS)
@pytest.mark.parametrize("animal", ZOO)
def test_rotational_optimizers_keep_the_norms_of_the_selection_and_of_nothing_else(animal, setting, params):
    model, optimizer, answer = made(animal, setting, params)
    for group in optimizer.param_groups:
        group["centre"] = False  # centring would change norms once
    names = parameter_names(model)
    before = {name: whole(p) for p, name in names.items()}
    for p in names:
        if p.requires_grad:
            p.grad = _like(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)), p)
    optimizer.step()
    for p, name in names.items():
        after = whole(p)
        assert torch.equal(after, before[name]) == (not p.requires_grad)
        if p.requires_grad and p.numel() > 1 and p.dim() > 0:
            split = answer.get(name, ROWS if p.dim() > 1 else MATRIX)
            kept = torch.allclose(split.norm(after), split.norm(before[name]), rtol=1e-5)
            assert kept == (name in answer)


@pytest.mark.parametrize("setting", ["AdamW", "RotationalAdamW"])
def test_a_run_has_the_layers_of_the_plan_in_the_models_order(setting, tmp_path):
    model, optimizer, _ = made("embedding, linear, transposed conv", setting, bare)
    # Of bare tensors it turns the embedding, and the convolution along its inputs, of which the tracker warns.
    warned = pytest.warns(RuntimeWarning, match="bare tensors") if setting == "RotationalAdamW" else nullcontext()
    with warned, gyro.Tracker(model, optimizer, tmp_path / "run") as tracker:
        assert tracker.run.layers == ["0.weight", "1.weight", "2.weight"]
    assert list(gyro.plan(model, optimizer, steps=2).layers) == ["0.weight", "1.weight", "2.weight"]


@needs_muon
def test_muon_turns_the_whole_matrix_in_selection_tracker_and_plan():
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False))
    for params in (bare, groups):
        muon = torch.optim.Muon(params(model), lr=1e-2, weight_decay=0.1)
        assert {weight.name: weight.split for weight in select(model, muon)} == {"0.weight": MATRIX, "1.weight": MATRIX}
        assert {layer.split for layer in find_layers(model, muon)} == {MATRIX}
        course = gyro.plan(model, muon, steps=2).layers["0.weight"]
        assert course.initial_norm == pytest.approx(float(model[0].weight.detach().norm()))
        assert all("as a whole" in weight.reason for weight in select(model, muon))


@needs_muon
def test_the_angle_of_a_rotational_muon_is_that_of_its_groups():
    """What the optimizer really turns is what its groups say, whatever the inner rule does by itself."""
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    muon = gyro.optim.Rotational(torch.optim.Muon(model.parameters(), lr=1e-2, weight_decay=0.1))
    assert [weight.split for weight in select(model, muon)] == [ROWS]
    assert [layer.split for layer in find_layers(model, muon)] == [ROWS]


def test_without_a_model_groups_decide_and_else_the_rule_of_bare_tensors():
    model = untied()
    named = {p: name for name, p in model.named_parameters()}

    def selected(params):
        weights = select(None, torch.optim.AdamW(params, weight_decay=0.1))
        return {named[weight.parameter]: weight.split for weight in weights}

    assert selected(groups(model)) == {"mix.weight": ROWS, "head.weight": ROWS}
    assert selected(model.parameters()) == {"wte.weight": ROWS, "mix.weight": ROWS, "head.weight": ROWS}
    assert selected([{"params": [model["wte"].weight], "granularity": "none"}, {"params": [model["mix"].weight]}]) == {
        "mix.weight": ROWS
    }
    names = [weight.name for weight in select(None, torch.optim.AdamW(model.named_parameters()))]
    assert names == ["wte.weight", "mix.weight", "head.weight"]
    with pytest.raises(ValueError, match="needs a model or an optimizer"):
        select(None)


def test_only_weights_of_the_model_that_the_optimizer_trains_are_selected():
    model = nn.Linear(4, 3)
    other = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW([other.weight, model.bias])
    assert [decision.name for decision in decide(model, optimizer)] == ["bias"]
    assert select(model, optimizer) == []


def test_an_override_and_a_probe_reach_tracker_and_plan():
    model = untied()
    overrides = {"wte": "neuron", "mix.weight": "tensor"}
    adamw = torch.optim.AdamW(gyro.param_groups(model, weight_decay=0.1, overrides=overrides))
    answer = {"wte.weight": ROWS, "mix.weight": MATRIX, "head.weight": ROWS}
    assert {weight.name: weight.split for weight in select(model, adamw)} == answer
    assert {layer.name: layer.split for layer in find_layers(model, adamw)} == answer
    assert set(gyro.plan(model, adamw, steps=2).layers) == set(answer)
    # A probe is more than the default that a type suggested, and less than a split that a user asked for.
    probe = {
        "mix.weight": Invariance("neuron", 1),
        "head.weight": Invariance("tensor"),
        "wte.weight": Invariance("none"),
    }
    probed = {"wte.weight": ROWS, "mix.weight": MATRIX, "head.weight": MATRIX}
    assert {weight.name: weight.split for weight in select(model, adamw, probe=probe)} == probed
    bare_adamw = torch.optim.AdamW(model.parameters())
    by_probe = {"mix.weight": COLUMNS, "head.weight": MATRIX}
    assert {weight.name: weight.split for weight in select(model, bare_adamw, probe=probe)} == by_probe
    turned = gyro.optim.RotationalAdamW(model.parameters())
    assert {weight.split for weight in select(model, turned, probe=probe)} == {ROWS}


def test_wrappers_are_taken_off_the_optimizer():
    model = untied()

    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer):
            self.optimizer = optimizer

    wrapped = Wrapper(gyro.optim.RotationalAdamW(model.parameters()))
    assert [weight.name for weight in select(model, wrapped)] == ["wte.weight", "mix.weight", "head.weight"]


def test_frozen_weights_are_selected_on_request_and_complex_ones_never():
    model = half_frozen()
    adamw = torch.optim.AdamW(model.parameters())
    assert [weight.name for weight in select(model, adamw)] == ["1.weight"]
    assert [weight.name for weight in select(model, adamw, frozen=True)] == ["0.weight", "1.weight"]
    waves = nn.Linear(4, 3, bias=False, dtype=torch.complex64)
    assert select(waves, torch.optim.AdamW(waves.parameters())) == []


@pytest.mark.parametrize(
    ("name", "shape", "turns"),
    [
        ("up_proj_bias", (3, 6), False),
        ("bias1", (3, 6), False),
        ("b2", (3, 4), False),
        ("up_b", (3, 6), False),
        ("router", (3, 4), True),
        ("b_gate", (3, 5), True),
    ],
)
def test_biases_of_experts_are_told_by_name_and_by_the_weight_beside_them(name, shape, turns):
    model = Experts()
    setattr(model, name, nn.Parameter(torch.ones(shape)))
    assert (name in {weight.name for weight in select(model)}) == turns
