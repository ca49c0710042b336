"""How many kernels does an eager step launch on an accelerator? Counted on the meta device, without a GPU.

A 12-layer GPT of 146 tensors. "one by one" is the same step if no tensors are joined. --width 768 is GPT-2 small,
which takes several batches of 2**24 entries.
"""

import argparse
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gyroscope.optim._engine import memory
from tests.optim.catalogue import CATALOGUE
from tests.optim.test_launches import LIMITS, CountKernels, gpt_shapes, optimizer_without_data


def launches(row, width):
    optimizer = optimizer_without_data(row, gpt_shapes(width=width))
    optimizer.step()
    with CountKernels() as launched:
        optimizer.step()
    return launched.counts.total()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=48)
    width = parser.parse_args().width
    warnings.simplefilter("ignore")
    joined_below = memory.DEVICE_SMALL
    print(f"{'':30} one by one   joined    limit")
    missed = False
    for row in CATALOGUE:
        memory.DEVICE_SMALL = 0
        alone = launches(row, width)
        memory.DEVICE_SMALL = joined_below
        joined = launches(row, width)
        # The limits are those of the test, for tensors that fit into one batch.
        missed |= width == 48 and joined > LIMITS[row.name]
        print(f"{row.name:30} {alone:10d} {joined:8d} {LIMITS[row.name]:8d}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
