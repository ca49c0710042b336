"""What the papers claim, figure by figure, and whether it was seen here: the rows of results/README.md.

The verdict of a row is our reading. The numbers beside it are those of the record, so that a record that is made again
changes them. A test fails if a verdict no longer fits them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import final

from gyroscope_lab.framework.claims import Claim, ClaimOutcome

RESNET = "ResNet-8 on 8 × 8 pixels"
GPT = "GPT of two narrow layers"
SMALL_GPT = "GPT of one layer, 1,200 steps, 7 pairs of betas"
CNN = "small CNN on 8 × 8 pixels, lr·wd 50 times as large"
OWN_SETTING = "the paper's own setting"


class Verdict(StrEnum):
    """What was seen of a claim."""

    AS_IN_THE_PAPER = "●"
    IN_PART = "◐"
    NOT_SEEN = "○"
    CONTRADICTS = "✗"


@final
@dataclass(frozen=True)
class Number:
    """A measured number: the sentence of a claim in the record, and a text with {} for its mean and interval."""

    text: str
    sentence: str


@final
@dataclass(frozen=True)
class EvidenceRow:
    """A figure, a table or a theorem: the paper's claim, the verdict, the numbers that decide, and what differs."""

    figure: str
    record: str
    claim: str
    verdict: Verdict
    numbers: tuple[Number, ...]
    differs: str = OWN_SETTING


@final
@dataclass(frozen=True)
class Headline:
    """A statement of a paper that readers quote, with the records that decide it."""

    statement: str
    verdict: Verdict
    answer: str
    records: tuple[str, ...]


HEADLINES = (
    Headline(
        "In equilibrium AdamW, SGDM and Lion rotate every vector by an angle that the settings give (RE Table 1)",
        Verdict.AS_IN_THE_PAPER,
        "within 1 % of the formulas",
        ("re/table1", "re/fig8"),
    ),
    Headline(
        "Adam with L2 rotates layers unequally, and that is why it loses to AdamW (RE Fig. 4)",
        Verdict.IN_PART,
        "the rotation is unequal and balancing it helps. AdamW's own lead is not decided",
        ("re/fig4",),
    ),
    Headline(
        "Rotational variants match their optimizers with the same settings (RE Tables 2, 3)",
        Verdict.IN_PART,
        "match or are better on a ResNet and a GPT, worse on a vision transformer without gains",
        ("re/table2", "re/table3"),
    ),
    Headline(
        "Rotational variants need less tuning, and imbalance costs accuracy (RE Figs 5, 12)",
        Verdict.AS_IN_THE_PAPER,
        "seen at every batch size, and in six of eight kinds of imbalance. Two are not decided",
        ("re/fig5", "re/fig12"),
    ),
    Headline(
        "Norm and rotation come to the values of theory at a linear rate (SMD Theorems 1–3)",
        Verdict.AS_IN_THE_PAPER,
        "within 1 %",
        ("smd/theorem1", "smd/theorem2", "smd/theorem3"),
    ),
    Headline(
        "Rescaling norms when lr falls keeps the rotation at its equilibrium (SMD Fig. 3, Cor. 3.1)",
        Verdict.IN_PART,
        "exact if gradients stay alike. In a network they grow, and rotation ends too fast",
        ("smd/corollary3_1", "smd/fig3"),
    ),
    Headline(
        "Every optimizer is a step on the sphere, and SGD with decay is Adam there (SP Theorem 2, (44), Theorem 4)",
        Verdict.AS_IN_THE_PAPER,
        "to rounding, and at the order that the paper gives",
        ("sp/theorem2", "sp/eq44", "sp/theorem4"),
    ),
    Headline(
        "Adam-SRT is more accurate than Adam-S, and Adam-S than Adam (SP Table 2)",
        Verdict.CONTRADICTS,
        "Adam-SRT is above Adam-S. Both are below Adam, the opposite at this size",
        ("sp/table2",),
    ),
    Headline(
        "Adam's updates are bounded where C > 0 and grow as exp(n·|C|/2) where C < 0 (CT Theorem 1, Figs 2, 3)",
        Verdict.AS_IN_THE_PAPER,
        "bounded, and the exponent fits. The exact edge is β1² = β2, a little further out",
        ("ct/fig2", "ct/fig3"),
    ),
    Headline(
        "2-Adam is better than AdamW (CT Figs 6, 16)",
        Verdict.NOT_SEEN,
        "no difference is decided, on images or on text",
        ("ct/fig6", "ct/fig16"),
    ),
)

