"""What torch expects of an optimizer, for every class of `gyroscope.optim` and every way to make one."""

import copy
import io
import pickle
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR

from gyroscope import optim
from outside.tally import Tally, require

Optimizer = torch.optim.Optimizer
Make = Callable[..., Optimizer]
# Every class with settings of which nothing is zero.
CLASSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "RotationalAdamW": (optim.RotationalAdamW, {"lr": 2e-3, "weight_decay": 0.1}),
    "RotationalSGD": (optim.RotationalSGD, {"lr": 0.1, "weight_decay": 1e-3}),
    "RotationalLion": (optim.RotationalLion, {"lr": 2e-4, "weight_decay": 1.0}),
    "Lion": (optim.Lion, {"lr": 2e-4, "weight_decay": 1.0}),
    "AdamS": (optim.AdamS, {"lr": 2e-3, "weight_decay": 0.1}),
    "AdamSRT": (optim.AdamSRT, {"lr": 2e-3, "weight_decay": 0.1}),
    "SGDMRT": (optim.SGDMRT, {"lr": 0.1, "weight_decay": 1e-3}),
    "SphericalAdam": (optim.SphericalAdam, {"lr": 1e-2}),
    "KAdam": (optim.KAdam, {"lr": 2e-3, "weight_decay": 0.1}),
}
# Those that treat all parameters alike, and so make one group of named parameters. A model is sorted in any case.
UNSORTED = ("Lion", "KAdam")
WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "parameters": lambda model: model.parameters(),
    "named_parameters": lambda model: model.named_parameters(),
    "model": lambda model: model,
}


