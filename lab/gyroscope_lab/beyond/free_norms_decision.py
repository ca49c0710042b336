"""Over nine networks, rotational AdamW with moving norms never costs loss (ours).

The arms of `free_norms` at their best settings, on twelve judged seeds for each network. Trainings that its experiments
have stored are not repeated. The rule of decision is the one fixed there. The pooled mean is the mean over the networks
of the difference to AdamW, and each seed of all networks together is one sample.
"""

from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from gyroscope.tools import Array
from gyroscope_lab.beyond._free_norms_arms import DECIDING, FORMS, TITLES
from gyroscope_lab.beyond._free_norms_cells import FIRST_JUDGED_SEED, Cell, Config, trainings_of
from gyroscope_lab.beyond._free_norms_table import MARGIN, PREFIX, decide, never_costs, write_table
from gyroscope_lab.beyond.free_norms import PAPER as CONFIGS
from gyroscope_lab.beyond.free_norms import QUICK as QUICK_CONFIGS
from gyroscope_lab.framework.claims import Claim, at_most, confidence_interval
from gyroscope_lab.framework.experiment import Measurements, Result, Trial
from gyroscope_lab.framework.figures import COLOURS, INK, Figure, Panels

CLAIMS = {"free_norms": "Over nine networks, rotational AdamW with moving norms never costs loss"}
COST = {"free_norms": {"quick": "5 min", "paper": "3 h"}}


@dataclass(frozen=True)
class DecisionConfig:
    """The config of each network by its name."""

    networks: dict[str, Config]
    seeds: int = 12

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """Network and arm of each part, the arms of one network one after the other."""
        return tuple((name, arm) for name, config in self.networks.items() for arm in config.parts)


PAPER = {"free_norms": DecisionConfig({name: CONFIGS[PREFIX + name] for name in DECIDING})}
QUICK = {"free_norms": DecisionConfig({name: QUICK_CONFIGS[PREFIX + name] for name in ("gpt", "mlp")}, seeds=3)}


def measure(trial: Trial[DecisionConfig]) -> Measurements:
    """Return the loss of one arm on one network at its best settings."""
    network, arm = trial.part
    config = trial.config.networks[network]
    cell = Cell(config, arm, trainings_of(config), trial.report)
    return {"loss": cell.loss(cell.best(), FIRST_JUDGED_SEED + trial.seed)}


def differences(result: Result[DecisionConfig]) -> dict[str, dict[str, Array]]:
    """Return the loss minus the reference's by form and network, one value for each seed."""
    places = {part: number for number, part in enumerate(result.config.parts)}
    gaps: dict[str, dict[str, Array]] = {form: {} for form in FORMS}
    for form, (network, config) in product(FORMS, result.config.networks.items()):
        of_form, of_reference = (result["loss"][:, places[network, arm]] for arm in (form, config.reference))
        gaps[form][network] = np.asarray(of_form - of_reference)
    return gaps


def plot(result: Result[DecisionConfig]) -> Figure:
    """Draw the difference of each form to AdamW on every network, with its 95 % interval."""
    panels = Panels()
    for (form, own), colour in zip(differences(result).items(), COLOURS, strict=False):
        intervals = [confidence_interval(gaps) for gaps in own.values()]
        half = {"array": [each.high - each.mean for each in intervals], "color": colour}
        names = [TITLES[network] for network in own]
        means = [each.mean for each in intervals]
        marker = {"color": colour, "size": 9}
        panels.figure.add_scatter(x=names, y=means, error_y=half, mode="markers", marker=marker, name=form)
    panels.level(0, MARGIN, color=INK)
    panels.figure.update_layout(scattermode="group")
    panels.figure.update_yaxes(title_text="loss minus that of AdamW, nats")
    default, _ = decide(differences(result))
    return panels.titled(f"Each form at its best settings. The default by the rule: {default}").update_layout(
        height=680
    )


def claims(result: Result[DecisionConfig]) -> list[Claim]:
    """Judge each form on every network, and on all of them together."""
    judged = []
    for form, own in differences(result).items():
        for network, gaps in own.items():
            judged.append(at_most(f"{TITLES[network]}: {form} minus AdamW, nats", MARGIN, gaps))
        may_cost = sum(not never_costs(confidence_interval(gaps)) for gaps in own.values())
        judged.append(at_most(f"{form}: networks on which it may cost {MARGIN} nats", 0.0, [may_cost]))
        pooled = np.mean(list(own.values()), axis=0)
        judged.append(at_most(f"{form} minus AdamW, mean over the networks, nats", 0.0, pooled))
    return judged


def write_summary(out: Path) -> None:
    """Write the table of all networks and the decision. The runner calls it."""
    write_table(out / "free_norms.md", CONFIGS)
