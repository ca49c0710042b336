"""Two processes train together by DDP, or with --fsdp by FSDP2; the first one writes what is measured.

    torchrun --nproc-per-node 2 examples/torchrun.py --fsdp

On a machine with GPUs give each process one. The optimizer needs nothing but the model's parameters, sharded or not.
"""

import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import gyroscope as gyro

STEPS = 100
BATCH = 64

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
dist.init_process_group("nccl" if on_gpu else "gloo")
rank = dist.get_rank()
world = dist.get_world_size()

torch.manual_seed(0)  # the same initial weights and batches on every process
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target, device=device)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
parallel = fully_shard(model) if "--fsdp" in sys.argv else DistributedDataParallel(model)

optimizer = gyro.optim.RotationalAdamW(gyro.param_groups(model, weight_decay=0.1), lr=1e-2)
with gyro.Tracker(model, optimizer, "runs/torchrun") as tracker:
    for _ in range(STEPS):
        batch = torch.randint(len(images), (BATCH,))[rank::world].to(device)  # each process has a share
        loss = cross_entropy(parallel(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tracker.log(loss=loss)

if rank == 0:
    run = gyro.store.open_run("runs/torchrun")
    print(f"loss {run.scalar('loss')[1][-1]:.3f} after {STEPS} steps of {world} processes; rotation, radians per step:")  # noqa: T201
    for layer in run.layers:
        angles = run.series(layer, "angular_update")
        print(f"  {layer}: {angles[np.isfinite(angles)][-1]:.5f}")  # noqa: T201
dist.destroy_process_group()
if not on_gpu:
    # FSDP2 keeps gloo's threads alive. One that frees a tensor while Python shuts down would abort the process.
    sys.stdout.flush()
    os._exit(0)
