"""Cases that must not be ok, and one that must: self_test.py runs them. Not a test by itself."""
import os

import torch
from cases import case
from toys import loss_of, mlp, record, train

PRELOADED = "LD_PRELOAD" in os.environ


def trained(t, steps=4, **options):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, **{"fused": True, **options})
    train(t, model, optimizer, steps)
    return model, optimizer


@case("AdamW fp32", modes="stream")
def sound(t):
    """sound"""
    record(t, *trained(t))


@case("AdamW fp32", modes="stream")
def not_recognised(t):
    """no kernel of the family"""
    record(t, *trained(t, fused=False, foreach=False))


@case("AdamW fp32", modes="stream")
def nothing_moves(t):
    """a single step, in which nothing moves yet"""
    record(t, *trained(t, steps=1))


@case("AdamW fp32", "Adam fp32", modes="stream")
def one_of_two(t):
    """one of two families"""
    record(t, *trained(t))


@case("AdamW fp32", modes="stream", offload={"OFFLOAD_STEP": "direct"})
def another_mode(t):
    """another mode than the one under test"""
    record(t, *trained(t))


@case(modes="stream", moves=False)
def should_not_move(t):
    """state moves where none should"""
    record(t, *trained(t))


@case("AdamW fp32", modes="stream")
def one_bit(t):
    """one bit of one value differs"""
    model, optimizer = trained(t)
    if PRELOADED:
        model[0].weight.detach().view(torch.uint8)[0, 12].bitwise_xor_(torch.tensor(1, dtype=torch.uint8, device="cuda"))
    record(t, model, optimizer)


@case("AdamW fp32", modes="stream")
def another_shape(t):
    """a shape differs"""
    trained(t)
    t.record("zeros", torch.zeros(2, 3) if PRELOADED else torch.zeros(3, 2))


@case("AdamW fp32", modes="stream")
def more_records(t):
    """more is recorded with the library"""
    trained(t)
    if PRELOADED:
        t.record("more", 1.0)


@case("AdamW fp32", modes="stream")
def no_record(t):
    """nothing is recorded"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for step in range(4):
        loss_of(model, step).backward()
        optimizer.step()


@case("AdamW fp32", modes="stream")
def unmet(t):
    """what the case asks of the report is not so"""
    record(t, *trained(t))
    t.check("a million steps", lambda delta: delta["totals"]["steps"] == 1_000_000)


@case("AdamW fp32", modes="stream")
def fails_with(t):
    """it fails with the library"""
    record(t, *trained(t))
    if PRELOADED:
        raise RuntimeError("a failure of its own")


@case("AdamW fp32", modes="stream")
def program_fails(t):
    """a program that it runs fails"""
    record(t, *trained(t))
    t.run("-c", "raise SystemExit(3)")


def one_rank_of_two(t):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), **{"foreach" if os.environ["RANK"] == "1" else "fused": True})
    train(t, model, optimizer)


@case("AdamW fp32", modes="stream")
def idle_rank(t):
    """one of two ranks moves no state"""
    t.ranks(2, one_rank_of_two)


def a_bit_of_a_rank(t):
    model = mlp()
    train(t, model, torch.optim.AdamW(model.parameters(), fused=True))
    t.record("bit", int(PRELOADED and os.environ["RANK"] == "1"))


@case("AdamW fp32", modes="stream")
def differing_rank(t):
    """one bit of one rank differs"""
    t.ranks(2, a_bit_of_a_rank)


@case("AdamW fp32", modes="stream", environment={"DIES": "1"})
def dies(t):
    """the process dies"""
    record(t, *trained(t))
    if PRELOADED:
        os._exit(7)


@case("AdamW fp32", modes="stream", environment={"DIES": "1"})
def after_death(t):
    """one behind it"""
    record(t, *trained(t))
