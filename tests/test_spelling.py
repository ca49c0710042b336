"""The error for an unknown name: what it suggests, and in which order."""

import pytest

from gyroscope.spelling import did_you_mean, one_of

OPTIMIZERS = ("adamw", "sgdm", "adam", "adams", "adamsrt", "lion", "muon")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("adamv", "adamw"),  # adam is one letter away too, and shorter
        ("adamx", "adamw"),  # adams is as near, and listed later
        ("adamwx", "adamw"),
        ("ada", "adam"),
        ("adamsr", "adamsrt"),
        ("muno", "muon"),
    ],
)
def test_the_nearest_option_is_suggested_and_of_equally_near_ones_that_of_the_same_length(typed, meant):
    assert did_you_mean(typed, OPTIMIZERS) == f"did you mean {meant!r}?"


def test_several_options_are_suggested_with_the_nearest_first():
    options = ("fig1", "fig4", "fig40", "table1")
    assert did_you_mean("fg4", options, limit=2) == "did you mean 'fig4' or 'fig40'?"


def test_a_list_of_options_is_cut_where_the_caller_says():
    assert did_you_mean("x", OPTIMIZERS, listed=2) == "choose one of adamw, sgdm …"
    assert did_you_mean("x", OPTIMIZERS, listed=7) == f"choose one of {', '.join(OPTIMIZERS)}"


def test_a_known_name_is_returned_and_an_unknown_one_quoted_as_it_was_given():
    assert one_of("optimizer", "lion", OPTIMIZERS) == "lion"
    with pytest.raises(ValueError, match=r"^unknown optimizer 'Adam-V': did you mean 'adamw'\?$"):
        one_of("optimizer", "adamv", OPTIMIZERS, given="Adam-V")
