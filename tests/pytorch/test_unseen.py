#!/usr/bin/env python3
"""Programs that import PyTorch and train nothing on a GPU: under the preload they print the same, to the byte, open the same
files, write the same, and start the same processes and threads; no file of the library's appears, though OFFLOAD_REPORT asks
for one.

A program is run without and with, under strace, which leaves alone what it prints; and without once more when the first
run has compiled what the second finds compiled."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import harness

HERE = pathlib.Path(__file__).resolve().parent
PYTORCH = harness.ROOT / "integration" / "pytorch"
RELEASE = os.environ.get("TORCH") or re.match(r"torch==(\S+)", next(
    line for line in (harness.ROOT / "deps" / "pytorch.txt").read_text(encoding="utf-8").splitlines()
    if line.startswith("torch=="))).group(1)
PLACE = harness.BUILD / "pytorch" / RELEASE
TRACED = "open,openat,creat,clone,clone3,fork,vfork,execve,socket,connect,unlink,unlinkat,rename,renameat,renameat2,mkdir,mkdirat"
# The library itself, and what the loader looks for: the libraries that it needs are there before the program asks for them. And what
# multiprocessing's tracker of resources does by chance: a worker that ends late has it remove a semaphore that is gone already.
LOADING = re.compile(rf'"{re.escape(str(harness.LIBRARY))}"|/lib(dl|pthread)\.so|\.so[.\d]*", O_RDONLY\S* = -1 ENOENT|'
                     r'To be restarted|resuming interrupted|unlink\("/dev/shm/sem\.\S*"\)\s+= -1 ENOENT')
# Names and numbers that differ from run to run.
CHANCE = ((r"/\* \d+ vars \*/", ""), (r"0x[0-9a-f]+", "P"), (r'/tmp/(?!pytorch_test)[^"]+', "/tmp/X"),
          (r"/dev/shm/(sem\.|torch_)[-\w]+", "/dev/shm/X"), (r"connect\(\d+", "connect(N"), (r"\d{3,}|= \d+$", "N"))

IDLE = "import torch"
ASKS = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
TRAINS = """
import torch
torch.manual_seed(1)
torch.set_num_threads(2)
print(torch.cuda.is_available(), torch.cuda.device_count())
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
for options in ({}, {"fused": True}, {"foreach": True}):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 64)).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
try:
    torch.ones(3, device="cuda")
except Exception as error:
    print(type(error).__name__, error)
"""
COLLECTED = """
import pytest, torch
@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.device_count())
def test_ones(device):
    assert torch.ones(2, device=device).sum() == 2
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two devices")
def test_two():
    assert torch.cuda.device_count() > 1
