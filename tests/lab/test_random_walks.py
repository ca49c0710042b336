"""The random walks of the lab at a size of seconds: what must hold holds, and a wrong prediction does not."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gyroscope_lab.beyond import falling_out, one_law
from gyroscope_lab.framework.experiment import Result
from gyroscope_lab.framework.trials import run_trials
from gyroscope_lab.re import appendix_i, fig8, table1
from gyroscope_lab.re._appendix_j import optimizers, relative_spread

pytestmark = pytest.mark.slow

# Module -> a small config, what must hold at that size, and changes of the config that make a prediction wrong.
CASES: dict[Any, Any] = {
    fig8: (
        fig8.Config(speedup=100, steps=1500, seeds=1, vectors=48, fan_in=64, every=20),
        ["norm under AdamW", "angle per step under AdamW", "over the spread under AdamW", "rank correlation"],
        [({"speedup": 130}, "angle per step under AdamW"), ({"fan_in": 72}, "norm under AdamW")],
    ),
    table1: (
        table1.Config(speedup=100, steps=1200, vectors=24, seeds=1, fan_in=64),
        ["under SGDM", "under Adam+L2", "angle under AdamW", "of all loss scales, AdamW", "of all loss scales, SGDM"],
        [
            ({"speedup": 110}, "angle under SGDM (exact, ours)"),
            ({"speedup": 130}, "angle under AdamW (Table 1)"),
            ({"batch": 32}, "norm under SGDM (exact, ours)"),
            ({"fan_in": 96}, "norm under AdamW (Table 1)"),
        ],
    ),
    appendix_i: (
        appendix_i.Config(speedup=100, steps=1500, group=8, seeds=1, levels=(-3.0, -2.0, -1.0, 0.0), fan_in=64),
        ["(84)", "(87)", "exact, ours", "largest over smallest"],
        [
            ({"speedup": 110}, "angle, Adam+L2, gradients × 1e-1 (exact"),
            ({"batch": 8}, "norm, Adam+L2, gradients × 1e-2 (exact, ours)"),
        ],
    ),
    one_law: (
        one_law.Config(decays=(1e-2,), vectors=32, matrices=1, seeds=1, side=16),
        ["under SGDM", "under Nesterov", "under AdamW", "under NAdam", "norm under Lion"],
        [
            ({"decays": (1.1e-2,)}, "angle under SGDM"),
            ({"fan_in": 300}, "norm under AdamW"),
            ({"side": 24}, "norm under torch"),
        ],
    ),
    falling_out: (
        falling_out.Config(decay=1e-2, steps=2000, vectors=24, seeds=1),
        ["SGDM, linear", "SGDM, cosine", "end norm over peak norm, AdamW, linear (forecast)"],
        [({"decay": 2e-2}, "leave, SGDM, linear"), ({"decay": 2e-2}, "end norm over peak norm, AdamW, linear")],
    ),
}
NAMES = [module.__name__.removeprefix("gyroscope_lab.") for module in CASES]


@pytest.fixture(scope="module")
def results():
    return {module: run_trials(module, config) for module, (config, _, _) in CASES.items()}


@pytest.mark.parametrize("module", CASES, ids=NAMES)
def test_what_must_hold_holds(results, module):
    claims = module.claims(results[module])
    for fragment in CASES[module][1]:
        chosen = [claim for claim in claims if fragment in claim.sentence]
        assert chosen, fragment
        assert all(claim.holds for claim in chosen), [claim for claim in chosen if not claim.holds]


@pytest.mark.parametrize("module", CASES, ids=NAMES)
def test_a_wrong_prediction_does_not_hold(results, module):
    """The measured values stay; predictions are made for other hyper-parameters."""
    config, _, wrong = CASES[module]
    for change, fragment in wrong:
        claims = module.claims(Result(replace(config, **change), results[module].values))
        chosen = [claim for claim in claims if fragment in claim.sentence]
        assert chosen, fragment
        assert not any(claim.holds for claim in chosen), [claim for claim in chosen if claim.holds]


@pytest.mark.parametrize("module", CASES, ids=NAMES)
def test_the_picture_shows_what_was_measured(results, module):
    figure = module.plot(results[module])
    assert figure.layout.title.text
    drawn = [float(value) for trace in figure.data for value in trace.y]
    assert len(figure.data) >= 3
    assert np.isfinite(drawn).all()


@pytest.mark.parametrize("module", CASES, ids=NAMES)
def test_both_sizes_can_be_made(module):
    assert module.QUICK.seeds >= 3
    assert module.PAPER.seeds >= 3
    assert module.QUICK != module.PAPER


def test_a_speedup_leaves_the_norms():
    for slow, fast in zip(optimizers(1), optimizers(10), strict=True):
        known = {"fan_in": 128, "unit_grad_norm": 0.02}
        assert fast.equilibrium(**known).norm == pytest.approx(slow.equilibrium(**known).norm, rel=0.06)
        assert fast.equilibrium(**known).timescale == pytest.approx(slow.equilibrium(**known).timescale / 10, rel=0.02)


def test_the_progress_of_a_simulation_reaches_the_report():
    shares = []
    run_trials(falling_out, replace(CASES[falling_out][0], vectors=2), report=shares.append)
    assert shares == sorted(shares)
    assert len(shares) > 20
    assert shares[-1] == 1


def test_outliers_do_not_move_the_spread():
    even = np.linspace(0.99, 1.01, 101)
    assert relative_spread(even) == relative_spread(np.append(even[:-1], 1e6))
