#!/usr/bin/env python3
"""What OFFLOAD_MODE=observe costs a program: `bench_observe.py BUILD [RUNS]` runs the same steps on the simulated GPU without the library
and observed, in turns, a few of them and many, and prints {"observe": {...}} with the least processor time of each in milliseconds: what a step costs by the
difference of the two lengths, as a ratio, and what a process costs once, at its start and end. A step is 1,000 launches of a small kernel and an
optimizer's over 32 tensors."""
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
FEW, MANY = 20, 120  # steps


def used():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def seconds(command, environment):
    """Processor's time, which others on the machine disturb less than the clock's."""
    before = used()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return used() - before


def main():
    build, runs = os.path.abspath(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 9
    with tempfile.TemporaryDirectory() as folder:
        for name, text in ("other.ptx", KERNEL), ("rates", RATES):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        command = [f"{build}/gpusim/run", f"{build}/tests/e2e/policy_program", f"{build}/tests/e2e/25544_float-adamw.ptx",
                   "tensors=32", "sync=1", f"beside={folder}/other.ptx", "beside_times=1000"]
        alone = {**os.environ, "GPUSIM_GRANULARITY": "16KiB"}
        observed = {**alone, "LD_PRELOAD": f"{build}/liboffload.so", "OFFLOAD_MODE": "observe", "OFFLOAD_MIN_ALLOCATION": "16KiB",
                    "OFFLOAD_RATES": f"{folder}/rates", "OFFLOAD_REPORT": f"{folder}/report.json"}
        times = {(name, steps): [] for steps in (FEW, MANY) for name in ("without", "observed")}
        for _ in range(runs):
            for (name, steps), values in times.items():
                values.append(seconds([*command, f"steps={steps}"], alone if name == "without" else observed))
        with open(f"{folder}/report.json", encoding="utf-8") as file:
            report = json.load(file)
    if report["totals"]["steps"] != MANY or not report["observed"]["move_bytes"]:
        sys.exit("bench_observe.py: the run that observes foretold nothing")
    least = {key: 1e3 * min(values) for key, values in times.items()}
    step = {name: (least[name, MANY] - least[name, FEW]) / (MANY - FEW) for name in ("without", "observed")}
    once = {name: least[name, FEW] - FEW * step[name] for name in step}
    print(json.dumps({"observe": {"runs": runs, "without_step_ms": round(step["without"], 3), "observed_step_ms": round(step["observed"], 3),
                                  "ratio": round(step["observed"] / step["without"], 4),
                                  "once_ms": round(once["observed"] - once["without"], 1),
                                  "ratio_of_all": round(least["observed", MANY] / least["without", MANY], 4)}}))


if __name__ == "__main__":
    main()
