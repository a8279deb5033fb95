"""Web pages: they show the answers of the API's handlers, and post to them.

A page computes nothing that the API cannot answer. It is rendered here and reads well without
scripts.
"""
