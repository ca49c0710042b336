"""Programs for kinds of tensors: the same program for every size, and the right one for every layout."""

from itertools import product

import pytest
import torch
from torch import nn

from gyroscope.optim import (
    SGDMRT,
    AdamS,
    AdamSRT,
    KAdam,
    Rotational,
    RotationalAdamW,
    RotationalLion,
    RotationalSGD,
    SphericalAdam,
)
from gyroscope.optim._engine import compiled
from tests.optim.catalogue import compiles

pytestmark = pytest.mark.compile

LAYOUTS = {
    "square": lambda: torch.randn(24, 24),
    "entries as many as rows of others": lambda: torch.randn(11, 24),
    "one vector": lambda: torch.randn(1, 30),
    "channels last": lambda: torch.randn(6, 5, 3, 3).to(memory_format=torch.channels_last),
    "columns of another's memory": lambda: torch.randn(9, 14).t(),
    "every other entry of another's memory": lambda: torch.randn(12, 18)[::2, ::3],
    "the left half of another's memory": lambda: torch.randn(8, 20)[:, :10],
}
MAKERS = {
    "RotationalAdamW": lambda p, compile: RotationalAdamW(p, lr=0.05, compile=compile),
    "AdamSRT": lambda p, compile: AdamSRT(p, lr=0.05, weight_decay=0.1, compile=compile),
    "KAdam": lambda p, compile: KAdam(p, lr=0.05, compile=compile),
    "Rotational": lambda p, compile: Rotational(torch.optim.AdamW(p, lr=0.05, weight_decay=0.1), compile=compile),
}


def trained(make, layout, compile, **options):
    torch.manual_seed(0)
    made = layout()
    # As a parameter in the very memory: detach keeps strides, a copy would not.
    weight = nn.Parameter(made.detach())
    optimizer = make([{"params": [weight], **options}], compile)
    for _ in range(3):
        weight.grad = torch.empty_like(weight).normal_()
        optimizer.step()
    return weight.detach()


CASES = [("RotationalAdamW", layout) for layout in LAYOUTS]
CASES += [(name, layout) for name in ("AdamSRT", "KAdam", "Rotational") for layout in ("square", "channels last")]


@compiles
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_every_layout_steps_as_it_does_eagerly(name, layout):
    found, expected = (trained(MAKERS[name], LAYOUTS[layout], compile) for compile in (True, False))
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@compiles
@pytest.mark.parametrize("options", [{"axis": 1}, {"granularity": "tensor"}, {"granularity": "group", "group_size": 2}])
def test_every_split_steps_as_it_does_eagerly(options):
    for name in ("RotationalAdamW", "AdamSRT", "Rotational"):
        found, expected = (
            trained(MAKERS[name], lambda: torch.randn(6, 8), compile, **options) for compile in (True, False)
        )
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


def conv(change):
    return lambda: change(torch.randn(6, 5, 3, 3))


PAIRED = {
    "contiguous": conv(lambda x: x),
    "channels last": conv(lambda x: x.to(memory_format=torch.channels_last)),
    "transposed": conv(lambda x: x.transpose(0, 1).contiguous().transpose(0, 1)),
    "kernel first": conv(lambda x: x.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)),
    "every other entry": conv(lambda x: torch.stack([x, x], -1)[..., 0]),
    "every other row": conv(lambda x: torch.cat([x, x], 1).view(12, 5, 3, 3)[::2]),
    "one vector again and again": conv(lambda x: x[:1].expand(6, 5, 3, 3)),
}
COMPILING = {
    **MAKERS,
    "RotationalSGD": lambda p, compile: RotationalSGD(p, lr=0.05, weight_decay=0.1, compile=compile),
    "RotationalLion": lambda p, compile: RotationalLion(p, lr=1e-3, compile=compile),
    "AdamS": lambda p, compile: AdamS(p, lr=0.05, weight_decay=0.1, compile=compile),
    "SGDMRT": lambda p, compile: SGDMRT(p, lr=0.05, weight_decay=0.1, compile=compile),
    "SphericalAdam": lambda p, compile: SphericalAdam(p, lr=0.05, compile=compile),
}


def layout_pairs(name):
    """Every pair for one optimizer. For the others one pair of permuted memory and one of gaps, as they share the code.

    A weight is no vector again and again, because its memory would be written twice in one step.
    """
    if name == "RotationalAdamW":
        return list(product([layout for layout in PAIRED if layout != "one vector again and again"], PAIRED))
    return [("channels last", "transposed"), ("every other entry", "one vector again and again")]


@compiles
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", COMPILING)
def test_pairs_of_weight_and_gradient_layouts_step_as_they_do_eagerly(name, axis):
    """Two steps of each pair: moments take the weight's layout at the first. axis=1 is a transposed convolution."""

    def stepped(weight_layout, grad_layout, compile):
        torch.manual_seed(0)
        weight = nn.Parameter(weight_layout().double().detach())
        optimizer = COMPILING[name]([{"params": [weight], "axis": axis}], compile)
        for _ in range(2):
            weight.grad = grad_layout().double()
            optimizer.step()
        return weight.detach()

    for weight_layout, grad_layout in layout_pairs(name):
        found, expected = (stepped(PAIRED[weight_layout], PAIRED[grad_layout], compile) for compile in (True, False))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


