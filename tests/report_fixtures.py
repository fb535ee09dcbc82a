#!/usr/bin/env python3
"""Writes the reports that tests of `offload report` read: `report_fixtures.py --build BUILD --out FOLDER`.

Each is of a real run on the simulated GPU: of one process, of two ranks at once, of one that moves nothing, of one that was killed. Made of the first by
hand: a report as the first release wrote it, and one whose texts are hostile."""
import argparse
import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What the first release with a report wrote.
FIRST = ["schema", "version", "pid", "settings", "tier", "budget", "totals", "functions", "reasons"]
HOSTILE = "</title></style></text><script>alert(1)</script><img src=http://192.0.2.1/x onerror=alert(2)>\"'&amp; \x1b[2J\u202e"
STEPS = 60


def start(build, folder, name, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OFFLOAD_", "GPUSIM_")) and k != "LD_PRELOAD"}
    # A registry and rates of these runs' own.
    root = os.path.join(folder, "root")
    if not os.path.exists(root):
        os.makedirs(os.path.join(root, "dev", "shm"))
        for link in ("proc", "sys"):
            os.symlink("/" + link, os.path.join(root, link))
    environment.update(OFFLOAD_SYSROOT=root, XDG_CACHE_HOME=os.path.join(folder, "cache"))
    environment.update(GPUSIM_GRANULARITY="16KiB", OFFLOAD_MIN_ALLOCATION="16KiB", OFFLOAD_THREADS="2", OFFLOAD_LOG="quiet",
                       OFFLOAD_REPORT=name + ".json", LD_PRELOAD=os.path.join(build, "liboffload.so"), **variables)
    return subprocess.Popen(
        [os.path.join(build, "gpusim", "run"), os.path.join(build, "charlm"), os.path.join(ROOT, "integration", "charlm", "text.txt"), "--segment-scale", "64",
         "--tables", "8192", "--hidden", "16", "--batch", "16", "--steps", str(STEPS if name != "killed" else 100000)],
        cwd=folder, env=environment, stdout=subprocess.DEVNULL)


def read(folder, name):
    with open(os.path.join(folder, name + ".json"), encoding="utf-8") as file:
        return json.load(file)


def run_all(build, folder):
    """The reports by name."""
    ranks = {f"rank{i}": dict(LOCAL_RANK=str(i), LOCAL_WORLD_SIZE="2", RANK=str(i), WORLD_SIZE="2") for i in range(2)}
    for group in ({"one": {}}, ranks, {"observed": dict(OFFLOAD_MODE="observe")}):
        started = {name: start(build, folder, name, **variables) for name, variables in group.items()}
        for name, process in started.items():
            if process.wait():
                sys.exit(f"report_fixtures: the run of {name}.json ended with {process.returncode}")
    killed = start(build, folder, "killed", OFFLOAD_TEST_RECORD_MS="100")
    deadline = time.monotonic() + 60
    while not os.path.exists(os.path.join(folder, "killed.json")) or not read(folder, "killed")["totals"]["steps"]:
        if time.monotonic() > deadline or killed.poll() is not None:
            sys.exit("report_fixtures: the run of killed.json wrote no report in the meantime")
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    return {name: read(folder, name) for name in ("one", *ranks, "observed", "killed")}


def neutral(value, folder):
    """The same without the folder that the runs were in; SYSROOT is not set."""
    if isinstance(value, dict):
        return {key: neutral(None if key == "sysroot" else inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [neutral(inner, folder) for inner in value]
    return value.replace(folder, "/results") if isinstance(value, str) else value


def hostile(value):
    """The same with hostile texts; keys stay."""
    if isinstance(value, dict):
        return {key: hostile(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [hostile(inner) for inner in value]
    return HOSTILE + value if isinstance(value, str) else value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True)
    parser.add_argument("--out", required=True)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reports.") as folder:
        reports = {name: neutral(report, folder) for name, report in run_all(os.path.abspath(asked.build), folder).items()}
    if not reports["one"]["totals"]["moved_bytes_peak"] or not reports["one"]["steps"]["last"]:
        sys.exit("report_fixtures: the run moved no state or measured no step, so its report shows nothing")
    reports["first"] = {key: copy.deepcopy(reports["one"][key]) for key in FIRST}
    reports["hostile"] = hostile(reports["one"])
    reports["hostile"]["reasons"] += [HOSTILE * 3]
    reports["hostile"]["functions"][0]["why"] = HOSTILE * 2
    os.makedirs(asked.out, exist_ok=True)
    for name, report in reports.items():
        report["pid"] = 4710 + list(reports).index(name)
        with open(os.path.join(asked.out, name + ".json"), "w", encoding="utf-8") as file:
            json.dump(report, file, ensure_ascii=True, separators=(",", ":"))
            file.write("\n")
    print(f"report_fixtures: {len(reports)} reports in {asked.out}")


if __name__ == "__main__":
    main()
