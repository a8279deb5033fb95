"""Compiles candidates for any NVIDIA architecture, in processes, without a GPU."""

from tuner.compile.candidates import Compiler, KernelCompiler
from tuner.compile.farm import Farm, Job

__all__ = ["Compiler", "Farm", "Job", "KernelCompiler"]
