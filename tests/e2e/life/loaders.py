"""A training in Python with loader processes: loaders.py LIBRARY KERNEL.ptx START. START is how multiprocessing makes its
processes: fork, spawn or forkserver. The loaders make batches; this process takes steps by the trainer of trainer.h and is in
the middle of one while they are forked and work. Each loader also says what it is: its threads, and what CUDA answers it."""
import ctypes
import multiprocessing
import os
import struct
import sys

BATCH = 4096  # floats


def batch(number):
    """Numbers as a data set has them, from the standard library alone."""
    state, values = 1234567 + number, []
    for _ in range(BATCH):
        state = (state * 1103515245 + 12345) % (1 << 31)
        values.append(state / (1 << 31) - 0.5)
    threads = len(os.listdir("/proc/self/task"))
    return struct.pack(f"{BATCH}f", *values), threads, bool(os.environ.get("LD_PRELOAD"))


def forked():
    """What CUDA answers in a child of a process that uses it; nothing of it may be ours."""
    pointer = ctypes.c_uint64()
    cuda = ctypes.CDLL("libcuda.so.1")
    return cuda.cuInit(0), cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4 << 20))


class Training:
    def __init__(self, library, kernel):
        self.calls = ctypes.CDLL(library)
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.trainer = ctypes.create_string_buffer(4096)
        context = ctypes.c_void_p()
        self.check(self.cuda.cuInit(0))
        self.check(self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        self.check(self.cuda.cuCtxSetCurrent(context))
        self.check(self.calls.trainer_open(self.trainer, kernel.encode(), ctypes.c_uint64(3)))

    @staticmethod
    def check(result):
        if result:
            sys.exit(f"a call of the driver failed: {result}")

    def step(self, numbers=None):
        if numbers:
            self.check(self.calls.trainer_batch(self.trainer, numbers, ctypes.c_size_t(len(numbers))))
        self.check(self.calls.trainer_steps(self.trainer, 1))

    def hash(self):
        value = ctypes.c_uint64()
        self.check(self.calls.trainer_hash(self.trainer, ctypes.byref(value)))
        return value.value


def main():
    library, kernel, start = sys.argv[1:4]
    methods = multiprocessing.get_context(start)
    training = Training(library, kernel)
    for _ in range(3):
        training.step()  # in flight while the loaders are made
    with methods.Pool(2) as loaders:
        for numbers, threads, preloaded in loaders.imap(batch, range(6)):
            training.step(numbers)
            if threads > 1:
                print("a loader has", threads, "threads")
        if start == "fork":
            print("a loader's CUDA answers", loaders.apply(forked))
        loaders.close()
        loaders.join()  # they leave in order
    training.step()
    print(f"{start}: {training.hash():016x}, as preloaded as we are: {preloaded == bool(os.environ.get('LD_PRELOAD'))}")


if __name__ == "__main__":
    main()
