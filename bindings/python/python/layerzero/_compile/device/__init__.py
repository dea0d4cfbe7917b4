"""Compiled models on a device: the plan comes from the graph runtime, torch runs its steps on the device's stream.

Parameters stay where they are. Catalog operations run the kernels that the engine selects for the device, primitives run torch functions.
Intermediate results lie in one arena per session. On CUDA a program becomes a CUDA graph when it runs for the second time, if every kernel
is declared safe for capture.
"""

from layerzero._compile.device.constants import Constants, constants_on, device_of
from layerzero._compile.device.session import DeviceGraph

__all__ = ["Constants", "DeviceGraph", "constants_on", "device_of"]
