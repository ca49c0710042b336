"""The page of what works with what is what the tests say."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOL = runpy.run_path(str(ROOT / "tools" / "support_table.py"))


def test_the_page_is_what_its_tool_writes():
    assert TOOL["PAGE"].read_text(encoding="utf-8") == TOOL["page"](), "run python tools/support_table.py"


def test_a_tick_needs_a_test_with_that_optimizer():
    half = TOOL["tested"](*TOOL["COLUMNS"]["bf16 weights"])
    assert "RotationalAdamW" in half
    assert "Rotational(AdamW)" not in half, "the wrapper's moments are torch's, in the weights' dtype"


def test_every_optimizer_of_the_catalogue_trains_over_processes():
    rows = [line for line in TOOL["page"]().splitlines() if line.startswith("| `")]
    assert len(rows) == 12
    assert all(line.count("✓") >= 12 for line in rows), "a new optimizer trains over processes and in every loop"
