// beta^step and Adam's bias correction 1 - beta^step as PyTorch's kernels compute them, one step a thread, steps 1, 2,
// 3, ... Compiled to PTX by the build, so that the device's own powf is what runs. The correction is a kernel of its
// own: a compiler may fuse the subtraction with the end of powf.
#define POWERS(name, type, power, value)                                                           \
  extern "C" __global__ void name(type beta, unsigned steps, type *out) {                          \
    const unsigned all = gridDim.x * blockDim.x;                                                   \
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < steps; i += all) {                \
      const type p = power(beta, static_cast<type>(static_cast<float>(i + 1)));                    \
      out[i] = value;                                                                              \
    }                                                                                              \
  }
POWERS(probe_powf, float, powf, p)
POWERS(probe_powf_correction, float, powf, 1.0f - p)
POWERS(probe_pow, double, pow, p)
POWERS(probe_pow_correction, double, pow, 1.0 - p)
