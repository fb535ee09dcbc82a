"""The CPU step beside DeepSpeed's CPU Adam and PyTorch's CPU fused AdamW: build/bench_peers.json. See README.md.

Called by `make bench-peers`, in the Python of the environment that `make pytorch` builds. DeepSpeed's two source files
are taken from its source package and compiled with its own flags, once for this machine and once for AVX2 alone. Every
instruction set has a process of its own (--isa), since PyTorch chooses its code when it starts. There the three take
turns on the same arrays, with the triad (a = b + s*c) among them; the medians count. Before that each does one step
from the same numbers: it must change the moments, and as the others do.

Arrays come from PyTorch's allocator, which asks for huge pages (THP_MEM_ALLOC_ENABLE): the same for all. One thread is
measured by that thread's processor time, so that a shared machine disturbs less; more by the clock.
"""

import argparse
import copy
import ctypes
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tarfile
import time

DEEPSPEED = "0.19.8"
HYPER = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
# Flags of DeepSpeed's op_builder, which takes -march=native; AVX2 alone is what it would be on a machine without more.
FLAGS = {"native": ["-march=native"], "avx2": ["-march=haswell"]}
FLOAT, DOUBLE, HALF, BFLOAT16 = range(4)  # enum adam_type
GEN_DOUBLE, GEN_FLOAT, GEN_MIXED = 1, 2, 3  # enum adam_generation
ISA = {"native": 0, "avx2": 2}  # enum adam_isa
STEP = 10  # of the step counter, at the first step
CHECKED = 4096  # elements that are looked at
BYTES = {FLOAT: 4, DOUBLE: 8, HALF: 2, BFLOAT16: 2}
STAGED_ELEMENTS, STAGED_SLOTS = 1 << 17, 4  # gradients and updates of so many slots in turn stay in cache
WHOLE = 100000000  # the size at which every case is measured; at others only those of EVERY_SIZE
EVERY_SIZE = ("f32 staged", "f32 dram", "bf16 staged")
ELEMENTS_A_TURN = 20000000  # smaller arrays are stepped several times in a turn
ALIGNED_ELEMENTS = 128  # tensors begin at multiples of it: 512 bytes of floats, as PyTorch's allocators have them


class Case:
    """What ours does, and whether the others can do the same."""

    def __init__(self, name, kind, state, generation=GEN_FLOAT, staged=True, peers=True, tensors=None, isas=("native",)):
        self.name, self.kind, self.state, self.generation = name, kind, state, generation
        self.staged, self.peers, self.isas = staged, peers, isas
        self.tensors = tensors  # ours: in so many, and beside it, in turn, in FEW_TENSORS

    def bytes(self):
        """Read and written per parameter as the triad's are counted; staged, gradient and update are not in memory."""
        update = 8 if self.state == DOUBLE else 4
        return 4 * BYTES[self.state] + (0 if self.staged else BYTES[self.kind] + update)


CASES = [
    Case("f32 staged", FLOAT, FLOAT),
    Case("f32 dram", FLOAT, FLOAT, staged=False),
    Case("f32 staged, scalars of 2.3-2.10", FLOAT, FLOAT, GEN_DOUBLE),
    Case("bf16 staged", BFLOAT16, BFLOAT16),
    Case("bf16 dram", BFLOAT16, BFLOAT16, staged=False),
    Case("f16 staged", HALF, HALF),
    Case("f32 with bf16 moments staged", FLOAT, BFLOAT16, GEN_MIXED, peers=False),
    Case("f64 staged", DOUBLE, DOUBLE, peers=False),
    Case("f32 avx2", FLOAT, FLOAT, isas=("avx2",)),
    Case("bf16 avx2", BFLOAT16, BFLOAT16, isas=("avx2",)),
    Case("bf16 avx2, scalars of 2.3-2.10", BFLOAT16, BFLOAT16, GEN_DOUBLE, isas=("avx2",)),
    Case("f16 avx2", HALF, HALF, isas=("avx2",)),
    Case("f32 dram, 100000 tensors", FLOAT, FLOAT, staged=False, peers=False, tensors=100000),
]
FEW_TENSORS = 100

