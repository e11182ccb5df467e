"""NVIDIA's driver through ctypes: devices, modules, launches, streams, events, graphs, tensor maps.

Nothing here needs a CUDA toolkit or torch: `libcuda.so.1` comes with the driver. Streams and
addresses are plain integers, so those of torch serve as they are.
"""
