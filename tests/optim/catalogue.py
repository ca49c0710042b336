"""Every optimizer class, with the settings it is tested with and its literal twin: a new optimizer adds a row."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from gyroscope import optim
from gyroscope.theory import AdamW
from tests import reference
from tests import reference_sphere as sphere


@dataclass(frozen=True)
class Row:
    """`make(params, **options)` builds the optimizer, `twin(weights)` its float64 twin with the same settings.

    `moments` counts the tensors of the parameters' size in a state, `rotates` says that vectors rotate by a set angle,
    `wraps` that another library's optimizer checks the options, `angle_is_given` that no weight decay sets the angle,
    `whole` that matrices rotate as a whole, `keeps_norms` that vectors which rotate keep their norm.
    """

    name: str
    make: Callable[..., torch.optim.Optimizer]
    twin: Callable[..., Any]
    moments: int
    rotates: bool = True
    wraps: bool = False
    angle_is_given: bool = False
    whole: bool = False
    keeps_norms: bool = True


def row(cls, options, twin, moments, rotates=True, name="", keeps_norms=True):
    def make(params, **more):
        return cls(params, **{**options, **more})

    return Row(name or cls.__name__, make, twin, moments, rotates, keeps_norms=keeps_norms)


def turned(direction, lr, wd, noise=True, **options):
    return partial(reference.RotationalTwin, direction=direction, lr=lr, wd=wd, noise=noise, **options)


ADAMW = {"lr": 2e-3, "weight_decay": 0.1}
# RE Algorithm 1.
PLAIN = {"update_average": "plain"}
ADAMH = {"lr": 1e-2, "weight_decay": 0.0}
SGD = {"lr": 0.1, "weight_decay": 1e-3}
STAR = {"lr": 0.7, "betas": (0.0, 0.99), "v0": 50.0, "eps": 1e-30}
LION = {"lr": 2e-4, "weight_decay": 1.0}
RULE = AdamW(**ADAMW)

CATALOGUE = [
    row(optim.RotationalAdamW, ADAMW, turned(reference.AdamWDirection(), 2e-3, 0.1), 2),
    row(optim.RotationalSGD, SGD, turned(reference.SGDDirection(), 0.1, 1e-3, l2=True), 1),
    row(
        optim.RotationalSGD,
        {**SGD, "nesterov": True},
        turned(reference.SGDDirection(nesterov=True), 0.1, 1e-3, l2=True),
        1,
        name="RotationalSGD-nesterov",
    ),
    row(optim.RotationalLion, LION, turned(reference.LionDirection(), 2e-4, 1.0), 1),
    row(
        optim.RotationalAdamW,
        {**ADAMW, **PLAIN},
        turned(reference.AdamWDirection(), 2e-3, 0.1, noise=False),
        2,
        name="RotationalAdamW-plain",
    ),
    row(
        optim.RotationalSGD,
        {**SGD, **PLAIN, "nesterov": True},
        turned(reference.SGDDirection(nesterov=True), 0.1, 1e-3, l2=True, noise=False),
        1,
        name="RotationalSGD-nesterov-plain",
    ),
    row(
        optim.RotationalAdamW,
        {**ADAMW, "norms": "free"},
        turned(reference.AdamWDirection(), 2e-3, 0.1, norms="free"),
        2,
        keeps_norms=False,
        name="RotationalAdamW-free",
    ),
    row(
        optim.RotationalAdamW,
        {**ADAMW, "norms": "settling"},
        turned(reference.AdamWDirection(), 2e-3, 0.1, norms="settling"),
        2,
        keeps_norms=False,
        name="RotationalAdamW-settling",
    ),
    row(
        optim.RotationalSGD,
        {**SGD, **PLAIN, "nesterov": True, "norms": "settling"},
        turned(reference.SGDDirection(nesterov=True), 0.1, 1e-3, l2=True, noise=False, norms="settling"),
        1,
        keeps_norms=False,
        name="RotationalSGD-settling",
    ),
    row(
        optim.RotationalLion,
        {**LION, "norms": "settling"},
        turned(reference.LionDirection(), 2e-4, 1.0, norms="settling"),
        1,
        keeps_norms=False,
        name="RotationalLion-settling",
    ),
    Row(
        "Rotational(AdamW)-settling",
        lambda params, **more: optim.Rotational(torch.optim.AdamW(params, **{**ADAMW, **more}), norms="settling"),
        turned(reference.AdamWDirection(), 2e-3, 0.1, norms="settling"),
        2,
        wraps=True,
        keeps_norms=False,
    ),
    Row(
        "Rotational(AdamW)",
        lambda params, **more: optim.Rotational(torch.optim.AdamW(params, **{**ADAMW, **more})),
        turned(reference.AdamWDirection(), 2e-3, 0.1),
        2,
        wraps=True,
    ),
    Row(
        "Rotational(Adam)",
        lambda params, **more: optim.Rotational(torch.optim.Adam(params, **{**ADAMW, **more}), angular_update=RULE),
        turned(reference.AdamL2Direction(), 2e-3, 0.1, l2=True),
        2,
        wraps=True,
        angle_is_given=True,
    ),
    Row(
        "AdamH",
        lambda params, **more: optim.Rotational(torch.optim.AdamW(params, **{**ADAMH, **more}), mode="hyperball"),
        partial(reference.HyperballTwin, direction=reference.AdamWDirection(), lr=1e-2, wd=0.0),
        2,
        rotates=False,
        wraps=True,
        angle_is_given=True,
        whole=True,
    ),
    row(optim.AdamS, ADAMW, partial(sphere.AdamSTwin, lr=2e-3, wd=0.1), 1, False),
    row(optim.AdamSRT, ADAMW, partial(sphere.AdamSTwin, lr=2e-3, wd=0.1, transport=True), 1, False),
    row(optim.SGDMRT, SGD, partial(sphere.SGDMRTTwin, lr=0.1, wd=1e-3), 1, False),
    row(optim.SphericalAdam, {"lr": 1e-2}, partial(sphere.AdamGTwin, lr=1e-2, betas=(0.9, 0.99)), 1, False),
    row(
        optim.SphericalAdam,
        STAR,
        partial(sphere.AdamGStarTwin, lr=0.7, betas=(0.0, 0.99), v0=50.0, eps=1e-30),
        1,
        False,
        name="SphericalAdam-star",
    ),
    row(
        optim.KAdam,
        ADAMW,
        partial(sphere.KAdamTwin, lr=2e-3, wd=0.1, stages=sphere.inverse_exp(2), vectors=lambda w: None),
        4,
        False,
    ),
    row(optim.Lion, LION, partial(reference.Twin, direction=reference.LionDirection(), lr=2e-4, wd=1.0), 1, False),
]


def compiles(test):
    """Mark a test that needs Inductor: its imports use what torch deprecates, and a space in a path stops it."""
    spaces = pytest.mark.skipif(" " in torch.__file__, reason="Inductor cannot link where torch's path has a space")
    quiet = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
    return pytest.mark.compile(spaces(quiet(test)))


every_optimizer = pytest.mark.parametrize("row", CATALOGUE, ids=lambda row: row.name)
every_own = pytest.mark.parametrize("row", [r for r in CATALOGUE if not r.wraps], ids=lambda row: row.name)
every_compiling = pytest.mark.parametrize(
    "row", [r for r in CATALOGUE if r.rotates and not r.wraps], ids=lambda row: row.name
)
every_rotational = pytest.mark.parametrize("row", [r for r in CATALOGUE if r.rotates], ids=lambda row: row.name)
every_fixed = pytest.mark.parametrize(
    "row", [r for r in CATALOGUE if r.rotates and r.keeps_norms], ids=lambda row: row.name
)
every_turned_by_decay = pytest.mark.parametrize(
    "row", [r for r in CATALOGUE if r.rotates and not r.angle_is_given], ids=lambda row: row.name
)
