#!/usr/bin/env python3
"""PyTorch's kernels, what is done with each, and that it gives the program's own bits: the table in shim/README.md.

Its rows are those of unit/data/torch_kernels.tsv, every one in exactly one line; kernels whose images are compiled differently
count once for each class of images. A row is a kernel under the row's own name, with its parameters, and with
the arithmetic of that generation and image: it steps hostile data alone and under the preload by cpu and by stream. What it gives
is the line's result; nothing else writes the table.

usage: kernel_table.py --check                    the table has every row once; nothing is run
       kernel_table.py [--slice K/N]              runs every N-th row from the K-th on; each must give what the table says
       kernel_table.py --only REGEX               the rows so named
       kernel_table.py --large [--only REGEX]     a row of each family with more chunks than a launch takes
       kernel_table.py --list                     the rows' names
       kernel_table.py --write                    runs every row and writes the table anew"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("OFFLOAD_TEST_BUILD") or os.environ.get("TESTED_BUILD") or ROOT / "build").resolve()
ROWS = ROOT / "tests" / "unit" / "data" / "torch_kernels.tsv"
README = ROOT / "shim" / "README.md"
BEGIN, END = "<!-- kernels: measured by tests/kernel_table.py -->", "<!-- end of kernels -->"

TYPES = {"f32": "fp32", "f64": "fp64", "f16": "fp16", "bf16": "bf16", "f32+bf16states": "fp32/bf16 state"}
GENERATIONS = {"OLD": r"torch 2\.0-2\.2", "DBL": r"torch 2\.3-2\.10", "OPM": r"torch 2\.11\+", "MP": r"torch 2\.12\+ with bf16 moments"}
# The kernels that restate the wheels' arithmetic under the names of a release: tests/unit/step.mk.
KERNELS = {"2.0.1": "exact-20", "2.1.2": "exact-21", "2.3.1": "exact-23", "2.11.0": "exact-211", "2.12.0": "exact-212"}
SLOT_KERNELS = {"2.11.0": "exact-slots_211", "2.12.0": "exact-slots"}
OLDER_IMAGES, NEWER_IMAGES, ALL_IMAGES = "sm_75-sm_90", "sm_100, sm_120", "all"

IDENTICAL = "cpu identical, stream identical"
BY_SLOT = "with L2 decay stream identical, with maximize, a gradient scale or no decay cpu identical"
NO_OPTIMIZER = "left alone: no optimizer step"

STEPS = 12
SKIPPED = 2  # found_inf=3: the third step and the eighth
DATA = ["edges=1", "hostile=1", "sync=1", "copies=0", f"steps={STEPS}"]
EVERY_BRANCH = ["branches=2", "found_inf=3"]


class Wrong(Exception):
    """A row gives something else than the program alone, or was not stepped as it should have been."""


class Row:
    """A line of the data file, for one class of images."""

    def __init__(self, fields, images):
        self.scalars, self.type, mode, amsgrad, self.first, self.last, self.pattern, layout = fields
        self.images = images
        self.parameters = [tuple(int(number) for number in item.split(":")) for item in layout.split()]
        self.optimizer = self.scalars in GENERATIONS
        self.mode = "adamw" if mode == "adamw" or "_fused_adamw_" in self.pattern else "adam"
        self.amsgrad = amsgrad == "1"
        self.releases = self.first if self.first == self.last else f"{self.first}-{self.last}"
        self.title = ("AdamW" if self.mode == "adamw" else "Adam") + (" amsgrad" if self.amsgrad else "") if self.optimizer else self.scalars
        self.name = f"{self.releases} {self.title} {TYPES[self.type]} {self.images}"

        self.slots = {25544: 252, 25208: 210}.get(self.parameters[0][2], 36)  # or 30
        # More tensors than a list takes.
        self.data = DATA + [f"many={self.slots + 5}"]

    def key(self):
        return self.releases, self.title, TYPES[self.type], self.images


def compiled_by_slot(row):
    """Whether images before sm_100 fuse the L2 decay of some unroll slots only (read in the wheels' machine code)."""
    return row.scalars in ("OPM", "MP") and row.type != "f64" and row.mode == "adam" and not row.amsgrad


def read_rows():
    rows = []
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            row = Row(line.split("\t"), ALL_IMAGES)
            if compiled_by_slot(row):
                rows += [Row(line.split("\t"), OLDER_IMAGES), Row(line.split("\t"), NEWER_IMAGES)]
            else:
                rows.append(row)
    return rows


# ---- running a row ----

def entries(text):
    """(number among the fused Adam kernels, name, [(ordinal, offset, size)]) of a PTX text, as it declares them."""
    found = []
    for name, declared in re.findall(r"\.entry (\w+)\((.*?)\)", text, re.S):
        at, parameters = 0, []
        for align, bits, array in re.findall(r"\.param (?:\.align (\d+) )?\.[a-z](\d+) \w+?(?:\[(\d+)\])?(?:,|\s*$)", declared):
            size = int(bits) // 8 * int(array or 1)
            boundary = int(align or size)
            at = (at + boundary - 1) // boundary * boundary
            parameters.append((len(parameters), at, size))
            at += size
        found.append((name, parameters))
    return found


def find_kernel(row):
    """The PTX file and the number of the row's kernel in it."""
    prefix = (SLOT_KERNELS if row.images == OLDER_IMAGES else KERNELS)[row.first]
    path = BUILD / "tests" / "e2e" / f"{prefix}-{row.mode}{'_amsgrad' if row.amsgrad else ''}.ptx"
    if not path.is_file():
        sys.exit(f"{path} is missing: run make test-programs")
    pattern = re.compile(re.escape(row.pattern).replace(re.escape("{H}"), "[0-9a-f]{8}"))
    kernels = [entry for entry in entries(path.read_text(encoding="utf-8")) if entry[0].startswith("_ZN2at6native")]
    for number, (name, parameters) in enumerate(kernels):
        if pattern.fullmatch(name):
            if parameters != row.parameters:
                raise Wrong(f"{path.name}: the kernel has the parameters {parameters}, the row {row.parameters}")
            return path, number
    raise Wrong(f"{path.name} has no kernel of the name {row.pattern}")


def write_kernel(row, path):
    """A kernel of the row's name and parameters that adds 1 where its first parameter points to."""
    declared = ",\n".join(f"  .param .align {min(8, size & -size)} .b8 p{ordinal}[{size}]" for ordinal, _, size in row.parameters)
    path.write_text(f""".version 6.5
.target sm_70
.address_size 64
.visible .entry {row.pattern.replace("{H}", "f7f2fd5f")}(
{declared}
)
{{
  .reg .pred %first;
  .reg .b32 %i;
  .reg .b64 %at;
  .reg .f32 %x;
  mov.u32 %i, %tid.x;
  setp.ne.u32 %first, %i, 0;
  @%first ret;
  ld.param.u64 %at, [p0];
  cvta.to.global.u64 %at, %at;
  ld.global.f32 %x, [%at];
  add.rn.f32 %x, %x, 0f3F800000;
  st.global.f32 [%at], %x;
  ret;
}}
""", encoding="utf-8")
    if entries(path.read_text(encoding="utf-8"))[0][1] != row.parameters:
        raise Wrong(f"the row's parameters {row.parameters} are not what a compiler makes of their sizes")


class Runs:
    """Runs of one kernel, alone and under the preload, in a folder of their own."""

    def __init__(self, folder, path, number, large=False):
        self.folder, self.arguments, self.large = pathlib.Path(folder), [str(path), f"entry={number}"], large
        piece = "2MiB" if large else "16KiB"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("OFFLOAD_", "GPUSIM_", "LD_PRELOAD"))}
        self.environment |= {"GPUSIM_GRANULARITY": piece, "GPUSIM_MEMORY": "8GiB"}
        self.preload = {"LD_PRELOAD": os.environ.get("LIBOFFLOAD") or str(BUILD / "liboffload.so"), "OFFLOAD_PIECE": piece, "OFFLOAD_MIN_ALLOCATION": piece,
                        "OFFLOAD_LOG": "quiet", "OFFLOAD_THREADS": "2", "OFFLOAD_REPORT": str(self.folder / "report.json"),
                        "GPUSIM_REPORT": str(self.folder / "sim.json")}

    def run(self, options, more):
        command = [str(BUILD / "gpusim" / "run"), str(BUILD / "tests" / "e2e" / "step_program")] + self.arguments + options
        done = subprocess.run(command, env=self.environment | more, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=1200 if self.large else 240, check=False)
        if done.returncode:
            raise Wrong(f"{' '.join(command)} ended with {done.returncode}: {(done.stdout + done.stderr)[-400:]}")
        return done.stdout

    def alone(self, options):
        """What the program prints without the library, and how many elements a step has."""
        self.options, self.wanted = options, self.run(options, {})
        self.elements = int(re.search(r" elements (\d+) ", self.wanted)[1])
        self.steps = int(next(option[6:] for option in options if option.startswith("steps=")))

    def offloaded(self, mode):
        """The report of the run under the preload in a mode, which gave the same."""
        for _ in range(3):
            for name in ("report.json", "sim.json"):
                (self.folder / name).unlink(missing_ok=True)
            printed = self.run(self.options, self.preload | {"OFFLOAD_STEP": mode})
            report = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))
            simulator = json.loads((self.folder / "sim.json").read_text(encoding="utf-8"))
            if simulator["violations"] or simulator["kernel_errors"]:
                raise Wrong(f"{mode}: the simulator reports {simulator['violations']} violations, {simulator['kernel_errors']} kernel errors")
            if printed != self.wanted:
                changed = [(a, b) for a, b in zip(self.wanted.splitlines(), printed.splitlines()) if a != b]
                raise Wrong(f"{mode}: results differ from the program's alone: {changed[:1]}; {report['functions']}")
            # A machine that others keep busy for seconds puts calibration off, and says so: the same once more.
            if not any("calibration waits: the device is busy" in reason for reason in report["reasons"]):
                break
        return report

    def expect(self, report, mode, generation, skipped):
        """All elements of all steps but the first were stepped by this mode, and nothing else was."""
        function, totals = report["functions"][0], report["totals"]
        taken = self.elements * (self.steps - 1)
        checks = {
            "one function": len(report["functions"]) == 1,
            "state moved": totals["moved_bytes_peak"] > 0,
            "launches": function["launches"] % self.steps == 0 and
                        function[f"launches_{mode}"] * self.steps == function["launches"] * (self.steps - 1),
            "the first step's elements direct": totals["elements_direct"] == self.elements,
            "no refusal": totals["refusals"] == 0,
            "mode": function["mode"] == mode,
        }
        if mode == "cpu":
            checks |= {"every element by the CPU": totals["elements_cpu"] == taken - self.elements * skipped,
                       "proofs": totals["proofs"] > 0, "its generation": re.fullmatch(generation, function["generation"]) is not None}
        else:
            checks |= {"every element streamed": totals["elements_stream"] == taken, "nothing by the CPU": totals["elements_cpu"] == 0}
        failed = [name for name, good in checks.items() if not good]
        if failed:
            raise Wrong(f"{mode}: {', '.join(failed)}: {json.dumps(function)} {json.dumps(totals)}")
        return function["launches"] // self.steps


