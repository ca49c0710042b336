"""Draw docs/balance.png, the first picture of the README, from results/re/fig4.json: `python -m tools.balance_picture`.

The experiment re/fig4 trains a ResNet on a part of CIFAR-10 with AdamW and with Adam and L2, several settings of each.
The picture shows both optimizers at the setting that has the best accuracy on seeds that are not shown. Each line is a
hidden layer: its rotation over the angle that theory predicts for AdamW, at the learning rate of the step. The line is
the mean over the seeds of the record, and the band is their range.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from gyroscope_lab import TrainConfig
from playwright.sync_api import sync_playwright
from plotly.graph_objects import Figure
from plotly.subplots import make_subplots

from gyroscope.theory import AdamW
from tests.render.browser import launch

ROOT = Path(__file__).parent.parent
RECORD = ROOT / "results" / "re" / "fig4.json"
PICTURE = ROOT / "docs" / "balance.png"
PANELS = {"AdamW": "AdamW", "Adam+L2": "Adam with L2"}  # the name in the record, and on the picture
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
BAND_OPACITY = 0.18
SIZE = {"width": 1000, "height": 420}


def best_arm(record: dict[str, Any], optimizer: str) -> str:
    """Return the setting of an optimizer with the best mean accuracy on the seeds that only choose."""
    arms = list(record["config"]["arms"])
    accuracy = np.mean(np.array(record["choosing"]["accuracy"], dtype=float), axis=0)
    return max((arm for arm in arms if arm.startswith(f"{optimizer},")), key=lambda arm: accuracy[arms.index(arm)])


def predicted_angles(record: dict[str, Any], arm: str, points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the steps of the record's points, and AdamW's equilibrium angle at the learning rate of each."""
    config = TrainConfig(**record["config"]["base"], **record["config"]["arms"][arm])
    steps = (np.arange(points) + 0.5) / points * config.steps
    multiplier = config.multiplier(steps_per_epoch=1)(steps)
    # The record's runs have AdamW's default betas.
    angles = [AdamW(config.lr * m, config.weight_decay).equilibrium().angular_update for m in multiplier]
    return steps, np.array(angles)


def draw(record: dict[str, Any]) -> Figure:
    """Return the figure: a panel for each optimizer, a line and a band for each hidden layer."""
    arms = list(record["config"]["arms"])
    angles = np.array(record["values"]["angle"], dtype=float)  # seeds, arms, layers, points
    steps, predicted = predicted_angles(record, best_arm(record, "AdamW"), angles.shape[-1])
    figure = make_subplots(1, 2, shared_yaxes=True, subplot_titles=list(PANELS.values()), horizontal_spacing=0.04)
    for column, optimizer in enumerate(PANELS, 1):
        chosen = angles[:, arms.index(best_arm(record, optimizer))]
        for index in range(chosen.shape[1] - 1):  # the last layer is not followed by a normalisation
            ratios = chosen[:, index] / predicted
            add_layer(figure, steps, ratios, column, index)
        figure.add_hline(1.0, line_dash="dot", line_color="#444", row=1, col=column)
    figure.update_yaxes(title_text="rotation / predicted for AdamW", row=1, col=1)
    figure.update_yaxes(type="log", tickvals=[0.1, 0.2, 0.5, 1, 2, 5, 10], range=[-1, 0.8])
    figure.update_xaxes(title_text="step")
    return figure.update_layout(template="plotly_white", font_size=14, margin={"t": 40, "b": 50}, **SIZE)


def add_layer(figure: Figure, steps: np.ndarray, ratios: np.ndarray, column: int, index: int) -> None:
    """Add the mean and the range over seeds of one layer."""
    place = {"row": 1, "col": column}
    colour = COLOURS[index]
    both_ways = np.concatenate([steps, steps[::-1]])
    edge = np.concatenate([ratios.max(0), ratios.min(0)[::-1]])
    band = {"fill": "toself", "fillcolor": colour, "opacity": BAND_OPACITY, "line": {"width": 0}, "mode": "lines"}
    figure.add_scatter(x=both_ways, y=edge, showlegend=False, **band, **place)
    line = {"color": colour, "width": 2}
    figure.add_scatter(x=steps, y=ratios.mean(0), name=f"layer {index + 1}", showlegend=column == 1, line=line, **place)


def main() -> None:
    """Draw the figure and take its picture."""
    figure = draw(json.loads(RECORD.read_text(encoding="utf-8")))
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        page = Path(folder) / "balance.html"
        figure.write_html(page, include_plotlyjs=True)
        browser = launch(playwright).new_page(viewport=SIZE, device_scale_factor=2)
        browser.goto(page.as_uri())
        browser.wait_for_selector(".main-svg")
        browser.locator(".plotly-graph-div").screenshot(path=PICTURE)


if __name__ == "__main__":
    main()
