#!/usr/bin/env python3
"""What the library foretells of a step against the simulated GPU's clock, and whether the way that it chooses is the cheapest there.

For each machine of gpus.def, size and type: train_step.c runs under the preload with OFFLOAD_STEP=auto and a rates file made of the
profile. The model that is run is small, the replay is of the full size (sim_steps.py); so the rates are smaller by as much as the model is,
which makes the library's figures those of the full size. Its report says what each way was foretold to cost, which it chose and why. The
same steps by each way, replayed on the machine, say what they take.

A case fails where a way's step is foretold more than 20 % off or the optimizer's part of it alone more than 30 %, where the chosen way takes over 5 % more than the cheapest, where the
sentence of why lacks a way, or where a run's numbers differ from the program's alone.

usage: predict.py --build BUILD [--slice K/N] [--out FILE]"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile

import sim_steps

STEP_PERCENT, OPTIMIZER_PERCENT, CHOICE_PERCENT = 20, 30, 5
CHUNKS = 128
MACHINES = ["h200", "h100-8", "a100-pcie4", "rtx4090", "gh200"]
PARAMETERS = [1e9, 7e9, 30e9]
TOKENS = 16384
# How much of the state the host has room for: all, or half, as with a larger device and OFFLOAD_FREE.
SHARES = [1, 0.5]
MODES = sim_steps.MODES
# Staging of the runs, whose pieces stand for those of 16 MiB: a step of the full size has as many more as the model is larger, less what the
# pieces are larger. Starts are as many by `cpu` and, so nearly, by `stream`.
STAGING, PIECE = sim_steps.small_staging("cpu", None), sim_steps.CPU_PIECE


def fail(words):
    sys.exit(f"predict: {words}")


def profiles():
    with open(os.path.join(sim_steps.ROOT, "policy/gpus.def"), encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    found = re.findall(r'PROFILE\(([\w-]+), "[^"]*",([^)]*)\)', text)
    return {name: {key: float(value) for key, value in re.findall(r"\.(\w+) = ([\d.]+)", values)} for name, values in found}


def starts_of(scale):
    return scale * PIECE / sim_steps.default_piece("cpu", None)


def replay_line(model, case, mode):
    """As sim_steps.py has it, but for the pieces of `stream`."""
    line = model.replay(case, mode)
    if mode == "stream":
        line = re.sub(r"starts=\S+", f"starts={starts_of(case.parameters / model.elements)}", line)
    return line


def rates_of(profile, scale):
    """A rates file of the machine, everything slower by `scale`. Its CPU is bound by memory alone, as the clock's is."""
    slow = 1e9 / scale
    rates = {"up": profile["up"] * slow, "down": profile["down"] * slow, "up_both": profile["up_both"] * slow,
             "down_both": profile["down_both"] * slow, "kernel_read": profile["sm_read"] * slow,
             "kernel_write": profile["sm_write"] * slow, "device": profile["hbm"] * slow,
             "dram": profile["dram"] / profile["gpus"] * slow, "dram_thread": 10 * profile["dram"] * slow,
             "cpu_elements": 1e6 * slow, "launch": profile["launch"] * 1e-6 * starts_of(scale)}
    return "".join(f"{name} {value:.6g}\n" for name, value in rates.items())


def run(build, kind, mode, share, rates=None, cases=()):
    """One run: hashes, report, and the replays by label."""
    model = sim_steps.Model(CHUNKS)
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSIM_", "OFFLOAD_"))}
        environment.pop("LD_PRELOAD", None)
        environment.update(GPUSIM_PROFILE="h200", GPUSIM_HOT_MILLIONS="50", GPUSIM_REPORT=f"{folder}/sim")
        if cases:
            with open(f"{folder}/replays", "w", encoding="utf-8") as file:
                file.writelines(replay_line(model, case, mode) for case in cases)
            environment["GPUSIM_REPLAYS"] = f"{folder}/replays"
        if mode in MODES + ["auto"]:
            environment.update(LD_PRELOAD=os.path.join(build, "liboffload.so"), OFFLOAD_STEP=mode, OFFLOAD_LOG="quiet",
                               OFFLOAD_REPORT=f"{folder}/report", OFFLOAD_DEVICE_STAGING=str(STAGING), OFFLOAD_RATES="/dev/null")
            # A node of its own: other processes' ranks would share its host memory.
            os.makedirs(f"{folder}/node/dev/shm")
            os.symlink("/proc", f"{folder}/node/proc")
            os.symlink("/sys", f"{folder}/node/sys")
            environment["OFFLOAD_SYSROOT"] = f"{folder}/node"
            if share < 1:
                environment["OFFLOAD_HOST_MEMORY"] = str(int(share * 2 * kind.bytes * model.elements))
        if rates:
            with open(f"{folder}/rates", "w", encoding="utf-8") as file:
                file.write(rates)
            environment["OFFLOAD_RATES"] = f"{folder}/rates"
        command = [f"{build}/gpusim/run", f"{build}/tests/e2e/train_step", f"{build}/{sim_steps.PTX}", f"entry={kind.entry}",
                   f"chunks={CHUNKS}", f"layers={sim_steps.LAYERS}", f"groups={model.launches}", f"steps={sim_steps.STEPS}",
                   f"optimizer={0 if mode == 'none' else 1}"]
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if result.returncode != 0:
            fail(f"{mode}, {kind.name}: the run ended with {result.returncode}: {result.stderr[-1000:]}")
        with open(f"{folder}/sim", encoding="utf-8") as file:
            violations = json.load(file)["violations"]
        if violations:
            fail(f"{mode}, {kind.name}: the simulator saw {violations} broken promises")
        report, replays = None, {}
        if mode in MODES + ["auto"]:
            with open(f"{folder}/report", encoding="utf-8") as file:
                report = json.load(file)
        if cases:
            with open(f"{folder}/replays.json", encoding="utf-8") as file:
                replays = {replay["label"]: replay["marks"][-1]["ns"] / 1e9 for replay in json.load(file)}
        return result.stdout.strip(), report, replays


