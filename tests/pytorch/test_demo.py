#!/usr/bin/env python3
"""`make demo-pytorch`, with fewer steps: it shows what README.md's worked example says, and can tell when it doesn't."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import harness

sys.path.insert(0, str(harness.ROOT / "integration"))
import demo_pytorch

STEPS = 4
FIELDS = ["identical", "steps", "loss_first", "loss_last", "moved", "device_peak_without", "device_peak_with",
          "link_bytes_per_param", "seconds_without", "seconds_with"]


class Told:
    """What failures() asks of a run."""

    def __init__(self, name, trained=True, full=False, moved=0, device_peak=1):
        self.name, self.status, self.moved, self.device_peak = name, 0, moved, device_peak
        self.trained, self.out_of_memory = (lambda steps: trained), (lambda: full)


def said(identical=True, small=None, **with_it):
    """Of three runs, the last changed: what is said to be wrong."""
    offloaded = Told("with", **{"moved": 1, "device_peak": 2, **with_it})
    return demo_pytorch.failures(Told("large", device_peak=3), small or Told("small", full=True), offloaded, STEPS, identical)


def main():
    tap = harness.Tap()
    with tempfile.TemporaryDirectory(prefix="pytorch_test.") as folder:
        path = pathlib.Path(folder) / "demo.json"
        done = subprocess.run([sys.executable, harness.ROOT / "integration" / "demo_pytorch.py", "--steps", str(STEPS),
                               "--build", harness.BUILD, "--json", path], capture_output=True, text=True, check=False)
        found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    output = [*done.stdout.splitlines(), *done.stderr.splitlines(), json.dumps(found)]
    tap.result("train_gpt.py runs out of memory without the library and trains with it: state moved, and losses, parameters and "
               "state are the same",
               [] if done.returncode == 0 and found.get("identical") is True and found["moved"] > 0
               and found["steps"] == STEPS and found["link_bytes_per_param"] > 0 else output)
    tap.result("it takes less of the device with the library, and learns",
               [] if found and 0 < found["device_peak_with"] < found["device_peak_without"]
               and found["loss_last"] < found["loss_first"] else output)
    tap.result("losses stand side by side, and the figures have the agreed fields",
               [] if list(found) == FIELDS and "identical: yes" in done.stdout
               and len(re.findall(r"^ +\d+  (\d\.\d{6})  \1$", done.stdout, re.MULTILINE)) == STEPS else output)
    wrong = [said(), said(identical=False), said(moved=0), said(device_peak=3), said(trained=False), said(small=Told("small"))]
    tap.result("the demo fails when numbers differ, nothing moved, the device is as full as before, a run breaks off, or the small "
               "device is large enough", [] if [len(one) for one in wrong] == [0, 1, 1, 1, 1, 1] else [str(wrong)])
    return tap.done()


if __name__ == "__main__":
    sys.exit(main())