def check_data(printed, launches, row):
    """The data had what it is said to have."""
    tensors, unaligned = (int(number) for number in re.search(r"tensors (\d+) elements \d+ unaligned (\d+)", printed).groups())
    met = [int(number) for number in re.search(r"hostile ((?:\d+ )*\d+)", printed)[1].split()]
    if tensors <= row.slots or launches < 2 or unaligned == 0 or min(met) == 0:
        raise Wrong(f"the data lacks something: {tensors} tensors in {launches} launches, {unaligned} unaligned, numbers {met}")


def generation_of(row):
    # With doubles the generations before 2.11 differ in nothing.
    return GENERATIONS["DBL"] if (row.scalars, row.type) == ("OLD", "f64") else GENERATIONS[row.scalars]


def measure(row):
    """The row's result, or Wrong."""
    with tempfile.TemporaryDirectory() as folder:
        if not row.optimizer:
            return measure_neighbour(row, folder)
        runs = Runs(folder, *find_kernel(row))
        if row.images == OLDER_IMAGES:
            return measure_by_slot(row, runs)
        runs.alone(row.data + EVERY_BRANCH)
        launches = runs.expect(runs.offloaded("cpu"), "cpu", generation_of(row), SKIPPED)
        runs.expect(runs.offloaded("stream"), "stream", "", SKIPPED)
        check_data(runs.wanted, launches, row)
        return IDENTICAL


