"""How does cost grow? Step time and bytes over parameters, tracker time over layers.

    python benchmarks/cost_growth.py [--record]

Steps of 1M to 100M parameters are measured on GPT shapes, as medians of interleaved steps. The optimizers share weights
and gradients, and each has its own moments. Bytes are those that the kernels of an eager step read and write, counted
on the meta device, so up to 1B parameters. The tracker is measured at every step by the time of the training thread, in
milliseconds per sampled step, beside the same optimizer without it. About 4 minutes on two cores. --record writes
benchmarks/records/cost_growth.json and docs/cost-growth.svg, which needs playwright's browser.
"""

import argparse
import statistics
import tempfile
import time
import warnings
from pathlib import Path

import torch
from gyroscope_lab.framework.figures import write_figure
from optim_step import gpt, median_times
from plotly.subplots import make_subplots
from records import write_record
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gyroscope as gyro
from gyroscope.optim import Rotational, RotationalAdamW

PARAMETERS = (1e6, 3e6, 1e7, 3e7, 1e8)
COUNTED = (*PARAMETERS, 3e8, 1e9)
LAYERS = (10, 30, 100, 300, 1000)
# Seconds for the interleaved steps of one size, after which no more are taken.
BUDGET = 20.0
BASE = "torch fused AdamW"
# torch's fused kernel does not run on the meta device. It reads weight, gradient and moments, and writes all but one.
FUSED_BYTES = 28


def shapes(parameters):
    """Shapes of a GPT of 4 layers with about so many parameters, a multiple of 16 wide."""
    width = max(16, round((parameters / 48) ** 0.5 / 16) * 16)
    return gpt(layers=4, width=width, vocabulary=256, context=256)


def make_parameters(parameters, device="cpu"):
    """Weights with gradients."""
    made = [nn.Parameter(torch.empty(shape, device=device).normal_(0, 0.02)) for shape in shapes(parameters)]
    for p in made:
        p.grad = torch.empty_like(p).normal_(0, 1e-3)
    return made


def optimizers(weights):
    """Name -> optimizer of these weights."""
    return {
        BASE: torch.optim.AdamW(weights, fused=True),
        "torch foreach AdamW": torch.optim.AdamW(weights, foreach=True),
        "RotationalAdamW eager": RotationalAdamW(weights),
        "RotationalAdamW compiled": RotationalAdamW(weights, compile=True),
        "Rotational(fused) eager": Rotational(torch.optim.AdamW(weights, weight_decay=0.1, fused=True)),
    }


def step_times(parameters):
    """Median seconds per step of each optimizer, and the number of parameters."""
    weights = make_parameters(parameters)
    steps = {}
    for name, optimizer in optimizers(weights).items():
        optimizer.step()
        start = time.perf_counter()
        optimizer.step()
        steps[name] = optimizer.step
        last = time.perf_counter() - start
    repeats = max(5, min(40, int(BUDGET / (last * len(steps)))))
    return sum(p.numel() for p in weights), median_times(steps, repeats)


