"""Every experiment runs, draws and judges at a size of seconds; every claim that holds fails for a wrong prediction."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gyroscope_lab.beyond import network_errors, rotation_average, rotational_recipe, rotational_sgd
from gyroscope_lab.ct import fig1, fig2, fig3, fig5, fig6, fig7, fig8, fig9, fig14, loss_along_curves, section4_3
from gyroscope_lab.framework.catalogue import select
from gyroscope_lab.framework.experiment import Result, load
from gyroscope_lab.framework.results import ExperimentRecord
from gyroscope_lab.framework.runner import read_result
from gyroscope_lab.framework.trials import run_trials
from gyroscope_lab.smd import corollary3_1, fig4_fig5, theorem1_theorem2, theorem3
from gyroscope_lab.smd import fig2 as smd_fig2
from gyroscope_lab.smd import fig3 as smd_fig3
from gyroscope_lab.smd import fig7 as smd_fig7
from gyroscope_lab.smd import fig9 as smd_fig9
from gyroscope_lab.sp import eq44, section4_2, table2_table5, theorem4
from gyroscope_lab.sp import fig3 as sp_fig3
from gyroscope_lab.sp import theorem2 as sp_theorem2
from gyroscope_lab.transfer import invariants, invariants_gpt

pytestmark = pytest.mark.slow

RESULTS = Path(__file__).parents[2] / "results"
MODEL = {"layers": 1, "heads": 2, "width": 8, "context": 8, "batch": 2}
# Trainings of seconds.
TEXT = {"task": "stdlib", "model": "gpt:layers=1,heads=2,width=8,context=8", "batch_size": 2, "steps": 6}
IMAGES = {"task": "digits", "model": "cnn:width=4,convolutions=2", "batch_size": 16, "steps": 4}
BETAS = {"beta2 = 0.9": (0.99, 0.9), "beta2 = 0.95": (0.95, 0.95), "beta2 = 0.999": (0.9, 0.999)}
K_ADAM = {"lrs": (1e-3, 1e-2), "ks": (1, 2), "seeds": 2, "choosing_seeds": 1}
CURVE = loss_along_curves.Config(
    {**TEXT, "optimizer": "adam", "evaluations": 3, "track": False},
    {name: {"betas": betas} for name, betas in BETAS.items()},
    seeds=2,
)


def on_digits(quick, steps, **changes):
    """The arms of an experiment as tiny trainings on digits; other changes hold for all of them."""
    changes = {"task": "digits", "shrink": 1, "epochs": None, "steps": steps, **changes}
    return replace(quick, arms={arm: {**settings, **changes} for arm, settings in quick.arms.items()}, seeds=2)


CNN = "cnn:width=4,convolutions=3"
MLP = {"MLP": {"task": "digits", "model": "mlp:width=8", "lr": 3e-3, "steps": 40}}
VIT = {"task": "digits", "model": "vit:patch=4,width=8,layers=1,heads=2", "steps": 3, "weight_decay": 1.0}

TINY: dict[str, Any] = {
    "beyond/network_errors": on_digits(network_errors.QUICK, 40, model=CNN),
    "smd/fig2": on_digits(smd_fig2.QUICK, 40, model=CNN),
    "smd/fig3": on_digits(smd_fig3.QUICK, 45, model=CNN),
    "smd/fig7": on_digits(smd_fig7.QUICK, 24, model=CNN),
    "smd/fig9": on_digits(smd_fig9.QUICK, 27, model="resnet20:width=4,blocks=1"),
    "sp/fig3": on_digits(sp_fig3.QUICK, 9, model="resnet20:width=4,blocks=1"),
    "sp/table2": on_digits(table2_table5.MEDIUM["table2"], 3, model="resnet20:width=4,blocks=1"),
    "sp/table5": on_digits(table2_table5.QUICK["table5"], 3, model="resnet20:width=4,blocks=1"),
    "smd/fig4": fig4_fig5.Config(momentum=0.0, weight_decay=0.1, steps=500, vectors=1, seeds=2, fan_in=8),
    "smd/fig5": fig4_fig5.Config(momentum=0.9, weight_decay=0.01, steps=500, vectors=1, seeds=2, fan_in=64),
    "smd/theorem1": theorem1_theorem2.Config(momentum=0.0, weight_decay=0.1, vectors=4, fan_in=4, seeds=2),
    "smd/theorem2": theorem1_theorem2.Config(momentum=0.9, weight_decay=0.01, vectors=2, fan_in=1024, seeds=2),
    "smd/theorem3": theorem3.Config(decay=0.01, vectors=2, fan_in=1024, seeds=2),
    "smd/corollary3_1": corollary3_1.Config(decay=0.005, k=4.0, vectors=2, fan_in=64, seeds=2),
    "sp/theorem2": sp_theorem2.Config(neurons=3, fan_in=8, batch=16, steps=10, seeds=2),
    "sp/theorem4": theorem4.Config(neurons=3, fan_in=8, batch=16, steps=10, halvings=3, seeds=2),
    "sp/eq44": eq44.Config(neurons=3, fan_in=8, batch=16, steps=40, seeds=2),
    "sp/section4_2": section4_2.Config(fan_in=8, inputs=64, batch=16, steps=30, seeds=2),
    "ct/fig1": fig1.Config(**MODEL, steps=20, substeps=6, seeds=2),
    "ct/fig2": fig2.Config(points=3, lengths=(60, 120)),
    "ct/fig3": fig3.Config(**MODEL, steps=40, seeds=2, points=3),
    "ct/fig5": fig5.Config(**MODEL, short=(1e-3, 0.01, 10), long=(3e-3, 1.0, 20), seeds=2),
    "ct/fig7": fig7.Config(**MODEL, steps=40, seeds=2, points=2, double=True),
    "ct/fig8": fig8.Config(**MODEL, steps=20, seeds=2),
    "ct/fig9": fig9.Config(**MODEL, steps=20, seeds=2),
    "ct/fig4": CURVE,
    "ct/fig12": CURVE,
    "ct/fig13": replace(CURVE, level=True),
    "ct/fig14": fig14.Config(**MODEL, steps=20, beta2=(0.953, 0.956), seeds=2),
    "ct/fig6": fig6.Config(IMAGES, decays={"decoupled": 1e-2, "coupled": 1e-4}, quantity="accuracy", **K_ADAM),
    "ct/fig16": fig6.Config(TEXT, decays={"decoupled": 1e-2}, **K_ADAM),
    "ct/section4_3": section4_3.Config(
        {"images": IMAGES, "text": TEXT},
        with_norm={"images": {}, "text": {"model": f"{TEXT['model']},qk_norm=true"}},
        without_norm={"images": {"norm": "none"}, "text": {}},
        lrs=(1e-3, 1e-2),
        seeds=2,
        choosing_seeds=1,
    ),
    "beyond/rotational_sgd": rotational_sgd.compared(IMAGES, (0.1, 1.0), seeds=2),
    "beyond/rotation_average": rotation_average.compared(MLP, steps=40, lrs=(1e-2,), seeds=2),
    "beyond/recipe_gpt": rotational_recipe.compared({**TEXT, "decay_embeddings": True}, (1e-3, 1e-2), seeds=2),
    "beyond/recipe_vit": rotational_recipe.compared(VIT, (1e-3, 1e-2), seeds=2),
    "transfer/invariants": invariants.Config(vectors=16, steps=60, weight_decay=6.0, fan_in=8, seeds=2),
    "transfer/invariants_gpt": invariants_gpt.Config(steps=20, width=8, context=8, batch=4, seeds=2),
}


@cache
def tiny(name: str) -> Result:
    return run_trials(load(name), TINY[name])


@pytest.mark.parametrize("name", TINY)
def test_it_runs_draws_and_judges(name):
    result = tiny(name)
    assert all(array.shape[0] == TINY[name].seeds for array in result.values.values())
    figure = load(name).plot(result)
    assert len(figure.data) > 0
    assert figure.layout.title.text
    claims = load(name).claims(result)
    assert len({claim.sentence for claim in claims}) == len(claims) > 0
    assert all(claim.measured.n == TINY[name].seeds for claim in claims)


@pytest.mark.parametrize("name", ["smd/fig5", "sp/section4_2", "ct/fig9"])
def test_the_same_seed_gives_the_same_numbers(name):
    again = run_trials(load(name), TINY[name])
    for key, array in tiny(name).values.items():
        np.testing.assert_array_equal(array, again[key])
        assert array.size == 1 or not np.array_equal(array[0], array[-1]) or key in ("chance",)


# How a prediction is made wrong: another config than that of the run, or values as another theory has them.


def config(**changes):
    return lambda result: replace(result, config=replace(result.config, **changes))


def values(**changes):
    def wrong(result):
        return replace(result, values=result.values | {name: change(result[name]) for name, change in changes.items()})

    return wrong


def times(factor):
    return lambda array: array * factor


def swapped(array):
    return array[:, ::-1]


def swapped_last(axis):
    """In the opposite order along another axis."""
    return lambda array: np.flip(array, axis)


def order(*indices, axis=1):
    """Settings under one another's names."""
    return lambda array: np.take(array, indices, axis)


