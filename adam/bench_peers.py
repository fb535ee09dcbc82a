"""The CPU step beside DeepSpeed's CPU Adam and PyTorch's CPU fused AdamW: build/bench_peers.json. See README.md.

Called by `make bench-peers`, in the Python of the environment that `make pytorch` builds. DeepSpeed's two source files
are taken from its source package and compiled with its own flags, once for this machine and once for AVX2 alone. Every
instruction set has a process of its own (--isa), since PyTorch chooses its code when it starts. There the three take
turns on the same arrays, with the triad (a = b + s*c) among them; the medians count.

One thread is measured by that thread's processor time, so that a shared machine disturbs less; more by the clock.
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
BYTES = {FLOAT: 4, DOUBLE: 8, HALF: 2, BFLOAT16: 2}
STAGED_ELEMENTS = 1 << 18  # of a slot: gradient and update stay in cache


class Case:
    """What ours does, and whether the others can do the same."""

    def __init__(self, name, kind, state, generation=GEN_FLOAT, staged=True, peers=True, tensor=None, isas=("native",)):
        self.name, self.kind, self.state, self.generation = name, kind, state, generation
        self.staged, self.peers, self.tensor, self.isas = staged, peers, tensor, isas

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
    Case("f32 dram, 100 tensors", FLOAT, FLOAT, staged=False, peers=False, tensor=100),
    Case("f32 dram, 100000 tensors", FLOAT, FLOAT, staged=False, peers=False, tensor=100000),
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
        import importlib.util

        spec = importlib.util.spec_from_file_location(f"ds_{args.isa}", args.work / f"ds_{args.isa}.so")
        self.deepspeed = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.deepspeed)
        self.deepspeed.create_adam(0, HYPER["lr"], HYPER["beta1"], HYPER["beta2"], HYPER["eps"], HYPER["weight_decay"], True, False)
        self.steps = 10

    triad_bytes_per_s = None  # of the last case of floats

    def isa(self):
        return self.library.peer_isa(ctypes.c_void_p(self.ours)).decode()

    def arrays(self, case, elements):
        torch = self.torch
        types = {FLOAT: torch.float32, DOUBLE: torch.float64, HALF: torch.float16, BFLOAT16: torch.bfloat16}
        base = torch.arange(8191, dtype=torch.float32) * 1e-5 - 0.04

        def made(dtype, scale, count=elements, square=False):
            row = (base * base if square else base) * scale
            return row.to(types[dtype]).repeat(count // 8191 + 1)[:count]

        alone = case.staged and elements > self.args.peers_most
        self.p = self.g = self.m = self.v = self.u = None  # the last case's, before there are new ones
        self.g = made(case.kind, 0.5, STAGED_ELEMENTS if alone else elements)
        self.m, self.v = made(case.state, 1), made(case.state, 1, square=True)
        self.p = made(case.kind, 1) if case.peers else None
        self.u = torch.zeros(len(self.g), dtype=torch.float64 if case.state == DOUBLE else torch.float32)

    def step_ours(self, case, elements):
        tensor = STAGED_ELEMENTS if case.staged else elements // case.tensor if case.tensor else elements
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (self.g, self.m, self.v, self.u)]
        done = self.library.peer_step(
            ctypes.c_void_p(self.ours), case.generation, case.kind, case.state, *pointers,
            ctypes.c_uint64(elements), ctypes.c_uint64(tensor), int(case.staged),
        )  # fmt: skip
        if not done:
            fail(f"the companion refuses {case.name}", "this is a mistake in bench_peers.py")

    def step_deepspeed(self):
        self.steps += 1
        h = HYPER
        self.deepspeed.adam_update(
            0, self.steps, h["lr"], h["beta1"], h["beta2"], h["eps"], h["weight_decay"], True, self.p, self.g, self.m, self.v
        )

    def step_torch(self):
        self.torch._fused_adamw_(
            [self.p], [self.g], [self.m], [self.v], [], [self.torch.tensor(10.0)], amsgrad=False, maximize=False, **HYPER
        )

    def triad(self, elements):
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (self.u, self.g, self.m)]
        self.library.peer_triad(*pointers, ctypes.c_uint64(elements), self.args.threads)


def seconds(step, threads):
    """The others' threads may still be spinning for work: a pause before each."""
    if threads > 1:
        time.sleep(0.3)
    clock = time.CLOCK_THREAD_CPUTIME_ID if threads == 1 else time.CLOCK_MONOTONIC
    begin = time.clock_gettime(clock)
    step()
    return time.clock_gettime(clock) - begin


