#!/usr/bin/env python3
"""What records cost: `bench_record.py BUILD TEXT [--rounds N] [--steps N]`. The same training on the simulated GPU with nothing recorded,
with OFFLOAD_REPORT and OFFLOAD_METRICS, and with OFFLOAD_TRACE, in turns; prints the medians of a round's ratios to the first as a JSON object
("record_ratios"), of time by the clock and of processors' time. The report is written every half second, 120 times as often as it is."""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

KINDS = {
    "nothing": {},
    "report_and_metrics": {"OFFLOAD_REPORT": "report.json", "OFFLOAD_METRICS": "m.prom", "OFFLOAD_TEST_RECORD_MS": "500"},
    "trace": {"OFFLOAD_TRACE": "trace.json"},
}


def run(arguments, kind, folder):
    """Seconds of one run by the clock and of processors; the process's start is in all of them."""
    build = os.path.abspath(arguments.build)
    environment = {**os.environ, "LD_PRELOAD": f"{build}/liboffload.so", "GPUSIM_GRANULARITY": "16KiB", "OFFLOAD_STEP": "cpu",
                   "OFFLOAD_MIN_ALLOCATION": "16KiB", "OFFLOAD_LOG": "quiet", "OFFLOAD_THREADS": "1", **KINDS[kind]}
    command = [f"{build}/gpusim/run", f"{build}/charlm", os.path.abspath(arguments.text), "--segment-scale", "64", "--tables", "8192",
               "--hidden", "16", "--batch", "16", "--steps", str(arguments.steps)]
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    clock, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    for name, value in KINDS[kind].items():
        path = os.path.join(folder, value)
        if not name.endswith("_MS") and not os.path.getsize(path):
            sys.exit(f"bench_record.py: {kind}: nothing was written to {value}")
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build")
    parser.add_argument("text")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=100)
    arguments = parser.parse_args()
    seconds = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.rounds):
            for kind in KINDS:
                seconds[kind].append(run(arguments, kind, folder))
    ratios = {"steps": arguments.steps}
    for kind in KINDS:
        for i, measure in enumerate(("clock", "processor")):
            pairs = zip(seconds[kind], seconds["nothing"])
            if kind != "nothing":
                ratios[f"{kind}_{measure}"] = round(statistics.median(taken[i] / base[i] for taken, base in pairs), 3)
    json.dump({"record_ratios": ratios}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