"""
BYTECODE = re.compile(r'\.pyc\S*", O_WRONLY')
# What differs from run to run by itself: pytest's time, the processor's frequency in collect_env.
CHANGING = ((r"in [\d.]+s\b", "in N s"), (r"(MHz:).*", r"\1 N"))


class Program:
    def __init__(self, sentence, arguments, expected="", environment=None, report=True, python=None):
        self.sentence, self.expected, self.environment = sentence, expected, environment or {}
        self.report = report  # whether OFFLOAD_REPORT names a file, which must not appear
        self.command = [python or harness.RUN, *arguments]


def environment_of(program, folder):
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith(("OFFLOAD_", "GPUSIM_", "PYTORCH_", "CUDA_")) and name not in ("LD_PRELOAD", "PYTHONPATH")}
    mine = {**inherited, **harness.ENVIRONMENT, "TESTED_BUILD": str(harness.BUILD), "OFFLOAD_RATES": "/dev/null", "PYTHONWARNINGS": "default,ignore:resource_tracker",
            **program.environment}
    if program.report:
        mine["OFFLOAD_REPORT"] = str(folder / "report.json")
    return mine


def steady(text):
    for pattern, replacement in CHANGING:
        text = re.sub(pattern, replacement, text)
    return text


def run(program, folder, preload):
    """What it prints; what it asks of the system, each once: with another schedule a thread may look for a file that
    another one has found; and whether it wrote bytecode."""
    traces = folder / "traces"
    traces.mkdir()
    # Given to the traced program alone: the tracer is not to be under the preload.
    preloaded = ["-E", f"LD_PRELOAD={harness.LIBRARY}"] if preload else []
    command = ["strace", "-ff", "-qq", "--seccomp-bpf", "-e", f"trace={TRACED}", "-e", "signal=none", "-o", traces / "t",
               *preloaded, *program.command]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder,
                          env=environment_of(program, folder), check=False, timeout=280)
    calls, compiled = set(), False
    for trace in traces.iterdir():
        for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
            compiled = compiled or BYTECODE.search(line) is not None
            if not LOADING.search(line):
                for pattern, replacement in CHANCE:
                    line = re.sub(pattern, replacement, line)
                calls.add(line)
    shutil.rmtree(traces)
    return {"status": done.returncode, "standard output": steady(done.stdout), "standard error": steady(done.stderr)}, calls, compiled


def first_difference(one, other):
    for a, b in zip(one.splitlines() + ["(its end)"], other.splitlines() + ["(its end)"]):
        if a != b:
            return f"{a!r} without, {b!r} with the library"
    return "line ends"


def judge(program, folder):
    """Sentences that say what differs; and what the program did, for the reader."""
    (folder / "test_collected.py").write_text(COLLECTED, encoding="utf-8")
    without, plain, compiled = run(program, folder, False)
    if compiled:
        without, plain, _ = run(program, folder, False)
    with_it, preloaded, _ = run(program, folder, True)
    problems = [f"{name}: {first_difference(str(without[name]), str(with_it[name]))}"
                for name in without if without[name] != with_it[name]]
    if without["status"] or program.expected not in without["standard output"]:
        problems.append(f"without the library it was to print {program.expected!r} and did not: {without}")
    if not plain or not preloaded:
        problems.append(f"strace traced nothing: {without} {with_it}")
    problems += [f"without the library only: {line}" for line in sorted(plain - preloaded)[:harness.PRINTED_LINES]]
    problems += [f"with the library only: {line}" for line in sorted(preloaded - plain)[:harness.PRINTED_LINES]]
    left = sorted(path.name for path in folder.iterdir() if path.name != "test_collected.py")
    if left:
        problems.append(f"files were left: {left}")
    return problems, [f"{len(without['standard output'].splitlines())} lines printed, {len(plain)} different system calls"]


def without_driver(folder):
    """A folder of libraries as on a machine without a GPU, where libcuda.so.1 is not: libraries of ours that need it are
    replaced by ones that answer "not supported"."""
    folder.mkdir()
    libraries = PLACE / "libraries"
    torch_libraries = next((PLACE / "environment" / "lib").glob("python*/site-packages/torch/lib"))
    for name in ("libcublas", "libcublasLt"):
        subprocess.run([sys.executable, PYTORCH / "stubs.py", "--cc", os.environ.get("CC", "cc"), torch_libraries, folder, "--only", name],
                       check=True, stdout=subprocess.DEVNULL)
    for path in [*libraries.glob("lib*.so.*"), *(harness.BUILD / "gpusim").glob("libcudart.so*")]:
        if not (folder / path.name).exists() and "libcuda.so" not in needed_by(path):
            (folder / path.name).symlink_to(path)
    return folder


def needed_by(path):
    return subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=False).stdout


def programs(folder):
    driverless = {"LD_LIBRARY_PATH": str(without_driver(folder / "libraries"))}
    python = PLACE / "environment" / "bin" / "python"
    cpu = {"CUDA_VISIBLE_DEVICES": ""}
    collection = ["-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "test_collected.py"]
    return [
        Program("import torch", ["-c", IDLE]),
        Program("torch.cuda.is_available", ["-c", ASKS], "True 1", report=False),
        Program("torch.utils.collect_env", ["-m", "torch.utils.collect_env"], "Is CUDA available: True", report=False),
        Program("torch.utils.collect_env without a GPU", ["-m", "torch.utils.collect_env"], "Is CUDA available: False", cpu),
        Program("pytest's collection", collection, "test_ones[cuda]", report=False),
        Program("pytest's collection without a GPU", collection, "2 tests collected", cpu),
        Program("training on the CPU, no device visible", ["-c", TRAINS], "False 0", cpu),
        Program("training on the CPU, no device there", ["-c", TRAINS], "False 0", {"GPUSIM_DEVICES": "0"}),
        Program("training on the CPU, no libcuda.so.1 there", ["-c", TRAINS], "False 0", driverless, python=python),
        Program("training on the CPU with forked DataLoader workers", [HERE / "loaders.py", "fork", "cpu"], "loss", cpu),
        Program("training on the CPU with spawned DataLoader workers", [HERE / "loaders.py", "spawn", "cpu"], "loss", cpu),
    ]


def main():
    tap = harness.Tap()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pytorch_test."))
    only = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        for i, program in enumerate(programs(folder)):
            if only in program.sentence:
                own = folder / str(i)
                own.mkdir()
                problems, told = judge(program, own)
                tap.result(f"{program.sentence}: the same is printed, opened, written and started", problems, told)
        return tap.done()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
