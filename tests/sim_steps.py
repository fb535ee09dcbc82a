#!/usr/bin/env python3
"""Training steps with the library on the simulated GPU's clock: how long, how much of the optimizer is exposed, what bounds it.

train_step.c runs under the real preload, once for each way of stepping and type of parameter, on a small model. Its log is
replayed (GPUSIM_REPLAYS) on the machines of policy/gpus.def for 1 to 70 billion parameters: bytes count as often as the model
is larger, so whatever a bandwidth bounds takes the time of the full size. Pieces are made smaller, to have many; each
stands for as many of the default size as the model is larger, and so do its calls and the starts of its copies
and kernels. What `stream` copies up while forward and backward run is what its slots hold, hence a larger share of a smaller model: it runs in
three sizes, and a row takes the one whose slots hold nearest the share that they hold at its size. Forward and backward are given: 2 and 4 FLOP for each parameter and token, at half the GPU's bf16 peak.

Every run must have moved all state, stepped it as asked, and ended with the bits of the program alone; else there are no figures.

usage: sim_steps.py --build BUILD [--out FILE] [--table README.md] [--write-table README.md]
                    [--chunks N] [--types LIST] [--modes LIST] [--machines LIST]
  --table        fails when the table in that file is another
  --write-table  puts it there
  --chunks       size of the model that is run
  --types, --modes, --machines  only these, separated by commas; without a table"""
import argparse
import collections
import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CHUNK = 65536
STEPS = 6  # the first before anything has moved; from the fourth on `stream` copies ahead
LAYERS = 8
CHUNKS_A_LAUNCH = 64
BLOCKS_A_LAUNCH = 2240  # PyTorch 2.11 and later
# A piece in chunks, with four slots, the least; and at the default OFFLOAD_DEVICE_STAGING, and how many slots that makes.
CPU_PIECE, STREAM_PIECE, SLOTS = 2, 1, 4
CPU_STAGING_MOST = 16 << 20  # shim/ring.c
STREAM_SLOTS = 16  # shim/staging.c
UTILISATION = 0.5  # of the bf16 peak, by forward and backward
PARAMETERS = [1e9, 7e9, 13e9, 70e9]
TOKENS = [4096, 8192, 16384, 32768, 65536]
GPUS = [1, 8]
MACHINES = ["h200", "h100-8", "h200-8", "gh200", "a100-pcie4", "rtx4090"]
MODES = ["cpu", "stream", "direct"]
Type = collections.namedtuple("Type", "name entry bytes")  # entry of the PTX; bytes of p, g, m and v each
TYPES = [Type("float", 0, 4), Type("bfloat16", 3, 2)]
PTX = "tests/e2e/exact-212-adamw.ptx"