def measure_by_slot(row, runs):
    """Where the decay is fused by slot every step goes to stream; in the kernel's other branches the CPU takes it."""
    runs.alone(row.data + ["changing_lr=1", "found_inf=3"])
    report = runs.offloaded("cpu")
    launches = runs.expect(report, "stream", "", SKIPPED)
    if not report["functions"][0]["why"].startswith("calibration: none of the"):
        raise Wrong(f"streamed for another reason: {report['functions'][0]['why']}")
    runs.expect(runs.offloaded("stream"), "stream", "", SKIPPED)
    check_data(runs.wanted, launches, row)
    for branch in (["maximize=1"], ["grad_scale=1"], ["decay=0"]):
        runs.alone(row.data + ["changing_lr=1", "found_inf=3"] + branch)
        runs.expect(runs.offloaded("cpu"), "cpu", generation_of(row), SKIPPED)
    runs.alone(row.data + EVERY_BRANCH)
    function = runs.offloaded("cpu")["functions"][0]
    if not (function["launches_cpu"] and function["launches_stream"]) or \
            (function["launches_cpu"] + function["launches_stream"]) * STEPS != function["launches"] * (STEPS - 1):
        raise Wrong(f"branches in turn are not stepped by both: {function}")
    return BY_SLOT


def measure_neighbour(row, folder):
    """A kernel of the row's name beside the steps of another: it runs as it is, and the report doesn't have it."""
    path = pathlib.Path(folder) / "beside.ptx"
    write_kernel(row, path)
    runs = Runs(folder, BUILD / "tests" / "e2e" / "exact-212-adamw.ptx", 0)
    runs.alone(row.data + [f"beside={path}"])
    if "beside" not in runs.wanted:
        raise Wrong("the kernel was not launched")
    runs.expect(runs.offloaded("cpu"), "cpu", GENERATIONS["OPM"], 0)
    return NO_OPTIMIZER


