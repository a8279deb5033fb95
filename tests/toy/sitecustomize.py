"""Registers the toy family and the toy engine in every Python process of the test that has this
folder on its path: two lines are all that a new family or engine needs outside its folder.
"""

from tuner.engines import engine
from tuner.problems import registry

registry.register("toy_family")
engine.register("toyengine", "toy_engine", "toy_bindings")
