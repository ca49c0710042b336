"""RotationalAdamW: the direction of AdamW with its equilibrium rotation."""

from typing import final

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_betas, check_non_negative
from gyroscope.geometry import Granularity
from gyroscope.optim import formulas
from gyroscope.optim._engine.compiled import Compile
from gyroscope.optim._engine.optimizer import EngineOptimizer
from gyroscope.optim._engine.steps import Group, Step, TensorKind
from gyroscope.optim.formulas import Norms
from gyroscope.optim.model_start import NormRecord, Start, add_gains, set_norms_
from gyroscope.optim.rotation import RuleFacts, rotation
from gyroscope.optim.rotation_options import Centring, UpdateAverage, check_rotational
from gyroscope.theory.law import Correlation
from gyroscope.theory.rules import adamw


@final
class RotationalAdamW(EngineOptimizer):
    """AdamW held in equilibrium: every weight vector keeps its norm and rotates by η_r on average.

        η_r = sqrt(2·lr·weight_decay·(1-β1)/(1+β1)) radians per step     (RE Table 1, Algorithm 1)

    Biases, gains, and vectors of one entry or of norm 0 take AdamW's own step. A state_dict of torch's AdamW loads by
    name into any groups, or in the order of the model (`load_state_dict`). `regrouped` converts it back. Every option
    may be set per group.

    AdamW's lr and weight_decay carry over if weights are scale-invariant and AdamW itself reaches equilibrium. It does
    in runs with Σ lr·weight_decay of 1 or more, or from equilibrium norms (`to_equilibrium_`). In shorter runs AdamW
    rotates at another speed, which `follow` reproduces. If norms matter, add gains (`gyroscope.nn.add_gain`) or start
    at equilibrium, because initial norms are kept.

    params               a model, which `gyro.param_groups` sorts. Or `model.named_parameters()`, sorted by name and
                         shape. Or groups. Of `model.parameters()` every tensor of two or more dimensions rotates along
                         dim 0, embeddings too
    lr                   as AdamW's. The angle is proportional to sqrt(lr)
    betas, eps           as AdamW's. Moments are float32 or better
    weight_decay         sets the angle, and decays the weights that do not rotate. Above 0 if anything rotates
    beta                 of the average of ‖Δ⊥‖² that scales updates, at most (RE: 0.99)
    update_average       "noise": the average of ‖Δ⊥‖² corrects for a momentum that is still filling, and forgets fast,
                         so that rotation stays within 5 % of η_r (`gyroscope.optim.update_average`). If all gradients
                         are aligned, the first 30 steps rotate 1.08 times too far, and 1.2 times at most. "plain": RE's
                         average, which lags: 0.8 of η_r at steps 50 to 100, and less while updates shrink
    norms                "fixed": each vector keeps its initial norm n. "free": log n follows the loss at the speed of
                         the rotation, less its drift under noise. "settling": it is also drawn to the norm of AdamW's
                         equilibrium, which forgets the initial one (docs/theory.md, "Free norms"). The state's
                         "radius" is n in float32 or better. Each step multiplies it and makes the weights that long
                         again, so that the rounding of weights does not add up
    centre               True: vectors have mean 0 and updates lose their mean, so the angle is exact (as the authors'
                         later code). "weights": the weights lose their mean after each step, as RE prints Algorithm 1,
                         which loses a part of the angle. False: neither. Vectors of fewer than 4 entries are never
                         centred
    granularity          "neuron": one vector per index of `axis` (0). "tensor": one per tensor. "none": plain steps.
                         "group": one per `group_size` indices. `axis` and `group_size` are options of groups only
    compile              True: one program per kind of tensor, 1.6 to 1.8 times torch's fused AdamW, instead of 3.6 to
                         4.0. "auto": only where that pays, on CUDA and for large tensors on a CPU. If torch cannot make
                         a program, steps are eager, after one warning
    stochastic_rounding  round bfloat16 and float16 weights stochastically, so that small angles are not lost
    gain                 add a learnable gain to each weight vector of the model (`gyro.nn.add_gain`), for a loss that
                         depends on norms which are fixed. `gyro.nn.fold` removes it after training
    start                "equilibrium": start the model at the norms of AdamW's equilibrium (`to_equilibrium_`)
    start_from           a run of any optimizer, opened by `gyro.store.open_run`: start each weight of the model at
                         the norm at which it ended

    >>> model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 4))
    >>> optimizer = RotationalAdamW(model, lr=1e-3, weight_decay=0.1)
    >>> [(group["param_names"], group["granularity"]) for group in optimizer.param_groups]
    [(['0.weight', '1.bias'], 'none'), (['1.weight'], 'neuron')]
    """

    def __init__(
        self,
        params: ParamsT | nn.Module,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        *,
        beta: float = 0.99,
        update_average: UpdateAverage = "noise",
        norms: Norms = "fixed",
        centre: Centring = True,
        granularity: Granularity = "neuron",
        compile: Compile = False,
        stochastic_rounding: bool = False,
        gain: bool = False,
        start: Start = "initial",
        start_from: NormRecord | None = None,
    ) -> None:
        add_gains(params, gain, start, start_from)
        super().__init__(params, locals())
        set_norms_(self, params, start, start_from)

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])
        check_non_negative("eps", group["eps"])
        check_rotational(group)

    def _step_for(self, group: Group, t: int, kind: TensorKind) -> Step:
        beta1, beta2 = group["betas"]
        inner = Step(
            direction=formulas.adamw,
            moments=("exp_avg", "exp_avg_sq"),
            numbers=formulas.adam_numbers(beta1, beta2, t, group["eps"]),
            lr=group["lr"],
            decay=group["lr"] * group["weight_decay"],
        )
        facts = RuleFacts("adam", group["eps"], Correlation.of_average(beta1))
        angle = adamw.angular_update(group["lr"], group["weight_decay"], beta1)
        return rotation(inner, facts, angle, group, t, kind)