RE = (
    EvidenceRow(
        "Figure 1",
        "re/fig1",
        "Neurons that rotate at different speeds at first come to rotate at the same speed",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "fastest over slowest neuron early: {}",
                "fastest over slowest neuron at 2 to 10 % of the run",
            ),
            Number(
                "late: {}",
                "fastest over slowest neuron, last two fifths of the run",
            ),
        ),
        f"a sketch in the paper, {RESNET} here",
    ),
    EvidenceRow(
        "Figure 3",
        "re/fig3",
        "At constant lr·wd accuracy has an optimum in lr, and norm and rotation follow their predictions",
        Verdict.IN_PART,
        (
            Number(
                "AdamW's best lr over its lowest: {} of accuracy",
                "accuracy with AdamW: the best lr between is better than the lowest by",
            ),
            Number(
                "norm over prediction: {}",
                "norm over prediction in mid-run, lr 0.016",
            ),
        ),
        f"{RESNET}, 400 steps instead of 78,000",
    ),
    EvidenceRow(
        "Figure 4",
        "re/fig4",
        "Adam with L2 rotates layers unequally and loses to AdamW, and balanced rotation closes the gap",
        Verdict.IN_PART,
        (
            Number(
                "spread of rotation over AdamW's: {}",
                "spread of rotation over the layers in mid-run, Adam+L2 at its best over AdamW",
            ),
            Number(
                "AdamW's accuracy less Adam+L2's: {} (paper .0066)",
                "accuracy of AdamW less Adam+L2's (paper: 0.0066)",
            ),
        ),
        f"{RESNET}, 600 steps, two or three settings instead of forty",
    ),
    EvidenceRow(
        "Figure 5",
        "re/fig5",
        "Rotational SGDM needs less tuning with layer norm, and no warmup at large batches",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "accuracy over SGDM's, mean over lr, layer norm: {}",
                "accuracy of rotational SGDM less SGDM's, layer norm, mean over learning rates",
            ),
            Number(
                "batch 1,024: {}",
                "accuracy of rotational SGDM less SGDM's, batch 1,024, no warmup, mean over learning rates",
            ),
        ),
        f"{RESNET}, batches of 256 and 1,024 instead of 2,000 to 32,000",
    ),
    EvidenceRow(
        "Figure 8",
        "re/fig8",
        "AdamW rotates all vectors alike whatever their gradients, and Adam with L2 does not",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "spread over vectors under AdamW: {}",
                "spread of the angle over vectors, AdamW",
            ),
            Number(
                "Adam+L2's over it: {}",
                "spread under Adam+L2 over the spread under AdamW",
            ),
        ),
    ),
    EvidenceRow(
        "Figure 9",
        "re/fig9",
        "The random walk describes convolutions of a ResNet well",
        Verdict.IN_PART,
        (
            Number(
                "error of the rotation: {}",
                "error of the rotation, mean of the layers",
            ),
            Number(
                "of the norm: {} (limit .05, ours)",
                "error of the norm, mean of the layers",
            ),
        ),
        f"{RESNET}, 5 memories instead of 7.8",
    ),
    EvidenceRow(
        "Figure 10",
        "re/fig10",
        "In a poorly normalised GPT the radial part of gradients acts as a negative weight decay",
        Verdict.IN_PART,
        (
            Number(
                "λ_u over weight decay, queries and keys: {}",
                "λ_u over weight decay, queries and keys: below 0",
            ),
            Number(
                "feed-forward layers: {}",
                "λ_u over weight decay, feed-forward layers: below 0",
            ),
        ),
        f"{GPT}, 12,000 steps at the paper's lr and decay. Feed-forward layers do the opposite at this size",
    ),
    EvidenceRow(
        "Figure 11",
        "re/fig11",
        "Without normalisation weights follow an effective decay, and standardised ones need none",
        Verdict.IN_PART,
        (
            Number(
                "largest radial part with standardised weights: {}",
                "largest |λ_u| of a layer over λ, weights standardised",
            ),
            Number(
                "error of the norm with effective decay: {} (limit .1, ours)",
                "error of the norm with λ_e, mean of layers, without norms",
            ),
        ),
        "four narrow convolutions instead of VGG-13, 800 steps",
    ),
    EvidenceRow(
        "Figure 12",
        "re/fig12",
        "Even small imbalance of rotation costs accuracy",
        Verdict.IN_PART,
        (
            Number(
                "accuracy lost by 45 % ten times slower and 45 % faster: {}",
                "accuracy of balanced rotation less that of 45 % 10 × slower, 45 % faster",
            ),
            Number(
                "by 50 % twice slower: {}",
                "accuracy of balanced rotation less that of 50 % 2 × slower",
            ),
        ),
        f"{RESNET}, 600 steps. The smallest imbalance is not decided",
    ),
    EvidenceRow(
        "Figure 13",
        "re/fig13",
        "A GPT's loss has an optimum at constant lr·wd, also with its rotational variant",
        Verdict.IN_PART,
        (
            Number(
                "AdamW's best lr below its lowest: {} nats",
                "loss with AdamW: the best lr between is better than the lowest by",
            ),
            Number(
                "variant's best below its highest: {} nats",
                "loss with rotational AdamW: the best lr between is better than the highest by",
            ),
        ),
        f"{GPT}, 400 steps instead of 15,000",
    ),
    EvidenceRow(
        "Figure 14",
        "re/fig14",
        "AdamW rotates a transformer about twice too fast at first, and its variant does not",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "AdamW over its variant early: {} (paper about 2)",
                "AdamW over its variant early (paper: about 2)",
            ),
            Number(
                "variant over its predicted angle: {}",
                "variant over its predicted angle early",
            ),
        ),
        "vision transformer of two narrow layers, constant lr",
    ),
    EvidenceRow(
        "Figure 15",
        "re/fig15",
        "Rotational variants tolerate other choices of β, centring and granularity",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "loss over the default's, ResNet not centred: {}",
                "loss over the default's, ResNet, not centred",
            ),
            Number(
                "GPT per layer: {}",
                "loss over the default's, GPT, per layer",
            ),
        ),
        f"{RESNET}, {GPT}, hundreds of steps",
    ),
    EvidenceRow(
        "Table 1",
        "re/table1",
        "Norm, rotation and update size in equilibrium of AdamW, SGDM, Lion and Adam with L2",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "AdamW's angle: {} (predicted .00324)",
                "angle under AdamW (Table 1)",
            ),
            Number(
                "SGDM's: {} (.00324)",
                "angle under SGDM (Table 1)",
            ),
        ),
    ),
    EvidenceRow(
        "Table 2",
        "re/table2",
        "Rotational AdamW, and the special variant, match AdamW",
        Verdict.IN_PART,
        (
            Number(
                "loss over AdamW's, zero-shot, GPT: {}",
                "GPT: loss of rotational AdamW, zero-shot, over its base's",
            ),
            Number(
                "vision transformer: {}",
                "vision transformer: loss of rotational AdamW, zero-shot, over its base's",
            ),
        ),
        f"{RESNET}, {GPT}, a narrow vision transformer without gains",
    ),
    EvidenceRow(
        "Table 3",
        "re/table3",
        "Rotational SGDM and rotational Lion match their optimizers",
        Verdict.IN_PART,
        (
            Number(
                "loss over SGDM's, zero-shot: {} (limit 1.005)",
                "ResNet: loss of rotational SGDM, zero-shot, over its base's",
            ),
            Number(
                "over Lion's: {}",
                "ResNet: loss of rotational Lion, zero-shot, over its base's",
            ),
        ),
        f"{RESNET}, 2,000 steps",
    ),
    EvidenceRow(
        "Appendix I",
        "re/appendix_i",
        "Under Adam with L2 norm and rotation depend on the gradient's size, by (84) and (87)",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "largest over smallest angle, Adam+L2: {}",
                "largest over smallest angle of all levels, Adam+L2",
            ),
            Number(
                "AdamW: {}",
                "largest over smallest angle of all levels, AdamW",
            ),
        ),
    ),
)

