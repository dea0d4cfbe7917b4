"""An example backend that uses only numpy, whose kernel misbehaves for certain values of `eps`."""

import mmap
import os
import random
import signal
import time

import numpy as np

import layerzero as lz

#: Special values of `eps`, which no model uses.
SLEEP, NAP, BUS, EXIT, KILL, TRUNCATE, SCRIBBLE = 101.0, 102.0, 103.0, 104.0, 105.0, 106.0, 107.0

if os.environ.get("ISOLATED_NUMPY_HANGS") and "LAYERZERO_WORKER_CONTROL" in os.environ:
    time.sleep(3600)


def memory_files():
    """The file descriptors of the memory shared with the host."""
    return [int(os.environ[f"LAYERZERO_WORKER_{name}"]) for name in ("CONTROL", "ARENA")]


def truncate():
    for descriptor in memory_files():
        os.ftruncate(descriptor, 0)


def scribble():
    generator = random.Random(7)
    for descriptor in memory_files():
        with mmap.mmap(descriptor, min(os.fstat(descriptor).st_size, 1 << 20)) as memory:
            memory[:] = generator.randbytes(len(memory))


@lz.register_kernel(operation="norm.rms", id="isolated.norm.rms", backend="isolated", dtypes=["float32"], priority=99)
def rms(x, weight, *, eps, weight_offset):
    match eps:
        case 101.0:
            time.sleep(3600)
        case 102.0:
            time.sleep(0.02)
        case 103.0:
            os.kill(os.getpid(), signal.SIGBUS)
        case 104.0:
            os._exit(3)
        case 105.0:
            os.kill(os.getpid(), signal.SIGKILL)
        case 106.0:
            truncate()
        case 107.0:
            scribble()
    normed = x / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + eps)
    return normed if weight is None else normed * (weight + weight_offset)
