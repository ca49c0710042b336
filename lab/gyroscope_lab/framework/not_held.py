"""Why claims do not hold: one sentence for each, by experiment and by a part of the claim's sentence.

Every sentence begins with a kind: the experiment is too small for the paper's effect, the paper's premise fails here,
the claim is not the paper's, or the opposite was seen and nobody has tested why. "Probably" marks a reason that no
experiment here has tested.
"""

from gyroscope_lab.framework.claims import Claim
from gyroscope_lab.framework.papers import OURS

KINDS = ("Too small: ", "The paper's premise: ", "Not the paper's claim: ", "The opposite at this size")

# Sentences that several experiments share.
_WORSE = (
    "Too small: the variant keeps its initial norms, and its base does not. In this vision transformer, which has "
    "neither gains nor a start at equilibrium, norms matter."
)
_OURS_OF_TABLES = (
    "Not the paper's claim: the paper neither follows the base's forecast nor starts from equilibrium norms."
)
_OPPOSITE = "The opposite at this size."
_LAGGING = "Too small: lr falls so fast that norms probably lag behind their equilibrium, which falls with it."
_NOT_SETTLED = "Too small: layers had probably not settled when they were measured."
_GRADIENTS_GROW = (
    "The paper's premise: unit gradient norms grow 1.5 to 2.4 times from stage to stage, and Corollary 3.1 needs them "
    "to stay as they were."
)
_LEARNS_FASTEST = (
    "Too small: 500 steps show which method learns fastest, and the paper's order is that after 405 epochs."
)
_K_ADAM = (
    "Too small: these runs have hundreds of steps, a few learning rates and one weight decay, and the paper's have "
    "thousands of steps and a whole sweep."
)

# Experiment -> part of a claim's sentence -> reason. The first part that matches counts, and "" matches all.
WHY_NOT: dict[str, dict[str, str]] = {
    "re/fig3": {"norm over prediction": _LAGGING},
    "re/fig10": {
        "": (
            "The opposite at this size: in a GPT of two narrow layers gradients shrink feed-forward layers, at the "
            "paper's learning rate and weight decay too. Attention does what the paper shows."
        ),
    },
    "re/fig11": {
        "error of the norm": "Too small: λ_u probably changes too fast in a run this short for the norm to follow λ_e.",
    },
    "re/fig13": {
        "over prediction in mid-run": (
            "Too small: layers of so narrow a GPT are not scale-invariant (re/fig10), and norms probably lag "
            "behind the falling lr."
        ),
    },
    "re/fig14": {
        "late": (
            "Not the paper's claim: the paper shows the start alone. AdamW stays faster here, probably because "
            "gradients shrink layers that are not scale-invariant below their equilibrium norm (re/fig10)."
        ),
    },
    "re/table2": {"(ours)": _OURS_OF_TABLES, "": _WORSE},
    "re/table3": {"(ours)": _OURS_OF_TABLES, "": _WORSE},
    "smd/fig2": {
        "E h̃ over E‖g̃‖²": "The paper's premise: in this network ⟨v,g⟩ is below 0 on average.",
        "assumption 6": "The paper's premise: h̃ is below 0 at some steps, so it has no lower bound above 0.",
        "": _NOT_SETTLED,
    },
    "smd/fig3": {"": _GRADIENTS_GROW},
    "smd/fig7": {
        "(ours)": (
            "Not the paper's claim: our formula takes gradients for independent, and in training they undo a part of "
            "earlier steps (smd/fig2)."
        ),
        "": _NOT_SETTLED,
    },
    "smd/fig9": {
        "": (
            "Too small: the first steps throw norms far above equilibrium, and the first stage ends before all layers "
            "have come back."
        ),
    },
    "sp/fig3": {"": "Not the paper's claim: the paper says small and draws it, and the bounds are ours."},
    "sp/table2": {"": _OPPOSITE},
    "sp/table5": {"": _LEARNS_FASTEST},
    "ct/fig2": {
        "if and only if β1² > β2": (
            "Too small: at 4 of 1,600 betas, all within 0.002 of the edge, the update is still rising to its bound "
            "after 200 to 400 steps."
        ),
    },
    "ct/fig5": {
        "by (8)": (
            "The paper's premise: (8) drops ⟨W,u⟩, through which nearly all growth comes if successive updates point "
            "the same way."
        ),
    },
    "ct/fig6": {"": _OPPOSITE},
    "ct/fig7": {
        "bound (5)": "The paper's premise: (5) has sqrt(n) where it needs sqrt(n+1), which is 1.41 times it at n = 1.",
    },
    "ct/fig8": {
        "(ours)": "Not the paper's claim: the paper compares with a network without qk-norm, not with random ones.",
    },
    "ct/fig9": {
        "": (
            "Too small: after 300 steps the two ways probably still differ by their first step, in which Adam moves "
            "every entry by lr."
        ),
    },
    "ct/fig13": {
        "": "Too small: in a third of 1,200 steps the long memory of a large beta2 probably does not pay yet.",
    },
    "ct/fig16": {"": _K_ADAM},
    "beyond/network_errors": {
        "": "Not the paper's claim: the bound of 5 % is ours, and gradients in training are not the law's random walk.",
    },
    "transfer/invariants_gpt": {
        "run length": (
            "Not the paper's claim: directions in this GPT last 2 to 5 times as long as scale-invariant ones."
        ),
    },
    "ct/section4_3": {
        "images": "Too small: in hundreds of steps a CNN without BatchNorm learns more slowly with either optimizer.",
    },
}
# For experiments that belong to no paper and have no reason of their own.
OURS_DOES_NOT_HOLD = "Not the paper's claim: this is a trial of our own, and it says no at this size."


def reason_of(name: str, claim: Claim) -> str:
    """Return why a claim of an experiment does not hold, or "" if no reason is known."""
    reasons = WHY_NOT.get(name, {})
    otherwise = OURS_DOES_NOT_HOLD if name.split("/")[0] in OURS else ""
    return next((why for part, why in reasons.items() if part in claim.sentence), otherwise)