def arms(word, quantity, change):
    """The arms with this word in their names measured otherwise."""

    def wrong(result):
        named = np.array([word in arm for arm in result.config.parts])
        assert named.any()
        array = result[quantity]
        return replace(result, values=result.values | {quantity: np.where(named, change(array), array)})

    return wrong


def plus(change):
    return lambda array: array + change


def first_two(change):
    """Another number added to the first two parts: AdamW, at each of its learning rates."""
    return lambda array: np.concatenate([array[:, :2] + change, array[:, 2:]], axis=1)


WRONG_PREDICTIONS = {
    "re/fig1": [values(angle=times(1.3)), values(angle=swapped_last(2))],
    "re/fig3": [arms("lr 0.0001", "accuracy", plus(0.5)), arms("lr 1", "accuracy", plus(0.5)),
                arms("rotational", "accuracy", plus(-0.5)), values(angle_ratio=times(2), norm_ratio=times(2)),
                values(angle=times(10)), values(angle=times(0.1), final_norm_ratio=times(0.01))],
    "re/fig4": [arms("AdamW,", "accuracy", plus(-0.5)), arms("special", "accuracy", plus(-0.5)),
                values(spread=lambda x: 1 / x, ratio=lambda x: 1 / x)],
    "re/fig5": [arms("rotational", "accuracy", plus(-0.5)), values(spread=lambda x: 1 / x)],
    "re/fig9": [values(grad_weight_cosine=plus(1), grad_momentum_cosine=plus(1), lambda_u=plus(1)),
                values(angular_update_ratio=times(2), norm_ratio=times(2), scaled_grad_norm=times(2))],
    "re/fig10": [values(grad_momentum_cosine=plus(1), lambda_u=plus(50), scaled_grad_norm=times(10)),
                 values(angular_update_ratio=times(3), norm_ratio=times(3)), values(scaled_grad_norm=times(0.1))],
    "re/fig11": [values(lambda_u=plus(0.1), lambda_u_course=lambda x: x[..., ::-1]), values(lambda_u=times(0)),
                 values(angle=times(3), norm=times(3))],
    "re/fig12": [arms("balanced", "accuracy", plus(-0.5))],
    "re/fig13": [arms("lr 0.0001", "loss", plus(-2)), arms("lr 0.2", "loss", plus(-2)),
                 arms("rotational", "loss", plus(2)), values(angle_ratio=times(2), norm_ratio=times(2)),
                 values(angle=times(10)), values(angle=times(0.1), final_norm_ratio=times(0.01))],
    "re/fig14": [values(angle=swapped), values(angle=times(2)), values(forecast=times(2)),
                 values(angle=lambda x: x * [[1], [2]])],
    "re/fig15": [values(loss=lambda x: x * ([1, 1.5, 1.5, 1.5, 1.5] * 2))],
    "re/table2": [arms("rotational", "accuracy", plus(-0.5)), arms("rotational", "loss", plus(2)),
                  arms("special", "accuracy", plus(-0.5)), arms("special", "loss", plus(2))],
    "re/table3": [arms("rotational", "accuracy", plus(-0.5)), arms("rotational", "loss", plus(2))],
    "re/fig8": [config(speedup=13), config(fan_in=150), values(settled_angle=swapped)],
    "re/table1": [config(speedup=12), config(fan_in=150), config(batch=200), values(angle=order(3, 3, 3, 0, axis=2)),
                  values(spread=order(2, 2, 1)), values(spread=order(3, 3, 3, 0, axis=2)),
                  # The spread of Adam with L2 and random gammas everywhere.
                  values(spread=lambda array: np.broadcast_to(array[:, 2:, 3:], array.shape)),
                  values(angle=order(0, 2, 1), gradient=order(0, 2, 1))],
    "re/appendix_i": [config(speedup=12), config(batch=40), values(angle=order(1, 0, 0)),
                      values(angle=lambda x: x[..., ::-1])],
    "beyond/network_errors": [values(ratios=times(1.5))],
    "beyond/one_law": [config(decays=(1.1e-3, 3.3e-3, 1.1e-2))],
    "beyond/falling_out": [config(decay=6e-3), config(decay=1e-3), config(steps=14_000)],
    "beyond/incidents": [values(named=times(0), exact=times(0), others=lambda x: x + 1)],
    "smd/fig2": [values(angle_settled=times(1.3), norm_settled=times(1.3), e_fold=swapped, smallest_h=times(-1))],
    "smd/fig3": [values(angle_ratio=swapped, accuracy=lambda x: x * (1.0, 1.2, 1.0)),
                 values(angle_ratio=times(1.3), norm_ratio=times(1.3), stage_gradient=np.sqrt)],
    "smd/fig7": [values(turned_settled=times(1.3)), values(turned_settled=swapped_last(2), summed_gradient=np.square)],
    "smd/fig9": [values(settled_mean=times(1.3), settled=times(2), last_mean=times(500))],
    "smd/fig4": [config(weight_decay=0.006)],
    "smd/fig5": [config(weight_decay=0.0012), config(momentum=0.88)],
    "smd/theorem1": [config(weight_decay=0.012), values(variance=times(8)), values(error2=times(8))],
    "smd/theorem2": [config(weight_decay=0.0012), values(variance=times(1e5)), values(error2=times(4))],
    "smd/theorem3": [config(decay=1.2e-3), values(variance=times(1e7))],
    "smd/corollary3_1": [config(k=40.0), config(decay=1.2e-4), config(decay=4e-5)],
    "sp/fig3": [values(largest_radial=times(100), largest_tangent=times(100), largest_taylor=times(1e4),
                       typical_taylor_as_printed=times(1e4))],
    "sp/table2": [values(accuracy=lambda x: 1 - x)],
    "sp/table5": [arms("SGD-MRT", "accuracy", times(0.5))],
    "sp/theorem2": [values(direction=lambda x: x + 1e-6, radius=lambda x: x + 1e-6, table=lambda x: x + 1e-3),
                    values(map_error=np.sqrt, radial=times(10))],
    "sp/theorem4": [values(distance=np.sqrt), values(travelled=times(1e-9))],
    "sp/eq44": [values(distance=swapped)],
    "sp/section4_2": [values(distance=lambda x: x[:, [1, 0, 1, 4, 3, 4]], radial_share=swapped, radial=swapped),
                      values(l2_share=times(0))],
    "ct/fig1": [values(flow=times(2), distance2=times(100))],
    "ct/fig2": [config(lowest=0.6), config(highest=0.8), values(growth=times(1.5), update=times(4))],
    "ct/fig3": [config(lowest=0.958, highest=0.975), values(slope=lambda x: x / 0.97),
                values(over_bound=times(2), over_exact=times(2), of_a_character=times(0.5))],
    "ct/fig5": [values(short_identity_error=lambda x: x + 1e-6, long_identity_error=lambda x: x + 1e-6),
                config(long=(3e-3, 1.0, 20), short=(1e-3, 0.01, 3)), config(betas=(0.99, 0.999)), config(width=64),
                values(long_equation=times(20), short_equation=times(1.2))],
    "ct/fig7": [values(over_exact=times(1.1)), values(update=lambda x: x * np.arange(1, x.shape[-1] + 1) ** 3)],
    "ct/fig8": [values(last=swapped)],
    "ct/fig9": [values(loss=lambda x: x * (0.9, 1.0), coarse=times(-1), r2=times(-1), cosine=times(-1))],
    "ct/fig4": [values(losses=swapped)],
    "ct/fig12": [values(losses=swapped)],
    "ct/fig13": [values(losses=swapped), values(losses=lambda x: x * np.linspace(1, 2, x.shape[1])[:, None])],
    "ct/fig14": [values(last=lambda x: x + 1), values(loss=np.ones_like)],
    "ct/fig6": [values(accuracy=first_two(0.5)), values(accuracy=times(-1)), values(accuracy=np.zeros_like)],
    "ct/fig16": [values(loss=first_two(-2)), values(loss=times(-1)), values(loss=np.zeros_like)],
    "ct/section4_3": [values(loss=swapped), values(loss=lambda x: x * np.linspace(1, 2, x.shape[1]))],
    "beyond/rotational_sgd": [values(accuracy=swapped)],
    "beyond/rotation_average": [arms("β 0.99", "loss", plus(-1)), values(rotation=times(0.5))],
    "beyond/recipe_gpt": [arms("gain,", "loss", plus(1)), arms("start", "loss", plus(1)), values(loss=times(-1))],
    "beyond/recipe_vit": [arms("gain,", "loss", plus(1)), arms("start", "loss", plus(1)), values(loss=times(-1))],
    "transfer/invariants": [values(over_promise=times(1.1))],
    "transfer/invariants_gpt": [values(over_promise=times(1.3)), values(over_promise=times(0.7))],
}  # fmt: skip