# Case, elements, column, least.
GOALS = [
    ("f32 staged", WHOLE, "ratio_deepspeed", 1.5),
    ("f32 staged", WHOLE, "ratio_torch", 1.5),
    ("f32 dram", WHOLE, "ratio_deepspeed", 1.05),
    ("f32 dram", WHOLE, "ratio_triad", 0.9),
    ("bf16 avx2", WHOLE, "ratio_deepspeed", 4.0),
    ("bf16 avx2", WHOLE, "ratio_torch", 1.3),
    ("f32 staged", 10 * WHOLE, "ratio_beside", 0.9),
    ("f32 dram, 100000 tensors", WHOLE, "ratio_beside", 0.9),
]


def fail(what, remedy):
    sys.exit(f"bench-peers: {what}\nbench-peers: {remedy}")


def run(command, what, remedy, **options):
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if result.returncode:
        fail(f"{what}: {result.stdout.strip()[-600:]}", remedy)
    return result.stdout


def deepspeed_source(work):
    """The folder of the unpacked source package."""
    folder = work / f"deepspeed-{DEEPSPEED}"
    if not folder.is_dir():
        pip = shutil.which("pip") or shutil.which("pip3")
        if not pip:
            fail("no pip to get DeepSpeed's source package with", "install pip")
        # Its set-up needs no CUDA for that.
        env = dict(os.environ, DS_BUILD_OPS="0", DS_IGNORE_CUDA_DETECTION="1", DS_ACCELERATOR="cpu")
        env.pop("LD_LIBRARY_PATH", None)
        run(
            [pip, "download", "--no-deps", "--no-binary", "deepspeed", f"deepspeed=={DEEPSPEED}", "--dest", work],
            "DeepSpeed's source package could not be had",
            "look at the network, or at pip's index",
            env=env,
        )
        with tarfile.open(work / f"deepspeed-{DEEPSPEED}.tar.gz") as archive:
            archive.extractall(work, filter="data")
    return folder


def build_deepspeed(work, isa):
    """DeepSpeed's CPU Adam as a Python module."""
    import torch

    name = f"ds_{isa}"
    module = work / f"{name}.so"
    if module.exists():
        return
    source = deepspeed_source(work)
    home = pathlib.Path(torch.__file__).parent
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as text:
        has_avx512 = "avx512f" in text.read()
    width = "-D__AVX512__" if isa == "native" and has_avx512 else "-D__AVX256__"
    includes = [f"-I{source / 'csrc/includes'}"]
    for folder in (home / "include", home / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]):
        includes += ["-isystem", folder]
    objects = []
    for part in ("cpu_adam", "cpu_adam_impl"):
        objects.append(work / f"{name}-{part}.o")
        print(f"bench-peers: compiling DeepSpeed's {part}.cpp for {isa}", flush=True)
        run(
            ["g++", "-O3", "-std=c++20", "-w", "-fopenmp", "-fPIC", *FLAGS[isa], width, f"-DTORCH_EXTENSION_NAME={name}"]
            + ["-DTORCH_API_INCLUDE_EXTENSION_H", *includes, "-c", source / f"csrc/adam/{part}.cpp", "-o", objects[-1]],
            "DeepSpeed's CPU Adam doesn't compile",
            f"look at its release {DEEPSPEED} and at g++ --version",
        )
    libraries = ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python", "-Wl,--allow-shlib-undefined"]
    run(
        ["g++", "-shared", "-fopenmp", *objects, f"-L{home / 'lib'}", *libraries, "-o", module],
        "DeepSpeed's CPU Adam doesn't link",
        "remove build/bench_peers and try again",
    )


# ---- one instruction set ----


