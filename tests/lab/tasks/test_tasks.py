"""The lab's tasks: what the experiments assume of digits, text, number words, the GPT, a teacher and its student."""

import pytest
import torch
from gyroscope_lab.ct import fig9
from gyroscope_lab.ct._text_training import TextTraining, qkv_layers
from gyroscope_lab.networks.transformer import PADDING
from gyroscope_lab.tasks import digits
from gyroscope_lab.tasks.teacher_student import TeacherStudent
from gyroscope_lab.tasks.text import standard_library
from gyroscope_lab.tasks.translation import END, english, german, number_words
from torch import nn

from gyroscope.geometry import Split


@pytest.fixture
def batch():
    return standard_library().batch(3, 8, torch.Generator().manual_seed(0))


def model(**options):
    return TextTraining(layers=2, heads=2, width=8, context=8).model(seed=1, **options)


def test_the_targets_of_a_batch_are_the_following_characters(batch):
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


@pytest.mark.parametrize(
    ("number", "in_german", "in_english"),
    [
        (0, "null", "zero"),
        (1, "eins", "one"),
        (12, "zwölf", "twelve"),
        (16, "sechzehn", "sixteen"),
        (17, "siebzehn", "seventeen"),
        (21, "einundzwanzig", "twenty-one"),
        (30, "dreißig", "thirty"),
        (100, "einhundert", "one hundred"),
        (101, "einhunderteins", "one hundred and one"),
        (243, "zweihundertdreiundvierzig", "two hundred and forty-three"),
        (1000, "eintausend", "one thousand"),
        (1001, "eintausendeins", "one thousand and one"),
        (21_300, "einundzwanzigtausenddreihundert", "twenty-one thousand three hundred"),
        (101_011, "einhunderteintausendelf", "one hundred and one thousand and eleven"),
        (
            660_770,
            "sechshundertsechzigtausendsiebenhundertsiebzig",
            "six hundred and sixty thousand seven hundred and seventy",
        ),
        (
            999_999,
            "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
            "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
        ),
    ],
)
def test_numbers_are_spelt_in_both_languages(number, in_german, in_english):
    assert (german(number), english(number)) == (in_german, in_english)


def test_no_two_numbers_have_the_same_words():
    numbers = [*range(3000), *range(3000, 1_000_000, 997)]
    for spell in (german, english):
        assert len({spell(number) for number in numbers}) == len(numbers)


def test_numbers_held_out_are_never_learnt():
    task = number_words()
    learnt = set(task.train.sources)
    assert len(learnt) == len(task.train)
    assert learnt.isdisjoint(task.validation.sources)
    assert set(task.train.targets).isdisjoint(task.validation.targets)


def test_a_batch_of_sentences_is_filled_up_behind_their_ends():
    sentences = number_words().train
    lengths = [len(target) for target in sentences.targets]
    short, long = lengths.index(min(lengths)), lengths.index(max(lengths))
    source, target = sentences.batch([short, long])
    assert target.shape == (2, max(lengths) + 2)
    assert target[0, 0] == target[0, min(lengths) + 1] == target[1, -1] == END
    assert (target[0, min(lengths) + 2 :] == PADDING).all()
    assert not (target[1] == PADDING).any()
    characters = {number: character for character, number in sentences.numbers.items()}
    assert "".join(characters[i] for i in target[0, 1 : min(lengths) + 1].tolist()) == sentences.targets[short]
    assert source[0, len(sentences.sources[short])] == END