SMD = (
    EvidenceRow(
        "Theorem 1",
        "smd/theorem1",
        "Under SGD the norm approaches its equilibrium at a linear rate, to a noise floor",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "‖w‖² settles at {} (predicted 22.4)",
                "‖w‖² settles at the w*² of Theorem 1",
            ),
            Number(
                "variance over the floor: {}",
                "variance of ‖w‖² in equilibrium over the floor of Theorem 1",
            ),
        ),
    ),
    EvidenceRow(
        "Theorem 2",
        "smd/theorem2",
        "Under SGD with momentum too, 1/(1-α) times faster",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "‖w‖² settles at {} (predicted 141)",
                "‖w‖² settles at the w*² of Theorem 2",
            ),
            Number(
                "falls per step by {} (.0005)",
                "‖w‖² falls from far above by 2a per step",
            ),
        ),
    ),
    EvidenceRow(
        "Theorem 3",
        "smd/theorem3",
        "In equilibrium a weight rotates by sqrt(2·lr·wd/(1+α)) per step, whatever its gradients",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "angle with L = 1: {} (predicted .00513)",
                "angle per step with L = 1, momentum 0.9",
            ),
            Number(
                "L = 100: {}",
                "angle per step with L = 100, momentum 0.9",
            ),
        ),
    ),
    EvidenceRow(
        "Corollary 3.1",
        "smd/corollary3_1",
        "After lr is divided by k equilibrium is ln(k)(1-α)/(4·lr·wd) steps away, or none if norms are rescaled",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "steps: {} (at least 5,760)",
                "steps until ‖w‖² is 5 % above its new equilibrium, momentum 0.9",
            ),
            Number(
                "‖w‖² rescaled: {} (predicted 224)",
                "‖w‖² rescaled stays at its new equilibrium, momentum 0.9",
            ),
        ),
    ),
    EvidenceRow(
        "Figure 2",
        "smd/fig2",
        "Norm and rotation of a layer come to their theoretical values, and the assumptions hold",
        Verdict.IN_PART,
        (
            Number(
                "settled angle over theory, momentum: {}",
                "settled angle over theory, SGD with momentum",
            ),
            Number(
                "E h̃ over E‖g̃‖², which should be 1: {}",
                "E h̃ over E‖g̃‖²: ⟨v,g⟩ is close to 0 on average",
            ),
        ),
        "small CNN on 8 × 8 pixels instead of ResNet-50. Assumption 6 fails here",
    ),
    EvidenceRow(
        "Figures 3, 6, Table 1",
        "smd/fig3",
        "When lr falls rotation lags far below theory, and rescaled norms keep it there",
        Verdict.IN_PART,
        (
            Number(
                "last stage, angle over theory: {}",
                "angle over theory in stage 4, standard",
            ),
            Number(
                "rescaled: {}",
                "angle over theory in stage 4, rescaled",
            ),
        ),
        f"{CNN}. Gradients grow 2.4 times here, and the corollary needs them constant",
    ),
    EvidenceRow(
        "Figure 4",
        "smd/fig4",
        "Under SGD the norm follows any slow change of L",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "‖w‖²/sqrt(E L), noise: {} (predicted 7.07)",
                "‖w‖²/sqrt(E L_t) after settling, L_t noise",
            ),
            Number(
                "drift: {}",
                "‖w‖²/sqrt(E L_t) after settling, L_t drift",
            ),
        ),
    ),
    EvidenceRow(
        "Figure 5",
        "smd/fig5",
        "Under SGD with momentum too",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "‖w‖²/sqrt(E L), noise: {} (predicted 22.4)",
                "‖w‖²/sqrt(E L_t) after settling, L_t noise",
            ),
            Number(
                "drift: {}",
                "‖w‖²/sqrt(E L_t) after settling, L_t drift",
            ),
        ),
    ),
    EvidenceRow(
        "Figures 7, 8",
        "smd/fig7",
        "Linear scaling of lr with the batch does not hold: k small steps rotate further than one large step",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "4 steps of 64 over one of 256: {} times the angle",
                "angle of 4 steps of B = 64 over that of one step of B = 256",
            ),
            Number(
                "16 over one of 1,024: {}",
                "angle of 16 steps of B = 64 over that of one step of B = 1024",
            ),
        ),
        f"{CNN}, batches a quarter of the paper's",
    ),
    EvidenceRow(
        "Figure 9",
        "smd/fig9",
        "Layers of MobileNet-V2 rotate as predicted until lr falls",
        Verdict.IN_PART,
        (
            Number(
                "angle over theory before lr falls: {}",
                "angle over theory before lr falls, mean over layers, MobileNet-V2",
            ),
            Number(
                "after its last fall: {}",
                "angle over theory after the last fall of lr, MobileNet-V2",
            ),
        ),
        "a tenth of the width on 8 × 8 pixels, without ShuffleNet",
    ),
)