class Contenders:
    """The three on the same arrays, each as a function without arguments."""

    def __init__(self, args):
        import torch

        self.torch, self.args = torch, args
        torch.set_num_threads(args.threads)
        self.library = ctypes.CDLL(str(args.work / "libpeers.so"))
        self.library.peer_open.restype = ctypes.c_void_p
        self.library.peer_isa.restype = ctypes.c_char_p
        why = ctypes.create_string_buffer(512)
        self.ours = self.library.peer_open(
            str(args.companion).encode(), ISA[args.isa], args.threads, why, ctypes.c_size_t(len(why))
        )
        if not self.ours:
            fail(why.value.decode(), "build the companion: make")
        self.deepspeed = None if args.without_deepspeed else self.load_deepspeed()
        self.steps = STEP - 1

    triad_bytes_per_s = None  # of the last case of floats

    def load_deepspeed(self):
        import importlib.util

        spec = importlib.util.spec_from_file_location(f"ds_{self.args.isa}", self.args.work / f"ds_{self.args.isa}.so")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        h = HYPER
        module.create_adam(0, h["lr"], h["beta1"], h["beta2"], h["eps"], h["weight_decay"], True, False)
        return module

    def isa(self):
        return self.library.peer_isa(ctypes.c_void_p(self.ours)).decode()

    def arrays(self, case, elements):
        torch = self.torch
        types = {FLOAT: torch.float32, DOUBLE: torch.float64, HALF: torch.float16, BFLOAT16: torch.bfloat16}
        base = torch.arange(8191, dtype=torch.float32) * 1e-5 - 0.04

        def made(dtype, scale, count, square=False):
            row = (base * base if square else base) * scale
            return row.to(types[dtype]).repeat(count // 8191 + 1)[:count]

        room = case.tensors * stride(elements // case.tensors) if case.tensors else elements
        gradients = STAGED_ELEMENTS * STAGED_SLOTS if case.staged else room
        self.p = self.g = self.m = self.v = self.u = None  # the last case's, before there are new ones
        self.g = made(case.kind, 0.5, max(gradients, room) if case.peers else gradients)
        self.m, self.v = made(case.state, 1, room), made(case.state, 1, room, square=True)
        self.p = made(case.kind, 1, room) if case.peers else None
        self.u = torch.zeros(len(self.g), dtype=torch.float64 if case.state == DOUBLE else torch.float32)

    def step_ours(self, case, elements, tensors):
        tensor = STAGED_ELEMENTS if case.staged else elements // tensors
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (self.g, self.m, self.v, self.u)]
        done = self.library.peer_step(
            ctypes.c_void_p(self.ours), case.generation, case.kind, case.state, *pointers,
            ctypes.c_uint64(elements), ctypes.c_uint64(tensor), ctypes.c_uint64(tensor if case.staged else stride(tensor)),
            STAGED_SLOTS if case.staged else 0,
        )  # fmt: skip
        if not done:
            fail(f"the companion refuses {case.name}", "this is a mistake in bench_peers.py")

    def step_deepspeed(self, elements):
        self.steps += 1
        h = HYPER
        p, g, m, v = (t[:elements] for t in (self.p, self.g, self.m, self.v))
        self.deepspeed.adam_update(0, self.steps, h["lr"], h["beta1"], h["beta2"], h["eps"], h["weight_decay"], True, p, g, m, v)

    def step_torch(self, elements):
        p, g, m, v = (t[:elements] for t in (self.p, self.g, self.m, self.v))
        step = self.torch.tensor(float(STEP))
        self.torch._fused_adamw_([p], [g], [m], [v], [], [step], amsgrad=False, maximize=False, **HYPER)

    def triad(self, elements):
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (self.u, self.g, self.m)]
        self.library.peer_triad(*pointers, ctypes.c_uint64(elements), self.args.threads)

    def check(self, case, elements, steps):
        """From the same numbers everyone must change the moments, ours the update and the others the parameter, and all alike."""
        torch = self.torch
        some = min(CHECKED, elements)
        moments = [self.m[:some], self.v[:some]]
        before = [t.clone() for t in moments]
        first = None
        for name in ("ours", "deepspeed", "torch"):
            if name not in steps:
                continue
            for tensor, old in zip(moments, before):
                tensor.copy_(old)
            written = (self.u if name == "ours" else self.p)[:some]
            was = written.clone()
            steps[name]()
            # Of two bytes the second moment may round back to what it was.
            changed = [not torch.equal(t, old) for t, old in zip(moments, before)]
            if not changed[0] or not (changed[1] or BYTES[case.state] == 2) or torch.equal(written, was):
                fail(f"{case.name}: {name} left its arrays as they were", "this is a mistake in bench_peers.py or bench_peers.c")
            now = [t.double() for t in moments]
            first = first or now
            apart = max(float(((a - b).abs() / (b.abs() + 1e-12)).max()) for a, b in zip(now, first))
            if not apart < (1e-4 if case.state in (FLOAT, DOUBLE) else 0.02):
                fail(f"{case.name}: {name} has other moments, by a part of {apart:.3g}", "this is a mistake in bench_peers.py")


