"""The generated numbers of docs/theory.md, made again; run as a program it prints them."""

import re
import sys
from math import pi
from pathlib import Path

import pytest
from gyroscope_lab.simulate import random_walk

from gyroscope.theory import SGDM, SGDMRT, AdamL2, AdamS, AdamSRT, AdamW, Lion, NAdam, NAdamL2, UpdateRule

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "theory.md"
FAN_IN = 128
# Decays around 0.01 per step: large enough that leading and exact form differ, and settled within 3,000 steps.
RULES: list[UpdateRule] = [
    SGDM(0.1, 0.01, 0.9),
    SGDM(0.1, 0.01, 0.9, nesterov=True),
    AdamW(0.02, 0.5),
    AdamW(0.02, 0.2, cautious_decay=True),
    NAdam(0.02, 0.5),
    Lion(0.002, 5.0),
    Lion(0.002, 5.0, linearised=True),
    AdamL2(0.01, 0.1),
    NAdamL2(0.01, 0.1),
    AdamS(0.01, 0.1),
    AdamSRT(0.01, 1.0),
    SGDMRT(0.1, 0.1),
]
SIMULATION_TOLERANCE = 0.3
"""Percentage points by which another machine's random numbers may move a simulated error."""


def rules_table() -> list[list[str]]:
    """One row for each rule; the last two columns are simulated."""
    norms = [rule.equilibrium(fan_in=FAN_IN, unit_grad_norm=1.0).norm for rule in RULES]
    walk = random_walk(RULES, steps=3000, norm=norms, shape=(64, FAN_IN), every=20, average=4, seed=1)
    end = walk.averages(after=500)
    rows = [["rule", "norm", "rotation", "leading norm", "leading rotation", "walk: norm", "walk: rotation"]]
    for number, rule in enumerate(RULES):
        exact = rule.equilibrium(fan_in=FAN_IN, unit_grad_norm=1.0)
        leading = rule.equilibrium(fan_in=FAN_IN, unit_grad_norm=1.0, leading_order=True)
        settings = ", ".join(f"{name}={value}" for name, value in rule.settings.items() if value not in (False, None))
        rows.append(
            [
                f"{rule.name}({settings})",
                f"{exact.norm:.4f}",
                f"{exact.angular_update:.5f}",
                percent(leading.norm / exact.norm),
                percent(leading.angular_update / exact.angular_update),
                percent(end.layer_norm[number] / exact.norm),
                percent(end.layer_angular_update[number] / exact.angular_update),
            ]
        )
    return rows


def finite_rate_table() -> list[list[str]]:
    """RE (37), (47) and (70) over the exact norm, at the same decay per step."""
    rows = [["a", "AdamW, RE (37)", "SGDM, RE (47)", "Lion linearised, RE (70)"]]
    lr = 0.01
    alpha = 0.9
    filtered = (1 - 0.9) ** 2 + 0.9**2 * (1 - 0.99) / (1 + 0.99)
    for decay in (0.001, 0.01, 0.05):
        wd = decay / lr
        coupled = (1 - alpha) * wd  # SGDM's decay per step is lr·λ/(1-α)
        ratios = [
            (lr * FAN_IN / (2 * wd - lr * wd**2)) ** 0.5 / AdamW(lr, wd).equilibrium(fan_in=FAN_IN).norm,
            (lr / (2 * coupled * (1 - alpha) - lr * coupled**2)) ** 0.25
            / SGDM(lr, coupled, alpha).equilibrium(unit_grad_norm=1.0).norm,
            (2 * lr * FAN_IN / (pi * (2 * wd - lr * wd**2) * filtered)) ** 0.5
            / Lion(lr, wd, linearised=True).equilibrium(fan_in=FAN_IN).norm,
        ]
        rows.append([f"{decay:g}", *map(percent, ratios)])
    return rows


def percent(ratio: float) -> str:
    return f"{round(100 * (ratio - 1), 1) + 0.0:+.1f} %"  # + 0.0 makes -0.0 a plain zero


def markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def printed(name: str) -> list[list[str]]:
    block = re.search(rf"<!-- generated: {name} -->\n(.*?)<!-- end -->", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None, f"docs/theory.md has lost its block {name!r}"
    lines = [line for line in block.group(1).splitlines() if line and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.slow
def test_the_table_of_rules_is_what_the_code_gives():
    for made, written in zip(rules_table(), printed("rules"), strict=True):
        assert made[:5] == written[:5]
        for simulated, shown in zip(made[5:], written[5:], strict=True):
            if simulated != shown:  # the head of the table has no numbers
                difference = float(simulated.removesuffix(" %")) - float(shown.removesuffix(" %"))
                assert abs(difference) <= SIMULATION_TOLERANCE, f"{made[0]}: {shown} is now {simulated}"


def test_the_simulation_is_within_one_percent_of_every_exact_form_but_the_linearised():
    for row in printed("rules")[1:]:
        if "linearised" not in row[0]:
            assert all(abs(float(cell.removesuffix(" %"))) < 1.0 for cell in row[5:]), row


def test_the_table_of_finite_rates_is_what_the_code_gives():
    assert finite_rate_table() == printed("finite rate")


SECTIONS = re.findall(r"^## (.*)$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
QUOTING = [p for p in sorted((ROOT / "gyroscope").rglob("*.py")) if "docs/theory.md" in p.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", QUOTING, ids=lambda path: path.stem)
def test_every_section_that_a_docstring_names_exists(path):
    text = re.sub(r"\s+", " ", path.read_text(encoding="utf-8"))
    for title in re.findall(r'docs/theory\.md,? "([^"]*)"', text):
        assert title in SECTIONS, f"{path.name} names a section {title!r}; there are {SECTIONS}"


if __name__ == "__main__":
    sys.stdout.write(f"{markdown(rules_table())}\n\n{markdown(finite_rate_table())}\n")
