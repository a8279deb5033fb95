"""Engines and Tritons from a package index, put where `find_packages` finds them.

pip says which wheel to take: the index, mirrors, certificates and credentials are those that it is
configured with. Nothing is installed, so no environment changes.
"""