def network() -> nn.Sequential:
    """Return a network with as many biases and gains as matrices in it, so that groups can have equal sizes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def backward(model: nn.Module, seed: int) -> torch.Tensor:
    """Compute fresh gradients, and return the loss."""
    batch = torch.randn(8, 6, generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    return loss


def train(model: nn.Module, optimizer: Optimizer, seeds: Iterable[int]) -> None:
    """Take one step per seed."""
    for seed in seeds:
        backward(model, seed)
        optimizer.step()


def weights(model: nn.Module) -> list[torch.Tensor]:
    """Return copies of all parameters."""
    return [p.detach().clone() for p in model.parameters()]


def require_same(first: Iterable[torch.Tensor], second: Iterable[torch.Tensor], message: str) -> None:
    """Raise unless all tensors are the same bits."""
    require(all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), message)


def sorts(name: str, way: str) -> bool:
    """Return whether a class that is made in this way sorts its parameters into several groups."""
    return way == "model" or (way == "named_parameters" and name not in UNSORTED)


def check(tally: Tally) -> None:
    """Run every behaviour on every class and way, and load every state into every way."""
    for (name, (cls, options)), way in product(CLASSES.items(), WAYS):

        def make(model: nn.Module, cls: Any = cls, options: Any = options, way: str = way, **more: Any) -> Optimizer:
            optimizer: Optimizer = cls(WAYS[way](model), **{**options, **more})
            return optimizer

        for behaviour in BEHAVIOURS:
            with tally.attempt(f"{name}({way}): {behaviour.__name__}"):
                behaviour(make)
        if not sorts(name, way):
            with tally.attempt(f"{name}({way}): OneCycleLR with a list of one rate"):
                OneCycleLR(make(network()), [0.1], total_steps=10, cycle_momentum=False)
    for (name, (cls, options)), source, target in product(CLASSES.items(), WAYS, WAYS):
        # Sorted groups without names do not tell which parameter is which: a sentence is all one can ask for.
        knows = not sorts(name, source) or target != "parameters"
        with tally.attempt(f"{name}: state from {source} into {target}"):
            moves_between_ways(cls, options, source, target, knows)
    for source, target in product(WAYS, WAYS):
        if source != "model":  # torch's optimizers do not take one
            with tally.attempt(f"torch's AdamW({source}) into RotationalAdamW({target})"):
                loads_from_adamw(source, target)
        if target != "model":
            with tally.attempt(f"RotationalAdamW({source}) into torch's AdamW({target})"):
                loads_into_adamw(source, target)


def closure_is_called_and_its_loss_returned(make: Make) -> None:
    """The closure runs once with gradients enabled, also under no_grad."""
    model = network()
    optimizer = make(model)
    calls = []

    def closure() -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        return backward(model, 0)

    before = weights(model)
    with torch.no_grad():
        loss: Any = optimizer.step(closure)
    require(calls == [True], f"closure calls {calls}")
    require(loss == backward_of(before), "another loss than the closure's")


def backward_of(values: list[torch.Tensor]) -> torch.Tensor:
    """Return the loss of the network with these weights."""
    model = network()
    with torch.no_grad():
        for p, value in zip(model.parameters(), values, strict=True):
            p.copy_(value)
    return backward(model, 0)


def state_round_trips(make: Make, through: Callable[[Any], Any] = lambda state: state) -> None:
    """A state goes on in another optimizer, bit for bit."""
    model = network()
    optimizer = make(model)
    train(model, optimizer, range(3))
    other = network()
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    resumed = make(other)
    resumed.load_state_dict(through(optimizer.state_dict()))
    train(model, optimizer, range(3, 6))
    train(other, resumed, range(3, 6))
    require_same(weights(model), weights(other), "other weights after three more steps")


def state_round_trips_through_deepcopy(make: Make) -> None:
    """A deep copy of the state goes on."""
    state_round_trips(make, copy.deepcopy)


def state_round_trips_through_pickle(make: Make) -> None:
    """A pickled state goes on."""
    state_round_trips(make, lambda state: pickle.loads(pickle.dumps(state)))


def state_round_trips_through_torch_save(make: Make) -> None:
    """A saved state goes on, and contains nothing but tensors and plain values."""

    def through(state: Any) -> Any:
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    state_round_trips(make, through)


def optimizer_copies_with_its_model(make: Make, remake: Callable[[Any], Any] = copy.deepcopy) -> None:
    """A copy of model and optimizer trains as they do, and apart from them."""
    model = network()
    optimizer = make(model)
    train(model, optimizer, range(2))
    other, copied = remake((model, optimizer))
    train(model, optimizer, range(2, 4))
    train(other, copied, range(2, 4))
    require_same(weights(model), weights(other), "the copy has other weights")


def optimizer_pickles_with_its_model(make: Make) -> None:
    """The same for a pickle."""
    optimizer_copies_with_its_model(make, lambda pair: pickle.loads(pickle.dumps(pair)))


def groups_hold_every_parameter_once(make: Make) -> None:
    """All parameters are in the groups, and every group has a learning rate."""
    model = network()
    groups = make(model).param_groups
    members = [id(p) for group in groups for p in group["params"]]
    require(sorted(members) == sorted(id(p) for p in model.parameters()), "missing or repeated parameters")
    require(all("lr" in group for group in groups), "no lr in a group")


def groups_can_be_added(make: Make) -> None:
    """A group that is added later learns at its own rate."""
    model = network()
    optimizer = make(model)
    train(model, optimizer, range(2))
    extra = nn.Parameter(torch.randn(3, 4))
    member: Any = [("extra", extra)] if "param_names" in optimizer.param_groups[0] else [extra]
    optimizer.add_param_group({"params": member, "lr": 1e-3})
    before = extra.detach().clone()
    extra.grad = torch.ones(3, 4) * torch.arange(4)
    optimizer.step()
    require(optimizer.param_groups[-1]["lr"] == 1e-3, "another lr")
    require(not torch.equal(before, extra), "the added parameter did not move")


def options_of_groups_count(make: Make) -> None:
    """A learning rate of 0 in every group stops all weights after the first steps."""
    model = network()
    optimizer = make(model)
    train(model, optimizer, range(2))
    before = weights(model)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, range(2, 4))
    require_same(before, weights(model), "weights moved at lr=0")


def unknown_options_are_errors(make: Make) -> None:
    """A misspelled option does not pass silently."""
    try:
        make(network(), weight_dekay=0.1)
    except TypeError:
        return
    raise AssertionError("weight_dekay was accepted")


def learning_rate_may_be_a_tensor(make: Make) -> None:
    """A tensor gives the numbers that a float gives, to rounding."""
    model, other = network(), network()
    optimizer = make(model)
    lr = optimizer.param_groups[0]["lr"]
    train(model, optimizer, range(3))
    train(other, make(other, lr=torch.tensor(lr)), range(3))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def one_cycle_schedule(make: Make) -> None:
    """OneCycleLR sets the rates, and training goes on."""
    model = network()
    optimizer = make(model)
    scheduler = OneCycleLR(optimizer, 0.01, total_steps=5, cycle_momentum="betas" in optimizer.defaults)
    for seed in range(5):
        train(model, optimizer, [seed])
        if seed < 4:
            scheduler.step()
    require(all(torch.isfinite(w).all() for w in weights(model)), "weights that are not finite")
    require(optimizer.param_groups[0]["lr"] < 1e-6, "the schedule did not reach the optimizer")


def cosine_schedule(make: Make) -> None:
    """CosineAnnealingLR ends at 0, and a scheduler's state goes on."""
    model = network()
    optimizer = make(model)
    scheduler = CosineAnnealingLR(optimizer, T_max=4)
    for seed in range(4):
        train(model, optimizer, [seed])
        scheduler.step()
    before = weights(model)
    train(model, optimizer, [9])
    require(abs(optimizer.param_groups[0]["lr"]) < 1e-12, "the schedule does not end at 0")
    for p, q in zip(before, weights(model), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def zero_gradients_at_rate_zero_change_nothing(make: Make) -> None:
    """From the first step on, not a bit of any weight changes."""
    model = network()
    optimizer = make(model, lr=0.0)
    before = weights(model)
    for _ in range(3):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    require_same(before, weights(model), "weights changed")


def parameters_without_gradient_are_skipped(make: Make) -> None:
    """A parameter without gradient neither moves nor gets a state."""
    model = network()
    optimizer = make(model)
    backward(model, 0)
    frozen = model[0].weight
    frozen.grad = None
    before = weights(model)
    optimizer.step()
    after = weights(model)
    require(torch.equal(before[0], after[0]), "a parameter without gradient moved")
    require(not optimizer.state.get(frozen), "a parameter without gradient has a state")
    require(not torch.equal(before[1], after[1]), "nothing moved")


def gradients_are_not_written(make: Make) -> None:
    """p.grad has the same bits after the step."""
    model = network()
    optimizer = make(model)
    backward(model, 0)
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    optimizer.step()
    require_same(before, [p.grad for p in model.parameters() if p.grad is not None], "a gradient was written")


def sparse_gradients_are_a_clear_error(make: Make) -> None:
    """The message says what is wrong."""
    model = nn.Sequential(nn.Embedding(5, 4, sparse=True), nn.Linear(4, 3))
    optimizer = make(model)
    model(torch.tensor([1, 2])).sum().backward()
    try:
        optimizer.step()
    except (RuntimeError, ValueError) as error:
        require("sparse" in str(error), f"unclear: {error}")
        return
    raise AssertionError("sparse gradients were accepted")


def weights_are_not_touched_before_the_first_step(make: Make) -> None:
    """Making an optimizer changes no weight."""
    model = network()
    before = weights(model)
    make(model)
    require_same(before, weights(model), "weights changed")


BEHAVIOURS: list[Callable[[Make], None]] = [
    closure_is_called_and_its_loss_returned,
    state_round_trips,
    state_round_trips_through_deepcopy,
    state_round_trips_through_pickle,
    state_round_trips_through_torch_save,
    optimizer_copies_with_its_model,
    optimizer_pickles_with_its_model,
    groups_hold_every_parameter_once,
    groups_can_be_added,
    options_of_groups_count,
    unknown_options_are_errors,
    learning_rate_may_be_a_tensor,
    one_cycle_schedule,
    cosine_schedule,
    zero_gradients_at_rate_zero_change_nothing,
    parameters_without_gradient_are_skipped,
    gradients_are_not_written,
    sparse_gradients_are_a_clear_error,
    weights_are_not_touched_before_the_first_step,
]


def require_same_state(model: nn.Module, first: Optimizer, second: Optimizer, keys: Iterable[str] = ()) -> None:
    """Raise unless every parameter has the same state in both, or the same values of some keys."""
    for name, p in model.named_parameters():
        for key in keys or first.state[p]:
            a, b = first.state[p][key], second.state[p][key]
            same = torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            require(same, f"{key} of {name} is another one")


def load_if_known(optimizer: Optimizer, state: dict[str, Any], known: bool) -> bool:
    """Load a state, or check that one which cannot be matched is refused. Return whether it was loaded."""
    if known:
        optimizer.load_state_dict(state)
        return True
    try:
        optimizer.load_state_dict(state)
    except ValueError as error:
        require("name" in str(error), f"no remedy: {error}")
        return False
    raise AssertionError("a state was loaded although its order is unknown")


def moves_between_ways(cls: Any, options: Any, source: str, target: str, known: bool) -> None:
    """A state goes from an optimizer made in one way to one made in another."""
    model = network()
    optimizer = cls(WAYS[source](model), **options)
    train(model, optimizer, range(2))
    other = cls(WAYS[target](model), **options)
    if load_if_known(other, optimizer.state_dict(), known):
        require_same_state(model, optimizer, other)
        train(model, other, [2])


def loads_from_adamw(source: str, target: str) -> None:
    """Moments of torch's AdamW arrive at their parameters."""
    model = network()
    adamw = torch.optim.AdamW(WAYS[source](model))
    train(model, adamw, range(2))
    optimizer = optim.RotationalAdamW(WAYS[target](model))
    optimizer.load_state_dict(adamw.state_dict())
    require_same_state(model, adamw, optimizer, ("exp_avg", "exp_avg_sq", "step"))
    train(model, optimizer, [2])


def loads_into_adamw(source: str, target: str) -> None:
    """The moments return to torch's AdamW, with the library's hook where groups are cut otherwise."""
    model = network()
    optimizer = optim.RotationalAdamW(WAYS[source](model))
    train(model, optimizer, range(2))
    adamw = torch.optim.AdamW(WAYS[target](model))
    if source != "parameters":
        adamw.register_load_state_dict_pre_hook(optim.regrouped)
    if load_if_known(adamw, optimizer.state_dict(), known=source == "parameters" or target != "parameters"):
        require_same_state(model, optimizer, adamw, ("exp_avg", "exp_avg_sq", "step"))
        train(model, adamw, [2])
