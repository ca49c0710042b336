"""Check the library from outside: published equations, torch's contract, real checkpoints, kills, odd input, damage.

    PYTHONPATH=.:lab python tools/outside_checks.py [--only NAME]

The checks use public names only. PYTHONPATH selects the tree, so the same program runs on any commit, before a change
and after it. It prints what was tried and what failed, and exits with 1 if anything failed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable

# One thread, so that sums are added in one order, and so that a process with torch in it can be forked.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from outside import command_line, contract, damage, equations, kills, trainer
from outside.tally import Tally

CHECKS: dict[str, Callable[[Tally], None]] = {
    "equations": equations.check,
    "contract": contract.check,
    "trainer": trainer.check,
    "kills": kills.check,
    "command-line": command_line.check,
    "damage": damage.check,
}
SHOWN = 20


def run_alone(name: str) -> tuple[Tally, float]:
    """Run a check in a process of its own: a crash is a failure of that check, and no thread is left for the next."""
    start = time.monotonic()
    command = [sys.executable, __file__, "--only", name, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - start
    try:
        return Tally(**json.loads(done.stdout.splitlines()[-1])), seconds
    except (ValueError, IndexError, TypeError):
        return Tally(1, [f"ended with code {done.returncode}: {done.stderr.strip()[-500:]}"]), seconds


def say(line: str) -> None:
    """Write a line at once, so that a table grows while the checks run."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Run the checks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CHECKS, help="run one check")
    parser.add_argument("--json", action="store_true", help="with --only: print the counts and failures as JSON")
    arguments = parser.parse_args()
    if arguments.json:
        tally = Tally()
        CHECKS[arguments.only](tally)
        say(json.dumps({"tried": tally.tried, "failures": tally.failures}))
        return 0
    say(f"{'check':<14}{'tried':>8}{'failed':>8}{'seconds':>9}")
    failed = 0
    for name in [arguments.only] if arguments.only else CHECKS:
        tally, seconds = run_alone(name)
        failed += len(tally.failures)
        say(f"{name:<14}{tally.tried:>8}{len(tally.failures):>8}{seconds:>9.0f}")
        for failure in tally.failures[:SHOWN]:
            say(f"    {failure}")
        if len(tally.failures) > SHOWN:
            say(f"    and {len(tally.failures) - SHOWN} more")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
