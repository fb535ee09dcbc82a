#!/usr/bin/env python3
"""Checks a timeline of OFFLOAD_TRACE and prints sums as JSON: `trace.py FILE`. Valid JSON, every span whole, of a named track, and none
overlapping another of its track is what must hold. Prints {"spans", "dropped", "lost", "begin_us", "end_us", "tracks": {label:
{"spans", "bytes", "elements", "names", "threads", "of_no_step", "begin_us", "end_us"}}, "steps": {step: {label: bytes}}}."""
import json
import sys


def label_of(name):
    """A track's label without its device or lane."""
    return name.split(" (GPU")[0].rstrip("0123456789").strip()


def check(trace):
    events = trace["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    if len(set(names.values())) != len(names):
        raise ValueError("two tracks have one name")
    if len({e["pid"] for e in events}) != 1:
        raise ValueError("not one process")
    spans = [e for e in events if e["ph"] == "X"]
    if len(spans) != trace["otherData"]["spans"] or len(spans) + sum(e["ph"] == "M" for e in events) != len(events):
        raise ValueError("not as many spans as it says, or events of another kind")
    tracks, steps, ends = {}, {}, {}
    for span in sorted(spans, key=lambda e: (e["tid"], e["ts"])):
        begin, end = round(span["ts"] * 1000), round((span["ts"] + span["dur"]) * 1000)
        if begin <= 0 or span["dur"] < 0:
            raise ValueError(f"a span without a time: {span}")
        if begin < ends.get(span["tid"], 0) - 20:  # a double has no more than that of a long-running machine's nanoseconds
            raise ValueError(f"spans overlap on {names[span['tid']]}: {span}")
        ends[span["tid"]] = end
        label = label_of(names[span["tid"]])
        track = tracks.setdefault(label, {"spans": 0, "bytes": 0, "elements": 0, "names": set(), "threads": set(), "of_no_step": 0,
                                          "begin_us": span["ts"], "end_us": 0})
        track["spans"] += 1
        track["bytes"] += span["args"]["bytes"]
        track["elements"] += span["args"]["elements"]
        track["names"].add(span["name"])
        track["threads"].add(span["tid"])
        track["begin_us"] = min(track["begin_us"], span["ts"])
        track["end_us"] = max(track["end_us"], span["ts"] + span["dur"])
        number = span["args"].get("step")
        track["of_no_step"] += number is None
        step = steps.setdefault(number or 0, {})
        step[label] = step.get(label, 0) + span["args"]["bytes"]
    for track in tracks.values():
        track["names"] = sorted(track["names"])
        track["threads"] = len(track["threads"])
    return {"spans": len(spans), "dropped": trace["otherData"]["dropped"], "lost": trace["otherData"]["lost"],
            "begin_us": min(t["begin_us"] for t in tracks.values()), "end_us": max(t["end_us"] for t in tracks.values()),
            "tracks": tracks, "steps": steps}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        trace = json.load(file)
    try:
        json.dump(check(trace), sys.stdout, indent=1)
    except ValueError as problem:
        sys.exit(f"{sys.argv[1]}: {problem}")


if __name__ == "__main__":
    main()
