"""The lab's tasks: what the experiments assume of digits, text, the GPT, and the teacher and its student."""

import pytest
import torch
from torch import nn

from gyroscope.geometry import Split
from gyroscope.lab.ct import fig9
from gyroscope.lab.ct._text_training import TextTraining, qkv_layers
from gyroscope.lab.tasks import digits
from gyroscope.lab.tasks.teacher_student import TeacherStudent
from gyroscope.lab.tasks.text import standard_library


@pytest.fixture
def batch():
    return standard_library().batch(3, 8, torch.Generator().manual_seed(0))


def model(**options):
    return TextTraining(layers=2, heads=2, width=8, context=8).model(seed=1, **options)


def test_a_batch_asks_for_the_following_character(batch):
    now, following = batch
    assert now.shape == following.shape == (3, 8)
    assert torch.equal(now[:, 1:], following[:, :-1])


def test_a_character_does_not_see_the_future(batch):
    transformer, (now, _) = model(), batch
    other = now.clone()
    other[:, -1] = (other[:, -1] + 1) % 96
    assert torch.allclose(transformer(now)[:, :-1], transformer(other)[:, :-1], atol=1e-6)


@pytest.mark.parametrize("qk_norm", [True, False])
def test_with_qk_norm_each_heads_query_and_key_matrix_is_scale_invariant(qk_norm, batch):
    transformer = model(qk_norm=qk_norm).double()
    before = transformer.loss(*batch).item()
    with torch.no_grad():
        for layer in qkv_layers(transformer):
            layer.weight[4:12].mul_(3.0)  # the second head's queries, and the first head's keys
    assert (abs(transformer.loss(*batch).item() - before) < 1e-9) is qk_norm


def test_without_qk_norm_a_gradient_has_a_radial_part(batch):
    for qk_norm in (True, False):
        transformer = model(qk_norm=qk_norm).double()
        transformer.loss(*batch).backward()
        weight = next(qkv_layers(transformer)).weight
        grad = weight.grad[:16]  # of queries and keys; values follow
        radial = Split("group", group_size=4).dot(grad, weight.detach()[:16]).abs() / grad.norm()
        assert (radial < 1e-9).all().item() is qk_norm


def test_queries_and_keys_can_have_an_optimizer_of_their_own(batch):
    config = fig9.Config(layers=2, heads=2, width=8, context=8)
    transformer = config.model(seed=1)
    before = transformer.loss(*batch)
    adam, adam_s = fig9.optimizers_of(transformer, config, coarse=True)
    assert torch.equal(transformer.loss(*batch), before)
    rows = torch.cat([weight.detach().flatten() for weight in adam_s.param_groups[0]["params"]])
    assert torch.equal(rows, fig9.entries(transformer))
    assert len(rows) == 2 * 2 * 8 * 8  # layers, queries and keys
    counted = sum(weight.numel() for group in adam.param_groups for weight in group["params"])
    assert counted + len(rows) == sum(weight.numel() for weight in transformer.parameters())


def test_a_seed_makes_the_same_model():
    a, b = (nn.utils.parameters_to_vector(model().parameters()) for _ in range(2))
    assert torch.equal(a, b)


def test_the_teachers_loss_does_not_depend_on_norms_and_its_gradients_are_tangent():
    generator = torch.Generator().manual_seed(0)
    task = TeacherStudent.draw(3, 6, 20, generator)
    weight = torch.randn(3, 6, generator=generator, dtype=torch.float64)
    assert task.loss(weight * torch.tensor([[2.0], [0.5], [7.0]])).item() == pytest.approx(task.loss(weight).item())
    radial = (task.gradient(weight) * weight).sum(1).abs().max()
    assert radial < 1e-12
    assert len(task.part(15, 10).inputs) == 10


def test_every_digit_is_seen_once_an_epoch_but_for_an_unfilled_batch():
    train, test = digits.load()
    seen = torch.cat([batch.labels for batch in train.batches(128, 1, torch.Generator().manual_seed(0))])
    assert len(train.labels) + len(test.labels) == 1797
    assert len(seen) == len(train.labels) // 128 * 128
