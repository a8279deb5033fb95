"""The service's web API: schemas at the door, thin handlers, the store behind.

Imports neither torch, triton nor optuna, and none of the workers' tasks.
"""
