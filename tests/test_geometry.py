import math

import pytest
import torch

from gyroscope.geometry import Split

SPLITS = [Split(), Split(axis=1), Split("group", group_size=2), Split("group", 1, 3), Split("tensor"), Split(axis=-1)]
TWO_AXES = [Split(axis=(0, 1)), Split("group", (0, 1), 3), Split(axis=(1, 0)), Split(axis=(-4, -3))]


def brute_vectors(split, x):
    """The vectors of x as a list of flat float64 lists, by plain indexing."""
    x = x.detach().double().contiguous()
    if split.granularity == "tensor":
        return [x.flatten()]
    size = split.group_size if split.granularity == "group" else 1
    x = x.flatten(0, 1) if isinstance(split.axis, tuple) else x.movedim(split.axis, 0).contiguous()
    return [x[i : i + size].flatten() for i in range(0, x.shape[0], size)]


def layouts(shape=(4, 6, 5, 3), dtype=torch.float64):
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64).to(dtype)
    yield "contiguous", x
    yield "channels last", x.contiguous(memory_format=torch.channels_last)
    yield "transposed", x.transpose(0, 1).contiguous().transpose(0, 1)
    yield "strided", torch.randn(8, 6, 5, 6, dtype=torch.float64).to(dtype)[::2, :, :, ::2]


CASES = [pytest.param(s, x, id=f"{s}-{n}") for s in SPLITS + TWO_AXES for n, x in layouts()]
# Two axes are one in memory where the tensor is contiguous, and where only the entries are permuted.
VIEWS = [
    case
    for case in CASES
    if not isinstance(case.values[0].axis, tuple) or case.values[1].stride(0) == 6 * case.values[1].stride(1)
]


@pytest.mark.parametrize(("split", "x"), CASES)
def test_each_quantity_equals_a_loop_over_the_vectors(split, x):
    y = x.flip(0) + 0.1
    xs, ys = brute_vectors(split, x), brute_vectors(split, y)
    assert split.num_vectors(x.shape) == len(xs)
    assert split.fan_in(x.shape) == len(xs[0])

    def same(values, expected):
        torch.testing.assert_close(values, torch.stack(expected), rtol=1e-12, atol=1e-12)

    same(split.sum(x), [a.sum() for a in xs])
    same(split.mean(x), [a.mean() for a in xs])
    same(split.norm(x), [a.norm() for a in xs])
    same(split.dot(x, y), [a @ b for a, b in zip(xs, ys, strict=True)])
    angles = [torch.arccos(a @ b / a.norm() / b.norm()) for a, b in zip(xs, ys, strict=True)]
    same(split.angle(x, y), angles)
    projected = brute_vectors(split, split.projection(x, y))
    same(torch.stack(projected), [(a @ b) / (b @ b) * b for a, b in zip(xs, ys, strict=True)])
    centred = brute_vectors(split, split.centred(x))
    same(torch.stack(centred), [a - a.mean() for a in xs])


@pytest.mark.parametrize(("split", "x"), CASES)
def test_broadcast_gives_every_entry_the_value_of_its_vector(split, x):
    values = torch.arange(split.num_vectors(x.shape), dtype=x.dtype)
    spread = split.broadcast(values, x.shape).expand(x.shape)
    for value, vector in zip(values, brute_vectors(split, spread), strict=True):
        assert (vector == value).all()


def test_two_axes_that_are_not_one_in_memory_have_no_rows():
    x = torch.ones(4, 6, 5)
    with pytest.raises(ValueError, match=r"dimensions \(0, 2\) .* are not one in memory: choose a single axis"):
        Split(axis=(0, 2)).rows(x)
    assert Split(axis=(0, 2)).norm(x).tolist() == [pytest.approx(6**0.5)] * 20


@pytest.mark.parametrize("split", SPLITS + TWO_AXES)
def test_ids_number_the_vectors_as_broadcast_does(split):
    shape = (4, 6, 5, 3)
    values = torch.arange(split.num_vectors(shape))
    assert split.vector_ids(shape).flatten().tolist() == split.broadcast(values, shape).flatten().tolist()


@pytest.mark.parametrize(("split", "x"), VIEWS)
def test_rows_are_views_whose_first_dimension_counts_the_vectors(split, x):
    rows, ones = split.rows(x, torch.ones_like(x))
    assert rows.shape == ones.shape
    assert rows.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    sums = torch.stack([v.sum() for v in brute_vectors(split, x)])
    torch.testing.assert_close(rows.flatten(1).sum(1), sums, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("x", [x for _, x in list(layouts())[:2]])
def test_rows_of_dense_neurons_merge_into_a_matrix(x):
    assert Split().rows(x)[0].shape == (4, 90)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_are_float32_or_better_whatever_the_dtype(dtype):
    x = torch.full((2, 4096), 1.001, dtype=torch.float32).to(dtype)
    assert Split().norm(x).dtype == torch.float32
    expected = x.double().norm(dim=1).float()
    torch.testing.assert_close(Split().norm(x), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("angle", [1e-7, 1e-5, 3e-4, 1e-2, 1.0, 3.0])
def test_small_and_large_angles_are_exact_in_float32(angle):
    w0 = torch.tensor([[3.0, 0.0, 0.0]])
    w1 = 2 * torch.tensor([[math.cos(angle), math.sin(angle), 0.0]])
    assert Split().angle(w0, w1).item() == pytest.approx(angle, rel=1e-5)


def test_zero_vectors_have_no_angle_and_no_projection_and_never_nan():
    zero, one = torch.zeros(2, 3), torch.ones(2, 3)
    for a, b in [(zero, one), (one, zero), (zero, zero)]:
        assert Split().angle(a, b).tolist() == [0.0, 0.0]
    assert Split().projection(one, zero).tolist() == zero.tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"granularity": "row"}, "granularity='row' is unknown: choose one of 'neuron', 'group', 'tensor', 'none'"),
        ({"axis": 0.5}, "axis=0.5 must be an integer"),
        ({"axis": [0, 1]}, "axis=[0, 1] must be an integer, or a tuple of them"),
        ({"axis": ()}, "axis=() must be an integer, or a tuple of them"),
        ({"group_size": 0}, "group_size=0 must be a whole number, 1 or above"),
    ],
)
def test_a_bad_split_is_refused_with_the_remedy(options, words):
    with pytest.raises(ValueError, match=words.split("=")[0]) as error:
        Split(**options)
    assert words in str(error.value)


def test_a_split_that_does_not_fit_the_tensor_says_what_would():
    with pytest.raises(ValueError, match="choose a divisor of 4"):
        Split("group", group_size=3).num_vectors((4, 2))
    with pytest.raises(ValueError, match="choose 0 to 1"):
        Split(axis=2).num_vectors((4, 2))
    with pytest.raises(ValueError, match=r"axis=\(0, -2\) names a dimension of a tensor of 2 dimensions twice"):
        Split(axis=(0, -2)).num_vectors((4, 2))
    with pytest.raises(ValueError, match=r"group_size=4 does not divide dimension 1 .* choose a divisor of 6"):
        Split("group", (0, 1), 4).num_vectors((2, 6, 3))
    with pytest.raises(ValueError, match="granularity='none' has no weight vectors"):
        Split("none").norm(torch.ones(2, 2))


def test_what_rotates_has_two_dimensions_and_two_entries_per_vector():
    assert Split().rotates((3, 2))
    assert not Split().rotates((3, 1))
    assert not Split("tensor").rotates((3,))
    assert not Split("none").rotates((3, 2))
    assert not Split().rotates((0, 2))
    assert Split(axis=1).rotates((3, 1))
