#!/usr/bin/env python3
"""Three runs of an ordinary CUDA program: on a large device, on a small one where it runs out of memory, and on the
small one with the library preloaded. Prints a table and whether the numbers of the first and the last are identical.

On a machine with a GPU the device is made small by the program's own --device-limit; otherwise the runs use the
simulated GPU. Exit status 0 only if the middle run really ran out of memory, state moved in the last one, and its
losses, parameters and optimizer state equal the first one's in every bit.

usage: demo.py [--device auto|gpu|simulated] [--build DIRECTORY] [--cuda-libraries DIRECTORY] [--json FILE]"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 1 << 20
OUT_OF_MEMORY = 3  # charlm's exit status
TIMEOUT_SECONDS = 170

# The device sizes lie on both sides of parameters + gradients + m + v.
SIZES = {
    "simulated": {
        "large": 384 * MIB,
        "small": 192 * MIB,
        "arguments": ["--tables", "524288", "--hidden", "32", "--batch", "256", "--steps", "20"],
    },
    "gpu": {
        "large": 6144 * MIB,
        "small": 1536 * MIB,
        "arguments": ["--tables", "4194304", "--hidden", "32", "--batch", "4096", "--steps", "20"],
    },
}
COMMON_ARGUMENTS = ["--kernel", "25544_float", "--lr", "0.02", "--lr-schedule"]


def has_gpu():
    """Asks the driver, in a process of its own: a driver that was asked stays loaded."""
    code = ("import ctypes; d = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); "
            "raise SystemExit(d.cuInit(0) or d.cuDeviceGetCount(ctypes.byref(n)) or n.value < 1)")
    return subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode == 0


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return {}


def run(name, device_memory, preload, device, options, scratch):
    """One run; a dictionary with the fields of demo.json and, beside them, what only the table and the checks need."""
    build = os.path.abspath(options.build)
    paths = {kind: os.path.join(scratch, kind + ".json") for kind in ("summary", "simulator")}
    paths["report"] = os.path.join(build, "demo-report.json")
    for path in paths.values():
        if os.path.exists(path):
            os.remove(path)
    command = [os.path.join(build, "charlm"), os.path.join(ROOT, "integration", "charlm", "text.txt")]
    command += SIZES[device]["arguments"] + COMMON_ARGUMENTS + ["--json", paths["summary"]]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OFFLOAD_", "GPUSIM_")) and k != "LD_PRELOAD"}
    if device == "simulated":
        command.insert(0, os.path.join(build, "gpusim", "run"))
        threads = str(min(os.cpu_count() or 1, 16))
        environment.update(GPUSIM_MEMORY=str(device_memory), GPUSIM_REPORT=paths["simulator"], GPUSIM_THREADS=threads)
    else:
        command += ["--device-limit", str(device_memory)]
        libraries = [p for p in (options.cuda_libraries, environment.get("LD_LIBRARY_PATH")) if p]
        environment["LD_LIBRARY_PATH"] = ":".join(libraries)
    if preload:
        environment.update(LD_PRELOAD=os.path.join(build, "liboffload.so"), OFFLOAD_REPORT=paths["report"])
        if device == "simulated":
            environment["OFFLOAD_RATES"] = "/dev/null"  # what a simulated GPU does in a second means nothing
    print(f"running: {name} ({size(device_memory)} of device memory)", flush=True)
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
        status, output = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        status, output = 124, f"stopped after {TIMEOUT_SECONDS} seconds"
    except OSError as error:
        status, output = 127, str(error)
    summary, totals = read_json(paths["summary"]), read_json(paths["report"]).get("totals", {})
    moved = totals.get("moved_bytes_peak", 0)
    own_peak = summary.get("device_peak", 0)
    steps, elements = summary.get("steps", 0), summary.get("parameter_elements", 0)
    link_bytes = totals.get("link_bytes_down", 0) + totals.get("link_bytes_up", 0)
    return {
        "name": name,
        "exit": status,
        "device_memory": device_memory,
        # The simulator knows what was really on the device; the program counts what it asked for.
        "device_peak": read_json(paths["simulator"]).get("device_bytes_peak", max(own_peak - moved, 0)),
        "steps": steps,
        "loss_first": summary.get("loss_first"),
        "loss_last": summary.get("loss_last"),
        "params": summary.get("params"),
        "state": summary.get("state"),
        "moved": moved,
        "link_bytes_per_param": round(link_bytes / (steps * elements), 3) if steps and elements else 0,
        "seconds": round(summary.get("seconds", 0), 3),
    }, {
        "losses": summary.get("losses"),
        "outcome": summary.get("outcome"),
        "lasting": summary.get("device_peak_without_activations", 0),
        "elements": elements,
        "output": output,
    }


def size(count):
    return f"{count / MIB:.1f} MiB"


def print_table(runs):
    columns = [
        ("run", lambda r: r["name"]),
        ("exit", lambda r: "out of memory" if r["exit"] == OUT_OF_MEMORY else str(r["exit"])),
        ("device", lambda r: size(r["device_memory"])),
        ("peak", lambda r: size(r["device_peak"])),
        ("steps", lambda r: str(r["steps"])),
        ("loss", lambda r: "-" if r["loss_first"] is None else f"{r['loss_first']:.4f} -> {r['loss_last']:.4f}"),
        ("parameters", lambda r: r["params"] or "-"),
        ("state", lambda r: r["state"] or "-"),
        ("moved", lambda r: size(r["moved"])),
        ("link B/param", lambda r: f"{r['link_bytes_per_param']:.2f}"),
        ("seconds", lambda r: f"{r['seconds']:.1f}"),
    ]
    print_rows([[title for title, _ in columns]] + [[text(r) for _, text in columns] for r in runs])


def print_rows(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())


def failures(large, small, offloaded, details, identical):
    """Sentences that say what is wrong; none when the demo shows what it is to show."""
    wrong = []
    if large["exit"] != 0 or not large["steps"]:
        wrong.append(f"'{large['name']}' did not train (exit status {large['exit']})")
    if small["exit"] != OUT_OF_MEMORY or details[1]["outcome"] != "out of memory":
        wrong.append(f"'{small['name']}' did not run out of memory (exit status {small['exit']})")
    if offloaded["exit"] != 0:
        wrong.append(f"'{offloaded['name']}' did not train (exit status {offloaded['exit']})")
    if details[0]["lasting"] <= small["device_memory"]:
        wrong.append("the small device has room for parameters, gradients, m and v: it shows nothing")
    if offloaded["moved"] <= 0:
        wrong.append(f"'{offloaded['name']}' moved no state, or wrote no report")
    if not identical:
        wrong.append("the numbers differ")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "gpu", "simulated"), default="auto")
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--cuda-libraries", default="", help="where libcudart.so.13 is, for a real GPU")
    parser.add_argument("--json", help="default: demo.json in the build directory")
    options = parser.parse_args()
    device = options.device
    if device == "auto":
        device = "gpu" if has_gpu() else "simulated"
    large, small = SIZES[device]["large"], SIZES[device]["small"]
    with tempfile.TemporaryDirectory(prefix="offload-demo-") as scratch:
        results = [run(*job, device, options, scratch) for job in (
            ("large, without", large, False), ("small, without", small, False), ("small, with", small, True))]
    runs, details = [list(part) for part in zip(*results)]
    keys = ("steps", "params", "state")
    identical = bool(runs[0]["params"]) and details[0]["losses"] == details[2]["losses"] and all(
        runs[0][key] == runs[2][key] for key in keys)

    where = "a GPU" if device == "gpu" else "the simulated GPU"
    print(f"\n{details[0]['elements']:,} parameters on {where}; parameters, gradients, m and v: "
          f"{size(details[0]['lasting'])} (the peak without activations)\n")
    print_table(runs)
    said = [line for line in details[2]["output"].splitlines() if line.startswith("liboffload:")]
    print("", *said, sep="\n")
    print(f"\nidentical: {'yes' if identical else 'no'}", flush=True)
    path = options.json or os.path.join(options.build, "demo.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"runs": runs, "identical": identical}, file, indent=2)
        file.write("\n")
    wrong = failures(*runs, details, identical)
    for sentence in wrong:
        print(f"demo: {sentence}", file=sys.stderr)
    if wrong:
        for result, detail in zip(runs, details):
            tail = detail["output"].strip().splitlines()[-5:]
            print(f"demo: last lines of '{result['name']}':", *tail, sep="\n  ", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