# Published: offload.md 0. `base`: seconds of a step without offload, of which our forward and backward are what its Adam leaves.
Anchor = collections.namedtuple("Anchor", "source what machine type parameters base published why")
LIKE = "the same work: their CPU step begins before backward has ended on the GPU, ours with the optimizer's launch"
ANCHORS = [
    Anchor("torchao", "CPUOffloadOptimizer, ViT-g 1.1B all bf16", "rtx4070tis", "bfloat16", 1.1e9, 1.27, 1.52, LIKE),
    Anchor("torchao", "the same, compiled", "rtx4070tis", "bfloat16", 1.1e9, 1.18, 1.75,
           "compiled, they lose that overlap: the same order of work as ours"),
    Anchor("torchao", "ZeRO-Offload, untuned, of the same model", "rtx4070tis", "bfloat16", 1.1e9, 1.27, 3.13,
           "DeepSpeed's CPU step has no bf16 on AVX2 and keeps fp32 state; ours moves half the bytes, vectorised"),
    Anchor("prime-rl", "full_offload, Qwen3-30B-A3B on 8 GPUs, 8K tokens", "h200-8", "float", 30.5e9 / 8, 1.75, 3.96,
           "the same work, bound by the host memory that eight GPUs share"),
    Anchor("prime-rl", "the same, 16K tokens", "h200-8", "float", 30.5e9 / 8, 5.17, 5.73,
           "they overlap the CPU step with what follows; ours is exposed but for the gradients' way down"),
    Anchor("prime-rl", "the same, 32K and 64K tokens", None, "float", 30.5e9 / 8, None, None,
           "published as a share of throughput (about 100 %), without seconds"),
    Anchor("DeepSpeed", "ZeRO-Offload with bound cores, Qwen2.5-1.5B on 2 GPUs", "a100-40-2", "float", 1.54e9 / 2, 0.240, 1.365,
           "their CPU step is far from the memory's speed, and copies take turns with it"),
    Anchor("NeMo-RL", "Megatron's HybridDeviceOptimizer, Qwen3-0.6B, all offloaded", None, "float", 0.6e9, 0.752, 1.678,
           "the machine isn't published"),
    Anchor("DeepSpeed", "ZenFlow with bound cores, Qwen2.5-1.5B on 2 GPUs", None, "float", 1.54e9 / 2, 0.240, 0.569,
           "another optimizer: most updates are applied later"),
    Anchor("ETH lsaie_project", "SuperOffload, 6.7B on 4 GH200", None, "float", 6.7e9 / 4, None, None,
           "published as tokens per second (-20 %), without the tokens of a step"),
    Anchor("MLP-Offload's review", "ZeRO-Infinity on NVMe, 20B", None, "float", 20e9, None, None, "there is no NVMe tier yet"),
    Anchor("miles", "stream to disk, Qwen3.5-35B-A3B on 8 H200", None, "float", 35e9 / 8, None, None, "there is no NVMe tier yet"),
]


def fail(words):
    sys.exit(f"sim_steps: {words}")


def profile_names():
    with open(os.path.join(ROOT, "policy/gpus.def"), encoding="utf-8") as file:
        return re.findall(r'^PROFILE\(([\w-]+), "([^"]+)"', file.read(), re.M)


def default_staging():
    with open(os.path.join(ROOT, "policy/variables.def"), encoding="utf-8") as file:
        found = re.search(r'"DEVICE_STAGING", BYTES, "(\d+)MiB"', file.read())
    if not found:
        fail("policy/variables.def has no default of DEVICE_STAGING in MiB")
    return int(found[1]) << 20