SP = (
    EvidenceRow(
        "Theorem 2, Table 1",
        "sp/theorem2",
        "Any step is a step on the sphere, by an effective learning rate along an effective direction",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "largest error of the direction: {}",
                "largest error of the next direction (12), all schemes",
            ),
            Number(
                "error of the exponential map per halving of lr: ÷ {} (order 3)",
                "error of the exponential map (10) per halving of lr, order 3",
            ),
        ),
    ),
    EvidenceRow(
        "(44)",
        "sp/eq44",
        "SGD with decay takes the directions of SGD without, with a growing learning rate",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "largest distance of the directions: {}",
                "largest distance between the directions over all steps",
            ),
            Number(
                "if lr does not grow: {}",
                "the same distance if lr does not grow",
            ),
        ),
    ),
    EvidenceRow(
        "Theorem 4",
        "sp/theorem4",
        "On the sphere SGD with decay is Adam without momentum, at order 2",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "distance per halving of lr: ÷ {}",
                "distance per halving of lr at the same time, order 3",
            ),
            Number(
                "at the smallest lr: {} of the way",
                "distance at the smallest lr over the way travelled",
            ),
        ),
    ),
    EvidenceRow(
        "Section 4.2",
        "sp/section4_2",
        "Rescaling and transport free the momentum of radii, of radial parts and of past L2",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "radial share of past gradients, Adam-SRT: {}",
                "2: radial share of past gradients, Adam-SRT",
            ),
            Number(
                "Adam-S: {}",
                "2: radial share of past gradients, Adam-S",
            ),
        ),
    ),
    EvidenceRow(
        "Figures 3–5",
        "sp/fig3",
        "The quantities that the theorems need small are small in every filter",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "largest η_e‖c⊥‖, SGD-M: {}",
                "largest η_e‖c⊥‖ of all filters and steps, SGD-M (Figure 4)",
            ),
            Number(
                "variable of Theorem 4: {}",
                "largest (η‖∇L(u)‖)²/r⁴ of all filters and steps, SGD (Figure 5)",
            ),
        ),
        "ResNet-20 of half the width on 8 × 8 pixels, 60 steps",
    ),
    EvidenceRow(
        "Table 2",
        "sp/table2",
        "Adam-SRT is more accurate than Adam-S, and Adam-S than Adam",
        Verdict.CONTRADICTS,
        (
            Number(
                "accuracy of Adam-SRT less Adam-S's: {} (paper .0066)",
                "accuracy of Adam-SRT less Adam-S's (paper: 0.0066)",
            ),
            Number(
                "of Adam-S less Adam's: {} (paper .0017)",
                "accuracy of Adam-S less Adam's (paper: 0.0017)",
            ),
        ),
        "ResNet-20 of half the width, 500 steps instead of 405 epochs. The opposite of Adam's place at this size",
    ),
    EvidenceRow(
        "Table 5",
        "sp/table5",
        "SGD-MRT is on a par with SGD-M",
        Verdict.NOT_SEEN,
        (
            Number(
                "accuracy over SGD-M's: {} (paper .998)",
                "accuracy of SGD-MRT over SGD-M's",
            ),
        ),
        "ResNet-20 of half the width, 500 steps. Not decided",
    ),
)

