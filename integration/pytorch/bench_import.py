"""What the preload adds to `import torch`: bench_import.py LIBRARY PYTORCH. Prints a JSON object for tests/bench.py.

LIBRARY is liboffload.so, PYTORCH the folder BUILD/pytorch/RELEASE that `make pytorch` fills; where it isn't there, the row says so. The program is
run with the library and without in turns, which one first changes from pair to pair; medians of the pairs. The
processor's time is told beside the clock's: on a machine that does other things too, it is the steadier one."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

PAIRS = 9
RUN = pathlib.Path(__file__).resolve().parent / "run"


def start(pytorch, library=None):
    """Seconds by the clock and of the processor, of one start."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OFFLOAD_", "LD_PRELOAD"))}
    environment |= {"OFFLOAD_TEST_BUILD": str(pytorch.parent.parent), "TORCH": pytorch.name}
    if library:
        environment["LD_PRELOAD"] = str(library)
    begin = time.monotonic()
    process = subprocess.Popen([RUN, "-c", "import torch"], env=environment)
    _, status, used = os.wait4(process.pid, 0)
    seconds = time.monotonic() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"bench_import: import torch ended with {process.returncode}")
    return seconds, used.ru_utime + used.ru_stime


def measure(pytorch, library):
    start(pytorch, library)  # files come into memory
    hooked, bare = [], []
    for pair in range(PAIRS):
        for with_it in (True, False) if pair % 2 else (False, True):
            (hooked if with_it else bare).append(start(pytorch, library if with_it else None))
    row = {"program": "import torch", "pairs": PAIRS}
    for i, name in enumerate(("clock", "processor")):
        row[f"hooked_{name}_ms"] = round(1e3 * statistics.median(one[i] for one in hooked), 3)
        row[f"unhooked_{name}_ms"] = round(1e3 * statistics.median(one[i] for one in bare), 3)
        row[f"{name}_ratio"] = round(statistics.median(a[i] / b[i] for a, b in zip(hooked, bare)), 4)
    return row


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    library, pytorch = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    if (pytorch / "complete").exists():
        row = measure(pytorch, library)
    else:
        row = {"program": "import torch", "pairs": 0, "missing": f"{pytorch} has no PyTorch: run make pytorch"}
    json.dump({"startup_pytorch": [row]}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
