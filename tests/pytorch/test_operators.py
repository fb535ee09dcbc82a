#!/usr/bin/env -S integration/pytorch/run
"""What integration/pytorch promises of itself, without the preload. Run by integration/pytorch/run; prints TAP."""
import copy
import ctypes
import mmap
import os
import pathlib
import re
import warnings

import torch
from cases import BF16_MOMENTS, RELEASE

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
tests = []


def test(sentence):
    return lambda function: tests.append((sentence, function))


def counter(name):
    function = ctypes.CDLL("libcuda.so.1").gpusim_counter_by_name
    function.restype = ctypes.c_ulonglong
    torch.cuda.synchronize()
    return function(name.encode())


def launches(function):
    before = counter("launches")
    function()
    return counter("launches") - before


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


@test("importing torch doesn't initialise the driver")
def _():
    # First of all tests. 3: CUDA_ERROR_NOT_INITIALIZED.
    assert ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 3


@test("counting devices leaves the driver alone, too")
def _():
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    assert torch.cuda.device_count() == 1
    assert torch.cuda.is_available()
    assert ctypes.CDLL("libcuda.so.1").cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 3


def without_file_names(name):
    """What differs between builds in the name of a kernel in an anonymous namespace."""
    found = re.search(rb"(\d+)_GLOBAL__N__", name)
    return name[:found.start()] + b"*" + name[found.end(1) + int(found.group(1)):] if found else name


@test("every kernel that is compiled here has a name that the wheel has")
def _():
    ours = set()
    for file in os.environ["GPUSIM_PTX"].split(":"):
        ours |= {without_file_names(name) for name in re.findall(rb"\.entry (\w+)", pathlib.Path(file).read_bytes())}
    library = pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
        wheels = {without_file_names(name) for name in re.findall(rb"\0(_ZN2at\w+)(?=\0)", contents)}
    assert len(ours) > 100, len(ours)
    assert ours <= wheels, sorted(ours - wheels)[:3]
    fused = {name for name in wheels if re.match(rb"_ZN2at6native\*25multi_tensor_apply_kernel.*FusedAdamMath", name)}
    assert len(fused) == (20 if RELEASE >= BF16_MOMENTS else 16), len(fused)
    assert fused <= ours, sorted(fused - ours)[:3]


@test("an operator on the CPU launches a kernel first, and one more for what it allocates")
def _():
    x = torch.randn(100, device="cuda")
    assert launches(lambda: x.sin_()) == 1
    assert launches(lambda: x.sin()) == 2
    assert launches(lambda: torch.add(x, 1, out=x)) == 1


@test("its result is that of the CPU, whatever the strides")
def _():
    a = torch.randn(6, 5, 4, generator=generator())
    for view in (lambda t: t, lambda t: t.permute(2, 0, 1), lambda t: t[1::2, :, 1], lambda t: t.expand(2, 6, 5, 4)):
        x, y = view(a.cuda()), view(a)
        assert torch.equal(x.cpu(), y)
        for f in (torch.exp, lambda t: t.sum(-1), lambda t: t.sort(dim=0)[1], lambda t: t * 2 + t, torch.nonzero):
            assert torch.equal(f(x).cpu(), f(y)), f


@test("it waits for what its stream still has to do")
def _():
    x, pinned = torch.zeros(1000, device="cuda"), torch.ones(1000).pin_memory()
    x.sum()
    torch.cuda._sleep(3000000)
    x.copy_(pinned, non_blocking=True)
    assert not torch.cuda.current_stream().query(), "nothing was pending"
    assert x.mul(2).sum().item() == 2000


@test("an out= argument grows, shrinks and may be an input")
def _():
    x = torch.arange(6.0, device="cuda")
    for size in (0, 3, 12):
        out = torch.empty(size, device="cuda")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.cat([x, x], out=out)
        assert out.tolist() == [*range(6)] * 2, out
    torch.add(x, x, out=x)
    assert x.tolist() == [0, 2, 4, 6, 8, 10]


@test("arguments that overlap are refused as on a device")
def _():
    x = torch.arange(6.0, device="cuda")
    try:
        x[1:].add_(x[:-1])
    except RuntimeError as error:
        assert "single memory location" in str(error), error
    else:
        raise AssertionError("not refused")


