#!/usr/bin/env python3
"""What OFFLOAD_MODE=observe costs a program: `bench_observe.py BUILD [RUNS]` runs the same steps on the simulated GPU without the library
and observed, in turns, and prints {"observe": {...}} with the least processor time of each in milliseconds and their ratio. A step is 1,000 launches of a
small kernel and an optimizer's over 32 tensors; the whole process counts, its start too."""
import json
import os
import resource
import subprocess
import sys
import tempfile

KERNEL = """.version 6.5
.target sm_70
.address_size 64
.visible .entry other(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n) { ret; }
"""
RATES = "up 25e9\ndown 25e9\n"


def used():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def seconds(command, environment):
    """Processor's time, which others on the machine disturb less than the clock's."""
    before = used()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return used() - before


def main():
    build, runs = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 15
    with tempfile.TemporaryDirectory() as folder:
        for name, text in ("other.ptx", KERNEL), ("rates", RATES):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        command = [f"{build}/gpusim/run", f"{build}/tests/e2e/policy_program", f"{build}/tests/e2e/25544_float-adamw.ptx",
                   "tensors=32", "steps=40", "sync=1", f"beside={folder}/other.ptx", "beside_times=1000"]
        alone = {**os.environ, "GPUSIM_GRANULARITY": "16KiB"}
        observed = {**alone, "LD_PRELOAD": f"{build}/liboffload.so", "OFFLOAD_MODE": "observe", "OFFLOAD_MIN_ALLOCATION": "16KiB",
                    "OFFLOAD_RATES": f"{folder}/rates", "OFFLOAD_REPORT": f"{folder}/report.json"}
        times = {"without": [], "observed": []}
        for _ in range(runs):
            times["without"].append(seconds(command, alone))
            times["observed"].append(seconds(command, observed))
        with open(f"{folder}/report.json", encoding="utf-8") as file:
            report = json.load(file)
    if report["totals"]["steps"] != 40 or not report["observed"]["move_bytes"]:
        sys.exit("bench_observe.py: the run that observes foretold nothing")
    fastest = {name: min(values) for name, values in times.items()}
    ratios = sorted(b / a for a, b in zip(times["without"], times["observed"]))
    print(json.dumps({"observe": {"runs": runs, "without_ms": round(1e3 * fastest["without"], 2),
                                  "observed_ms": round(1e3 * fastest["observed"], 2),
                                  "ratio": round(fastest["observed"] / fastest["without"], 4),
                                  "median_ratio": round(ratios[len(ratios) // 2], 4)}}))


if __name__ == "__main__":
    main()
