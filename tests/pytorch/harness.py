#!/usr/bin/env python3
"""Compares what PyTorch computes on the simulated GPU with the library and without, bit for bit (README.md).

    harness.py FILE [--only NAME]       runs a file of cases; prints TAP

A file of cases is run in one process without the preload and in one per mode with it; cases that ask for variables of their
own are run in such processes of theirs. A case is `ok` in a mode when the library's report says that its state moved and
its steps were carried out in that mode, and only then what it recorded is compared.

This file is both sides: the parent runs under any Python and knows nothing of PyTorch; the child (child.py) runs the cases.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = pathlib.Path(os.environ.get("OFFLOAD_TEST_BUILD", ROOT / "build"))
LIBRARY = pathlib.Path(os.environ.get("LIBOFFLOAD", BUILD / "liboffload.so"))
RUN = ROOT / "integration" / "pytorch" / "run"
MODES = ("cpu", "stream", "direct")

# Small pieces make small models useful. One thread, since the tensors are small.
ENVIRONMENT = {"GPUSIM_GRANULARITY": "4KiB", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}
OFFLOAD = {"OFFLOAD_THREADS": "2", "OFFLOAD_RATES": "/dev/null", "OFFLOAD_LOG": "normal"}

PRINTED_LINES = 12
IGNORED = re.compile(r"^liboffload.*: OFFLOAD_\w+(=.*)? is ignored: ")
FORMATS = {"float32": "f", "float64": "d", "float16": "e", "int64": "q", "int32": "i", "uint8": "B", "bool": "?"}


# ---- running ----

class Server:
    """A Python that has imported PyTorch and the cases, without or with the preload, and forks a process for each run: the
    import takes longer than most files' cases. CUDA is first met in the forked process, by the library as well."""

    def __init__(self, folder, cases_file, environment, preload):
        folder.mkdir(parents=True)
        inherited = {name: value for name, value in os.environ.items()
                     if not name.startswith(("OFFLOAD_", "GPUSIM_", "PYTORCH_")) and name != "LD_PRELOAD"}
        mine = {**inherited, **ENVIRONMENT, **environment, "TESTED_BUILD": str(BUILD)}
        if preload:
            mine["LD_PRELOAD"] = str(LIBRARY)
        self.folder = folder
        self.listed = None
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([RUN, HERE / "child.py", cases_file, folder], stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=log, env=mine, cwd=folder, text=True)

    def node(self):
        """A node of this file's own: the machine's limits, and no ranks of tests beside it, with whom memory and drives would be shared."""
        root = self.folder.parent / f"{self.folder.name}.node"
        if not root.exists():
            (root / "dev/shm").mkdir(parents=True)
            for name in ("proc", "sys"):
                (root / name).symlink_to(f"/{name}")
        return root

    def run(self, environment, mode, names):
        """Runs cases in a process of their own."""
        self.cases()
        folder = self.folder / f"run{len(os.listdir(self.folder))}"
        folder.mkdir()
        environment = {**environment, "GPUSIM_REPORT": str(folder / "simulator.json")}
        if mode:
            environment = {**OFFLOAD, "OFFLOAD_SYSROOT": str(self.node()), "OFFLOAD_STEP": mode, "OFFLOAD_REPORT": str(folder / "report.json"), **environment}
        try:
            self.process.stdin.write(json.dumps({"folder": str(folder), "environment": environment, "cases": names}) + "\n")
            self.process.stdin.flush()
            status = self.process.stdout.readline().strip()
        except BrokenPipeError:
            status = ""
        if not status:  # it never came to run anything
            shutil.copy(self.log, folder / "output")
        return Run(folder, int(status) if status else self.process.wait())

    def cases(self):
        """The cases of the file; none when it can't be loaded."""
        if self.listed is None:  # the first line that it prints
            line = self.process.stdout.readline()
            self.listed = json.loads(line) if line else []
        return self.listed

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


class Run:
    """What came of one process."""

    def __init__(self, folder, status):
        self.folder, self.status = folder, status

    def lines(self, name):
        """The JSON lines of a file; what a process that broke off has left of one is not one."""
        path = self.folder / name
        if not path.exists():
            return []
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]

    def result(self, name):
        return next((result for result in self.lines("results") if result["case"] == name), None)

    def tail(self):
        return tail(self.folder / "output")

    def bytes_of(self, record):
        with open(self.folder / "records", "rb") as file:
            file.seek(record["offset"])
            return file.read(record["bytes"])


def tail(path):
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-PRINTED_LINES:]


# ---- judging ----

