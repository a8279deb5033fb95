"""Fetch engines and Tritons from a package index to where `find_packages` finds them.

pip chooses the wheel, with the index, mirrors, certificates and credentials of its own
configuration. Nothing is installed, so no environment changes.
"""
