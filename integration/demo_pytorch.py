#!/usr/bin/env python3
"""train_gpt.py, plain PyTorch, three times on a real text: on a large device, on a small one where it runs out of memory,
and on the small one with the library preloaded. Prints the losses side by side and a table, and writes demo_pytorch.json.

Runs on the simulated GPU (integration/pytorch). Exit status 0 only if the middle run really ran out of memory, state
moved in the last one, and its losses and its checkpoint (parameters and optimizer state) equal the first one's in every bit.

usage: demo_pytorch.py [--steps N] [--build DIRECTORY] [--json FILE]"""
import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

from demo import MIB, ROOT, print_rows, read_json, size

TIMEOUT_SECONDS = 300
LARGE, SMALL = 512 * MIB, 152 * MIB
MODEL = ["--layers", "2", "--width", "512", "--batch", "8", "--context", "32", "--lr", "0.001"]
PYTORCH = os.path.join(ROOT, "integration", "pytorch")


class Run:
    """The script, run once."""

    def __init__(self, name, device_memory, preload, options, scratch):
        build = os.path.abspath(options.build)
        folder = os.path.join(scratch, name)  # a checkpoint has its file's name in it
        os.mkdir(folder)
        simulator, checkpoint = (os.path.join(folder, file) for file in ("simulator.json", "gpt.pt"))
        report = os.path.join(build, "demo_pytorch-report.json")
        if os.path.exists(report):
            os.remove(report)
        environment = {k: v for k, v in os.environ.items()
                       if not k.startswith(("OFFLOAD_", "GPUSIM_", "PYTORCH_")) and k != "LD_PRELOAD"}
        environment.update(OFFLOAD_TEST_BUILD=build, GPUSIM_MEMORY=str(device_memory), GPUSIM_REPORT=simulator,
                           GPUSIM_THREADS=str(min(os.cpu_count() or 1, 16)))
        if preload:
            environment.update(LD_PRELOAD=os.path.join(build, "liboffload.so"), OFFLOAD_REPORT=report, OFFLOAD_RATES="/dev/null")
        command = [os.path.join(PYTORCH, "run"), os.path.join(PYTORCH, "train_gpt.py"), *MODEL,
                   "--steps", str(options.steps), "--checkpoint", checkpoint]
        print(f"running: {name} ({size(device_memory)} of device memory)", flush=True)
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
            self.status, self.output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            self.status, self.output = 124, f"stopped after {TIMEOUT_SECONDS} seconds"
        self.name, self.device_memory = name, device_memory
        self.steps = [(loss, norm, float(seconds)) for loss, norm, seconds in
                      re.findall(r"^step +\d+  loss (\S+)  norm (\S+)  lr \S+  (\S+) s$", self.output, re.MULTILINE)]
        self.losses = [loss for loss, _, _ in self.steps]
        self.seconds = round(sum(seconds for _, _, seconds in self.steps), 2)
        elements = re.search(r"^([\d,]+) parameters", self.output, re.MULTILINE)
        self.elements = int(elements[1].replace(",", "")) if elements else 0
        self.device_peak = read_json(simulator).get("device_bytes_peak", 0)
        self.totals = read_json(report).get("totals", {})
        self.moved = self.totals.get("moved_bytes_peak", 0)
        self.checkpoint = ""
        if os.path.exists(checkpoint):
            with open(checkpoint, "rb") as file:
                self.checkpoint = hashlib.sha256(file.read()).hexdigest()[:16]

    def out_of_memory(self):
        return self.status == 1 and "torch.OutOfMemoryError: CUDA out of memory" in self.output

    def trained(self, steps):
        return self.status == 0 and len(self.steps) == steps and bool(self.checkpoint)

    def link_bytes_per_param(self):
        if not self.steps or not self.elements:
            return 0
        link = self.totals.get("link_bytes_down", 0) + self.totals.get("link_bytes_up", 0)
        return round(link / (len(self.steps) * self.elements), 3)

    def row(self):
        loss = f"{self.losses[0]} -> {self.losses[-1]}" if self.losses else "-"
        return [self.name, "out of memory" if self.out_of_memory() else str(self.status), size(self.device_memory),
                size(self.device_peak), str(len(self.steps)), loss, self.checkpoint or "-", size(self.moved),
                f"{self.link_bytes_per_param():.2f}", f"{self.seconds:.1f}"]


TITLES = ["run", "exit", "device", "peak", "steps", "loss", "checkpoint", "moved", "link B/param", "seconds"]


def print_losses(large, offloaded, every):
    rows = [["step", "without", "with"]]
    for i, (one, other) in enumerate(zip(large.losses, offloaded.losses), 1):
        if i == 1 or i % every == 0:
            rows.append([f"{i:4d}", one, other])
    print_rows(rows)


def failures(large, small, offloaded, steps, identical):
    """Sentences that say what is wrong; none when the demo shows what it is to show."""
    wrong = []
    for run in (large, offloaded):
        if not run.trained(steps):
            wrong.append(f"'{run.name}' did not train (exit status {run.status})")
    if not small.out_of_memory():
        wrong.append(f"'{small.name}' did not run out of memory (exit status {small.status})")
    if offloaded.moved <= 0:
        wrong.append(f"'{offloaded.name}' moved no state, or wrote no report")
    if offloaded.device_peak >= large.device_peak:
        wrong.append(f"'{offloaded.name}' took as much of the device as '{large.name}'")
    if not identical:
        wrong.append("the numbers differ")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--json", help="default: demo_pytorch.json in the build directory")
    options = parser.parse_args()
    if options.steps < 3:
        parser.error(f"--steps {options.steps} are too few: state moves in the second step, so use 3 or more")
    with tempfile.TemporaryDirectory(prefix="offload-demo-") as scratch:
        runs = [Run(*job, options, scratch) for job in (
            ("large, without", LARGE, False), ("small, without", SMALL, False), ("small, with", SMALL, True))]
    large, small, offloaded = runs
    identical = (large.trained(options.steps) and offloaded.trained(options.steps)
                 and [step[:2] for step in large.steps] == [step[:2] for step in offloaded.steps]
                 and large.checkpoint == offloaded.checkpoint)
    print(f"\ntrain_gpt.py, {large.elements:,} parameters, PyTorch on the simulated GPU\n")
    print_losses(large, offloaded, max(1, options.steps // 4))
    print()
    print_rows([TITLES, *(run.row() for run in runs)])
    said = [line for line in offloaded.output.splitlines() if line.startswith("liboffload:")]
    print("", *said, sep="\n")
    print(f"\nidentical: {'yes' if identical else 'no'}", flush=True)
    path = options.json or os.path.join(options.build, "demo_pytorch.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({
            "identical": identical, "steps": len(offloaded.steps),
            "loss_first": float(offloaded.losses[0]) if offloaded.losses else None,
            "loss_last": float(offloaded.losses[-1]) if offloaded.losses else None,
            "moved": offloaded.moved, "device_peak_without": large.device_peak, "device_peak_with": offloaded.device_peak,
            "link_bytes_per_param": offloaded.link_bytes_per_param(),
            "seconds_without": large.seconds, "seconds_with": offloaded.seconds}, file, indent=2)
        file.write("\n")
    wrong = failures(large, small, offloaded, options.steps, identical)
    for sentence in wrong:
        print(f"demo: {sentence}", file=sys.stderr)
    if wrong:
        for run in runs:
            print(f"demo: last lines of '{run.name}':", *run.output.strip().splitlines()[-5:], sep="\n  ", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