@test("random operators follow the CUDA generator")
def _():
    torch.cuda.manual_seed(5)
    first, state = torch.randn(4, device="cuda"), torch.cuda.get_rng_state()
    second = torch.nn.functional.dropout(torch.ones(100, device="cuda"))
    torch.manual_seed(9)
    torch.cuda.set_rng_state(state)
    assert torch.equal(second, torch.nn.functional.dropout(torch.ones(100, device="cuda")))
    torch.cuda.manual_seed(5)
    assert torch.equal(first, torch.randn(4, device="cuda"))
    assert not torch.equal(first, torch.randn(4, device="cuda"))
    before = torch.get_rng_state()
    torch.randn(4, device="cuda"), torch.randperm(9, device="cuda"), second.bernoulli_()
    assert torch.equal(before, torch.get_rng_state()), "the CPU's generator was used"


@test("the foreach operators with kernels here compute what the CPU computes")
def _():
    ones = [1.5, 2.5, 3.5]
    calls = [("add_", 1.5), ("add_", ones), ("sub_", 1.5), ("mul_", 1.5), ("mul_", ones), ("div_", 1.5), ("div_", ones),
             ("sqrt_",), ("neg_",), ("reciprocal_",), ("zero_",), ("add_", list), ("sub_", list), ("mul_", list),
             ("div_", list), ("maximum_", list), ("lerp_", list, 0.25), ("addcmul_", list, list, 0.5),
             ("addcdiv_", list, list, 0.5), ("addcdiv_", list, list, ones), ("mul_", torch.tensor)]
    for dtype in FLOATS:
        for name, *arguments in calls:
            g = generator()
            make = lambda: [(torch.rand(n, generator=g) + 0.5).to(dtype) for n in (7, 600, 1)]
            cpu = make()
            given = [make() if a is list else torch.tensor(1.5, dtype=dtype) if a is torch.tensor else a for a in arguments]
            to_cuda = lambda v: [t.cuda() if isinstance(t, torch.Tensor) else t for t in v] if isinstance(v, list) \
                else v.cuda() if isinstance(v, torch.Tensor) else v
            cuda, given_cuda = to_cuda(cpu), [to_cuda(v) for v in given]
            foreach = getattr(torch, f"_foreach_{name}")
            foreach(cpu, *given)
            assert launches(lambda: foreach(cuda, *given_cuda)) == 1, (name, dtype)
            for one, two in zip(cpu, cuda):
                # Types of 16 bits are rounded once, the CPU's slow path at each step.
                torch.testing.assert_close(two.cpu(), one, rtol=3 * torch.finfo(dtype).eps, atol=1e-6)


@test("an operator on the CPU can't be captured, and says so by name")
def _():
    x = torch.ones(4, device="cuda")
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x.sin_()
    except RuntimeError as error:
        assert "aten::sin_" in str(error), error
    else:
        raise AssertionError("captured")
    assert x.add_(1).sum().item() == 8


@test("a fused step is captured and replayed")
def _():
    p = torch.nn.Parameter(torch.ones(1000, device="cuda"))
    p.grad = torch.ones_like(p)
    optimizer = torch.optim.AdamW([p], lr=torch.tensor(0.1, device="cuda"), fused=True, capturable=True)
    optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    before = p.detach().clone()
    graph.replay()
    assert not torch.equal(before, p) and optimizer.state[p]["step"].item() == 2


@test("running out of memory is PyTorch's error, with its figures")
def _():
    kept = torch.ones(1000, device="cuda")
    total = torch.cuda.mem_get_info()[1]
    try:
        torch.empty(total + 1, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "Tried to allocate 4.00 GiB" in str(error) and "this process has" in str(error), error
    else:
        raise AssertionError(f"allocated beside {kept.numel()} elements")


PRODUCTS = {  # of matrices (6, 33, 17) and (6, 17, 29), vectors of 17 and 29, and something to add to
    "mm": lambda a, b, x, y, c: a[0] @ b[0],
    "mm of transposed matrices": lambda a, b, x, y, c: b[0].t() @ a[0].t(),
    "mm of matrices with gaps": lambda a, b, x, y, c: a[0, ::2, 1:9] @ b[0, 3:11, ::3],
    "mm without terms": lambda a, b, x, y, c: a[0, :, :0] @ b[0, :0],
    "addmm": lambda a, b, x, y, c: torch.addmm(c[0], a[0], b[0], beta=0.5, alpha=-2),
    "addmm with a vector": lambda a, b, x, y, c: torch.addmm(y, a[0], b[0]),
    "addmm in place": lambda a, b, x, y, c: c[0].clone().addmm_(a[0], b[0], beta=2),
    "bmm": lambda a, b, x, y, c: torch.bmm(a, b),
    "bmm of transposed matrices": lambda a, b, x, y, c: torch.bmm(b.mT, a.mT),
    "baddbmm": lambda a, b, x, y, c: torch.baddbmm(c, a, b, beta=-1, alpha=3),
    "linear": lambda a, b, x, y, c: torch.nn.functional.linear(a, b[0].t(), y),
    "einsum": lambda a, b, x, y, c: torch.einsum("bij,bjk->ki", a, b),
    "mv": lambda a, b, x, y, c: a[0] @ x,
    "mv of a transposed matrix": lambda a, b, x, y, c: b[0].t() @ x,
    "addmv": lambda a, b, x, y, c: torch.addmv(y, b[0].t(), x, beta=0.25, alpha=4),
    "dot": lambda a, b, x, y, c: torch.dot(x, b[0, :, 0]),
}
TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 8e-2}


