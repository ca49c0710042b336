"""How long does a simulation take: 30,000 steps of RE Figure 8's simple system, for all four optimizers at once?"""

import sys
import time

from gyroscope_lab.re._appendix_j import optimizers
from gyroscope_lab.simulate import network

LIMIT = 60.0  # seconds


def main() -> int:
    start = time.perf_counter()
    network(optimizers(1), steps=30_000, shape=(128, 128), batch=32, every=100, average=10)
    seconds = time.perf_counter() - start
    print(f"30,000 steps of four optimizers: {seconds:.1f} s, limit {LIMIT:.0f} s")
    return int(seconds > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
