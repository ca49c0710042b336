"""Every remedy that a finding can name, and the trial of each on real training.

`gyroscope lab run remedies` trains networks that show a finding, and the same networks with the remedy followed to the
letter. results/advice.md has the outcome. A remedy that did harm there is not in this file.
"""

from collections.abc import Sequence

from gyroscope.advice import thresholds as limit
from gyroscope.advice.findings import NOTHING, Remedy, Severity
from gyroscope.advice.layer_facts import LayerFacts
from gyroscope.advice.phrases import format_number

# Experiments of `gyroscope_lab.remedies` that tested a printed remedy. Each is a section of results/advice.md.
TRIALS = (
    "warmup",
    "slower_rotation",
    "decoupled_decay",
    "dead_vectors",
    "frozen_entries",
    "stable_betas",
    "divergence",
)
# The experiment of the lab that tested the recipe for rotational optimizers.
ROTATIONAL_RECIPE = "beyond/recipe_gpt"

MEASURE_LONGER = Remedy("Train on, or measure more often (a smaller every=).")
CHECK_LAYER = Remedy("Check that the layer is used, and that it is not frozen.")
FIND_SETTING = Remedy("Look for what set it at that step: a scheduler, a callback, or options of a resumed run.")
FIND_WRITER = Remedy("Look for what writes to these weights at that step: a load, a reset, a rescaling or an average.")
OWN_IMBALANCE = Remedy("The optimizer's angle_factors cause this.")

# One step down. Trials lowered the rate by ten times and more, which takes several.
SLOWER = {"lr": "×0.3"}

# These name only what was tested: a lower learning rate, but not a longer warmup, clipping or another activation.
LOWER_RATE = Remedy("Lower the learning rate, for example to 0.3 times.", SLOWER, "slower_rotation")
FIND_NAN = Remedy("torch.autograd.set_detect_anomaly(True) names the operation that made the first NaN.")
GO_BACK = Remedy(
    "Go back to a checkpoint from before that step and lower the learning rate, for example to 0.3 times. "
    f"{FIND_NAN.text}",
    SLOWER,
    "divergence",
)
REVIVE = Remedy("Lower the learning rate, for example to 0.3 times.", SLOWER, "dead_vectors")
WIDER_WEIGHTS = Remedy(
    "If the weights are below float32, keep them in float32 and compute in bfloat16 (torch.autocast).",
    {"precision": "bf16"},
    "frozen_entries",
)
DECOUPLE = Remedy(
    "Decouple the weight decay: with AdamW the rotation does not depend on the gradient's size.",
    {"optimizer": "adamw"},
    "decoupled_decay",
)


def severity(remedy: Remedy) -> Severity:
    """Return "warn" only if the remedy lowered the loss in a trial."""
    return "warn" if remedy.trial else "note"


def slower_start(has: int, needed: Sequence[int | None]) -> Remedy:
    """Return the warmup that slows down a start faster than equilibrium.

    has     steps of warmup that the run has
    needed  warmup that each layer needs, None if no warmup helps because the initial norm is too small
    """
    longest = max((warmup for warmup in needed if warmup is not None), default=0)
    # A longer warmup does not help if the present one is long enough and the start is still fast.
    if None in needed or not has < longest <= limit.MAX_WARMUP:
        return NOTHING
    text = f"Use a warmup of about {format_number(longest, 2)} steps (now {has:,})."
    return Remedy(text, {"warmup": longest}, "warmup")


def look_at_batches(first: int, last: int) -> Remedy:
    """Return where to look for batches that are unlike the others.

    >>> look_at_batches(1000, 1000).text
    'Look at the batch of step 1,000.'
    """
    if first == last:
        return Remedy(f"Look at the batch of step {first:,}.")
    # A network that was trained on unusual batches takes longer to recover than they last.
    return Remedy(f"Look at the batches of steps {first:,} to {last:,}, beginning with the first.")


def look_at_layer(name: str, first: int, last: int) -> Remedy:
    """Return where to look for the cause of one layer's gradient.

    >>> look_at_layer("head.weight", 1000, 1000).text
    'Look at what reaches head.weight in step 1,000: its inputs, its losses and its masks.'
    """
    steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
    return Remedy(f"Look at what reaches {name} in {steps}: its inputs, its losses and its masks.")


def balance_layers(layer: LayerFacts) -> Remedy:
    """Return what makes layers rotate alike. In trials it lowered the loss only for Adam with L2."""
    rule = layer.rule
    is_adam_with_l2 = rule is not None and rule.adam_betas is not None and not rule.is_decoupled
    return DECOUPLE if is_adam_with_l2 else own_imbalance(layer)


def own_imbalance(layer: LayerFacts) -> Remedy:
    """Return the option of an optimizer that rotates neurons at different speeds, if it was set."""
    return OWN_IMBALANCE if layer.sets_angle and layer.sets_imbalance else NOTHING


def stable_betas(beta1: float) -> Remedy:
    """Return betas that are stable, with an example well inside the region.

    >>> stable_betas(0.9).text
    'Set beta2 above beta1² = 0.81, for example betas=(0.9, 0.99).'
    """
    # The first usual value above beta1, so that the margin is comfortable.
    beta2 = next(beta2 for beta2 in (0.99, 0.999, 0.9999, (1 + beta1) / 2) if beta2 > beta1)
    example = f"betas=({beta1:g}, {beta2:g})"
    text = f"Set beta2 above beta1² = {format_number(beta1**2)}, for example {example}."
    return Remedy(text, {"betas": (beta1, beta2)}, "stable_betas")


# Tried with RotationalAdamW alone.
# Only for small initial norms. With others, starting at equilibrium helped a GPT and harmed a ViT.
ROTATIONAL_START = Remedy(
    "Give each layer a gain (gyro.nn.add_gain) and start at equilibrium norms (gyro.optim.to_equilibrium_).",
    {"gain": True, "start": "equilibrium"},
    ROTATIONAL_RECIPE,
)