def measure(contenders, case, elements, args):
    torch = contenders.torch
    contenders.arrays(case, elements)
    steps = {"ours": lambda: contenders.step_ours(case, elements)}
    if case.peers:
        steps["deepspeed"] = contenders.step_deepspeed
        steps["torch"] = contenders.step_torch
    if case.kind == case.state == FLOAT and len(contenders.g) == elements:
        steps["triad"] = lambda: contenders.triad(elements)
    times = {name: [] for name in steps}
    for round_ in range(args.rounds + 1):
        for name, step in steps.items():
            taken = seconds(step, args.threads)
            if round_:  # the first warms up
                times[name].append(taken)
    rate = {name: elements / statistics.median(taken) for name, taken in times.items()}
    if "triad" in rate:
        contenders.triad_bytes_per_s = rate["triad"] * 12
    for tensor in (contenders.m, contenders.v, contenders.u):
        if not torch.isfinite(tensor[:1000]).all():
            fail(f"{case.name}: results are not finite", "this is a mistake in bench_peers.py")

    def ratio(other):
        return round(rate["ours"] / rate[other], 3) if other in rate else None

    return {
        "case": case.name,
        "isa": contenders.isa(),
        "threads": args.threads,
        "elements": elements,
        "ours_params_per_s": round(rate["ours"]),
        "deepspeed_params_per_s": round(rate["deepspeed"]) if case.peers else None,
        "torch_params_per_s": round(rate["torch"]) if case.peers else None,
        "ratio_deepspeed": ratio("deepspeed"),
        "ratio_torch": ratio("torch"),
        "ratio_triad": round(rate["ours"] * case.bytes() / contenders.triad_bytes_per_s, 3),
        "clock": "thread" if args.threads == 1 else "wall",
    }


def measure_all(args):
    contenders = Contenders(args)
    for elements in args.elements:
        for case in CASES:
            if args.isa in case.isas:
                # Where peers take no part only ours needs memory: the largest size is for it alone.
                alone = copy.copy(case)
                alone.peers = case.peers and elements <= args.peers_most
                if elements > args.peers_most and case.name != "f32 staged":
                    continue
                row = measure(contenders, alone, elements, args)
                print(json.dumps(row), flush=True)


# ---- all of them ----


def table(rows):
    print("case | isa | threads | M elements | ours | DeepSpeed | PyTorch (M parameters/s) | of the triad")
    for row in rows:
        cells = [row["case"], row["isa"], row["threads"], row["elements"] // 1000000]
        for key in ("ours", "deepspeed", "torch"):
            rate = row[f"{key}_params_per_s"]
            cells.append(f"{rate / 1e6:.0f}" if rate else "-")
        print(" | ".join(str(c) for c in [*cells, f"{row['ratio_triad']:.2f}"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--companion", type=pathlib.Path, required=True, help="liboffload-adam.so")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="folder with libpeers.so, for what is built")
    parser.add_argument("--output", type=pathlib.Path, help="the JSON file")
    parser.add_argument("--elements", type=int, nargs="+", default=[100000000], help="sizes")
    parser.add_argument("--peers-most", type=int, default=200000000, help="beyond that many elements ours goes alone")
    parser.add_argument("--threads", type=int, nargs="+", default=None, help="1 and all CPUs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--isa", choices=sorted(ISA), help="only this, rows on stdout (called by itself)")
    args = parser.parse_args()
    if args.isa:
        args.threads = args.threads[0]
        measure_all(args)
        return
    for isa in ISA:
        build_deepspeed(args.work, isa)
    threads = args.threads or sorted({1, len(os.sched_getaffinity(0))})
    rows = []
    for count in threads:
        for isa in ISA:
            env = dict(os.environ, OMP_NUM_THREADS=str(count), THP_MEM_ALLOC_ENABLE="1")
            if isa == "avx2":
                env["ATEN_CPU_CAPABILITY"] = "avx2"
            command = [sys.executable, __file__, "--companion", args.companion, "--work", args.work, "--isa", isa]
            command += ["--threads", count, "--rounds", args.rounds, "--peers-most", args.peers_most]
            command += ["--elements", *args.elements]
            output = run(command, f"{isa} with {count} threads", "see the message above", env=env)
            rows += [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    args.output.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")
    table(rows)
    print(f"bench-peers: {args.output}")


if __name__ == "__main__":
    main()
