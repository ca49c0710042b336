"""What does the training loop cost? Samples per second of `lab.train` against a bare torch loop, in turns in one run.

The bare loop has the same network, data and optimizer, and nothing else. Ours has the tracker at its default, logs
every step and writes checkpoints; evaluations are left out. Both go on in turns, a block of steps each, and each of our
blocks has one checkpoint. Judged is the median of the blocks' ratios; exits with 1 when it is below 0.97. On a busy
machine the ratio of processor times, which is shown too, says more.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from gyroscope_lab.tasks import images
from gyroscope_lab.training import TrainConfig, train
from gyroscope_lab.training.loop import CHECKPOINTS
from gyroscope_lab.training.problems import make_problem
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR

LEAST = 0.97


def random_images(count):
    """A task of random images in CIFAR-10's shape, in bytes as a file has them."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), generator=generator, dtype=torch.uint8).numpy()
    labels = torch.randint(10, (count,), generator=generator).numpy()
    return (pixels, labels), (pixels[:100], labels[:100]), 10, True


class BareLoop:
    """A loop with nothing but training in it."""

    def __init__(self, config):
        problem = make_problem(config, None, torch.device("cpu"))
        self.model = problem.model.train()
        self.data = problem.task.train
        self.size = config.batch_size
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1)
        self.scheduler = LambdaLR(self.optimizer, lambda step: max(1 - step / config.steps, 0.0))

    def take(self, steps):
        """Train on."""
        order = torch.randperm(len(self.data))
        for step in range(steps):
            chosen = order[step * self.size : (step + 1) * self.size]
            self.optimizer.zero_grad()
            loss = cross_entropy(self.model(self.data.pixels[chosen]), self.data.labels[chosen])
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()


class Turns:
    """After each block of our steps, as many of the bare loop: seconds and processor seconds of both."""

    def __init__(self, bare, block):
        self.bare = bare
        self.block = block
        self.blocks = []
        self.began = None

    def __call__(self, report):
        """Take the bare loop's turn where a block of ours ends."""
        if report.step % self.block:
            return
        ours = now()
        self.bare.take(self.block)
        theirs = now()
        # The first block warms up, and the last one has an evaluation in it.
        if self.began is not None and report.step < report.steps:
            self.blocks.append((ours - self.began, theirs - ours))
        self.began = theirs


def now():
    return torch.tensor([time.perf_counter(), time.process_time()], dtype=torch.float64)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--block", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--shrink", type=int, default=2)
    arguments = parser.parse_args()
    steps = arguments.block * CHECKPOINTS
    images.IMAGE_TASKS["random"] = lambda root: random_images(128 * arguments.block)
    config = TrainConfig(
        task="random", model=arguments.model, steps=steps, schedule="linear", shrink=arguments.shrink, evaluations=1
    )
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {config.model}, batch {config.batch_size}")
    blocks = []
    for _ in range(arguments.rounds):
        turns = Turns(BareLoop(config), arguments.block)
        with tempfile.TemporaryDirectory() as folder:
            train(config, Path(folder), on_step=turns)
        blocks += turns.blocks
    samples = arguments.block * config.batch_size
    ours, bare = (statistics.median(samples / float(block[way][0]) for block in blocks) for way in (0, 1))
    ratio, processor = (statistics.median(float(b[1][clock] / b[0][clock]) for b in blocks) for clock in (0, 1))
    print(
        f"ours {ours:,.0f} and bare {bare:,.0f} samples/s, medians of {len(blocks)} blocks of {arguments.block} steps"
    )
    print(f"median ratio {ratio:.3f}, by processor time {processor:.3f}; at least {LEAST} is asked for")
    return 0 if ratio >= LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