def moved(totals):
    """Whether state left the device, or began elsewhere."""
    return totals["moved_out_bytes"] + totals["provisional_bytes"] + totals["drive_pieces_out"] > 0


def undone(case, mode, delta):
    """Sentences that say what the library should have done in a case and has not."""
    totals = delta["totals"]
    if not case["moves"]:
        return [f"{totals['moved_out_bytes']} bytes of state moved where none should have"] if moved(totals) else []
    problems = []
    if not moved(totals):
        problems.append("no state moved to the host")
    for family in case["families"]:
        rows = [row for row in delta["functions"] if row["name"] == family]
        if not sum(row["launches"] for row in rows):
            problems.append(f"no launch of {family} was recognised")
        elif not sum(row["launches_" + mode] for row in rows):
            problems.append(f"no launch of {family} was carried out by {mode}")
        elif not sum(row["elements_host"] for row in rows):
            problems.append(f"no launch of {family} had its state on the host")
        elif mode == "direct" and sum(row["launches_cpu"] + row["launches_stream"] for row in rows):
            problems.append(f"launches of {family} were carried out otherwise than by direct")
    if mode == "cpu" and not (totals["proofs"] and totals["link_bytes_down"] and totals["link_bytes_up"]):
        problems.append("nothing was proven, or nothing travelled over the link")
    if mode == "stream" and not (totals["elements_stream"] and totals["link_bytes_down"] and totals["link_bytes_up"]):
        problems.append("nothing was streamed, or nothing travelled over the link")
    if totals["refusals"]:
        problems.append(f"the running proof refused {totals['refusals']} launches")
    return problems


def values(record, data):
    code = FORMATS.get(record["dtype"])
    return struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data) if code else data


def difference(record, without, with_it):
    """Where two recorded values differ, in words."""
    a, b = values(record, without), values(record, with_it)
    size = len(without) // len(a)
    differing = [i for i in range(len(a)) if without[i * size:(i + 1) * size] != with_it[i * size:(i + 1) * size]]
    first = differing[0]
    return (f"{record['name']}: {len(differing)} of {len(a)} values differ, the first at {first}: "
            f"{a[first]!r} without, {b[first]!r} with the library")


def compare(plain, plain_result, run, result):
    """Sentences that say what differs between two runs of a case."""
    one, other = plain_result["records"], result["records"]
    names = [record["name"] for record in one]
    if names != [record["name"] for record in other]:
        return [f"recorded without: {names}", f"recorded with the library: {[record['name'] for record in other]}"]
    if not names:
        return ["the case records nothing"]
    problems = []
    for a, b in zip(one, other):
        if (a["dtype"], a["shape"]) != (b["dtype"], b["shape"]):
            problems.append(f"{a['name']}: {a['dtype']} {a['shape']} without, {b['dtype']} {b['shape']} with the library")
            continue
        without, with_it = plain.bytes_of(a), run.bytes_of(b)
        if without != with_it:
            problems.append(difference(a, without, with_it) if len(without) == len(with_it)
                            else f"{a['name']}: {len(without)} bytes without, {len(with_it)} with the library")
    return problems


def judge(case, mode, plain, run):
    """Sentences that say why a case is not ok in a mode; none when it is."""
    plain_result, result = plain.result(case["name"]), run.result(case["name"])
    for which, its, one in (("without the library", plain, plain_result), ("with the library", run, result)):
        if one is None:
            return [f"it has no result {which}: the process ended with status {its.status}", *its.tail()]
        if one["error"]:
            return [f"it failed {which}:", *one["error"].splitlines()[-PRINTED_LINES:]]
    problems = undone(case, mode, result["delta"]) + result["unmet"]
    if problems:
        totals = {name: value for name, value in result["delta"]["totals"].items() if value}
        rows = [{name: value for name, value in row.items() if value} for row in result["delta"]["functions"]]
        return problems + [f"totals: {json.dumps(totals)}", *(f"function: {json.dumps(row)}" for row in rows),
                           *(f"reason: {reason}" for reason in result["delta"]["reasons"])]
    return compare(plain, plain_result, run, result)


def figures(case, mode, run):
    """What was done in a case, for the reader."""
    delta = run.result(case["name"])["delta"]
    totals = delta["totals"]
    lines = [f"{row['name']}: {row['launches_' + mode]} of {row['launches']} launches by {mode}, "
             f"{row['elements_host']:,} of {row['elements']:,} elements with their state on the host"
             for row in delta["functions"] if row["launches"]]
    return lines + [f"{totals['moved_out_bytes']:,} bytes moved out, {totals['moved_home_bytes']:,} came home"]


