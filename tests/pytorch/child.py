"""Runs cases (harness.py's child): child.py FILE FOLDER.

Writes the list of the file's cases, a JSON line, to standard output, then reads jobs, a JSON line each: {"folder",
"environment", "cases": names}. Each is run in a forked process, whose status is the answer, and leaves in its folder
`results`, a JSON line for each case, `records`, the bytes that they recorded, and `output`."""
import gc
import json
import os
import pathlib
import sys
import traceback

import torch
import torch._dynamo  # the first optimizer would, in every process

import cases


def clean():
    """What an earlier case left must not be there in the next one."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def run_case(function, description, folder, records):
    own = folder / description["name"]
    own.mkdir()
    clean()
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    test = cases.Test(own, records)
    error = delta = None
    try:
        function(test)
        delta = test.delta()
    except Exception:  # the case's failure, whatever it is; the others go on
        error = traceback.format_exc()
    return {"case": description["name"], "records": test.records, "unmet": test.unmet, "delta": delta, "error": error}


def run_cases(job):
    folder = pathlib.Path(job["folder"])
    with open(folder / "results", "w", encoding="utf-8") as results, open(folder / "records", "wb") as records:
        for function, description in cases.registered:
            if description["name"] not in job["cases"]:
                continue
            result = run_case(function, description, folder, records)
            records.flush()
            results.write(json.dumps(result) + "\n")
            results.flush()


def serve(answers):
    """Forks for each job; True in the forked process, when it has done it."""
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            with open(pathlib.Path(job["folder"]) / "output", "wb") as output:
                os.dup2(output.fileno(), sys.stdout.fileno())
                os.dup2(output.fileno(), sys.stderr.fileno())
            answers.close()
            os.environ.update(job["environment"])
            run_cases(job)
            return
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        answers.flush()


def main():
    # What cases print is no answer of ours.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    cases.load(pathlib.Path(sys.argv[1]))
    answers.write(json.dumps([description for _, description in cases.registered]) + "\n")
    answers.flush()
    serve(answers)


main()
