"""Draw docs/balance.png, the first picture of the README: `python -m tools.balance_picture`. About a minute.

A network with batch norm learns the next character of Python's standard library, once with AdamW and once with Adam and
L2. Each line is a layer: its measured rotation, over the angle that theory predicts for AdamW before training.

It illustrates and proves nothing: one seed, and settings that were chosen because they show the effect. The claim with
seeds and an interval is re/fig4 of the lab.
"""

import argparse
import inspect
import typing
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from playwright.sync_api import sync_playwright
from plotly.subplots import make_subplots
from torch import nn

import gyroscope as gyro
from gyroscope.theory import AdamW
from tests.render.browser import launch

PICTURE = Path(__file__).parent.parent / "docs" / "balance.png"
LR = 1e-2
WEIGHT_DECAY = 0.5
# Of Adam with L2. It ends between a fifth and five times the speed of AdamW, by layer.
L2 = 1e-5
BETAS = (0.9, 0.99)
STEPS = 3000
BATCH = 64
WINDOW = 8
WIDTH = 128
HIDDEN = 6
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def network(characters: int) -> nn.Sequential:
    """Return hidden layers that are each followed by a batch norm, from a window of characters to the next one."""
    layers: list[nn.Module] = [nn.Embedding(characters, 16), nn.Flatten()]
    inputs = 16 * WINDOW
    for _ in range(HIDDEN):
        layers += [nn.Linear(inputs, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.ReLU()]
        inputs = WIDTH
    return nn.Sequential(*layers, nn.Linear(WIDTH, characters))


def track(folder: Path, name: str) -> gyro.store.Run:
    """Train with one of the two optimizers, and return the run."""
    torch.manual_seed(0)
    text = "".join(inspect.getsource(module) for module in (argparse, inspect, typing))
    characters = sorted(set(text))
    data = torch.tensor([characters.index(character) for character in text])
    model = network(len(characters))
    cls, decay = (torch.optim.AdamW, WEIGHT_DECAY) if name == "AdamW" else (torch.optim.Adam, L2)
    # Without decay of gains, which would end all learning here.
    optimizer = cls(gyro.param_groups(model, weight_decay=decay), lr=LR, betas=BETAS)
    with gyro.Tracker(model, optimizer, folder / name, every=10):
        for _ in range(STEPS):
            start = torch.randint(len(data) - WINDOW, (BATCH, 1))
            windows = data[start + torch.arange(WINDOW + 1)]
            loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return gyro.store.open_run(folder / name)


def smooth(values: np.ndarray) -> np.ndarray:
    """Return root mean squares over ten samples."""
    return np.sqrt(np.mean(values[: len(values) // 10 * 10].reshape(-1, 10) ** 2, axis=1))


def main() -> None:
    """Train twice, draw, and take the picture."""
    predicted = AdamW(LR, WEIGHT_DECAY, BETAS).equilibrium().angular_update
    figure = make_subplots(1, 2, shared_yaxes=True, subplot_titles=("AdamW", "Adam with L2"), horizontal_spacing=0.04)
    with TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        for column, optimizer in enumerate(("AdamW", "Adam"), 1):
            run = track(folder, optimizer)
            hidden = [layer for layer in run.layers if run.layer(layer).shape[0] == WIDTH]
            for index, layer in enumerate(hidden):
                measured = smooth(run.series(layer, "angular_update", "rms")) / predicted
                options = {"name": f"layer {index + 1}", "showlegend": column == 1, "row": 1, "col": column}
                figure.add_scatter(
                    x=run.steps[5::10], y=measured, line={"color": COLOURS[index], "width": 2}, **options
                )
            figure.add_hline(1.0, line_dash="dot", line_color="#444", row=1, col=column)
        figure.update_yaxes(title_text="measured / predicted rotation", row=1, col=1)
        figure.update_yaxes(type="log", tickvals=[0.1, 0.2, 0.5, 1, 2, 5, 10])
        figure.update_xaxes(title_text="step")
        figure.update_layout(template="plotly_white", width=1000, height=420, font_size=14, margin={"t": 40, "b": 50})
        page = folder / "balance.html"
        figure.write_html(page, include_plotlyjs=True)
        browser = launch(playwright).new_page(viewport={"width": 1000, "height": 420}, device_scale_factor=2)
        browser.goto(page.as_uri())
        browser.wait_for_selector(".main-svg")
        browser.locator(".plotly-graph-div").screenshot(path=PICTURE)


if __name__ == "__main__":
    main()
