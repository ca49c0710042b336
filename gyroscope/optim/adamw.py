"""RotationalAdamW: AdamW's direction, turned by the angle that AdamW has in equilibrium."""

from typing import final

from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from gyroscope._checks import check_betas, check_non_negative
from gyroscope.geometry import Granularity
from gyroscope.optim import formulas
from gyroscope.optim._engine.optimizer import EngineOptimizer
from gyroscope.optim._engine.steps import (
    Centring,
    Group,
    Imbalance,
    InnerRule,
    Step,
    Vectors,
    check_rotational,
    plain,
    rotation,
)
from gyroscope.theory.rules import adamw


@final
class RotationalAdamW(EngineOptimizer):
    """AdamW held in equilibrium: every weight vector keeps its norm and turns by η_r on average.

        η_r = sqrt(2·lr·weight_decay·(1-β1)/(1+β1)) radians per step     (RE Table 1, Algorithm 1)

    What does not turn (biases, gains, vectors of one entry or of norm 0) takes AdamW's own step. A state_dict of
    torch's AdamW loads by name into any groups, and that of `AdamW(model.parameters())` in the order of the model
    (`load_state_dict`). `regrouped` brings one back. Every option may be set per group.

    AdamW's lr and weight_decay carry over where weights are scale-invariant and AdamW itself is in equilibrium: in runs
    with Σ lr·weight_decay of 1 or more, or from equilibrium norms (`to_equilibrium_`). In shorter runs AdamW turns at
    another speed, which `follow` brings back. Where norms matter, those of the start are kept: add gains
    (`gyroscope.nn.add_gain`), or start at equilibrium.

    params               the model: its parameters are sorted by `gyro.param_groups`. `model.named_parameters()` are
                         sorted by what names and shapes tell. Groups are taken as they are. Of `model.parameters()`
                         every tensor of two or more dimensions turns along dim 0, embeddings too
    lr                   as AdamW's; the angle follows sqrt(lr)
    betas, eps           as AdamW's; moments are float32 or better whatever the weights are
    weight_decay         sets the angle, and decays what does not turn; above 0 where something turns
    beta                 of the average of ‖Δ⊥‖² by which updates are scaled (RE: 0.99)
    centre               True: vectors at mean 0, and updates without their mean, so that the angle is exact (as the
                         authors' later code). "weights": take the mean off the weights after each step, as RE prints
                         Algorithm 1: the mean's part of an update is lost, and with it a part of the angle. False:
                         neither. Vectors of fewer than 4 entries are not centred: of the d-1 directions in which a
                         vector of d entries can turn, centring removes one, and for d = 2 the only one
    granularity          "neuron": one vector per index of `axis` (0); "tensor": one per tensor; "none": plain steps;
                         "group": one per `group_size` indices. `axis` and `group_size` are options of groups alone
    compile              one program per kind of tensor: 1.4 to 1.6 times torch's fused AdamW, instead of 3.4 to 4.1
    imbalance            (share, factor, seed): a share of a layer's vectors turns `factor` times as fast (RE Fig. 12);
                         slower and faster at once are two shares, ((0.25, 0.25), (10.0, 0.1), seed)
    stochastic_rounding  round bfloat16 and float16 weights at random, so that small angles are not lost

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
        centre: Centring = True,
        granularity: Granularity = "neuron",
        compile: bool = False,
        imbalance: Imbalance | None = None,
        stochastic_rounding: bool = False,
    ) -> None:
        super().__init__(params, locals())

    def _check(self, group: Group) -> None:
        check_betas(group["betas"])
        check_non_negative("eps", group["eps"])
        check_rotational(group)

    def _step_for(self, group: Group, t: int, vectors: Vectors) -> Step:
        lr = group["lr"]
        weight_decay = group["weight_decay"]
        beta1, beta2 = group["betas"]
        inner = InnerRule(
            direction=formulas.adamw,
            moments=("exp_avg", "exp_avg_sq"),
            numbers=formulas.adam_numbers(beta1, beta2, t, group["eps"]),
            lr=lr,
            decay=lr * weight_decay,
            eps=group["eps"],
            fused=formulas.fused_adam_,
        )
        if not vectors.rotate:
            return plain(inner)
        return rotation(inner, adamw.angular_update(lr, weight_decay, beta1), group, t, vectors)