def test_every_experiment_has_wrong_predictions():
    # Trials of advice, transfer and free norms predict nothing: they ask which loss is lower (test_advice,
    # test_transfer, test_free_norms).
    trials = [entry.id for entry in select(["advice", "transfer"]) if "invariants" not in entry.id]
    trials += [entry.id for entry in select(["beyond"]) if "free_norms" in entry.id]
    assert set(WRONG_PREDICTIONS) == {entry.id for entry in select(["all"])} - set(trials)


@pytest.mark.parametrize("name", WRONG_PREDICTIONS)
def test_every_claim_that_holds_fails_for_a_wrong_prediction(name):
    experiment, result = read_result(RESULTS, name)
    true = [claim.holds for claim in experiment.claims(result)]
    broken = {
        i
        for wrong in WRONG_PREDICTIONS[name]
        for i, claim in enumerate(experiment.claims(wrong(result)))
        if not claim.holds
    }
    assert {i for i, holds in enumerate(true) if holds} <= broken


@pytest.mark.parametrize("name", WRONG_PREDICTIONS)
def test_the_record_is_what_its_values_say(name):
    experiment, result = read_result(RESULTS, name)
    stored, judged = ExperimentRecord.read(RESULTS, name).claims, experiment.claims(result)
    assert [(claim.sentence, claim.outcome) for claim in stored] == [
        (claim.sentence, claim.outcome) for claim in judged
    ]
    assert [claim.measured.mean for claim in stored] == pytest.approx([claim.measured.mean for claim in judged])