def judge_run(run):
    """What a process as a whole promises: it ends well, and the simulator saw no broken promise."""
    if run.status:
        return [f"it ended with status {run.status}", *run.tail()]
    try:
        with open(run.folder / "simulator.json", encoding="utf-8") as file:
            simulator = json.load(file)
    except (OSError, ValueError) as error:
        return [f"the simulator left no report: {error}"]
    ignored = [line for line in (run.folder / "output").read_text(encoding="utf-8", errors="replace").splitlines()
               if IGNORED.search(line)]
    if ignored:
        return ["a setting of this test was ignored:", *ignored]
    broken = {name: simulator.get(name) for name in ("violations", "kernel_errors") if simulator.get(name) != 0}
    return [f"the simulator reports {broken}", *run.tail()] if broken else []


# ---- TAP ----

class Tap:
    def __init__(self):
        self.count = self.failed = 0

    def result(self, sentence, problems, figures=()):
        self.count += 1
        self.failed += bool(problems)
        print(f"{'not ok' if problems else 'ok'} {self.count} - {sentence}")
        for line in problems or figures:
            print(f"# {line}")
        sys.stdout.flush()

    def skip(self, sentence, reason):
        self.count += 1
        print(f"ok {self.count} - {sentence} # SKIP {reason}", flush=True)

    def done(self):
        print(f"1..{self.count}")
        return 1 if self.failed else 0


def distinct(things):
    """Each once, in the order in which they came."""
    return [thing for i, thing in enumerate(things) if thing not in things[:i]]


def at_import(environment):
    """The variables that PyTorch reads when it is imported; all others may come when that is done."""
    return {name: value for name, value in environment.items() if name.startswith("PYTORCH_")}


def run_group(tap, name, cases, plain, server, offload):
    """Cases that can share a process: one per mode that any of them asks for."""
    for mode in MODES:
        wanted = [case for case in cases if mode in case["modes"]]
        if not wanted:
            continue
        run = server.run({**cases[0]["environment"], **offload}, mode, [case["name"] for case in wanted])
        for case in wanted:
            problems = judge(case, mode, plain, run)
            tap.result(f"{case['sentence']} ({mode})", problems, () if problems else figures(case, mode, run))
        name_of_run = name + "".join(f", {variable}={value}" for variable, value in
                                     {**cases[0]["environment"], **offload}.items())
        name_of_run = name_of_run.replace(f"{server.folder.parent}/", "")  # which is another in each run
        tap.result(f"{name_of_run}: the process ends well and breaks no promise of the driver ({mode})", judge_run(run))
        shutil.rmtree(run.folder)


def run_file(cases_file, only, folder):
    """Processes are shared by cases that ask for the same variables, the import of PyTorch by all that can."""
    tap = Tap()
    servers = {}

    def server(environment, preload):
        key = (json.dumps(environment, sort_keys=True), preload)
        if key not in servers:
            servers[key] = Server(folder / f"server{len(servers)}", cases_file, environment, preload)
        return servers[key]

    try:
        first = [server({}, False), server({}, True)]
        cases = [case for case in first[0].cases() if only in ("", case["name"])]
        if not cases or not first[1].cases():
            problem = f"it has no case{only and ' ' + only}, or can't be loaded:"
            tap.result(f"{cases_file.stem} has cases and can be loaded", [problem, *tail(first[0].log), *tail(first[1].log)])
        for case in cases:
            for mode in case["modes"] if case["skip"] else ():
                tap.skip(f"{case['sentence']} ({mode})", case["skip"])
        cases = [case for case in cases if not case["skip"]]
        for environment in distinct([case["environment"] for case in cases]):
            mine = [case for case in cases if case["environment"] == environment]
            both = [server(at_import(environment), preload) for preload in (False, True)]
            plain = both[0].run(environment, None, [case["name"] for case in mine])
            for offload in distinct([case["offload"] for case in mine]):
                run_group(tap, cases_file.stem, [case for case in mine if case["offload"] == offload], plain, both[1], offload)
    finally:
        for one in servers.values():
            one.close()
    return tap.done()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--only", default="", help="the one case to run")
    arguments = parser.parse_args()
    for needed, remedy in ((arguments.file, "name a file of cases"), (LIBRARY, "run: make"),
                           (RUN, "it belongs to the repository")):
        if not needed.exists():
            sys.exit(f"harness: {needed} is missing: {remedy}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pytorch_test."))
    try:
        return run_file(arguments.file.resolve(), arguments.only, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
