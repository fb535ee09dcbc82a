#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""Batches from worker processes while the parent's state is on the host."""
from cases import HERE, case


def trained(t, start):
    t.record("output", t.run(HERE / "loaders.py", start, "cuda").encode())
    # A worker that wrote the report would have written it over the parent's, or have no steps in it.
    t.check("the report is the parent's: all of its steps", lambda delta: delta["totals"]["steps"] == 12)


@case("AdamW fp32", modes="stream")
def forked(t):
    """training with forked DataLoader workers"""
    trained(t, "fork")


@case("AdamW fp32", modes="cpu")
def spawned(t):
    """training with spawned DataLoader workers"""
    trained(t, "spawn")
