"""How far a reader has to walk: files that a sample goes through in each thread, in the order of calls."""

import sys
import threading
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import gyroscope as gyro

PACKAGE = str(Path(gyro.__file__).parent)
# Of the sample thread's, eighteen lead into `theory`, through it and back: the forecast, whose motion all rules
# share in one file, corrections, and signal.
MOST = {"MainThread": 20, "gyroscope-samples": 32, "gyroscope-writer": 9}


def test_a_sample_of_one_matrix_switches_between_few_files_in_each_thread(tmp_path):
    model = nn.Linear(32, 32, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    files: dict[str, list[str]] = {}

    def profile(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.setdefault(threading.current_thread().name, []).append(frame.f_code.co_filename)

    def gradient():
        optimizer.zero_grad()
        model(torch.randn(2, 32)).square().sum().backward()

    before = sys.getprofile()
    threading.setprofile(profile)  # of threads that start from here on
    try:
        with gyro.Tracker(model, optimizer, tmp_path, every=1) as tracker:
            # The first samples make copies, rules and forecasts.
            for _ in range(3):
                gradient()
                optimizer.step()
                tracker._recorder.flush()
            gradient()
            files.clear()
            sys.setprofile(profile)
            try:
                optimizer.step()
            finally:
                sys.setprofile(before)
            tracker._recorder.flush()
            walked = {thread: list(named) for thread, named in files.items()}
    finally:
        threading.setprofile(None)
    switches = {thread: sum(a != b for a, b in pairwise(walked[thread])) for thread in MOST}
    assert {thread: count for thread, count in switches.items() if count > MOST[thread]} == {}, switches