def stride(tensor):
    return -(-tensor // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS


def seconds(step, threads, turns):
    """The others' threads may still be spinning for work: a pause before each."""
    if threads > 1:
        time.sleep(0.3)
    clock = time.CLOCK_THREAD_CPUTIME_ID if threads == 1 else time.CLOCK_MONOTONIC
    begin = time.clock_gettime(clock)
    for _ in range(turns):
        step()
    return (time.clock_gettime(clock) - begin) / turns


def measure(contenders, case, elements, args):
    contenders.arrays(case, elements)
    tensors = case.tensors or 1
    steps = {"ours": lambda: contenders.step_ours(case, elements, tensors)}
    sizes = {"ours": elements}
    if case.peers and contenders.deepspeed:
        steps["deepspeed"] = lambda: contenders.step_deepspeed(elements)
    if case.peers:
        steps["torch"] = lambda: contenders.step_torch(elements)
    contenders.check(case, elements, steps)
    beside = None
    if case.tensors:
        beside = f"{FEW_TENSORS} tensors"
        steps["beside"] = lambda: contenders.step_ours(case, elements, FEW_TENSORS)
    elif elements > WHOLE:
        beside = f"{WHOLE} elements"
        steps["beside"] = lambda: contenders.step_ours(case, WHOLE, tensors)
        sizes["beside"] = WHOLE
    if case.kind == case.state == FLOAT and len(contenders.g) >= elements:
        steps["triad"] = lambda: contenders.triad(elements)
    times = {name: [] for name in steps}
    for round_ in range(args.rounds + 1):
        for name, step in steps.items():
            size = sizes.get(name, elements)
            taken = seconds(step, args.threads, max(1, ELEMENTS_A_TURN // size)) / size
            if round_:  # the first warms up
                times[name].append(taken)
    rate = {name: 1 / statistics.median(taken) for name, taken in times.items()}
    if "triad" in rate:
        contenders.triad_bytes_per_s = rate["triad"] * 12

    def per_second(name):
        return round(rate[name]) if name in rate else None

    def ratio(other):
        return round(rate["ours"] / rate[other], 3) if other in rate else None

    triad = contenders.triad_bytes_per_s
    return {
        "case": case.name,
        "isa": contenders.isa(),
        "threads": args.threads,
        "elements": elements,
        "ours_params_per_s": per_second("ours"),
        "deepspeed_params_per_s": per_second("deepspeed"),
        "torch_params_per_s": per_second("torch"),
        "ratio_deepspeed": ratio("deepspeed"),
        "ratio_torch": ratio("torch"),
        "ratio_triad": round(rate["ours"] * case.bytes() / triad, 3) if triad else None,
        "beside": beside,
        "ratio_beside": ratio("beside"),
        "clock": "thread" if args.threads == 1 else "wall",
    }


def measure_all(args):
    contenders = Contenders(args)
    whole = min(args.elements, key=lambda e: abs(e - WHOLE))
    for elements in sorted(args.elements, key=lambda e: (e != whole, e)):  # first the one with a triad in memory
        for case in CASES:
            if args.isa not in case.isas or (elements != whole and case.name not in EVERY_SIZE):
                continue
            if case.tensors and elements < case.tensors:
                continue
            # Where peers take no part only ours needs memory: the largest size is for it alone.
            alone = copy.copy(case)
            alone.peers = case.peers and elements <= args.peers_most
            if elements > args.peers_most and case.name != "f32 staged":
                continue
            print(json.dumps(measure(contenders, alone, elements, args)), flush=True)


# ---- all of them ----


def table(rows):
    print("case | isa | threads | elements | ours | DeepSpeed | PyTorch (M parameters/s) | ours / DeepSpeed | ours / PyTorch | of the triad")
    for row in rows:
        cells = [row[key] for key in ("case", "isa", "threads", "elements")]
        cells += [f"{row[f'{who}_params_per_s'] / 1e6:.0f}" if row[f"{who}_params_per_s"] else "-" for who in ("ours", "deepspeed", "torch")]
        cells += ["-" if row[f"ratio_{to}"] is None else f"{row[f'ratio_{to}']:.2f}" for to in ("deepspeed", "torch", "triad")]
        beside = f" | {row['ratio_beside']:.2f} of the speed with {row['beside']}" if row["beside"] else ""
        print(" | ".join(str(c) for c in cells) + beside)


def goals(rows):
    """What the rows say of each goal; a row that was not measured says nothing."""
    found = []
    for case, elements, column, least in GOALS:
        for row in rows:
            if (row["case"], row["elements"]) == (case, elements) and row[column] is not None:
                found.append({"case": case, "elements": elements, "threads": row["threads"], "column": column, "least": least})
                found[-1].update(measured=row[column], met=row[column] >= least)
    for goal in found:
        words = f"{goal['case']}, {goal['elements']} elements, {goal['threads']} threads: {goal['column']} {goal['measured']:.3f}"
        print(f"goal: {words}, at least {goal['least']}: {'met' if goal['met'] else 'MISSED'}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--companion", type=pathlib.Path, required=True, help="liboffload-adam.so")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder with libpeers.so, for what is built")
    parser.add_argument("--output", type=pathlib.Path, help="the JSON file")
    parser.add_argument("--elements", type=int, nargs="+", default=[1000000, WHOLE, 10 * WHOLE], help="sizes")
    parser.add_argument("--peers-most", type=int, default=200000000, help="beyond that many elements ours goes alone")
    parser.add_argument("--threads", type=int, nargs="+", default=None, help="1 and all CPUs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--without-deepspeed", action="store_true", help="where it can't be had: its columns are null")
    parser.add_argument("--build-only", action="store_true", help="only build DeepSpeed's part")
    parser.add_argument("--isa", choices=sorted(ISA), help="only this, rows on stdout (called by itself)")
    args = parser.parse_args()
    if args.isa:
        args.threads = args.threads[0]
        measure_all(args)
        return
    for isa in ISA:
        if not args.without_deepspeed:
            build_deepspeed(args.work, isa)
    if args.build_only:
        return
    if not args.output:
        parser.error("--output is missing")
    threads = args.threads or sorted({1, len(os.sched_getaffinity(0))})
    rows = []
    for count in threads:
        for isa in ISA:
            env = dict(os.environ, OMP_NUM_THREADS=str(count), THP_MEM_ALLOC_ENABLE="1")
            if isa == "avx2":
                env["ATEN_CPU_CAPABILITY"] = "avx2"
            command = [sys.executable, __file__, "--companion", args.companion, "--work", args.work, "--isa", isa]
            command += ["--threads", count, "--rounds", args.rounds, "--peers-most", args.peers_most]
            command += ["--elements", *args.elements] + ["--without-deepspeed"] * args.without_deepspeed
            output = run(command, f"{isa} with {count} threads", "see the message above", env=env)
            rows += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    table(rows)
    args.output.write_text(json.dumps({"rows": rows, "goals": goals(rows)}, indent=1) + "\n", encoding="utf-8")
    print(f"bench-peers: {args.output}")


if __name__ == "__main__":
    main()
