"""Compile candidates for NVIDIA's and AMD's GPUs in child processes. No GPU is needed."""

from tuner.compile.candidates import KernelCompiler
from tuner.compile.farm import CompileJob, Farm

__all__ = ["Farm", "CompileJob", "KernelCompiler"]