def default_piece(mode, kind):
    """Chunks of a piece at the default OFFLOAD_DEVICE_STAGING. `cpu`: a slot has two parts of floats behind a head (shim/ring.c);
    `stream`: m and v, a little room behind each (shim/staging.c)."""
    if mode == "cpu":
        return (min(default_staging(), CPU_STAGING_MOST) // SLOTS // 2 - 64) // 4 // CHUNK
    return default_staging() // STREAM_SLOTS // (2 * (kind.bytes * CHUNK + 32))


def small_staging(mode, kind):
    """OFFLOAD_DEVICE_STAGING for pieces of CPU_PIECE or STREAM_PIECE chunks."""
    if mode == "cpu":
        return SLOTS * 2 * (64 + 4 * CHUNK * CPU_PIECE)
    return SLOTS * (2 * kind.bytes * CHUNK * STREAM_PIECE + 512)


class Model:
    """The model that is really run, and what a replay says of a larger one."""

    def __init__(self, chunks):
        self.chunks = chunks
        self.elements = chunks * CHUNK
        self.launches = max(1, chunks // CHUNKS_A_LAUNCH)

    def replay(self, case, mode):
        scale = case.parameters / self.elements
        if mode in ("cpu", "stream"):
            starts = scale * {"cpu": CPU_PIECE, "stream": STREAM_PIECE}[mode] / default_piece(mode, case.type)
        else:
            starts = case.parameters / CHUNK / BLOCKS_A_LAUNCH / self.launches
        if case.tokens is None:
            times = [f"{name}*={case.seconds * 1e6 * part / LAYERS}us" for name, part in (("forward", 1 / 3), ("backward", 2 / 3))]
        else:
            each = case.model_parameters * case.tokens / LAYERS / UTILISATION
            times = [f"forward*={2 * each}flop", f"backward*={4 * each}flop"]
        return f"label={case.label} profile={case.machine} scale={scale} starts={starts} kernel_time={','.join(times)}\n"


def run(build, model, kind, mode, cases):
    """One run, replayed for all cases: what is known of the run, and each replay by label. Mode `none`: forward and
    backward alone; `without`: the program alone."""
    for tries in range(3):
        facts, replays = run_once(build, model, kind, mode, cases)
        # On a machine that is too busy to calibrate in time a step is streamed, and that is said.
        if not any("the device is busy" in why for why in facts.pop("whys")) or tries == 2:
            break
    check_run(model, kind, mode, facts, replays)
    return facts, {replay["label"]: replay for replay in replays}


def run_once(build, model, kind, mode, cases):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "replays")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(model.replay(case, mode) for case in cases)
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("GPUSIM_", "OFFLOAD_"))}
        environment.update(GPUSIM_PROFILE="h200", GPUSIM_REPLAYS=path, GPUSIM_HOT_MILLIONS="50", GPUSIM_REPORT=f"{folder}/sim")
        environment.pop("LD_PRELOAD", None)
        if mode in MODES:
            environment.update(LD_PRELOAD=os.path.join(build, "liboffload.so"), OFFLOAD_STEP=mode, OFFLOAD_LOG="quiet",
                               OFFLOAD_REPORT=f"{folder}/report", OFFLOAD_DEVICE_STAGING=str(small_staging(mode, kind)))
        command = [f"{build}/gpusim/run", f"{build}/tests/e2e/train_step", f"{build}/{PTX}", f"entry={kind.entry}",
                   f"chunks={model.chunks}", f"layers={LAYERS}", f"groups={model.launches}", f"steps={STEPS}",
                   f"optimizer={0 if mode == 'none' else 1}"]
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if result.returncode != 0:
            fail(f"{mode}, {kind.name}: the run ended with {result.returncode}: {result.stderr[-1000:]}")
        with open(f"{path}.json", encoding="utf-8") as file:
            replays = json.load(file)
        facts = {"mode": mode, "type": kind.name, "hashes": result.stdout.strip(), "elements": model.elements, "whys": []}
        with open(f"{folder}/sim", encoding="utf-8") as file:
            facts["violations"] = json.load(file)["violations"]
        if mode in MODES:
            with open(f"{folder}/report", encoding="utf-8") as file:
                report = json.load(file)
            facts["whys"] = [row["why"] for row in report["functions"]] + report["reasons"]
            facts.update({name: report["totals"][name] for name in ("moved_bytes_peak", "elements_cpu", "elements_stream",
                                                                    "elements_direct", "proofs", "refusals", "link_bytes_down",
                                                                    "link_bytes_up", "early_bytes")})
    return facts, replays


def check_run(model, kind, mode, facts, replays):
    name = f"{mode}, {kind.name}"
    if facts["violations"]:
        fail(f"{name}: the simulator saw {facts['violations']} broken promises")
    if mode in MODES:
        # The first step goes before the move, hence by the program's kernel.
        if facts["moved_bytes_peak"] != 2 * kind.bytes * model.elements:
            fail(f"{name}: {facts['moved_bytes_peak']} bytes of state moved, not all")
        later = facts[f"elements_{mode}"] - (model.elements if mode == "direct" else 0)
        if later != (STEPS - 1) * model.elements:
            fail(f"{name}: {later} elements were stepped so, not {(STEPS - 1) * model.elements}")
    pieces = (STEPS - 1) * model.chunks // CPU_PIECE if mode == "cpu" else 0
    for replay in replays:
        if replay["assumed_waits"] or replay["unmeasured_kernels"] or replay["inferred_waits"] != pieces:
            fail(f"{name}: the clock explains {replay['inferred_waits']} waits of {pieces}, assumes {replay['assumed_waits']}, "
                 f"and {replay['unmeasured_kernels']} kernels have no cost")
        last, before = replay["marks"][-1]["ns"], replay["marks"][-2]["ns"]
        if abs(last - before) > 0.001 * last:
            fail(f"{name}: steps of {before} and {last} ns: not the same step after step")


BOUNDS = {"up": "link", "down": "link", "dram": "host memory", "hbm": "GPU memory", "issue": "GPU"}


