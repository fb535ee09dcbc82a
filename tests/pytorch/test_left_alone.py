#!/usr/bin/env -S python3 tests/pytorch/harness.py
"""What is not taken over: it computes the same, no state moves, and the report names it with its bytes and what to change."""
import ctypes

import torch
from cases import case
from toys import mlp, record, train

ELEMENTS = 4096


def told(t, row, *parts):
    """The report's row, or a reason, says all of it."""
    def question(delta):
        texts = [one["why"] for one in delta["functions"] if one["name"] == row] if row else delta["reasons"]
        return any(all(part in text for part in parts) for text in texts)
    t.check(f"{row or 'a reason'} says {' ... '.join(parts)}", question)


def bytes_of(optimizer, names=("exp_avg", "exp_avg_sq")):
    """Of state that isn't a step counter."""
    return sum(state[name].nbytes for state in optimizer.state.values() for name in names)


def words(number):
    """As the report says it: three figures."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if number < 1023.5:
            break
        number /= 1024
    return f"{number:.{0 if unit == 'bytes' or number >= 99.95 else 1 if number >= 9.995 else 2}f} {unit}"


@case(modes="stream", moves=False)
def foreach_adamw(t):
    """foreach AdamW, the default, is left alone and named with its bytes"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=True)
    train(t, model, optimizer, steps=3)
    told(t, "foreach Adam", f" {words(bytes_of(optimizer))} of state stays on the device", "fused=True")
    record(t, model, optimizer)


@case(modes="stream", moves=False)
def ema_and_clipping(t):
    """foreach kernels of an average of the weights and of clipping are nobody's optimizer"""
    model = mlp()
    averages = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-3, foreach=True)

    def average(_):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch._foreach_lerp_(averages, [parameter.detach() for parameter in model.parameters()], 0.1)
    train(t, model, optimizer, steps=3, change=average)
    t.check("no row and no reason", lambda delta: not delta["functions"] and not delta["reasons"])
    t.record_state("averages", averages)


@case("AdamW fp32", modes="cpu stream direct")
def foreach_over_state(t):
    """foreach kernels over the state of a fused optimizer find it whole and send it home, which neighbours need not follow"""
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    train(t, model, optimizer, steps=3)
    averages = [state["exp_avg"] for state in optimizer.state.values()]
    moved = sum(average.nbytes for average in averages if average.numel() > 65536)
    t.check("nothing came home before", lambda delta: not delta["totals"]["moved_home_bytes"])
    torch._foreach_mul_(averages, 0.5)
    train(t, model, optimizer, steps=1, first=3, name="after ")
    # Of a big tensor all whole pieces; its second moment stays where it is.
    t.check("the first moments came home, and nothing else",
            lambda delta: 0.9 * moved < delta["totals"]["moved_home_bytes"] <= sum(average.nbytes for average in averages))
    train(t, model, optimizer, steps=4, first=4, name="again ")
    record(t, model, optimizer)


# ---- kernels known by their names alone ----

class Kernel:
    """A kernel of no effect, by any name, with parameters of these sizes."""

    def __init__(self, name, sizes):
        self.driver = ctypes.CDLL("libcuda.so.1")
        parameters = ", ".join(f".param .b{8 * size} p{i}" for i, size in enumerate(sizes))
        image = f".version 6.5\n.target sm_70\n.address_size 64\n.visible .entry {name}({parameters}) {{ ret; }}\n"
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        self.ask("cuModuleLoadData", ctypes.byref(module), image.encode())
        self.ask("cuModuleGetFunction", ctypes.byref(self.function), module, name.encode())
        self.types = [{8: ctypes.c_uint64, 4: ctypes.c_int32, 1: ctypes.c_uint8}[size] for size in sizes]

    def ask(self, function, *arguments):
        error = getattr(self.driver, function)(*arguments)
        if error:
            raise OSError(f"{function}: error {error}")

    def launch(self, *values):
        held = [kind(value) for kind, value in zip(self.types, values)]
        pointers = (ctypes.c_void_p * len(held))(*(ctypes.addressof(one) for one in held))
        self.ask("cuLaunchKernel", self.function, 1, 1, 1, 32, 1, 1, 0, None, pointers, None)


@case(modes="stream", moves=False)
def eight_bit(t):
    """8-bit Adam is known by its kernel's name and left alone"""
    sizes = [8] * 4 + [4] * 7 + [8] * 4 + [4, 4, 1, 4]
    kernel = Kernel("_Z35kOptimizerStatic8bit2StateBlockwiseIfLi0ELi256ELi1EEvPT_S1_PhS2_fffffifPfS3_S3_S3_ffbi", sizes)
    tensors = [[torch.zeros(ELEMENTS, device="cuda") for _ in range(2)] +
               [torch.zeros(ELEMENTS, dtype=torch.uint8, device="cuda") for _ in range(2)] for _ in range(3)]
    for _ in range(3):
        for four in tensors:
            kernel.launch(*(tensor.data_ptr() for tensor in four), *[0] * 14, ELEMENTS)
    torch.cuda.synchronize()
    told(t, "bitsandbytes 8-bit Adam", f" {words(3 * 2 * ELEMENTS)} of state stays", "fused=True")
    t.record("state", tensors[0][2])


@case(modes="stream", moves=False)
def compiled(t):
    """a compiled optimizer is known by its kernel's name and left alone"""
    kernel = Kernel("triton_poi_fused_add_addcdiv_addcmul_div_lerp_mul_sqrt_0", [8, 8, 8, 8, 4])
    tensors = [torch.zeros(1 << 20, device="cuda") for _ in range(4)]
    for _ in range(3):
        kernel.launch(*(tensor.data_ptr() for tensor in tensors), 1 << 20)
    torch.cuda.synchronize()
    told(t, "compiled Adam", " MiB, which stay", "torch.compile", "fused=True")
    t.record("state", tensors[2])


# ---- memory of other kinds ----

def stays(t, kind):
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    train(t, model, optimizer, steps=3)
    told(t, None, f"{words(bytes_of(optimizer))} of optimizer state lies", kind)
    t.check("all of it, to the byte", lambda delta: delta["totals"]["native_state_bytes"] == bytes_of(optimizer))
    record(t, model, optimizer)


@case(modes="stream", moves=False, environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"})
def expandable_segments(t):
    """state in expandable segments stays there and is named with its bytes"""
    stays(t, "expandable_segments")


@case(modes="stream", moves=False, environment={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"})
def malloc_async(t):
    """state in the pool of cudaMallocAsync stays there and is named with its bytes"""
    stays(t, "cudaMallocAsync")


@case(modes="stream", moves=False)
def graphed(t):
    """an optimizer step in a CUDA graph stays in the graph and is named with its bytes"""
    params = [torch.nn.Parameter(torch.full((ELEMENTS,), 0.5, device="cuda")) for _ in range(3)]
    optimizer = torch.optim.AdamW(params, lr=1e-2, fused=True, capturable=True)
    for parameter in params:
        parameter.grad = torch.full_like(parameter, 0.25)
        optimizer.state[parameter] = {"step": torch.zeros((), device="cuda"),
                                      **{name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}}
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    told(t, "AdamW fp32", f" {words(bytes_of(optimizer))} of state stays on the device", "graph")
    t.check("all of it, to the byte", lambda delta: delta["totals"]["captured_state_bytes"] == bytes_of(optimizer))
    t.record_state("parameters", [parameter.data for parameter in params])
    t.record_state("state", [optimizer.state[parameter] for parameter in params])
