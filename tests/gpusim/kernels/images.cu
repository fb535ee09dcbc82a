/* For tests of images: few bytes of parameters and many, in a namespace whose mangled name holds a hash. */
struct metadata {
  void *address[4][400];
  long elements[400];
  unsigned char block_to_tensor[2600];
  int block_to_chunk[1736];
};

extern "C" __global__ void axpy(int n, float a, const float *x, float *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n)
    y[i] = a * x[i] + y[i];
}
extern "C" __global__ void big(struct metadata m, char a, double b, short c, int *out) {
  *out = m.block_to_chunk[m.block_to_tensor[7]] + a + (int)b + c;
}
namespace {
template <class T> __global__ void __launch_bounds__(512) hidden(T *out) {
  __shared__ T s[100];
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  *out = s[99 - threadIdx.x];
}
} // namespace
void *keep_hidden = (void *)hidden<int>;
