"""What every test starts from, and the markers by which `make quick` leaves tests out."""

from fnmatch import fnmatchcase

import pytest
import torch

# Node ids by marker. They stand here, and not beside each test, so that the two-minute loop is decided in one place;
# tests/test_project.py fails for a pattern that no test matches any more. "slow" is what took more than about two
# seconds of one core when all tests were measured.
MARKED = {
    "browser": [
        "tests/checkpoint/test_page.py::*",
        "tests/live/test_browser.py::*",
        "tests/render/test_sweep_browser.py::*",
        "tests/lab/test_runner.py::test_a_browser_*",
    ],
    "distributed": [
        "tests/optim/test_distributed.py::*",
        "tests/measure/test_processes.py::*",
        "tests/lab/test_torchrun.py::*",
        "tests/checkpoint/test_real_files.py::test_*two_processes*",
        "tests/test_processes.py::*",
    ],
    "compile": [
        "tests/optim/test_compiled.py::*",
        "tests/optim/test_batches.py::*",
        "tests/optim/test_*.py::test_*compile*",
        "tests/measure/test_tracker.py::test_a_compiled_*",
    ],
    "slow": [
        "tests/advice/test_diagnose.py::test_no_record_*",
        "tests/advice/test_runs.py::*",
        "tests/checkpoint/test_autopsy.py::test_two_files_*",
        "tests/checkpoint/test_formats.py::test_our_own_*",
        "tests/checkpoint/test_last_step.py::test_a_planted_*",
        "tests/checkpoint/test_real_files.py::*",
        "tests/checkpoint/test_last_step.py::test_lambda_u_*",
        "tests/integrations/test_examples.py::*",
        "tests/integrations/test_lightning.py::test_a_*",
        "tests/integrations/test_trainers.py::*",
        "tests/integrations/test_transformers.py::*",
        "tests/integrations/test_wandb.py::test_the_real_package_*",
        "tests/lab/test_demo.py::*",
        "tests/lab/test_experiments.py::*",
        "tests/lab/test_incidents.py::*",
        "tests/lab/test_random_walks.py::*",
        "tests/lab/test_re_experiments.py::test_it_runs_*",
        "tests/lab/test_sweep_runs.py::*",
        "tests/lab/test_training.py::test_a_run_*",
        "tests/measure/test_own_loop.py::*",
        "tests/measure/test_robustness.py::test_a_run_that_nobody_closed_*",
        "tests/measure/test_tracker.py::test_a_run_that_nobody_closes_*",
        "tests/optim/test_digits.py::*",
        "tests/optim/test_rotation.py::test_bfloat16_weights_*",
        "tests/optim/test_rotation.py::test_stochastic_rounding_turns_*",
        "tests/optim/test_rotation.py::test_the_mean_angle_*",
        "tests/planner/test_plan.py::test_norm_and_rotation_*",
        "tests/planner/test_plan.py::test_the_first_step_*",
        "tests/simulate/test_equilibrium.py::*",
        "tests/simulate/test_flow.py::test_the_flow_follows_*",
        "tests/store/test_damage.py::test_a_single_flipped_bit_*",
        "tests/store/test_kill.py::*",
        "tests/test_cli.py::test_a_full_disk_*",
        "tests/test_cli.py::test_no_*",
        "tests/theory/test_docs.py::test_the_table_of_rules_*",
        "tests/theory/test_forecast.py::test_*_walk*",
        "tests/theory/test_rules.py::test_leading_order_is_several_*",
        "tests/theory/test_rules.py::test_each_matrix_of_a_stack_*",
        "tests/theory/test_rules.py::test_muon_is_within_*",
        "tests/theory/test_rules.py::test_the_exact_form_is_within_*",
        "tests/theory/test_signal.py::test_*_walk_*",
        "tests/theory/test_signal.py::test_the_noise_scale_*",
    ],
}

# Tests that need what older versions of torch do not have; tools/matrix runs them all.
NEEDED = {
    "torch.optim.Muon": (
        hasattr(torch.optim, "Muon"),
        [
            "tests/checkpoint/test_last_step.py::test_muon_*",
            "tests/integrations/test_examples.py::test_an_example_*[[]nanogpt*",
            "tests/lab/test_experiments.py::test_it_runs_*[[]beyond/muon*",
            "tests/lab/test_training.py::test_*muon*",
            "tests/measure/test_several_optimizers.py::test_a_run_of_two_*",
            "tests/model/test_groups.py::test_muon_*",
            "tests/model/test_selection.py::test_*muon*",
            "tests/optim/test_schedulers.py::test_muon_*",
            "tests/optim/test_schedulers.py::test_*two_optimizers_*",
            "tests/optim/test_torch_rules.py::test_muon_*",
            "tests/planner/test_plan.py::test_muon_*",
            "tests/simulate/test_equilibrium.py::test_torchs_muon_*",
            "tests/theory/test_rules.py::test_muon_is_within_*",
        ],
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by where they stand and what they are called."""
    for item in items:
        for marker, patterns in MARKED.items():
            if matches(item, patterns):
                item.add_marker(marker)
        for name, (there, patterns) in NEEDED.items():
            if not there and matches(item, patterns):
                item.add_marker(pytest.mark.skip(reason=f"torch {torch.__version__} has no {name}"))


def matches(item: pytest.Item, patterns: list[str]) -> bool:
    """Whether a test is one of those that the patterns name."""
    return any(fnmatchcase(item.nodeid, pattern) for pattern in patterns)


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small tensors are faster on one thread, and two would fight over two cores."""
    torch.set_num_threads(1)
