"""A process of torchrun (cases.py's `ranks`): rank.py FILE FUNCTION FOLDER.

Calls the function of a file of cases with a `t` of its own. Leaves in FOLDER/RANK `result`, as JSON, and `records`. The process
ends with an error when the function does."""
import json
import os
import pathlib
import sys

import torch

import cases


def main():
    path, function, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3]) / os.environ["RANK"]
    module = cases.load(path)
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1)
    torch.cuda.manual_seed_all(1)
    folder.mkdir()
    with open(folder / "records", "wb") as records:
        test = cases.Test(folder, records)
        getattr(module, function)(test)
    (folder / "result").write_text(json.dumps({"records": test.records, "unmet": test.unmet}), encoding="utf-8")


main()
