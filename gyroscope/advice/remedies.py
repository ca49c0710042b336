"""Every remedy that a finding can name, and the trial of each on real training.

`gyroscope lab run advice` trains networks in good and bad situations, and again after what the findings say was
followed to the letter. results/advice.md has the outcome. A remedy that did harm there is not in this file.
"""

from collections.abc import Sequence
from math import isfinite
from statistics import median

from gyroscope.advice.findings import NOTHING, Remedy, Severity
from gyroscope.advice.layer_facts import LayerFacts
from gyroscope.advice.phrases import format_number

MEASURE_LONGER = Remedy("Train on, or measure more often (a smaller every=).")
CHECK_LAYER = Remedy("Check that the layer is used, and that it is not frozen.")
FIND_SETTING = Remedy("Look for what set it at that step: a scheduler, a callback, or options of a resumed run.")
FIND_WRITER = Remedy("Look for what writes to these weights at that step: a load, a reset, a rescaling or an average.")
OWN_IMBALANCE = Remedy("The optimizer's angle_factors cause this.")

# One step down. Trials lowered the rate by ten times and more, which takes several.
SLOWER = {"lr": "×0.3"}

# These name only what was tested: a lower learning rate, but not a longer warmup, clipping or another activation.
LOWER_RATE = Remedy("Lower the learning rate, for example to 0.3 times.", SLOWER, "remedies/slower_rotation")
FIND_NAN = Remedy("torch.autograd.set_detect_anomaly(True) names the operation that made the first NaN.")
GO_BACK = Remedy(
    "Go back to a checkpoint from before that step and lower the learning rate, for example to 0.3 times. "
    f"{FIND_NAN.text}",
    SLOWER,
    "remedies/divergence",
)
REVIVE = Remedy("Lower the learning rate, for example to 0.3 times.", SLOWER, "remedies/dead_vectors")
WIDER_WEIGHTS = Remedy(
    "If the weights are below float32, keep them in float32 and compute in bfloat16 (torch.autocast).",
    {"precision": "bf16"},
    "remedies/frozen_entries",
)


def severity(remedy: Remedy) -> Severity:
    """Return "warn" only if the remedy lowered the loss in a trial."""
    return "warn" if remedy.trial else "note"


def slower_start(has: int, needed: Sequence[int]) -> Remedy:
    """Return what slows down the first steps: a warmup, or a lower learning rate if the run has that warmup.

    has     steps of warmup that the run has
    needed  warmups of the layers, none longer than a tenth of the run

    >>> slower_start(0, [20, 50]).text, slower_start(50, [50]).changes["lr"]
    ('Warm up over 50 steps (now 0).', '×0.3')
    """
    longest = max(needed, default=0)
    if longest <= has:
        return LOWER_RATE
    return Remedy(f"Warm up over {longest:,} steps (now {has:,}).", {"warmup": longest}, "remedies/warmup")


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


def balance_layers(fastest: LayerFacts, layers: Sequence[LayerFacts]) -> Remedy:
    """Return what makes layers rotate alike. In trials it lowered the loss only for Adam with L2.

    The weight decay of AdamW is the one with the same memory, as `gyroscope convert` gives it.
    """
    rule = fastest.rule
    if rule is None or rule.adam_betas is None or rule.is_decoupled:
        return own_imbalance(fastest)
    memories = [layer.memory for layer in layers if isfinite(layer.memory) and layer.memory > 0]
    if not memories:
        return NOTHING
    weight_decay = float(f"{1 / (rule.lr * median(memories)):.2g}")
    text = f"Decouple the weight decay: AdamW with a weight decay of {weight_decay:g} forgets as fast."
    return Remedy(text, {"optimizer": "adamw", "weight_decay": weight_decay}, "remedies/decoupled_decay")


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
    return Remedy(text, {"betas": (beta1, beta2)}, "remedies/stable_betas")


# Tried with RotationalAdamW alone.
# Only for small initial norms. With others, starting at equilibrium helped a GPT and harmed a ViT.
ROTATIONAL_START = Remedy(
    "Give each layer a gain (gyro.nn.add_gain) and start at equilibrium norms (gyro.optim.to_equilibrium_).",
    {"gain": True, "start": "equilibrium"},
    "beyond/recipe_gpt",
)
