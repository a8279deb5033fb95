"""Compile candidates for NVIDIA's and AMD's GPUs in child processes. No GPU is needed."""

from tuner.compile.candidates import Compiler, KernelCompiler
from tuner.compile.farm import CompileJob, Farm

__all__ = ["Compiler", "Farm", "CompileJob", "KernelCompiler"]