CT = (
    EvidenceRow(
        "Figure 1",
        "ct/fig1",
        "Adam's differential equation follows the weights of a training run",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "R² of 16 random weights: {}",
                "R² of the way of 16 random weights over all steps",
            ),
            Number(
                "of all weights: {}",
                "R² of the way of all weights over all steps",
            ),
        ),
        "a small GPT",
    ),
    EvidenceRow(
        "Figure 2, Theorem 1",
        "ct/fig2",
        "Adam's updates are bounded where C > 0",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "largest update over the bound: {}",
                "largest update over the bound (5), all betas with C > 0, up to rounding",
            ),
            Number(
                "share of betas where it grows if and only if C < 0: {}",
                "share of betas where the largest update grows if and only if C < 0",
            ),
        ),
    ),
    EvidenceRow(
        "Figures 3, 11",
        "ct/fig3",
        "In training the largest update stays under the bound, and where C < 0 it grows with the exponent |C|/2",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "largest update over the bound: {}",
                "largest update over the bound (5), all steps n ≥ 1 where C > 0",
            ),
            Number(
                "R² of the exponent: {}",
                "R² of the exponent |C|/2 over the 5 points with C < 0",
            ),
        ),
        "a small GPT on characters",
    ),
    EvidenceRow(
        "Figure 4",
        "ct/fig4",
        "Along the normal curve through (.999, .9) the loss falls faster for larger C, and rises where C < 0",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "rank correlation of C with the loss: {}",
                "rank correlation of C > 0 with the best loss after a third of the run",
            ),
            Number(
                "loss where C < 0 over that where C > 0: {}",
                "best loss where C < 0 over that where C > 0, means over the points, at the end",
            ),
        ),
        SMALL_GPT,
    ),
    EvidenceRow(
        "Figure 12",
        "ct/fig12",
        "The same along the curve through (.95, .9)",
        Verdict.IN_PART,
        (
            Number(
                "rank correlation of C with the loss: {}",
                "rank correlation of C > 0 with the best loss after a third of the run",
            ),
            Number(
                "loss where C < 0 over that where C > 0: {}",
                "best loss where C < 0 over that where C > 0, means over the points, at the end",
            ),
        ),
        SMALL_GPT,
    ),
    EvidenceRow(
        "Figure 13",
        "ct/fig13",
        "Along a level curve the loss falls more slowly near the origin",
        Verdict.CONTRADICTS,
        (
            Number(
                "rank correlation of β2 with the loss: {}",
                "rank correlation of beta2 with the best loss after a third of the run",
            ),
        ),
        f"{SMALL_GPT}. The opposite at this size",
    ),
    EvidenceRow(
        "Figure 14",
        "ct/fig14",
        "Where C < 0, annealing lr bounds the updates and does not repair training",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "largest late change of a weight: {} lr",
                "largest change of a weight in the last tenth of the run, in lr, mean over C < 0: annealed by (19)",
            ),
            Number(
                "loss over that of stable betas: {}",
                "loss over that of betas (0.9, 0.999), mean over C < 0: annealed by (19)",
            ),
        ),
        "a small GPT, no warmup",
    ),
    EvidenceRow(
        "Figure 5, (8)",
        "ct/fig5",
        "The norm of query and key matrices is the moving average of squared updates that (8) gives",
        Verdict.CONTRADICTS,
        (
            Number(
                "‖W‖² by (8) over the measured: {}",
                "paper's run: ‖W‖² by (8) over the measured, at the end",
            ),
            Number(
                "in a long run: {}",
                "long run: ‖W‖² by (8) over the measured, at the end",
            ),
        ),
        "a small GPT. (8) drops ⟨W,u⟩, which holds most of the growth",
    ),
    EvidenceRow(
        "Figures 6, 15",
        "ct/fig6",
        "2-Adam is better than AdamW on images, and the naive strategy fails for large k",
        Verdict.IN_PART,
        (
            Number(
                "accuracy of 2-Adam less AdamW's: {}",
                "2-Adam, inverse exp: gain over AdamW, accuracy",
            ),
            Number(
                "of the naive 5-Adam: {}",
                "naive at k = 5: gain over AdamW, accuracy",
            ),
        ),
        "300 steps on 8 × 8 pixels instead of 100 epochs. 2-Adam's gain is not decided",
    ),
    EvidenceRow(
        "Figure 16",
        "ct/fig16",
        "2-Adam is better than AdamW on text too",
        Verdict.NOT_SEEN,
        (
            Number(
                "gain of 2-Adam: {} nats",
                "2-Adam, inverse exp: gain over AdamW, nats of loss",
            ),
        ),
        "GPT of one layer, 200 steps instead of 20,000. Not decided",
    ),
    EvidenceRow(
        "Figure 7",
        "ct/fig7",
        "On the boundary C = 0 the largest update stays bounded, although its bound grows",
        Verdict.IN_PART,
        (
            Number(
                "growth with the power {} of n (bound ½)",
                "power of n with which the largest update grows, where (5) has ½",
            ),
            Number(
                "over the bound (5) at n = 1: {}",
                "largest update over the bound (5), all steps n ≥ 1 and points",
            ),
        ),
        "the printed bound has √n for √(n+1)",
    ),
    EvidenceRow(
        "Figure 8",
        "ct/fig8",
        "Under qk-norm query and key matrices are orthogonal to their gradients",
        Verdict.AS_IN_THE_PAPER,
        (
            Number(
                "largest cosine: {}",
                "with qk-norm: largest |cos(W, g)| of a matrix and its gradient of the same step",
            ),
            Number(
                "without qk-norm: {}",
                "without qk-norm: the same",
            ),
        ),
        "a small GPT. Past gradients are not closer to orthogonal than random ones",
    ),
    EvidenceRow(
        "Figure 9",
        "ct/fig9",
        "One second moment for a whole query or key matrix trains it as one for each entry does",
        Verdict.NOT_SEEN,
        (
            Number(
                "R² of 16 random entries: {}",
                "R² of the way of 16 random entries over the run",
            ),
            Number(
                "cosine of the two ways: {}",
                "cosine between the two ways of all entries at the last step",
            ),
        ),
        "two layers instead of six, 300 steps",
    ),
    EvidenceRow(
        "Section 4.3",
        "ct/section4_3",
        "2-Adam with γ2 = 0 trains without normalisation as Adam does with it",
        Verdict.NOT_SEEN,
        (
            Number(
                "loss over Adam's with normalisation, images: {}",
                "images: loss of 2-Adam with γ2 = 0, not normalised, over Adam's, normalised",
            ),
            Number(
                "text: {}",
                "text: loss of 2-Adam with γ2 = 0, not normalised, over Adam's, normalised",
            ),
        ),
        "hundreds of steps",
    ),
)

