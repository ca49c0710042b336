"""Measure every case and write stacks.json: python -m tests.optimizers.measure_stacks [new | part of a name]"""

import json
import os
import sys

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

import torch

import gyroscope as gyro
from tests.integrations.conftest import stand_in_for_torchvision
from tests.optimizers.stack_cases import CASES, Case
from tests.optimizers.test_stacks import MEASURED, RESULTS
from tests.optimizers.white_noise import SHAPES, ratios


def measured(case: Case) -> dict[str, object]:
    """Return the row of a case."""
    seen = [ratios(case.optimizer, shape, case.gradient_rms, case.steps) for shape in SHAPES]
    optimizer = case.optimizer([torch.nn.Parameter(torch.ones(SHAPES[0]))])
    return {
        "predicted as": gyro.rule_of(optimizer.param_groups[0], optimizer).name,
        "ratios": [[round(each.rotation, 3), None if each.norm is None else round(each.norm, 3)] for each in seen],
        "tested with": case.tested_with,
    }


def main(wanted: str = "") -> None:
    """Measure the cases whose class is installed. Those of others keep their results."""
    rows = dict(RESULTS)
    for case in CASES:
        is_wanted = case.id not in RESULTS if wanted == "new" else wanted in case.id
        if case.tested_with is None or not is_wanted:
            continue
        if case.package == "timm":
            stand_in_for_torchvision()
        rows[case.id] = measured(case)
        sys.stdout.write(f"{case.id:80} {rows[case.id]}\n")
        sys.stdout.flush()
        kept = {each.id: rows[each.id] for each in CASES if each.id in rows}
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in kept.items())
        MEASURED.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