def check_moved(kind, mode, share, report):
    model, totals = sim_steps.Model(CHUNKS), report["totals"]
    want = share * 2 * kind.bytes * model.elements
    if not 0.9 * want <= totals["moved_bytes_peak"] <= want:
        fail(f"{mode}, {kind.name}: {totals['moved_bytes_peak']} bytes of state moved, expected {want:.0f}")
    stepped = totals[f"elements_{mode}"] - (model.elements if mode == "direct" else 0)
    if mode in ("cpu", "stream") and stepped < 0.9 * share * (sim_steps.STEPS - 1) * model.elements:
        fail(f"{mode}, {kind.name}: only {stepped} elements were stepped so")


def predict(build, kind, share, case, profile, hashes):
    scale = case.parameters / (CHUNKS * sim_steps.CHUNK)
    for _ in range(3):  # on a machine that is too busy to calibrate in time a step is streamed, and that is said
        printed, report, _ = run(build, kind, "auto", share, rates=rates_of(profile, scale))
        hashes.add(printed)
        if not any("the device is busy" in row["why"] for row in report["functions"]):
            break
    functions = report["policy"]["functions"]
    if len(functions) != 1 or functions[0]["rates"] != "told":
        fail(f"{case.label}: expected one function and told rates, found {functions}")
    policy = functions[0]
    check_moved(kind, policy["way"], share, report)
    if report["node"]["sharers"] != 1:
        fail(f"{case.label}: {report['node']['sharers']} ranks share the node, expected one")
    for way in MODES:
        if not re.search(rf"\b{way} [\d.]+ (us|ms|s)\b", policy["why"]):
            fail(f"{case.label}: the sentence of why lacks {way}: {policy['why']}")
    foretold = {way: policy["foretold"][way]["exposed_ns"] / 1e9 for way in MODES}
    return policy["way"], policy["why"], foretold, policy["foretold"]["stay"]["hidden_ns"] / 1e9


def compare(case, share, way, why, foretold, stay, base, without, simulated):
    """A row, with what is wrong about it."""
    problems, rows = [], {}
    for mode in MODES:
        told = without + foretold[mode]
        off = 100 * (told / simulated[mode] - 1)
        part = 100 * ((stay + foretold[mode]) / (simulated[mode] - base) - 1)
        rows[mode] = {"foretold_s": told, "simulated_s": simulated[mode], "off_percent": off, "optimizer_off_percent": part}
        if abs(off) > STEP_PERCENT:
            problems.append(f"{mode}: a step of {simulated[mode]:.4g} s was foretold to take {told:.4g} s")
        if abs(part) > OPTIMIZER_PERCENT:
            problems.append(f"{mode}: an optimizer step of {simulated[mode] - base:.4g} s was foretold to take {stay + foretold[mode]:.4g} s")
    best = min(simulated, key=simulated.get)
    if simulated[way] > simulated[best] * (1 + CHOICE_PERCENT / 100):
        problems.append(f"chose {way} of {simulated[way]:.4g} s, {best} takes {simulated[best]:.4g} s")
    return {"case": case.label, "share": share, "way": way, "best": best, "why": why, "ways": rows, "problems": problems}


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--slice", default="1/1")
    parser.add_argument("--out")
    arguments = parser.parse_args()
    build = os.path.abspath(arguments.build)
    part, parts = (int(number) for number in arguments.slice.split("/"))
    machines, rows = profiles(), []
    cases = [(kind, share, machine, size) for share in SHARES for kind in sim_steps.TYPES for size in PARAMETERS for machine in MACHINES]
    chosen = cases[part % parts::parts]
    for kind, share in sorted({(kind, share) for kind, share, _, _ in chosen}):
        own = [sim_steps.Case(f"{machine}/{size:.0f}/{kind.name}", machine, size, None, TOKENS, size, 1, kind)
               for one, two, machine, size in chosen if (one, two) == (kind, share)]
        hashes, seconds = set(), {}
        for mode in ["none", "without"] + MODES:
            printed, report, seconds[mode] = run(build, kind, mode, share, cases=own)
            if report:
                check_moved(kind, mode, share, report)
            if mode != "none":
                hashes.add(printed)
        for case in own:
            way, why, foretold, stay = predict(build, kind, share, case, machines[case.machine], hashes)
            rows.append(compare(case, share, way, why, foretold, stay, seconds["none"][case.label], seconds["without"][case.label],
                                {mode: seconds[mode][case.label] for mode in MODES}))
        if len(hashes) != 1:
            fail(f"{kind.name}: other numbers than the program alone: {hashes}")
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    for row in rows:
        figures = ", ".join(f"{mode} {ways['simulated_s']:.4g} s ({ways['off_percent']:+.0f} %, optimizer {ways['optimizer_off_percent']:+.0f} %)"
                            for mode, ways in row["ways"].items())
        print(f"{row['case']} {row['share']:g}: {row['way']}; {figures}")
        for problem in row["problems"]:
            print(f"  {problem}")
    wrong = [row for row in rows if row["problems"]]
    if wrong:
        fail(f"{len(wrong)} of {len(rows)} cases are wrong, the first: {wrong[0]['case']}: {wrong[0]['problems'][0]}")
    print(f"{len(rows)} cases, {len({row['way'] for row in rows})} ways chosen")


if __name__ == "__main__":
    main()
