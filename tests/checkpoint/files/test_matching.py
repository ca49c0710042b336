"""Groups without names in a model's order, against every interleaving there is."""

import random

import pytest

from gyroscope.checkpoint.files.matching import Member, match_by_shape

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


def match(shapes, groups) -> tuple:
    """Places of the weights with vectors, as the library finds them."""
    members = [[Member(n, shape, {"place": (n, m)}) for m, shape in enumerate(group)] for n, group in enumerate(groups)]
    named = {str(number): shape for number, shape in enumerate(shapes)}
    matched = match_by_shape(named, members, ordered=True)
    places = [matched[name].state["place"] if name in matched else None for name in named]
    return tuple(place for place, shape in zip(places, shapes, strict=True) if len(shape) >= 2)


def test_a_match_is_accepted_only_if_all_interleavings_that_fit_agree_on_weights_with_vectors():
    rng = random.Random(0)
    accepted = 0
    for _ in range(1500):
        shapes = [rng.choice(SHAPES) for _ in range(rng.randint(1, 6))]
        groups: list[list] = [[] for _ in range(rng.randint(1, 3))]
        for shape in shapes:
            if rng.random() < 0.85:
                rng.choice(groups).append(None if rng.random() < 0.05 else shape)
        try:
            places = match(shapes, groups)
        except ValueError:
            continue
        assert all_answers(shapes, groups) == {places}
        accepted += 1
    assert accepted > 700


@pytest.mark.parametrize("groups", [[[(3, 2), (2, 2)], []], [[(2, 2)], [(2, 2)]], [[(9, 9)]]])
def test_shapes_that_fit_nowhere_are_refused(groups):
    with pytest.raises(ValueError, match=r"not from the same model|cannot be assigned"):
        match([(2, 2), (3, 2)], groups)