def row_of(none, without, replay, mode, size, gpus):
    """A row of the JSON from the last steps of three replays of one size."""
    base, step = none["marks"][-1], replay["marks"][-1]
    full = {name: step[f"{name}_full_ns"] for name in BOUNDS}
    kind_bytes = size.type.bytes
    return {
        "profile": size.machine, "parameters": size.model_parameters, "gpus": gpus, "tokens": size.tokens, "type": size.type.name,
        "mode": mode, "forward_backward_s": base["ns"] / 1e9, "without_s": without["marks"][-1]["ns"] / 1e9,
        "step_s": step["ns"] / 1e9, "exposed_s": (step["ns"] - base["ns"]) / 1e9, "hidden_s": step["hidden_ns"] / 1e9,
        "work_s": step["other_ns"] / 1e9, "bytes_up": step["up_amount"], "bytes_down": step["down_amount"],
        "host_memory_bytes": step["dram_amount"], "bound_by": BOUNDS[max(full, key=full.get)],
        "fits": 2 * kind_bytes * size.parameters <= replay["memory"],
        "fits_without": 4 * kind_bytes * size.parameters <= replay["memory"],
    }


Case = collections.namedtuple("Case", "label machine parameters seconds tokens model_parameters gpus type")


def cases_of(kind, machines):
    return [Case(f"{machine}/{parameters:.0f}/{gpus}/{tokens}", machine, parameters / gpus, None, tokens, parameters, gpus, kind)
            for machine in machines for parameters in PARAMETERS for gpus in GPUS for tokens in TOKENS]


def anchor_cases(kind, seconds):
    return [Case(f"anchor/{i}", anchor.machine, anchor.parameters, seconds(i, anchor), None, anchor.parameters, 1, kind)
            for i, anchor in enumerate(ANCHORS) if anchor.machine and anchor.type == kind.name]


