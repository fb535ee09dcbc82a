"""Runs torch's CUDA operators on the simulated device without their kernels: imported after torch, it registers for the CUDA
dispatch key a fallback which calls the CPU operator on the same memory (device memory of the simulator is host memory).
Operators in NATIVE keep their real CUDA implementation, with its launches, copies and library calls.
A fallback waits for the current stream first, so the order of work stays that of the stream."""
import collections, ctypes, os, warnings
import torch
NATIVE = set('''empty.memory_format empty_strided as_strided view _reshape_alias unfold resize_ set_.source_Storage set_.source_Storage_storage_offset set_.source_Tensor set_ record_stream
 _local_scalar_dense _pin_memory is_pinned mm mm.out addmm addmm.out addmm_ bmm bmm.out baddbmm baddbmm.out baddbmm_ _addmm_activation _addmm_activation.out
 _fused_adam_ _fused_adamw_ _fused_adam_.tensor_lr _fused_adamw_.tensor_lr _foreach_add_.Scalar view_as_real view_as_complex _efficientzerotensor
 zero_ _assert_async _cudnn_init_dropout_state'''.split()) | set('''_foreach_add_.Scalar _foreach_add_.ScalarList _foreach_add_.List _foreach_mul_.Scalar _foreach_mul_.Tensor _foreach_mul.Scalar _foreach_mul_.List _foreach_lerp_.Scalar _foreach_addcmul_.Scalar _foreach_sqrt _foreach_sqrt_ _foreach_div_.ScalarList _foreach_div_.Scalar _foreach_div_.List _foreach_addcdiv_.ScalarList _foreach_addcdiv_.Scalar _foreach_maximum_.List _foreach_pow.ScalarAndTensor _foreach_sub_.Scalar _foreach_neg_ _foreach_reciprocal_'''.split())
calls = collections.Counter()
_keep = {}
_host = ctypes.CDLL('libcuda.so.1').gpusim_host_view; _host.restype = ctypes.c_void_p; _host.argtypes = [ctypes.c_void_p]
def alias(t):
    """a CPU tensor over the memory of a CUDA tensor"""
    if t.device.type != 'cuda': return t
    st = t.untyped_storage(); n = st.nbytes()
    if n == 0 or t.numel() == 0: return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype)
    b = torch.frombuffer((ctypes.c_char * n).from_address(_host(st.data_ptr())), dtype=torch.uint8)
    r = torch.empty(0, dtype=t.dtype).set_(b.untyped_storage(), t.storage_offset(), t.size(), t.stride())
    if t.is_neg(): r = torch._neg_view(r)
    return r
_cpu = torch.device('cpu')
def _in(x, dev):
    if isinstance(x, torch.Tensor):
        if x.device.type == 'cuda': dev[0] = x.device
        return alias(x)
    if isinstance(x, torch.device): 
        if x.type == 'cuda': dev[0] = torch.device('cuda', x.index if x.index is not None else torch.cuda.current_device()); return _cpu
        return x
    if isinstance(x, (list, tuple)): return type(x)(_in(y, dev) for y in x) if not hasattr(x, '_fields') else x
    if isinstance(x, torch.Generator): return None
    return x
def _out(x, dev, known):
    if isinstance(x, torch.Tensor):
        if id(x) in known: return known[id(x)]
        if x.device.type != 'cpu': return x
        r = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=dev); alias(r).copy_(x); return r
    if isinstance(x, (list, tuple)): return type(x)(_out(y, dev, known) for y in x)
    return x
def _pairs(a, c, known):
    if isinstance(a, torch.Tensor): known[id(c)] = a
    elif isinstance(a, (list, tuple)):
        for p, q in zip(a, c): _pairs(p, q, known)
def make(op, name):
    sch = op._schema; wr = {i for i, a in enumerate(sch.arguments) if a.alias_info is not None and a.alias_info.is_write}; kw = {a.name for a in sch.arguments if a.alias_info is not None and a.alias_info.is_write}
    def f(*args, **kwargs):
        calls[name] += 1; torch.cuda.current_stream().synchronize(); dev = [torch.device('cuda', torch.cuda.current_device())]
        ca = [_in(a, dev) for a in args]; ck = {k: _in(v, dev) for k, v in kwargs.items()}
        if 'pin_memory' in ck: ck['pin_memory'] = False
        known = {}; before = []
        for i in wr:
            if i < len(args): _pairs(args[i], ca[i], known); before.append((args[i], ca[i]))
        for k in kw:
            if k in kwargs: _pairs(kwargs[k], ck[k], known); before.append((kwargs[k], ck[k]))
        sizes = {q: (known[q], None) for q in known}
        with torch._C._AutoDispatchBelowAutograd(), warnings.catch_warnings():
            warnings.simplefilter('ignore'); r = op(*ca, **ck)
        for a, c in before:                       # an out= argument that was resized
            for p, q in zip(a if isinstance(a, (list, tuple)) else [a], c if isinstance(c, (list, tuple)) else [c]):
                if isinstance(p, torch.Tensor) and (p.size() != q.size() or p.stride() != q.stride()): p.resize_(q.size()); alias(p).copy_(q)
        return _out(r, dev[0], known)
    return f
def _install():
    global _lib
    for b in ('flash', 'mem_efficient', 'cudnn'): getattr(torch.backends.cuda, f'enable_{b}_sdp')(False)      # attention by the math path
    torch.backends.cudnn.enabled = False
    _lib = torch.library.Library('aten', 'IMPL', 'CUDA'); n = 0
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        for q in torch._C._dispatch_get_registrations_for_dispatch_key('CUDA'):
            if not q.startswith('aten::'): continue
            name = q[6:]; base, _, ov = name.partition('.')
            if name in NATIVE or base.startswith(('_cudnn', 'cudnn', '_cufft')): continue
            try: op = getattr(getattr(torch.ops.aten, base), ov or 'default')
            except AttributeError: continue
            if not torch._C._dispatch_has_kernel_for_dispatch_key(q, 'CPU') and not torch._C._dispatch_has_computed_kernel_for_dispatch_key(q, 'CPU'): continue
            _lib.impl(name, make(op, name), allow_override=True); n += 1
        # copies: plain ones are the real thing, those which need a kernel are not
        k = torch.library.get_kernel('aten::copy_', 'CUDA'); ks = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
        def copy_(self, src, non_blocking=False):
            if self.dtype == src.dtype and self.size() == src.size() and (self.is_contiguous() and src.is_contiguous()) and not src.is_neg(): return k.call_boxed(ks, self, src, non_blocking)
            calls['copy_'] += 1; torch.cuda.current_stream().synchronize(); alias(self).copy_(alias(src)); return self
        _lib.impl('copy_', copy_, allow_override=True)
    return n
def install():
    if torch.version.cuda: _install()