# Where a prediction is part of the measurement, it is made wrong there.


def holds(name):
    return {claim.sentence: claim.holds for claim in load(name).claims(run_trials(load(name), TINY[name]))}


def test_a_wrong_effective_learning_rate_is_noticed(monkeypatch):
    from gyroscope_lab.sp import _sphere, theorem2
    from gyroscope_lab.sp._effective_step import effective_step as right

    monkeypatch.setattr(theorem2, "effective_step", lambda x, a, b, lr: right(x, a, b, 1.01 * lr))
    monkeypatch.setattr(_sphere, "sgd_learning_rate", lambda lr, r, wd=0.0: lr / r)
    found = holds("sp/theorem2")
    assert not any(ok for sentence, ok in found.items() if "(12)" in sentence or "(13)" in sentence)
    assert not any(ok for sentence, ok in found.items() if sentence.endswith(("rate, SGD", "rate, SGD + L2")))


def test_a_wrong_growth_of_the_learning_rate_is_noticed(monkeypatch):
    monkeypatch.setattr(eq44, "lr_without_decay", lambda lr, wd, k: lr * (1 - lr * wd) ** (-2 * k))
    assert holds("sp/eq44")["largest distance between the directions over all steps"] is False


def test_a_wrong_start_of_the_second_moment_is_noticed(monkeypatch):
    right: Any = vars(theorem4)["adam_g_star"]
    monkeypatch.setattr(theorem4, "adam_g_star", lambda *args: replace(right(*args), v0=1.1 * right(*args).v0))
    assert not all(holds("sp/theorem4").values())


def test_momentum_that_is_not_transported_is_noticed(monkeypatch):
    from torch.optim import SGD

    monkeypatch.setattr(section4_2, "SGDMRT", lambda *args, **options: SGD(*args, **options))
    found = holds("sp/section4_2")
    assert not any(ok for sentence, ok in found.items() if "SGD-MRT" in sentence and not sentence.startswith("1"))


def test_a_flow_with_another_momentum_is_noticed(monkeypatch):
    right: Any = vars(fig1)["flow"]
    monkeypatch.setattr(fig1, "flow", lambda *args, **options: right(*args, **(options | {"betas": (0.5, 0.9)})))
    assert not all(holds("ct/fig1").values())


def test_coarse_and_plain_second_moments_that_agree_would_be_seen():
    agree = replace(tiny("ct/fig9"), values=tiny("ct/fig9").values | {"coarse": tiny("ct/fig9")["plain"]})
    assert fig9.claims(agree)[0].holds
    assert not fig9.claims(replace(agree, values=agree.values | {"coarse": -agree["plain"]}))[0].holds
