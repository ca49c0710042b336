"""2-Adam beats AdamW on text too (CT Figure 16).

Differences from the paper: a GPT of one layer and width 32 on characters of the standard library replaces one of 30
million parameters on C4. There are 200 steps instead of 20,000, and one weight decay. All variants choose from the same
learning rates. The paper's learning rates are 1e-5 to 1e-3. The medium size has byte pairs of Shakespeare, 600 steps,
and k = 1, 2 and 5. Two seeds that are not judged choose between three learning rates.
"""

from dataclasses import replace

from gyroscope_lab.ct._k_adam import KAdamConfig as Config
from gyroscope_lab.ct._k_adam import claims, measure, plot
from gyroscope_lab.ct._presets import PRESETS

__all__ = ["Config", "claims", "measure", "plot"]

COST = {"quick": "3 min", "medium": "15 min", "paper": "months"}

QUICK = Config(
    {
        **PRESETS["gpt-k-adam"],
        "model": "gpt:layers=1,width=32,context=32",
        "batch_size": 12,
        "steps": 200,
        "warmup": 7,
    },
    lrs=(4e-3, 1e-2),
    decays={"decoupled": 1e-2},
    seeds=5,
    choosing_seeds=2,
)
MEDIUM = replace(
    QUICK,
    base={**QUICK.base, "task": "bpe:tinyshakespeare.txt", "steps": 600, "warmup": 20},
    lrs=(1.6e-3, 4e-3, 1e-2),
    ks=(1, 2, 5),
    seeds=12,
)
PAPER = Config(PRESETS["gpt-k-adam"], lrs=(1e-5, 5e-5, 1e-4, 5e-4, 1e-3), decays={"decoupled": 1e-2})
