"""How a file of cases says what it has: `from cases import case`. Runs in the child (child.py); README.md explains.

    @case("AdamW fp32", modes="cpu stream")
    def adamw_in_fp32(t):
        "AdamW on fp32 trains the same"
        ...
        t.record("loss", loss)
"""
import contextlib
import ctypes
import importlib.util
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import torch
from harness import HERE, MODES, RUN, moved

SCRIPTS = RUN.parent

registered = []
RELEASE = tuple(int(part) for part in torch.__version__.partition("+")[0].split(".")[:2])
BF16_MOMENTS = (2, 13)  # the first release with fused kernels for moments in bf16 here


def load(path):
    """The module of a file of cases, which registers them."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def case(*families, modes="cpu stream", moves=True, environment=None, offload=None, since=(2, 0), skip=""):
    """Registers a case. Its docstring is the name of the test.

    families     rows of the report ("AdamW fp32") each of which must have been carried out in the mode under test
    modes        values of OFFLOAD_STEP to run it with, each of which must be the mode that is met
    moves        False: no state may move
    environment  variables for the processes without and with the library
    offload      variables for the process with the library alone
    since        the first release of PyTorch that has what the case is about; with older ones there is no such case
    skip         why it can't be run here, as tests/skips.txt has it; "": it can
    """
    def register(function):
        asked = modes.split()
        unknown = [mode for mode in asked if mode not in MODES]
        if unknown or not asked:
            raise ValueError(f"{function.__name__}: modes {modes!r} are none of {' '.join(MODES)}")
        if not function.__doc__:
            raise ValueError(f"{function.__name__} has no docstring: it is the name of the test")
        if moves and not families:
            raise ValueError(f"{function.__name__} names no family whose state moves")
        if RELEASE < since:
            return function
        registered.append((function, {
            "name": function.__name__, "sentence": " ".join(function.__doc__.split()), "families": families,
            "modes": asked, "moves": moves, "environment": environment or {}, "offload": offload or {}, "skip": skip}))
        return function
    return register


# ---- the library's report ----

def read_report(path):
    """The report as it stands now; None without the library."""
    try:
        write = ctypes.CDLL(None).offload_report
    except AttributeError:
        return None
    write.argtypes, write.restype = [ctypes.c_char_p], ctypes.c_int
    torch.cuda.synchronize()
    error = write(str(path).encode())
    if error:
        raise OSError(error, f"offload_report: {os.strerror(error)}")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


NOTHING = {"totals": {}, "functions": [], "reasons": []}


def numbers(values):
    return {name: value for name, value in values.items() if isinstance(value, int)}


def subtract(after, before):
    """What happened between two reports, with the rows of which it says something else. Rows and reasons are only ever added."""
    totals = {name: value - before["totals"].get(name, 0) for name, value in after["totals"].items()}
    rows = []
    for i, row in enumerate(after["functions"]):
        earlier = numbers(before["functions"][i]) if i < len(before["functions"]) else {}
        rows.append({**row, **{name: value - earlier.get(name, 0) for name, value in numbers(row).items()},
                     "metadata_bytes": row["metadata_bytes"]})
    changed = [row for row, now, then in itertools.zip_longest(rows, after["functions"], before["functions"]) if now != then]
    return {"totals": totals, "functions": changed,
            "reasons": [reason for reason in after["reasons"] if reason not in before["reasons"]]}


def add(one, other):
    """Two deltas, of different processes, as one."""
    totals = {name: one["totals"].get(name, 0) + other["totals"].get(name, 0)
              for name in {**one["totals"], **other["totals"]}}
    return {"totals": totals, "functions": one["functions"] + other["functions"],
            "reasons": one["reasons"] + [reason for reason in other["reasons"] if reason not in one["reasons"]]}


def undone(name, delta):
    """Sentences that say what the library should have done in a part of a case, a program or a rank, and has not."""
    mode = os.environ["OFFLOAD_STEP"]
    problems = []
    if not moved(delta["totals"]):
        problems.append(f"{name}: no state moved to the host")
    if not sum(row["launches_" + mode] for row in delta["functions"] if row["elements_host"]):
        problems.append(f"{name}: no launch over state on the host was carried out by {mode}")
    return problems


# ---- what a case is given ----

class Test:
    """Handed to a case."""

    def __init__(self, folder, records):
        self.folder = folder  # empty, the case's own
        self.unmet = []
        self.records = []
        self._names = set()
        self._file = records
        self._others = NOTHING  # of programs that the case ran
        self._before = self._now()

    def _now(self):
        return read_report(self.folder / "report.json")

    def delta(self):
        """What the library has done since the case began; None without it."""
        now = self._now()
        return None if now is None else add(subtract(now, self._before), self._others)

    def record(self, name, value):
        """Keeps a tensor, a number or bytes for the comparison."""
        if name in self._names:
            raise ValueError(f"{name} was recorded before")
        self._names.add(name)
        if isinstance(value, (bytes, bytearray)):
            dtype, shape, data = "uint8", [len(value)], bytes(value)
        else:
            tensor = torch.as_tensor(value, dtype=torch.float64 if isinstance(value, float) else None).detach()
            dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
            data = tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        self.records.append({"name": name, "dtype": dtype, "shape": shape, "offset": self._file.tell(), "bytes": len(data)})
        self._file.write(data)

    def record_file(self, name, path):
        """Keeps a file's bytes for the comparison."""
        self.record(name, pathlib.Path(path).read_bytes())

    def record_state(self, name, value):
        """Keeps every tensor and number of nested dicts and lists, such as a state_dict."""
        if isinstance(value, dict):
            for key, one in value.items():
                self.record_state(f"{name}.{key}", one)
        elif isinstance(value, (list, tuple)):
            for i, one in enumerate(value):
                self.record_state(f"{name}.{i}", one)
        elif isinstance(value, torch.Tensor) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
            self.record(name, value)

    def check(self, sentence, question):
        """With the library: `question` is given what it has done since the case began, and must say true."""
        delta = self.delta()
        if delta is not None and not question(delta):
            self.unmet.append(f"unmet: {sentence}")

    @contextlib.contextmanager
    def part(self, name):
        """One of several trainings in a case: with the library, its state must have moved and its steps must have been
        carried out in the mode under test, whatever the others did."""
        before = self.delta()
        yield
        after = self.delta()
        if after is not None:
            self.unmet += undone(name, subtract(after, before))

    def run(self, *command, report=True, library=True, environment=None):
        """Runs a script (or -m MODULE) as a program of its own, as this process with or without the library. Returns its
        output; a failure is the case's. Its report counts as the case's; `report=False`: it has no use for the device, and
        nothing may be said of it. `library=False`: without the library in any case."""
        place = self.folder / f"program{len(os.listdir(self.folder))}.json"
        its = dict(os.environ, OFFLOAD_REPORT=str(place), GPUSIM_REPORT=f"{place}.simulator", **environment or {})
        if not library:
            its.pop("LD_PRELOAD", None)
        if not report:
            its.pop("OFFLOAD_REPORT")
        done = subprocess.run([RUN, *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env=its, cwd=self.folder, check=False)
        if done.returncode:
            own = re.split(r"\n[WE]\d{4} .*torch/distributed/elastic", done.stdout + done.stderr)[0]  # not torchrun's summary
            tail = "\n".join(own.splitlines()[-12:])
            raise RuntimeError(f"{command} ended with status {done.returncode}:\n{tail}")
        if not library and place.exists():
            raise AssertionError(f"{command} was to run without the library, which has left a report")
        if report:
            self._add_reports([place] if library else [])
            self._look_at_simulators([f"{place}.simulator"])
        elif "nothing was moved" in done.stderr:
            self.unmet.append(f"{command[:2]} asks for no device memory, and yet the library told of it")
        return done.stdout

    def torchrun(self, processes, script, *arguments, environment=None):
        """The same for torchrun on this machine, with a device for each process; every process has its own report, and each
        of them must have moved state."""
        place = self.folder / f"ranks{len(os.listdir(self.folder))}"
        place.mkdir()
        output = self.run("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes, "--no-python",
                          "sh", "-c", 'export OFFLOAD_REPORT="$0.$RANK" GPUSIM_REPORT="$0.simulator.$RANK"; exec "$@"',
                          place / "report", sys.executable, script, *arguments, report=False,
                          environment={"GPUSIM_DEVICES": str(processes), **(environment or {})})
        for rank, report in enumerate(self._add_reports([place / f"report.{rank}" for rank in range(processes)])):
            self.unmet += undone(f"rank {rank}", report)
        self._look_at_simulators([place / f"report.simulator.{rank}" for rank in range(processes)])
        return output

    def ranks(self, processes, function):
        """Calls a function of the case's file, which is given a `t` of its own, in each process of a torchrun (rank.py). What
        the ranks record is the case's, with `rank 0: ` and so on before its name."""
        folder = self.folder / "ranks"
        folder.mkdir()
        self.torchrun(processes, HERE / "rank.py", function.__code__.co_filename, function.__name__, folder)
        for rank in range(processes):
            result = json.loads((folder / str(rank) / "result").read_text(encoding="utf-8"))
            self.unmet += [f"rank {rank}: {problem}" for problem in result["unmet"]]
            data = (folder / str(rank) / "records").read_bytes()
            for record in result["records"]:
                name = f"rank {rank}: {record['name']}"
                self.records.append({**record, "name": name, "offset": self._file.tell()})
                self._file.write(data[record["offset"]:record["offset"] + record["bytes"]])

    def _look_at_simulators(self, places):
        """The driver's word on the programs: no broken promise."""
        for place in places:
            with open(place, encoding="utf-8") as file:
                simulator = json.load(file)
            if simulator["violations"] or simulator["kernel_errors"]:
                raise AssertionError(f"the simulator reports {simulator['violations']} violations and "
                                     f"{simulator['kernel_errors']} kernel errors of a program")

    def _add_reports(self, places):
        """Counts programs' reports as the case's, and returns them; none without the library."""
        reports = []
        for place in places if self._before is not None else []:
            with open(place, encoding="utf-8") as file:
                report = json.load(file)
            reports.append({name: report[name] for name in NOTHING})
            self._others = add(self._others, reports[-1])
        return reports
