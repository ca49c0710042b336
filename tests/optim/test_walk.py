"""How far a reader has to walk: files that a step goes through, in the order of calls."""

import sys
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import gyroscope
from gyroscope.optim import RotationalAdamW

PACKAGE = str(Path(gyroscope.__file__).parent)


def test_an_eager_step_of_one_matrix_switches_between_files_eighteen_times_at_most():
    weight = nn.Parameter(torch.randn(64, 32))
    weight.grad = torch.randn(64, 32)
    optimizer = RotationalAdamW([weight], lr=1e-3, weight_decay=0.1)
    optimizer.step()
    files = []

    def profile(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.append(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        optimizer.step()
    finally:
        sys.setprofile(before)
    assert files[0].endswith("optimizer.py")
    # Two of them are for batches of small tensors, which take their step together.
    assert sum(a != b for a, b in pairwise(files)) <= 18
