"""k-Adam (CT): Adam's normalisation applied k times in succession."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple, cast, final

import numpy as np

from gyroscope._checks import check_betas, check_decay
from gyroscope._types import Array, Number
from gyroscope.theory.law import SampledCorrelation, Weights
from gyroscope.theory.recursion import Motion, StationaryMotion
from gyroscope.theory.rules.decoupled import DecoupledRule
from gyroscope.theory.stability import kadam_betas

Betas = tuple[float, float]

# Above this β2, v is nearly constant and the stages are linear filters. At .99 the norm is 2 % off.
NEARLY_CONSTANT = 0.99
# Size of the white noise with which stages of smaller β2 are simulated. The correlation time is accurate to .3 %.
NOISE_ENTRIES = 2048
NOISE_STEPS = 4096
# Memories of the slowest average after which a correlation or the start of a simulation is forgotten.
FORGOTTEN = 15


class NoiseResponse(NamedTuple):
    """The update under white noise: the mean square of an entry, and its autocorrelation."""

    mean_square: float
    correlation: SampledCorrelation


@cache
def noise_response(stages: tuple[Betas, ...]) -> NoiseResponse:
    """Return how k-Adam's stages respond to white noise.

    If v is nearly constant in every stage, the stages are a cascade of exponential averages, each divided by the RMS of
    its input. With V_j the variance of unit noise after j averages:

        R = V_k/V_{k-1},  τ = 1/V_k     (ours: docs/theory.md, "k-Adam")

    Otherwise a simulation with a fixed seed measures both, in a fraction of a second.

    >>> response = noise_response(((0.9, 0.999),))
    >>> f"{response.mean_square:.4f} {response.correlation.time():.2f}"
    '0.0526 19.00'
    """
    memory = sum(1 / (1 - beta1) for beta1, _ in stages)
    lags = min(round(FORGOTTEN * memory) + 2, NOISE_STEPS // 2)
    if min(beta2 for _, beta2 in stages) >= NEARLY_CONSTANT:
        filters = _cascade(tuple(beta1 for beta1, _ in stages), 2 * lags)
        variances = [1.0, *(float(h @ h) for h in filters)]
        last = filters[-1]
        correlation = np.array([last[lag:] @ last[: len(last) - lag] for lag in range(1, lags)]) / variances[-1]
        return NoiseResponse(variances[-1] / variances[-2], SampledCorrelation(correlation))
    updates = _simulated(stages)
    power = np.abs(np.fft.rfft(updates, 2 * NOISE_STEPS, axis=0)) ** 2
    covariance = np.fft.irfft(power.mean(1), axis=0)[:lags] / (NOISE_STEPS - np.arange(lags))
    return NoiseResponse(float(covariance[0]), SampledCorrelation(covariance[1:] / covariance[0]))


def _cascade(betas: Sequence[float], length: int) -> list[Array]:
    """Return the impulse response after each of the averages."""
    t = np.arange(length)
    response = np.zeros(length)
    response[0] = 1.0
    responses = []
    for beta in betas:
        response = np.convolve(response, (1 - beta) * beta**t)[:length]
        responses.append(response)
    return responses


def _simulated(stages: Sequence[Betas]) -> Array:
    """Return stationary updates under white noise, (steps, entries)."""
    generator = np.random.default_rng(0)
    slowest = max(beta for betas in stages for beta in betas)
    burn_in = min(round(FORGOTTEN / (1 - slowest)), 2 * NOISE_STEPS)
    m, v = np.zeros((2, len(stages), NOISE_ENTRIES))
    updates = np.empty((NOISE_STEPS, NOISE_ENTRIES))
    for t in range(-burn_in, NOISE_STEPS):
        ghat = generator.standard_normal(NOISE_ENTRIES)
        count = t + burn_in + 1
        for stage, (beta1, beta2) in enumerate(stages):
            m[stage] += (1 - beta1) * (ghat - m[stage])
            v[stage] += (1 - beta2) * (ghat * ghat - v[stage])
            ghat = m[stage] / np.sqrt(v[stage]) * ((1 - beta2**count) ** 0.5 / (1 - beta1**count))
        if t >= 0:
            updates[t] = ghat
    return updates


@final
@dataclass(frozen=True)
class KAdam(DecoupledRule):
    """k-Adam (CT Algorithm 1) with decoupled weight decay: the one law with the stages' response to noise (ours).

        η_r = sqrt(2·lr·λ/τ),   ‖ω‖² = lr·C·R·τ/(2λ)     to leading order

    R and τ are those of `noise_response`. With k = 1 this is AdamW.

    lr, weight_decay  as AdamW's
    k                 number of stages
    betas             one pair, from which `strategy` derives those of the stages, or a list of k pairs
    strategy          "inverse_exp", "exp", "scaled" or "naive" (`theory.stability.kadam_betas`)
    coupled           weight decay in the gradient, which the theory does not cover

    >>> eq = KAdam(lr=1e-3, weight_decay=0.1, k=2, strategy="naive").equilibrium(fan_in=512)
    >>> f"{eq.angular_update:.5f} rad/step at norm {eq.norm:.3f}"
    '0.00230 rad/step at norm 6.969'
    """

    lr: float
    weight_decay: float
    k: int = 2
    betas: Betas | tuple[Betas, ...] = (0.9, 0.999)
    strategy: str = "inverse_exp"
    coupled: bool = False

    needs: ClassVar[tuple[str, ...]] = ("fan_in",)
    motion_class: ClassVar[type[Motion]] = StationaryMotion

    def __post_init__(self) -> None:
        check_decay(self.lr, self.weight_decay)
        # Hashable, as a frozen dataclass promises.
        betas = (tuple(beta) if isinstance(beta, Sequence) else beta for beta in self.betas)
        object.__setattr__(self, "betas", tuple(betas))
        for stage in self.stages:
            check_betas(stage)
        if self.coupled and self.weight_decay > 0:
            raise ValueError(
                f"KAdam with coupled=True, k={self.k!r} and weight_decay={self.weight_decay!r} is not covered by the "
                "theory, because the decay passes through all stages. Set coupled=False, or use AdamL2, which is k=1"
            )

    @property
    def stages(self) -> tuple[Betas, ...]:
        """The betas of each stage."""
        pairs = [beta for beta in self.betas if isinstance(beta, Sequence) and len(beta) == 2]
        if not pairs and len(self.betas) == 2:
            beta1, beta2 = cast(Betas, self.betas)
            return tuple(kadam_betas(self.strategy, self.k, (beta1, beta2)))
        if len(pairs) < len(self.betas) or len(pairs) != self.k:
            raise ValueError(f"betas={self.betas!r} must be one pair, or one pair per stage, and k={self.k!r}")
        return tuple((float(beta1), float(beta2)) for beta1, beta2 in pairs)

    @property
    def momentum_factor(self) -> float:
        """The largest β1 of the stages."""
        return max(beta1 for beta1, _ in self.stages)

    def unit_update(self, weights: Weights) -> tuple[Number, SampledCorrelation]:
        """Return E‖u‖² = C·R and the stages' correlation."""
        response = noise_response(self.stages)
        C = weights.fan_in
        return None if C is None else (C * response.mean_square) ** 0.5, response.correlation
