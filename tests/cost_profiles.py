#!/usr/bin/env python3
"""What `offload plan` foretells beside what steps of the library take on the simulated GPU's clock (sim_steps.py --out FILE).

Each machine of policy/gpus.def becomes a file of rates (policy/rates.def); each row of FILE is planned with it. A machine whose
GPUs share host memory has all of them stepping, as on the clock. Printed is the largest difference of each kind; whole steps and the
optimizer's work must be within --most of the simulation's, all rows of them, and what is exposed where a GPU has a billion parameters or
more: of smaller models less is copied up early on the clock than really is (README.md of tests).

usage: cost_profiles.py --build BUILD --steps FILE [--most 0.2]"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
GIGA, TERA, MICRO = 1e9, 1e12, 1e-6


def profiles():
    with open(os.path.join(ROOT, "policy/gpus.def"), encoding="utf-8") as file:
        found = re.findall(r'^PROFILE\(([\w-]+), "[^"]*",(.*?)\)$', file.read(), re.M | re.S)
    return {name: {key: float(value) for key, value in re.findall(r"\.(\w+) = ([\d.]+)", text)} for name, text in found}


def rates(profile, ranks):
    """The machine as rates.def has it, of a node of so many ranks. A CPU of which only its memory is known steps as fast as that."""
    unbounded = 1e15
    return {
        "up": profile["up"] * GIGA, "down": profile["down"] * GIGA, "up_both": profile["up_both"] * GIGA,
        "down_both": profile["down_both"] * GIGA, "kernel_read": profile["sm_read"] * GIGA, "kernel_write": profile["sm_write"] * GIGA,
        "device": profile["hbm"] * GIGA, "dram": profile["dram"] / profile["gpus"] * ranks * GIGA, "dram_thread": unbounded,
        "cpu_elements": unbounded, "launch": profile["launch"] * MICRO,
    }


def plan(build, folder, row, profile):
    ranks = int(max(profile["gpus"], row["gpus"]))
    path = os.path.join(folder, f"{row['profile']}.{ranks}")
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(f"{name} {value}\n" for name, value in rates(profile, ranks).items())
    command = [f"{build}/offload", "plan", f"{row['parameters']:.0f}", "--json", "--gpu", row["profile"], "--rates", path, "--gpus", str(ranks),
               "--shard", "none" if row["gpus"] == 1 else "zero1", "--tokens", str(row["tokens"]), "--threads", "1",
               "--dtype", {"float": "fp32", "bfloat16": "bf16"}[row["type"]]]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"cost_profiles: {' '.join(command)}: {result.stderr}")
    return json.loads(result.stdout)


def compare(row, planned):
    """What is foretold over what was simulated, less one."""
    way, stay = planned["ways"][row["mode"]], planned["ways"]["stay"]
    step = planned["compute_seconds"] + stay["seconds"] + way["exposed"]
    return {"step": step / row["step_s"] - 1, "work": way["seconds"] / row["work_s"] - 1,
            "exposed": way["exposed"] / (row["step_s"] - row["without_s"]) - 1,
            "forward and backward": planned["compute_seconds"] / row["forward_backward_s"] - 1}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--steps", required=True)
    parser.add_argument("--most", type=float, default=0.2)
    arguments = parser.parse_args()
    with open(arguments.steps, encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    known, largest, plans, bad = profiles(), {}, {}, 0
    with tempfile.TemporaryDirectory() as folder:
        for row in rows:
            key = (row["profile"], row["parameters"], row["gpus"], row["tokens"], row["type"])
            if key not in plans:
                plans[key] = plan(os.path.abspath(arguments.build), folder, row, known[row["profile"]])
            for name, difference in compare(row, plans[key]).items():
                at = (row["mode"], row["type"], name)
                if abs(difference) >= abs(largest.get(at, (0, None))[0]):
                    largest[at] = (difference, key)
                judged = name != "exposed" or row["parameters"] / row["gpus"] >= GIGA
                if judged and abs(difference) > arguments.most:
                    bad += 1
                    print(f"{row['mode']}, {key}: {name} {100 * difference:+.1f} %")
    for (mode, kind, name), (difference, key) in sorted(largest.items()):
        print(f"{mode:6} {kind:8} {name:20} {100 * difference:+6.1f} %  {key}")
    machines = {key[0] for key in plans}
    print(f"{len(rows)} rows of {len(machines)} machines, {bad} beyond {100 * arguments.most:.0f} %")
    if bad or not rows:
        sys.exit(1)


if __name__ == "__main__":
    main()
