"""Groups without names in a model's order, against every interleaving there is."""

import random

import pytest

from gyroscope.checkpoint.files.group_interleaving import AmbiguousGroupsError, interleave

SHAPES = [(2, 2), (3, 2), (4, 4), (2,), (3,), (4,), (5, 5)]


def all_answers(shapes, groups) -> set:
    """Places of the weights with vectors, in every interleaving that fits."""
    answers = set()

    def go_on(filled, places):
        done = len(places)
        if done == len(shapes):
            if all(count == len(group) for count, group in zip(filled, groups, strict=True)):
                answers.add(tuple(place for place, shape in zip(places, shapes, strict=True) if len(shape) >= 2))
            return
        go_on(filled, [*places, None])
        for number, count in enumerate(filled):
            if count < len(groups[number]) and groups[number][count] in (None, shapes[done]):
                go_on([*filled[:number], count + 1, *filled[number + 1 :]], [*places, (number, count)])

    go_on([0] * len(groups), [])
    return answers


def test_an_interleaving_is_accepted_only_if_all_that_fit_agree_on_weights_with_vectors():
    rng = random.Random(0)
    accepted = 0
    for _ in range(1500):
        shapes = [rng.choice(SHAPES) for _ in range(rng.randint(1, 6))]
        groups: list[list] = [[] for _ in range(rng.randint(1, 3))]
        for shape in shapes:
            if rng.random() < 0.85:
                rng.choice(groups).append(None if rng.random() < 0.05 else shape)
        answers = all_answers(shapes, groups)
        try:
            places = interleave(shapes, groups)
        except AmbiguousGroupsError:
            continue
        assert places is not None
        assert answers == {tuple(place for place, shape in zip(places, shapes, strict=True) if len(shape) >= 2)}
        accepted += 1
    assert accepted > 700


@pytest.mark.parametrize("groups", [[[(3, 2), (2, 2)]], [[(2, 2)], [(2, 2)]], [[(9, 9)]]])
def test_shapes_that_fit_nowhere_have_no_interleaving(groups):
    assert interleave([(2, 2), (3, 2)], groups) is None
