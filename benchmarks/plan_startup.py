"""Does `gyroscope plan` answer in under a second, interpreter start included?"""

import statistics
import subprocess
import sys
import time

LIMIT = 1.0
COMMAND = (
    "plan adamw --lr 1e-3 --weight-decay 0.1 --steps 10000 --schedule cosine --warmup 500 --fan-in 512 --compare lion"
)


def seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    bare, plan, help_ = [], [], []
    for _ in range(9):
        bare.append(seconds("-c", "pass"))
        plan.append(seconds("-m", "gyroscope.cli", *COMMAND.split()))
        help_.append(seconds("-m", "gyroscope.cli", "--help"))
    for name, times in (("python -c pass", bare), ("gyroscope plan", plan), ("gyroscope --help", help_)):
        print(f"{name:18} median {statistics.median(times):.3f} s  fastest {min(times):.3f} s")
    print(f"limit for a plan   {LIMIT:.1f} s")
    return int(statistics.median(plan) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