class CountBytes(TorchDispatchMode):
    """Counts the bytes that operations read and write, without views and allocations."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        returns = operation._schema.returns
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in returns)
        if is_view or "empty" in str(operation):
            return result
        read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        written = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        changed = []
        if not written:  # the fused and foreach kernels that change tensors in place return nothing
            for argument, value in zip(operation._schema.arguments, args, strict=False):
                # The fused kernel writes gradients only to unscale them.
                if argument.name != "grads" and argument.alias_info is not None and argument.alias_info.is_write:
                    changed += tree_leaves(value)
        self.bytes += sum(x.numel() * x.itemsize for x in (*read, *written, *changed))
        return result


def step_bytes(parameters):
    """Bytes per parameter of an eager step, and of the state, by optimizer."""
    found = {BASE: (FUSED_BYTES, 8.0)}
    weights = make_parameters(parameters, "meta")
    size = sum(p.numel() for p in weights)
    made = {
        "torch foreach AdamW": torch.optim.AdamW(weights, foreach=True),
        "RotationalAdamW eager": RotationalAdamW(weights),
    }
    for name, optimizer in made.items():
        optimizer.step()
        with CountBytes() as counted:
            optimizer.step()
        state = [x for of_one in optimizer.state.values() for x in of_one.values() if x.is_meta]
        found[name] = (counted.bytes / size, sum(x.numel() * x.itemsize for x in state) / size)
    return size, found


def tracker_times(layers, repeats):
    """Milliseconds of the training thread that a sampled step takes longer, for so many layers of 64 × 64."""
    with tempfile.TemporaryDirectory() as folder:
        steps = {}
        trackers = []
        for name in ("plain", "tracked"):
            model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(layers)])
            optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1, fused=True)
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            if name == "tracked":
                trackers.append(gyro.Tracker(model, optimizer, Path(folder) / "run", every=1))
            steps[name] = optimizer.step
        times = {name: [] for name in steps}
        for _ in range(repeats + 3):
            for name, step in steps.items():
                start = time.thread_time()
                step()
                times[name].append(time.thread_time() - start)
            time.sleep(0.01)  # the tracker's own threads would otherwise fall behind
        for tracker in trackers:
            tracker.close()
    medians = {name: statistics.median(values[3:]) for name, values in times.items()}
    return 1e3 * (medians["tracked"] - medians["plain"])


def draw(times, bytes_of, tracked, path):
    """Write the three curves as an SVG."""
    titles = ("ms per step", "bytes per step, eager", "tracker, ms per sampled step")
    figure = make_subplots(1, 3, subplot_titles=titles, horizontal_spacing=0.08)
    colours = ("#444444", "#999999", "#0072b2", "#009e73", "#d55e00")
    names = list(times[0][1])
    for name, colour in zip(names, colours, strict=True):
        line = {"name": name, "mode": "lines+markers", "line": {"color": colour}, "legendgroup": name}
        measured = [1e3 * seconds[name] for _, seconds in times]
        figure.add_scatter(x=[size for size, _ in times], y=measured, row=1, col=1, **line)
        if name in bytes_of[0][1]:
            moved = [size * each[name][0] for size, each in bytes_of]
            figure.add_scatter(x=[size for size, _ in bytes_of], y=moved, row=1, col=2, showlegend=False, **line)
    added = {"mode": "lines+markers", "line": {"color": "#cc79a7"}, "showlegend": False}
    figure.add_scatter(x=list(tracked), y=list(tracked.values()), row=1, col=3, **added)
    figure.update_xaxes(type="log", dtick=1, title_text="parameters")
    figure.update_xaxes(title_text="layers", row=1, col=3)
    figure.update_yaxes(type="log", dtick=1)
    figure.update_layout(
        template="plotly_white", width=1200, height=420, legend={"orientation": "h", "y": -0.2}, margin_t=40
    )
    write_figure(figure, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--largest", type=float, default=PARAMETERS[-1], help="measured parameters at most")
    parser.add_argument("--repeats", type=int, default=40, help="sampled steps of the tracker")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    times = []
    for parameters in PARAMETERS:
        if parameters > arguments.largest:
            continue
        size, seconds = step_times(parameters)
        times.append((size, seconds))
        ratios = "  ".join(f"{name} {value / seconds[BASE]:.2f} ×" for name, value in seconds.items() if name != BASE)
        print(f"{size / 1e6:7.1f}M  {BASE} {1e3 * seconds[BASE]:8.2f} ms  {ratios}", flush=True)
    bytes_of = [step_bytes(parameters) for parameters in COUNTED]
    for size, each in bytes_of:
        columns = "  ".join(f"{name} {moved:.1f} (state {state:.2f})" for name, (moved, state) in each.items())
        print(f"{size / 1e6:7.1f}M  bytes per parameter and step: {columns}")
    tracked = {layers: tracker_times(layers, arguments.repeats) for layers in LAYERS}
    for layers, added in tracked.items():
        print(f"{layers:5d} layers  tracker {added:7.2f} ms per sampled step, {1e3 * added / layers:6.1f} µs per layer")
    if arguments.record:
        values = {
            "milliseconds": [{"parameters": n} | {name: 1e3 * x for name, x in each.items()} for n, each in times],
            "bytes_per_parameter": [
                {"parameters": n} | {name: x for name, (x, _) in each.items()} for n, each in bytes_of
            ],
            "tracker_milliseconds": tracked,
        }
        write_record("cost_growth", values)
        draw(times, bytes_of, tracked, Path(__file__).parents[1] / "docs" / "cost-growth")


if __name__ == "__main__":
    main()
