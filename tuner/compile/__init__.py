"""Compiles candidates for any NVIDIA architecture, in processes, without a GPU."""

from tuner.compile.candidates import Binder, Compiler, KernelCompiler
from tuner.compile.farm import Farm, Job
from tuner.compile.results import default_cache_dir

__all__ = ["Binder", "Compiler", "Farm", "Job", "KernelCompiler", "default_cache_dir"]
