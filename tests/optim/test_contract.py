"""What every optimizer honours, for every class in the catalogue."""

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn

from gyroscope.geometry import Split
from tests.optim.catalogue import (
    every_compiling,
    every_fixed,
    every_optimizer,
    every_own,
    every_rotational,
    every_turned_by_decay,
)


def model(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.LayerNorm(5)).to(dtype)


def train(net, optimizer, steps=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        x = torch.randn(6, 1, 4, 4, generator=generator).to(next(net.parameters()).dtype)
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def equal(a, b):
    """Nested states, bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return len(a) == len(b) and all(map(equal, a, b)) if isinstance(a, list | tuple) else a == b


@every_optimizer
def test_it_is_a_torch_optimizer_whose_options_live_in_the_groups(row):
    optimizer = row.make(model().parameters())
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert {"lr", "weight_decay", "granularity", "axis", "group_size"} <= set(optimizer.param_groups[0])


@every_optimizer
def test_construction_leaves_the_weights_alone(row):
    net = model()
    before = weights(net)
    row.make(net.parameters())
    assert same(before, weights(net))


@every_optimizer
def test_a_closure_is_run_with_gradients_and_its_loss_returned(row):
    net = model()
    optimizer = row.make(net.parameters())

    def closure():
        optimizer.zero_grad()
        loss = net(torch.ones(2, 1, 4, 4)).square().mean() + 1
        loss.backward()
        return loss

    assert optimizer.step(closure).item() >= 1
    assert optimizer.step() is None


@every_optimizer
def test_training_moves_every_weight_and_lowers_a_loss(row):
    net, x = model(), torch.randn(32, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    target = x.flatten(1)[:, :5].roll(1, 1)
    optimizer, before, losses = row.make(net.parameters()), weights(net), []
    for _ in range(80):
        optimizer.zero_grad()
        loss = (net(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert not any(torch.equal(a, b) for a, b in zip(before, weights(net), strict=True))
    assert losses[-1] < losses[0]


@every_optimizer
def test_gradients_are_never_written(row):
    net = model()
    train(net, optimizer := row.make(net.parameters()), 1)
    grads = [p.grad.clone() for p in net.parameters()]
    optimizer.step()
    assert same(grads, [p.grad for p in net.parameters()])


@every_optimizer
def test_a_parameter_without_gradient_is_skipped(row):
    net = model()
    optimizer = row.make(net.parameters())
    train(net, optimizer, 1)
    before = weights(net)
    for p in net.parameters():
        p.grad = None
    net[3].bias.grad = torch.ones(5)
    optimizer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, weights(net), strict=True)]
    assert moved == [False, False, False, True, False, False]
    assert optimizer.state[net[0].weight]["step"] == 1


@every_optimizer
def test_zero_gradients_at_lr_zero_change_nothing(row):
    net = model()
    optimizer = row.make(net.parameters(), lr=0.0)
    before = weights(net)
    for _ in range(3):
        for p in net.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    assert same(before, weights(net))


@every_own
@pytest.mark.parametrize(
    ("key", "meant"),
    [("learning_rate", "lr"), ("weight_decays", "weight_decay"), ("granularty", "granularity"), ("axes", "axis")],
)
def test_a_misspelt_option_is_an_error_that_names_the_one_that_is_meant(row, key, meant):
    w = nn.Parameter(torch.ones(2, 2))
    message = rf"has no option {key!r}, perhaps you mean {meant!r}: a group may set .*weight_decay"
    with pytest.raises(ValueError, match=message):
        row.make([{"params": [w], key: 1.0}])
    with pytest.raises(TypeError):
        row.make([w], learning_rate=1.0)


@every_optimizer
def test_keys_that_others_keep_in_groups_pass_and_stay(row):
    notes = {"lr_scale": 0.5, "label": "head", "max_momentum": 0.95, "base_lr": 1e-4, "layer": 3, "fused": None}
    net = model()
    optimizer = row.make([{"params": list(net.parameters()), **notes}])
    train(net, optimizer, 1)
    other = row.make([{"params": list(net.parameters()), "label": "other"}])
    other.load_state_dict(optimizer.state_dict())
    for key in notes.keys() - {"fused"}:
        assert other.param_groups[0][key] == notes[key]


@every_own
@pytest.mark.parametrize(("option", "value"), [("amsgrad", True), ("maximize", True), ("dampening", 0.1)])
def test_an_option_of_torchs_that_would_change_the_step_is_an_error(row, option, value):
    with pytest.raises(ValueError, match=rf"has no option '{option}', and the group sets {option}={value}: remove it"):
        row.make([{"params": [nn.Parameter(torch.ones(2, 2))], option: value}])


@every_optimizer
@pytest.mark.parametrize("lr", [-0.1, float("nan"), torch.tensor(-0.1)])
def test_a_bad_learning_rate_in_the_middle_of_a_run_is_a_clear_error_that_changes_nothing(row, lr):
    net = model()
    optimizer = row.make(net.parameters())
    train(net, optimizer, 1)
    before = weights(net)
    optimizer.param_groups[0]["lr"] = lr
    with pytest.raises(ValueError, match=r"lr=(-0\.1|nan).* must be a finite number, 0 or above: check the scheduler"):
        optimizer.step()
    assert same(before, weights(net))


@every_own
@pytest.mark.parametrize(
    ("option", "value"),
    [("lr", -1.0), ("lr", float("nan")), ("weight_decay", -0.1), ("granularity", "row"), ("axis", 0.5)],
)
def test_a_bad_value_is_an_error_that_quotes_it(row, option, value):
    w = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ValueError, match=f"{option}={value!r}"):
        row.make([{"params": [w], "granularity": "neuron", option: value}])


@every_own
def test_sparse_gradients_and_complex_weights_are_clear_errors(row):
    table = nn.Embedding(4, 3, sparse=True)
    optimizer = row.make(table.parameters())
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(RuntimeError, match="sparse=False"):
        optimizer.step()
    with pytest.raises(ValueError, match="view_as_real"):
        row.make([nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))])


@every_optimizer
def test_a_group_added_later_trains_with_its_own_options(row):
    net = model()
    optimizer = row.make(net[0].parameters())
    train(net, optimizer, 2)
    optimizer.add_param_group({"params": list(net[3].parameters()), "lr": 0.0})
    before = weights(net[3])
    train(net, optimizer, 2)
    assert same(before, weights(net[3]))
    assert optimizer.state[net[3].weight]["step"] == 2
    with pytest.raises(ValueError, match="weight_decay=-1"):
        optimizer.add_param_group({"params": list(net[4].parameters()), "weight_decay": -1})
    assert len(optimizer.param_groups) == 2


def through_file(x):
    file = io.BytesIO()
    torch.save(x, file)
    file.seek(0)
    return torch.load(file)


@every_optimizer
@pytest.mark.parametrize("carry", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), through_file])
def test_a_saved_run_goes_on_bit_for_bit(row, carry):
    net = model()
    optimizer = row.make(net.parameters())
    train(net, optimizer, 3)
    saved, saved_net = carry(optimizer.state_dict()), carry(net.state_dict())
    other = model(seed=5)
    resumed = row.make(other.parameters(), lr=1e-5)
    other.load_state_dict(saved_net)
    resumed.load_state_dict(saved)
    assert equal(resumed.state_dict(), optimizer.state_dict())
    train(net, optimizer, 3, seed=2)
    train(other, resumed, 3, seed=2)
    assert same(weights(net), weights(other))


@every_optimizer
def test_the_optimizer_itself_pickles_and_copies(row):
    net = model()
    optimizer = row.make(net.parameters())
    train(net, optimizer, 2)
    for carry in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        other, twin = carry((net, optimizer))
        train(other, twin, 2, seed=2)
        again, first = copy.deepcopy((net, optimizer))
        train(again, first, 2, seed=2)
        assert same(weights(other), weights(again))


@every_optimizer
def test_state_survives_a_change_of_dtype(row):
    net = model()
    optimizer = row.make(net.parameters())
    train(net, optimizer, 3)
    low = model(torch.bfloat16)
    other = row.make(low.parameters())
    other.load_state_dict(optimizer.state_dict())
    for p, q in zip(net.parameters(), low.parameters(), strict=True):
        # An optimizer of torch's keeps its own moments in the weights' dtype.
        kept = {"radius", "update_sq"} if row.wraps else set(optimizer.state[p])
        for key in kept & optimizer.state[p].keys():
            assert other.state[q][key].dtype == torch.float32
            assert torch.equal(other.state[q][key], optimizer.state[p][key])
        assert other.state[q]["step"] == 3


@every_optimizer
def test_the_learning_rate_may_be_a_tensor(row):
    results = []
    for wrap in (float, lambda lr: torch.tensor(lr, dtype=torch.float64)):
        net = model(torch.float64)
        optimizer = row.make(net.parameters(), lr=wrap(1e-3))
        train(net, optimizer, 3)
        results.append(weights(net))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@every_optimizer
@pytest.mark.parametrize("shape", [(1,), (1, 1)])
def test_the_learning_rate_may_be_a_tensor_with_one_element_and_dimensions(row, shape):
    results = []
    for lr in (torch.tensor(1e-3, dtype=torch.float64), torch.full(shape, 1e-3, dtype=torch.float64)):
        net = model(torch.float64)
        optimizer = row.make(net.parameters(), lr=1e-3)
        optimizer.param_groups[0]["lr"] = lr
        train(net, optimizer, 3)
        results.append(weights(net))
    assert same(*results)


@every_optimizer
def test_schedulers_steer_it(row):
    net = model()
    optimizer = row.make(net.parameters())
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for _ in range(4):
        train(net, optimizer, 1)
        scheduler.step()
    before = weights(net)
    assert optimizer.param_groups[0]["lr"] == 0
    train(net, optimizer, 1)
    assert same(before, weights(net))


@every_optimizer
def test_a_grad_scaler_skips_a_step_with_infinite_gradients(row):
    net = model()
    optimizer, scaler = row.make(net.parameters()), torch.amp.GradScaler("cpu", init_scale=4.0)
    loss = net(torch.ones(2, 1, 4, 4)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    before = weights(net)
    net[0].weight.grad[0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    assert same(before, weights(net))


@pytest.mark.compile
@every_optimizer
def test_a_compiled_model_trains_with_it(row):
    net = model()
    train(torch.compile(net, backend="eager"), row.make(net.parameters()), 2)
    twin = model()
    train(twin, row.make(twin.parameters()), 2)
    assert same(weights(net), weights(twin))


@pytest.mark.compile
@every_optimizer
@pytest.mark.filterwarnings("ignore:Dynamo")
def test_a_step_that_is_compiled_from_outside_is_the_same_step(row):
    nets = model(), model()
    for net, wrap in zip(
        nets, (lambda step: torch.compile(lambda: step(), backend="eager"), lambda step: step), strict=True
    ):
        step = wrap(row.make(net.parameters()).step)
        for _ in range(3):
            net.zero_grad()
            net(torch.ones(2, 1, 4, 4)).square().mean().backward()
            step()
    assert same(*map(weights, nets))


@every_optimizer
def test_state_is_the_moments_and_three_values_per_vector_at_most(row):
    net = model()
    optimizer = row.make(net.parameters())
    train(net, optimizer, 1)
    for p, vectors in ((net[0].weight, 4), (net[3].weight, 5), (net[3].bias, 5)):
        sizes = [v.numel() for k, v in optimizer.state[p].items() if k != "step"]
        assert sum(sizes) <= row.moments * p.numel() + 3 * vectors


@every_optimizer
def test_layouts_do_not_matter(row):
    torch.manual_seed(0)
    w, g = torch.randn(2, 4, 6, 3, 3, dtype=torch.float64)
    results = []
    for change in (
        lambda x: x.clone(),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
        lambda x: torch.stack([x, x], -1)[..., 0],
    ):
        for change_g in (lambda x: x, change):
            p = nn.Parameter(change(w))
            p.grad = change_g(g)
            optimizer = row.make([p])
            for _ in range(3):
                optimizer.step()
            results.append(p.detach().clone().contiguous())
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*weights are zero")
@every_optimizer
def test_one_entry_vectors_zero_vectors_scalars_and_empty_tensors_never_give_nan(row):
    shapes = [(3, 1), (4, 3), (), (0, 3), (3, 0), (1,), (2, 2)]
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
    parameters[-1] = nn.Parameter(torch.ones(2, 2))
    optimizer = row.make(parameters)
    for step in range(4):
        for p in parameters:
            p.grad = torch.full_like(p, 0.1 * (step % 3))
        optimizer.step()
    assert all(p.isfinite().all() for p in parameters)


@every_rotational
def test_a_zero_vector_takes_the_plain_step_at_every_step(row):
    torch.manual_seed(0)
    w = torch.randn(3, 8)
    w[1] = 0
    turned, plain = nn.Parameter(w.clone()), nn.Parameter(w.clone())
    optimizers = [row.make([turned]), row.make([{"params": [plain], "granularity": "none"}])]
    for _ in range(4):
        g = torch.randn(3, 8)
        for p, optimizer in zip((turned, plain), optimizers, strict=True):
            p.grad = g.clone()
            optimizer.step()
    torch.testing.assert_close(turned[1], plain[1])
    assert not torch.allclose(turned[0], plain[0], rtol=1e-4)


@every_turned_by_decay
def test_weight_decay_zero_is_an_error_only_where_something_rotates(row):
    w, b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))
    row.make([b], weight_decay=0.0)
    row.make([{"params": [w], "granularity": "none"}], weight_decay=0.0)
    with pytest.raises(ValueError, match="weight_decay=0 in a group that rotates"):
        row.make([w], weight_decay=0.0)


@every_fixed
@pytest.mark.parametrize(
    "options", [{}, {"axis": 1}, {"granularity": "tensor"}, {"granularity": "group", "group_size": 2}]
)
def test_each_split_keeps_its_own_norms(row, options):
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(4, 6, 3))
    optimizer, split = row.make([{"params": [p], **options}]), Split.of(options)
    norms = split.norm(p.detach())
    for _ in range(5):
        p.grad = torch.randn_like(p)
        before = p.detach().clone()
        optimizer.step()
        assert (split.angle(before, p.detach()) > 1e-4).all()
    torch.testing.assert_close(split.norm(p.detach()), norms)
    torch.testing.assert_close(split.mean(p.detach()), torch.zeros_like(norms), atol=1e-6, rtol=0)


@every_fixed
def test_weights_replaced_from_outside_are_turned_at_their_own_norm(row):
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(4, 16))
    optimizer = row.make([p])
    for _ in range(3):
        p.grad = torch.randn_like(p)
        optimizer.step()
    with torch.no_grad():
        p.copy_(3 * torch.randn(4, 16) + 1)
    norms = p.detach().norm(dim=1)
    for _ in range(3):
        p.grad = torch.randn_like(p)
        optimizer.step()
    torch.testing.assert_close(p.detach().norm(dim=1), norms)
    torch.testing.assert_close(p.detach().mean(1), torch.zeros(4), atol=1e-6, rtol=0)


@every_compiling
def test_low_precision_weights_that_would_lose_their_updates_give_one_warning(row):
    net = model(torch.bfloat16)
    optimizer = row.make(net.parameters(), lr=1e-6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(net, optimizer, 3)
    assert sum("stochastic_rounding=True" in str(w.message) for w in caught) == 1


@every_optimizer
def test_channels_last_and_contiguous_training_differ_only_by_the_order_of_sums(row):
    """In float32 the two drift apart; in float64 what is left after 30 steps is rounding."""
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Conv2d(8, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(16, 5)
        )
        net = net.double().to(memory_format=layout)
        optimizer = row.make(net.parameters())
        generator = torch.Generator().manual_seed(1)
        for _ in range(30):
            x = torch.randn(8, 3, 6, 6, generator=generator, dtype=torch.float64).to(memory_format=layout)
            optimizer.zero_grad()
            (net(x) - x.mean(dim=(2, 3)).sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
        results.append([p.detach().clone().contiguous() for p in net.parameters()])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9)


@every_optimizer
def test_a_gradient_that_is_not_a_number_shows_in_the_weights(row):
    torch.manual_seed(0)
    p = nn.Parameter(torch.randn(4, 8))
    optimizer = row.make([p])
    for step in range(4):
        p.grad = torch.randn(4, 8)
        if step == 1:
            p.grad[2] = float("nan")
        optimizer.step()
    assert p[2].isnan().any()
    assert p[[0, 1, 3]].isfinite().all() or row.whole
