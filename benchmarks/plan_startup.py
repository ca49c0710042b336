"""Does `gyroscope plan` answer in under a second, interpreter start included?"""

import statistics
import subprocess
import sys
import time

LIMIT = 1.0  # seconds
ROUNDS = 9
COMMAND = (
    "plan adamw --lr 1e-3 --weight-decay 0.1 --steps 10000 --schedule cosine --warmup 500 --fan-in 512 --compare lion"
)


def seconds(*arguments: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main() -> int:
    commands = {
        "python -c pass": ["-c", "pass"],
        "gyroscope plan": ["-m", "gyroscope.cli", *COMMAND.split()],
        "gyroscope --help": ["-m", "gyroscope.cli", "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(ROUNDS):  # interleaved, so that whatever else the machine does falls on all alike
        for name, arguments in commands.items():
            times[name].append(seconds(*arguments))
    for name, measured in times.items():
        print(f"{name:18} median {statistics.median(measured):.3f} s  fastest {min(measured):.3f} s")
    print(f"limit for a plan   {LIMIT:.1f} s")
    return int(statistics.median(times["gyroscope plan"]) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
