"""The service's web API: schemas check requests, thin handlers call the store.

It imports neither torch, triton nor numpy, and none of the workers' tasks.
"""