def simulate(build, chunks, kind, mode, cases, runs):
    """Replays of all cases by label."""
    sizes = [chunks] if mode != "stream" else [chunks // 4, chunks, chunks * 4]
    # How many pieces a slot stands for: the slots' share of all pieces is that at the case's size.
    wanted = [case.parameters / CHUNK / default_piece(mode, kind) / STREAM_SLOTS * SLOTS for case in cases]
    replays = {}
    for size in sizes:
        own = [case for case, pieces in zip(cases, wanted)
               if size == min(sizes, key=lambda other, pieces=pieces: max(other / pieces, pieces / other))]
        if own:
            facts, more = run(build, Model(size), kind, mode, own)
            runs.append(facts)
            replays.update(more)
    return replays


def simulate_type(build, chunks, kind, modes, machines, rows, runs, anchors):
    cases = cases_of(kind, machines)
    # An anchor's Adam on the device, alone: the rest of the published step is forward and backward.
    without = simulate(build, chunks, kind, "without", cases + anchor_cases(kind, lambda i, anchor: 0), runs)
    given = anchor_cases(kind, lambda i, anchor: anchor.base - without[f"anchor/{i}"]["marks"][-1]["ns"] / 1e9)
    none = simulate(build, chunks, kind, "none", cases, [])
    for mode in modes:
        replays = simulate(build, chunks, kind, mode, cases + given, runs)
        rows += [row_of(none[case.label], without[case.label], replays[case.label], mode, case, case.gpus) for case in cases]
        for case in given:
            anchors.setdefault(int(case.label.split("/")[1]), {})[mode] = replays[case.label]["marks"][-1]["ns"] / 1e9
    hashes = {facts["hashes"] for facts in runs if facts["type"] == kind.name}
    if len(hashes) != 1:
        fail(f"{kind.name}: other numbers than the program alone: {hashes}")


def anchor_rows(simulated):
    out = []
    for i, anchor in enumerate(ANCHORS):
        by_mode = simulated.get(i)
        row = {"source": anchor.source, "what": anchor.what, "machine": anchor.machine, "parameters_a_gpu": anchor.parameters,
               "published_without": anchor.base, "published": anchor.published, "simulated": None, "why": anchor.why}
        if by_mode and "cpu" in by_mode:
            best = min(by_mode, key=by_mode.get)
            row.update(simulated=by_mode["cpu"], difference_percent=100 * (by_mode["cpu"] / anchor.published - 1), modes=by_mode,
                       best=best)
        out.append(row)
    return out


# ---- the table ----

TABLE_TOKENS = [4096, 16384, 65536]
TABLE_PARAMETERS = 7e9
BEGIN, END = "<!-- sim-steps: by make sim-steps-table -->\n", "<!-- end of sim-steps -->\n"


def table(rows):
    """Which mode wins where and why, in fp32: by how much the step gets longer than forward and backward."""
    words = dict(profile_names())
    lines = ["| GPU | shared by | 4K tokens | 16K | 64K | exposed ms per billion parameters of a GPU, and what bounds them |",
             "| --- | --- | --- | --- | --- | --- |"]
    for machine in MACHINES:
        for gpus in GPUS:
            if gpus > 1 and not machine.endswith("-8"):
                continue
            found = {(row["tokens"], row["mode"]): row for row in rows if row["type"] == "float" and row["profile"] == machine
                     and row["gpus"] == gpus and row["parameters"] == TABLE_PARAMETERS}
            cells = []
            for tokens in TABLE_TOKENS:
                best = min((found[tokens, mode] for mode in MODES), key=lambda row: row["exposed_s"])
                cells.append(f"`{best['mode']}` +{100 * best['exposed_s'] / best['forward_backward_s']:.0f} %")
            own = TABLE_PARAMETERS / gpus / 1e9
            why = [f"`{mode}` {1000 * found[TABLE_TOKENS[0], mode]['exposed_s'] / own:.0f} {found[TABLE_TOKENS[0], mode]['bound_by']}"
                   for mode in MODES]
            lines.append(f"| {words[machine]} | {gpus} | {' | '.join(cells)} | {', '.join(why)} |")
    return "\n".join(lines) + "\n"


def put_table(path, text, write):
    with open(path, encoding="utf-8") as file:
        page = file.read()
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        fail(f"{path} has no place for the table: {BEGIN.strip()} and {END.strip()}")
    before, rest = page.split(BEGIN)
    present, after = rest.split(END)
    if write:
        with open(path, "w", encoding="utf-8") as file:
            file.write(before + BEGIN + text + END + after)
    elif present != text:
        print(text)
        fail(f"the table in {path} is another: `make sim-steps-table` writes it")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--out")
    parser.add_argument("--table")
    parser.add_argument("--write-table")
    parser.add_argument("--chunks", type=int, default=2 * CHUNKS_A_LAUNCH)
    parser.add_argument("--types", default=",".join(kind.name for kind in TYPES))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--machines", default=",".join(MACHINES))
    arguments = parser.parse_args()
    types = [kind for kind in TYPES if kind.name in arguments.types.split(",")]
    modes = [mode for mode in MODES if mode in arguments.modes.split(",")]
    if not types or not modes:
        fail(f"--types {arguments.types} --modes {arguments.modes}: expected some of {[kind.name for kind in TYPES]} and {MODES}")
    machines = arguments.machines.split(",")
    if unknown := set(machines) - {name for name, _ in profile_names()}:
        fail(f"--machines {arguments.machines}: policy/gpus.def has no {', '.join(sorted(unknown))}")
    if arguments.chunks < 4 * LAYERS or arguments.chunks % (4 * LAYERS):
        fail(f"--chunks {arguments.chunks}: expected a multiple of {4 * LAYERS}")
    build = os.path.abspath(arguments.build)
    rows, runs, anchors = [], [], {}
    for kind in types:
        simulate_type(build, arguments.chunks, kind, modes, machines, rows, runs, anchors)
    if arguments.out:
        with open(f"{arguments.out}.tmp", "w", encoding="utf-8") as file:
            json.dump({"rows": rows, "anchors": anchor_rows(anchors), "runs": runs, "utilisation": UTILISATION}, file, indent=1)
            file.write("\n")
        os.replace(f"{arguments.out}.tmp", arguments.out)
    if types != TYPES or modes != MODES or machines != MACHINES:
        return
    text = table(rows)
    print(text, end="")
    if arguments.write_table:
        put_table(arguments.write_table, text, True)
    if arguments.table:
        put_table(arguments.table, text, False)


if __name__ == "__main__":
    main()
