"""Runs PyTorch's CUDA operators on the simulated GPU without their kernels, for which the wheel has no PTX.

install() registers, for the CUDA dispatch key, a replacement of each operator that also has a CPU implementation. A
replacement does what the operator's launch would let a preloaded library see, then what its kernel would have done:

1. an empty kernel with the addresses of its tensors as parameters, launched in the current stream (operators.c);
2. waits for the stream, so that the order of work stays the stream's;
3. calls the CPU operator on the same bytes, through the simulator's second mapping of device memory. Device addresses
   themselves stay closed to the CPU. That mapping lies at a constant distance from the device's addresses, whatever
   memory is mapped there at the time, so views of it are kept.

Operators in NATIVE keep their CUDA implementation, with its allocations, copies, library calls and launches. Random
operators draw from the CUDA generator's seed and offset, so torch.cuda.manual_seed and saved states of it count.
"""

import ctypes
import functools
import warnings

import torch

# Allocation, views and metadata; plain copies; products of matrices and vectors (../cublas).
NATIVE = set("""
empty.memory_format empty_strided as_strided view _reshape_alias unfold resize_ record_stream _local_scalar_dense
set_ set_.source_Storage set_.source_Storage_storage_offset set_.source_Tensor _pin_memory is_pinned
view_as_real view_as_complex _efficientzerotensor zero_ _cudnn_init_dropout_state
mm mm.out addmm addmm.out addmm_ bmm bmm.out baddbmm baddbmm.out baddbmm_ _addmm_activation _addmm_activation.out
addmv addmv.out addmv_ dot vdot
_fused_adam_ _fused_adamw_ _fused_adam_.tensor_lr _fused_adamw_.tensor_lr
_amp_update_scale_
""".split())
# Those of kernels/*.cu, for the types that are compiled there.
FLOATS = {torch.float32, torch.float16, torch.bfloat16}
NATIVE_FOREACH = dict.fromkeys("""
_foreach_add_.Scalar _foreach_add_.ScalarList _foreach_add_.List _foreach_sub_.Scalar _foreach_sub_.List
_foreach_mul_.Scalar _foreach_mul.Scalar _foreach_mul_.ScalarList _foreach_mul_.List _foreach_mul_.Tensor
_foreach_div_.Scalar _foreach_div_.ScalarList _foreach_div_.List _foreach_maximum_.List
_foreach_sqrt _foreach_sqrt_ _foreach_neg_ _foreach_reciprocal_ _foreach_zero_ _foreach_pow.ScalarAndTensor
_foreach_lerp_.Scalar _foreach_addcmul_.Scalar _foreach_addcdiv_.Scalar _foreach_addcdiv_.ScalarList
""".split(), FLOATS)
NATIVE_FOREACH["_amp_foreach_non_finite_check_and_unscale_"] = {torch.float64, torch.float32, torch.float16}
# Without CPU implementation or meaning there.
SKIPPED_PREFIXES = ("_cudnn", "cudnn", "_cufft")

CPU = torch.device("cpu")
CAPTURE_UNSUPPORTED = 900

_helper = None
_host_view = None
_library = None


def _libraries():
    """The helper and the simulator, once an operator runs; nothing of CUDA is started before."""
    global _helper, _host_view
    if _helper is None:
        _host_view = ctypes.CDLL("libcuda.so.1").gpusim_host_view
        _host_view.restype, _host_view.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        helper = ctypes.CDLL("libgpusim_operators.so").operators_begin
        helper.restype = ctypes.c_int
        helper.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        _helper = helper


@functools.lru_cache(maxsize=4096)
def _bytes_at(address, count):
    """CPU storage over `count` bytes of device memory. It owns nothing; the same bytes have the same storage, by which
    operators tell that their arguments overlap."""
    view = (ctypes.c_char * count).from_address(_host_view(address))
    return torch.frombuffer(view, dtype=torch.uint8).untyped_storage()


def host_tensor(tensor):
    """A CPU tensor over the memory of a CUDA tensor."""
    storage = tensor.untyped_storage()
    count = storage.nbytes()
    if count == 0 or tensor.numel() == 0:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    result = torch.empty(0, dtype=tensor.dtype)
    result.set_(_bytes_at(storage.data_ptr(), count), tensor.storage_offset(), tensor.size(), tensor.stride())
    if tensor.is_neg():
        result = torch._neg_view(result)
    if tensor.is_conj():
        result = torch._conj(result)
    return result