# One kernel of each family, in the smallest type it has; MP has the list of 2,240 chunks only.
LARGE = {"OLD": ("2.1.2", "bf16", 325), "DBL": ("2.3.1", "bf16", 325), "OPM": ("2.11.0", "bf16", 325), "MP": ("2.12.0", "f32+bf16states", 2245)}


def measure_large(row):
    """More chunks than a launch takes: the tensor is cut between launches."""
    chunks, steps = LARGE[row.scalars][2], 3
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(folder, *find_kernel(row), large=True)
        runs.alone([f"chunks={chunks}", "hostile=1", "changing_lr=1", "copies=0", "sync=1", f"steps={steps}"])
        for mode in ("cpu", "stream"):
            if runs.expect(runs.offloaded(mode), mode, generation_of(row), 0) != 2:
                raise Wrong(f"{mode}: {chunks} chunks are not two launches")
    return IDENTICAL


# ---- the table ----

def joined(words):
    return "; ".join(words)


def render(results):
    """The table of {row key: result}: rows of equal releases, images and result share a line where they are a product."""
    lines = ["| PyTorch | optimizer | types | images | kernels | result |", "| --- | --- | --- | --- | --- | --- |"]
    groups = {}
    for (releases, title, kind, images), result in results.items():
        groups.setdefault((releases, images, result), {}).setdefault(title, []).append(kind)
    for (releases, images, result), titles in groups.items():
        by_types = {}
        for title, kinds in titles.items():
            by_types.setdefault(tuple(kinds), []).append(title)
        for kinds, names in by_types.items():
            lines.append(f"| {releases} | {joined(names)} | {joined(kinds)} | {images} | {len(names) * len(kinds)} | {result} |")
    return "\n".join(lines)