ROWS = {"re": RE, "smd": SMD, "sp": SP, "ct": CT}
# Statements without an experiment, with the reason.
MISSING = (
    "SMD Table 2 needs COCO and a Mask R-CNN.",
    "SMD Remark 5 and CT Appendix K (18) are not implemented yet.",
    "RE Figures 2, 6, 7, SMD Figure 1, SP Figures 1, 2 and CT Figure 10 are drawings.",
    "RE Tables 4, 5 and SP Tables 3, 4 list settings.",
)


def fits(row: EvidenceRow, claims: Sequence[Claim]) -> bool:
    """Return whether a row's verdict fits the outcomes of the claims whose numbers it prints.

    ● asks all of them to hold, ◐ some and not all, ○ none, and ✗ that one is decided against the paper.
    """
    outcomes = {claim.sentence: claim.outcome for claim in claims}
    decisive = [outcomes.get(number.sentence) for number in row.numbers]
    held = sum(outcome == ClaimOutcome.HOLDS for outcome in decisive)
    return {
        Verdict.AS_IN_THE_PAPER: held == len(decisive),
        Verdict.IN_PART: held < len(decisive),
        Verdict.NOT_SEEN: held == 0,
        Verdict.CONTRADICTS: ClaimOutcome.DOES_NOT_HOLD in decisive,
    }[row.verdict]