class Call:
    """One call of a replaced operator: its device, the tensors it names, and which CPU tensor stands for which."""

    def __init__(self, name):
        self.name = name
        self.device = None
        self.tensors = []

    def collect(self, value):
        """The CUDA tensors and devices among the arguments."""
        if isinstance(value, torch.Tensor):
            if value.is_cuda:
                self.tensors.append(value)
                self.device = value.device
        elif isinstance(value, (list, tuple)):
            for one in value:
                self.collect(one)
        elif isinstance(value, torch.device) and value.type == "cuda" and self.device is None:
            self.device = value

    def touch(self, tensors):
        """Steps 1 and 2."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        addresses = [tensor.data_ptr() for tensor in tensors if tensor.numel()]
        array = (ctypes.c_uint64 * len(addresses))(*addresses)
        status = _helper(self.device.index, stream, array, len(addresses))
        if status == CAPTURE_UNSUPPORTED:
            raise RuntimeError(f"aten::{self.name} can't be captured in a graph here: the simulated GPU has no kernel "
                               "for it and runs it on the CPU")
        if status:
            # PyTorch's own words, when the error is one of earlier work.
            torch.cuda.synchronize(self.device)
            raise RuntimeError(f"aten::{self.name}: the driver answered {status} to an empty launch")

    def to_host(self, value):
        if isinstance(value, torch.Tensor):
            return host_tensor(value) if value.is_cuda else value
        if isinstance(value, torch.device):
            return CPU if value.type == "cuda" else value
        if isinstance(value, (list, tuple)):
            return type(value)(self.to_host(one) for one in value)
        return value

    def to_device(self, result, known):
        """The result as the CUDA operator would return it: arguments that were written, or new tensors."""
        fresh = []
        converted = self._convert(result, known, fresh)
        if fresh:
            self.touch([made for made, _ in fresh])
            for made, value in fresh:
                host_tensor(made).copy_(value)
        return converted

    # No function inside to_device: one that calls itself is a reference cycle, and would keep the tensors from being freed
    # until Python collects its garbage.
    def _convert(self, value, known, fresh):
        if isinstance(value, torch.Tensor):
            if id(value) in known:
                return known[id(value)]
            made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=self.device)
            if value.numel():
                fresh.append((made, value))
            return made
        if isinstance(value, (list, tuple)):
            return type(value)(self._convert(one, known, fresh) for one in value)
        return value


def _pairs(argument, host):
    """(CUDA tensor, CPU tensor) of an argument and what was passed for it."""
    if isinstance(argument, torch.Tensor):
        return [(argument, host)] if argument.is_cuda else []
    if isinstance(argument, (list, tuple)):
        return [pair for one, two in zip(argument, host) for pair in _pairs(one, two)]
    return []


def _written_pairs(written, args, kwargs, host_args, host_kwargs):
    """_pairs of the arguments that the operator writes."""
    pairs = []
    for i, key in written:
        if i < len(args):
            pairs += _pairs(args[i], host_args[i])
        elif key in kwargs:
            pairs += _pairs(kwargs[key], host_kwargs[key])
    return pairs


def _is_view_of(tensor, host):
    return host.untyped_storage().data_ptr() == _host_view(tensor.untyped_storage().data_ptr())


def _emptied(host):
    if isinstance(host, (list, tuple)):
        return type(host)(_emptied(one) for one in host)
    return torch.empty(0, dtype=host.dtype)


def _generator_for(device, given):
    """A CPU generator that continues the CUDA one: seeded by its seed and offset, which is then advanced."""
    source = given if given is not None else torch.cuda.default_generators[device.index]
    generator = torch.Generator()
    # Any mixing will do that keeps neighbours apart.
    generator.manual_seed((source.initial_seed() * 0x9E3779B97F4A7C15 + source.get_offset()) % (1 << 63))
    source.set_offset(source.get_offset() + 4)
    return generator


_BELOW = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)


def replacement(operator, name):
    """What runs in place of the CUDA implementation of `operator`."""
    arguments = operator._schema.arguments
    written = [(i, a.name) for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
    takes_generator = any(a.name == "generator" for a in arguments)
    random = torch.Tag.nondeterministic_seeded in operator.tags

    def run(args, kwargs, generator):
        if not random:
            return operator(*args, **kwargs)
        if takes_generator:
            kwargs["generator"] = generator
            return operator(*args, **kwargs)
        # Takes the default generator's word: lend it this one's state.
        kept = torch.default_generator.get_state()
        torch.default_generator.set_state(generator.get_state())
        try:
            return operator(*args, **kwargs)
        finally:
            torch.default_generator.set_state(kept)

    def replaced(*args, **kwargs):
        _libraries()
        call = Call(name)
        call.collect(args)
        call.collect(tuple(kwargs.values()))
        if call.device is None or call.device.index is None:
            call.device = torch.device("cuda", torch.cuda.current_device())
        with torch.cuda.device(call.device), torch._C._AutoDispatchBelowAutograd(), \
                torch._C._ExcludeDispatchKeyGuard(_BELOW), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call.touch(call.tensors)
            host_args = [call.to_host(value) for value in args]
            host_kwargs = {key: call.to_host(value) for key, value in kwargs.items()}
            if host_kwargs.get("pin_memory"):
                host_kwargs["pin_memory"] = False
            generator = None
            if random:
                given = kwargs.get("generator")
                if takes_generator and given is None:
                    given = next((a for a in args if isinstance(a, torch.Generator)), None)
                host_args = [None if isinstance(a, torch.Generator) else a for a in host_args]
                generator = _generator_for(call.device, given)
            outputs = _written_pairs(written, args, kwargs, host_args, host_kwargs)
            try:
                result = run(host_args, host_kwargs, generator)
            except RuntimeError as error:
                # An out= argument of another size: these bytes can't grow, so the operator gets tensors that can.
                if "not resizable" not in str(error) or not outputs:
                    raise
                for i, key in written:
                    if i < len(args):
                        host_args[i] = _emptied(host_args[i])
                    elif key in kwargs:
                        host_kwargs[key] = _emptied(host_kwargs[key])
                outputs = _written_pairs(written, args, kwargs, host_args, host_kwargs)
                result = run(host_args, host_kwargs, generator)
            for device_tensor, host in outputs:
                # Resized by the operator, or empty before.
                if device_tensor.size() != host.size():
                    device_tensor.resize_(host.size())
                if host.numel() and not _is_view_of(device_tensor, host):
                    call.touch([device_tensor])
                    host_tensor(device_tensor).copy_(host)
            return call.to_device(result, {id(host): tensor for tensor, host in outputs})

    return replaced


def _returns_view(schema):
    return any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def _has_cpu(qualified):
    return torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CPU") or \
        torch._C._dispatch_has_computed_kernel_for_dispatch_key(qualified, "CPU")


def _copy_replacement(operator):
    """Copies that the driver can do alone are the real ones."""
    native = torch.library.get_kernel("aten::copy_", "CUDA")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    on_cpu = replacement(operator, "copy_")

    def plain(to, source):
        if to.dtype != source.dtype or to.size() != source.size():
            return False
        if to.is_neg() != source.is_neg() or to.is_conj() != source.is_conj():
            return False
        if to.is_contiguous() and source.is_contiguous():
            return True
        return to.stride() == source.stride() and torch.ops.aten.is_non_overlapping_and_dense(to)

    def copy_(self, source, non_blocking=False):
        if self.numel() == 0 or plain(self, source):
            return native.call_boxed(keys, self, source, non_blocking)
        return on_cpu(self, source, non_blocking)

    return copy_


def _foreach_replacement(operator, name):
    """The real one for types that have kernels here."""
    native = torch.library.get_kernel(f"aten::{name}", "CUDA")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    on_cpu = replacement(operator, name)
    types = NATIVE_FOREACH[name]

    def foreach(*args, **kwargs):
        tensors = [t for a in args if isinstance(a, (list, tuple)) for t in a if isinstance(t, torch.Tensor)]
        if all(t.dtype in types for t in tensors):
            return native.call_boxed(keys, *args, **kwargs)
        return on_cpu(*args, **kwargs)

    return foreach


def _operator(name):
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None)
    return getattr(packet, overload or "default", None)


def install():
    """Called once, after torch is imported; asks nothing of a device."""
    global _library
    if not torch.version.cuda or _library is not None:
        return
    # Attention by its mathematical definition; convolutions without cuDNN, which is a stub here.
    for way in ("flash", "mem_efficient", "cudnn"):
        getattr(torch.backends.cuda, f"enable_{way}_sdp")(False)
    torch.backends.cudnn.enabled = False
    _library = torch.library.Library("aten", "IMPL", "CUDA")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for qualified in torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"):
            namespace, _, name = qualified.partition("::")
            if namespace != "aten" or name in NATIVE or name.startswith(SKIPPED_PREFIXES):
                continue
            operator = _operator(name)
            if operator is None or not _has_cpu(qualified) or _returns_view(operator._schema):
                continue
            if name in NATIVE_FOREACH:
                implementation = _foreach_replacement(operator, name)
            else:
                implementation = replacement(operator, name)
            _library.impl(name, implementation, allow_override=True)
        _library.impl("copy_", _copy_replacement(torch.ops.aten.copy_.default), allow_override=True)