@compiles
def test_a_gradient_that_is_not_a_number_shows_in_a_compiled_step_too():
    weight = nn.Parameter(torch.randn(12, 8))
    optimizer = COMPILING["RotationalLion"]([weight], True)
    weight.grad = torch.randn(12, 8)
    weight.grad[3] = float("nan")
    optimizer.step()
    assert weight.isnan().any(1).nonzero().flatten().tolist() == [3]


@pytest.fixture
def fresh_programs(monkeypatch):
    monkeypatch.setattr(compiled, "PROGRAMS", {})
    monkeypatch.setattr(compiled, "FALLBACKS", {})


def broken(*args, **options):
    raise RuntimeError("this interface has changed\nwith details")


def forms():
    return {program.form for program in compiled.PROGRAMS.values()}


def trained_with_two_kinds(name):
    return [
        trained(COMPILING[name], lambda: torch.randn(12, 8), True),
        trained(COMPILING[name], lambda: torch.randn(1, 8), True),
    ]


def expected_of_two_kinds(name):
    return [
        trained(COMPILING[name], lambda: torch.randn(12, 8), False),
        trained(COMPILING[name], lambda: torch.randn(1, 8), False),
    ]


@compiles
@pytest.mark.parametrize("name", ["RotationalAdamW", "KAdam"])
def test_torch_compile_takes_over_where_inductors_own_interface_fails(name, fresh_programs, monkeypatch):
    monkeypatch.setattr(compiled, "_by_inductor", broken)
    with pytest.warns(
        UserWarning, match=r"inductor of torch .*this interface has changed\): torch.compile is"
    ) as caught:
        results = trained_with_two_kinds(name)
    assert len([w for w in caught if str(w.message).startswith("compile: ")]) == 1
    assert forms() == {"torch.compile"}
    for found, expected in zip(results, expected_of_two_kinds(name), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["RotationalAdamW", "AdamSRT", "KAdam", "Rotational"])
def test_eager_steps_take_over_where_torch_compile_fails_too(name, fresh_programs, monkeypatch):
    monkeypatch.setattr(compiled, "_by_inductor", broken)
    monkeypatch.setattr(compiled, "_by_torch_compile", lambda flat: broken)
    with pytest.warns(UserWarning, match="compile: ") as caught:
        results = trained_with_two_kinds(name)
    messages = [str(w.message) for w in caught if str(w.message).startswith("compile: ")]
    assert len(messages) == 2
    assert "torch.compile is used instead" in messages[0]
    assert "taken eagerly instead. Pass compile=False" in messages[1]
    assert forms() == {"eager"}
    for found, expected in zip(results, expected_of_two_kinds(name), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@compiles
def test_a_missing_internal_is_survived(fresh_programs, monkeypatch):
    import torch._inductor.compile_fx as internals

    monkeypatch.delattr(internals, "compile_fx_inner")
    with pytest.warns(UserWarning, match="ImportError"):
        found = trained(MAKERS["RotationalAdamW"], LAYOUTS["square"], True)
    torch.testing.assert_close(found, trained(MAKERS["RotationalAdamW"], LAYOUTS["square"], False))


@compiles
def test_a_program_that_refuses_its_inputs_is_replaced_before_anything_is_written(fresh_programs):
    expected = trained(MAKERS["RotationalAdamW"], LAYOUTS["square"], False)
    trained(MAKERS["RotationalAdamW"], LAYOUTS["square"], True)
    (program,) = compiled.PROGRAMS.values()

    def refusing(tensors):
        tensors.clear()
        raise AssertionError("expected size 8==8, stride 9==33 at dim=0")

    program._program = refusing
    with pytest.warns(UserWarning, match="expected size 8==8"):
        found = trained(MAKERS["RotationalAdamW"], LAYOUTS["square"], True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-6)


@compiles
def test_sizes_share_a_program():
    counts = set()
    for shape in ((16, 16), (16, 32), (32, 16), (3, 4, 5), (2053, 7), (7, 1031)):
        trained(MAKERS["RotationalAdamW"], lambda shape=shape: torch.randn(shape), True)
        counts.add(len(compiled.PROGRAMS))
    assert len(counts) == 1


@compiles
def test_a_compiled_wrapper_keeps_norms_and_rounds_low_precision_once():
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(32, 64).bfloat16())
    norms = weight.detach().float().norm(dim=1)
    optimizer = Rotational(torch.optim.AdamW([weight], lr=0.01, weight_decay=0.5), compile=True)
    for _ in range(20):
        weight.grad = torch.randn_like(weight)
        optimizer.step()
    torch.testing.assert_close(weight.detach().float().norm(dim=1), norms, rtol=1e-2, atol=0)


@compiles
@pytest.mark.parametrize("name", MAKERS)
def test_autograd_notices_a_compiled_step_between_forward_and_backward(name):
    weight = nn.Parameter(torch.randn(16, 600))
    optimizer = MAKERS[name]([weight], True)
    loss = weight.square().sum()
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_auto_compiles_large_tensors_on_a_cpu_and_no_others():
    small = torch.empty(8, 8)
    large = torch.empty(1024, 1024)
    assert [compiled.is_compiled("auto", w) for w in (small, large)] == [False, True]
    assert [compiled.is_compiled(True, w) for w in (small, large)] == [True, True]
    assert not compiled.is_compiled("auto", large.to("meta"))


def test_an_unknown_value_of_compile_is_refused():
    with pytest.raises(ValueError, match="compile='always' is unknown"):
        RotationalAdamW([torch.nn.Parameter(torch.ones(2, 2))], compile="always")
