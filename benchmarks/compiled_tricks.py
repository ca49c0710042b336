"""What does each trick of a compiled step buy? Times of RotationalAdamW(compile=True) with one trick off at a time.

Ratios to the step with all tricks, interleaved in one run, on a GPT's shapes and on 200 tiny layers. The tricks are
described in docs/decisions/0002-compiled-steps.md; one that buys nothing any more can go.
"""

import argparse
import random
import statistics
import time
import warnings
from contextlib import ExitStack
from functools import wraps
from unittest.mock import patch

import torch
from optim_step import gpt, tiny
from torch import nn

from gyroscope.optim import RotationalAdamW
from gyroscope.optim._engine import compiled, programs


def refused(*args, **options):
    raise RuntimeError("switched off")


def without_outputs(function):
    @wraps(function)
    def step(*args):
        function(*args)
        return []

    return step


# Name -> (module, attribute, what stands there while the trick is off).
TRICKS = {
    "Inductor's own interface (torch.compile instead)": (compiled, "_by_inductor", refused),
    "moments written early": (compiled, "_write_early", lambda graph, count: None),
    "a factor per vector (nested loops)": (programs, "_nested", lambda grad, ones: grad),
    "values per vector one by one": (programs, "_one_by_one", lambda values: values),
    "coefficients as outputs": (programs, "vector_rows", without_outputs(programs.vector_rows)),
}


class Variant:
    """An optimizer whose steps are taken with one trick off, and with programs of its own."""

    def __init__(self, shapes, trick):
        generator = torch.Generator().manual_seed(0)
        parameters = [nn.Parameter(0.02 * torch.randn(shape, generator=generator)) for shape in shapes]
        for p in parameters:
            p.grad = 1e-3 * torch.randn(p.shape, generator=generator)
        self.optimizer = RotationalAdamW(parameters, compile=True)
        self.patches = [(compiled, "PROGRAMS", {})]
        if trick is not None:
            self.patches.append(TRICKS[trick])

    def step(self):
        """Seconds that one step takes."""
        with ExitStack() as stack:
            for change in self.patches:
                stack.enter_context(patch.object(*change))
            start = time.perf_counter()
            self.optimizer.step()
            return time.perf_counter() - start


def measure(name, shapes, repeats):
    variants = {trick: Variant(shapes, trick) for trick in (None, *TRICKS)}
    for variant in variants.values():
        for _ in range(2):
            variant.step()
    times = {trick: [] for trick in variants}
    order = random.Random(0)
    for _ in range(repeats):
        for trick, variant in order.sample(list(variants.items()), len(variants)):
            times[trick].append(variant.step())
    whole = statistics.median(times[None])
    print(f"\n{name}: {1e3 * whole:.2f} ms with all tricks; without")
    for trick in TRICKS:
        print(f"  {trick:50s} {statistics.median(times[trick]) / whole:5.2f} ×")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--shapes", nargs="*", default=["gpt", "tiny"])
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of the form that is switched off
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for name in arguments.shapes:
        measure(name, {"gpt": gpt, "tiny": tiny}[name](), arguments.repeats)


if __name__ == "__main__":
    main()
