"""The paper's own training settings (Continuous-Time Adam, Appendix H), as settings of `TrainConfig`.

The paper's GPT learns tokens of C4. Here it learns characters of the standard library, or of `--task text:<file>`. The
paper draws its CNN (Figure 10) and does not describe it. The one here has six convolutions of 128 channels.
"""

from typing import Any

# nanoGPT of 6 layers. Without its 50,257 tokens it has 11 of the 30 million parameters.
_GPT: dict[str, Any] = {
    "task": "stdlib",
    "model": "gpt:layers=6,heads=6,width=384,context=256,dropout=0.2",
    "batch_size": 64,
    "warmup": 100,
    "final": 0.1,
}

PRESETS: dict[str, dict[str, Any]] = {
    # Figures 4, 12 and 13. Adam without weight decay, and an eps that bounds no update.
    "gpt-adam": {**_GPT, "optimizer": "adam:eps=1e-30", "lr": 1e-3, "weight_decay": 0.0, "steps": 3000},
    # Figure 16. The paper sweeps lr and weight decay and does not give the schedule, so it is that of Figure 4.
    "gpt-k-adam": {**_GPT, "optimizer": "k-adam", "lr": 1e-3, "weight_decay": 1e-2, "steps": 20_000},
    # Figures 6 and 15. The paper sweeps lr and weight decay.
    "cnn-k-adam": {
        "task": "cifar10",
        "model": "cnn:width=128,convolutions=6",
        "optimizer": "k-adam",
        "lr": 1e-3,
        "weight_decay": 1e-2,
        "batch_size": 512,
        "epochs": 100,
        "warmup": 2,
        "final": 0.1,
    },
}