@test("matrix products of all types equal the CPU's")
def _():
    for dtype, tolerance in TOLERANCES.items():
        g = generator()
        sizes = ((6, 33, 17), (6, 17, 29), (17,), (29,), (6, 33, 29))
        given = [torch.randn(size, generator=g).to(dtype) for size in sizes]
        for name, product in PRODUCTS.items():
            here = product(*(t.cuda() for t in given))
            torch.testing.assert_close(here.cpu(), product(*given), rtol=tolerance, atol=tolerance * 4,
                                       msg=lambda text: f"{name} {dtype}: {text}")


@test("a product with an activation is that of its parts")
def _():
    for dtype in FLOATS:
        c, a, b = (torch.randn(size, generator=generator()).to(dtype).cuda() for size in ((29,), (33, 17), (17, 29)))
        for use_gelu in (False, True):
            parts = torch.addmm(c.float(), a.float(), b.float())
            parts = torch.nn.functional.gelu(parts, approximate="tanh") if use_gelu else parts.relu()
            whole = torch._addmm_activation(c, a, b, use_gelu=use_gelu)
            torch.testing.assert_close(whole.float(), parts, rtol=TOLERANCES[dtype], atol=TOLERANCES[dtype])


def gradients(model, x, device, autocast=None):
    """Loss and gradients of a copy of the model on the device."""
    model, x = copy.deepcopy(model).to(device), x.to(device).requires_grad_()
    with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
        loss = model(x).float().square().mean()
    loss.backward()
    return [loss, x.grad, *(p.grad for p in model.parameters())]


@test("linear layers train as on the CPU, also under autocast")
def _():
    for dtype, autocast in ((torch.float32, None), (torch.float16, None), (torch.bfloat16, None),
                            (torch.float32, torch.float16), (torch.float32, torch.bfloat16)):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(17, 64), torch.nn.Tanh(), torch.nn.Linear(64, 5)).to(dtype)
        x = torch.randn(40, 17).to(dtype)
        results = zip(gradients(model, x, "cuda", autocast), gradients(model, x, "cpu", autocast))
        for here, there in results:
            tolerance = TOLERANCES[autocast or dtype] / 2
            assert there.abs().max() > 1e-4
            torch.testing.assert_close(here.cpu().float(), there.float(), rtol=tolerance,
                                       atol=tolerance * there.abs().max().item())


@test("a product is two launches and doesn't wait")
def _():
    a, out = torch.ones(64, 64, device="cuda"), torch.zeros(64, 64, device="cuda")
    assert launches(lambda: torch.mm(a, a, out=out)) == 2
    out.zero_()
    torch.cuda._sleep(3000000)
    torch.mm(a, a, out=out)
    assert not torch.cuda.current_stream().query(), "it waited"
    assert out.sum().item() == 64**3


@test("products are captured and replayed")
def _():
    a, b, c = (torch.randn(size, generator=generator()).cuda() for size in ((33, 17), (17, 29), (29,)))
    out = torch.empty(33, 29, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.addmm(c, a, b, out=out)
    for _ in range(2):
        a.mul_(1.5)
        graph.replay()
        torch.testing.assert_close(out, torch.addmm(c, a, b))


@test("products of complex numbers are refused")
def _():
    x = torch.ones(4, 4, dtype=torch.complex64, device="cuda")
    try:
        x @ x
    except RuntimeError as error:
        assert "CUBLAS_STATUS_NOT_SUPPORTED" in str(error), error
    else:
        raise AssertionError("computed")


def main():
    failed = 0
    for number, (sentence, function) in enumerate(tests, 1):
        try:
            function()
            print(f"ok {number} - {sentence}", flush=True)
        except Exception as error:  # a failed test is one line, and the next one runs
            failed += 1
            print(f"not ok {number} - {sentence}\n# {type(error).__name__}: {str(error)[:400]}", flush=True)
    print(f"1..{len(tests)}")
    raise SystemExit(failed != 0)


main()