def parse(text):
    """{row key: result} of a table, and the keys that it has twice."""
    found, twice = {}, []
    for line in text.splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) != 6:
            sys.exit(f"shim/README.md: the table of kernels has a line that is none: {line}")
        releases, titles, kinds, images, count, result = cells
        keys = [(releases, title, kind, images) for title in titles.split("; ") for kind in kinds.split("; ")]
        if len(keys) != int(count):
            sys.exit(f"shim/README.md: a line says {count} kernels and names {len(keys)}: {line}")
        for key in keys:
            if key in found:
                twice.append(key)
            found[key] = result
    return found, twice


def table_of(readme):
    before, begin, rest = readme.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"shim/README.md lacks the lines '{BEGIN}' and '{END}'")
    return before, table.strip("\n"), after


def check(rows, readme):
    """The table's results by row; it has each row once, and no other."""
    table = table_of(readme)[1]
    found, twice = parse(table)
    wanted = [row.key() for row in rows]
    problems = [f"is in two lines: {key}" for key in twice] + \
        [f"has no line: {key}" for key in wanted if key not in found] + \
        [f"is no row of the data file: {key}" for key in found if key not in wanted] + \
        [f"unknown result: {result}" for result in set(found.values()) if result not in (IDENTICAL, BY_SLOT, NO_OPTIMIZER)]
    if len(set(wanted)) != len(wanted):
        problems.append("the data file has a row twice")
    if not problems and table != render({key: found[key] for key in wanted}):
        problems.append("is not as kernel_table.py --write writes it")
    if problems:
        sys.exit("shim/README.md, table of kernels:\n  " + "\n  ".join(problems) + "\nrun tests/kernel_table.py --write")
    return found


def run_rows(rows, what):
    """{row key: result} and how many were wrong, each told on a line."""
    results, wrong = {}, 0
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for row, future in [(row, pool.submit(what, row)) for row in rows]:
            try:
                results[row.key()] = future.result()
                print(f"{row.name}: {results[row.key()]}", flush=True)
            except (Wrong, subprocess.TimeoutExpired, OSError, ValueError, KeyError) as problem:
                wrong += 1
                print(f"{row.name}: WRONG: {problem}", flush=True)
    return results, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", default="", metavar="REGEX")
    parser.add_argument("--slice", default="0/1", metavar="K/N")
    parser.add_argument("--readme", default=str(README), help="another file with the table")
    options = parser.parse_args()
    rows = read_rows()
    if options.write:
        results, wrong = run_rows(rows, measure)
        if wrong:
            sys.exit(f"{wrong} of {len(rows)} kernels are wrong: nothing is written")
        before, _, after = table_of(pathlib.Path(options.readme).read_text(encoding="utf-8"))
        pathlib.Path(options.readme).write_text(f"{before}{BEGIN}\n{render(results)}\n{END}{after}", encoding="utf-8")
        return
    said = check(rows, pathlib.Path(options.readme).read_text(encoding="utf-8"))
    if options.check or options.list:
        print("\n".join(row.name for row in rows) if options.list else f"table of kernels: {len(rows)} rows, each in one line")
        return
    k, n = (int(number) for number in options.slice.split("/"))
    if options.large:
        rows = [row for row in rows if row.optimizer and row.images != OLDER_IMAGES and row.title == "AdamW" and
                (row.first, row.type) == LARGE[row.scalars][:2]]
    rows = [row for row in rows if re.search(options.only, row.name)][k % n::n]
    if not rows:
        sys.exit(f"no row is named {options.only}")
    results, wrong = run_rows(rows, measure_large if options.large else measure)
    for key, result in results.items():
        if not options.large and result != said[key]:
            wrong += 1
            print(f"{key}: the table says '{said[key]}', measured is '{result}'")
    if wrong:
        sys.exit(f"{wrong} of {len(rows)} kernels are wrong")
    print(f"{len(rows)} kernels are as the table says")


if __name__ == "__main__":
    main()
