"""How long do 100,000 steps of 100 layers take to forecast?

A forecast's four arrays are 320 MB of fresh memory. Where that is fragmented, the kernel may spend 0.9 s on huge
pages for NumPy; with ordinary pages it is a steady 0.2 s, so that is what this measures.
"""

import os
import statistics
import sys
import time

os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")  # read when NumPy is imported

import numpy as np

from gyroscope.theory import (
    SGDM,
    SGDMRT,
    AdamL2,
    AdamS,
    AdamSRT,
    AdamW,
    Hyperball,
    Lion,
    Muon,
    NAdam,
    NAdamL2,
    Rule,
    UpdateRule,
    cosine,
    forecast,
    linear,
)

LIMIT = 2.0  # seconds, for the median of each rule
STEPS = 100_000
LAYERS = 100
ROUNDS = 5
RULES: list[UpdateRule] = [
    AdamW(1e-3, 0.1),
    SGDM(0.1, 5e-4, 0.9),
    Lion(1e-4, 1.0),
    NAdam(1e-3, 0.1),
    SGDMRT(0.1, 1e-3),
    AdamL2(1e-3, 0.01),
    NAdamL2(1e-3, 0.01),
    AdamS(1e-3, 0.01),
    AdamSRT(1e-3, 0.01),
    Muon(1e-3, 0.1),
    Hyperball(1e-3),
    Rule(decay=1e-4, correlation_time=19.0, update_rms=0.01),
]

# Where the decay changes during the run, coefficients are arrays over steps.
CHANGING = [AdamW(1e-3, 0.1), SGDM(0.1, 5e-4, 0.9), AdamL2(1e-3, 0.01)]


def main() -> int:
    rng = np.random.default_rng(0)
    layers = {
        "norm": rng.uniform(0.5, 5, LAYERS),
        "fan_in": rng.integers(64, 4096, LAYERS),
        "unit_grad_norm": rng.uniform(0.1, 1, LAYERS),
    }
    plain = {rule.name: (rule, None) for rule in RULES}
    changing = {f"{rule.name}, λ(t)": (rule, linear(STEPS, final=0.1)) for rule in CHANGING}
    cases = plain | changing
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS):
        for name, (rule, decay) in cases.items():
            start = time.perf_counter()
            shape = (256, 256) if "shape" in rule.needs else None
            forecast(rule, cosine(STEPS, 1000), **layers, shape=shape, weight_decay_schedule=decay)
            times[name].append(time.perf_counter() - start)
    for name, seconds in times.items():
        print(f"{name:12} median {statistics.median(seconds):.2f} s  fastest {min(seconds):.2f} s")
    missed = [name for name, seconds in times.items() if statistics.median(seconds) > LIMIT]
    print(f"limit        {LIMIT:.1f} s" + (f", MISSED by {', '.join(missed)}" if missed else ""))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
