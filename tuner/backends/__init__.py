"""Measure the kernel libraries that an engine may run instead of its Triton kernels.

`registry` names them and imports none, so that any process may use it. `operands` defines the
tensors that a call reads and writes. Each other module is a library. Only the process that owns a
GPU imports these: a library may take seconds to import and compile its kernels, and a fault in it
ends the process.
"""
