"""How much a text of others may hold before it is parsed. The bounds of TOML itself stand in
`tuner.toml_table`.

Parsers take far longer than the bytes take to arrive, and some of them by the square: so each text
is measured first, in linear time. What is left is parsed in a thread, apart from small bodies.
"""

from __future__ import annotations

CLUSTER_CHARS = 1 << 15  # a posted cluster.toml; one of 100 nodes has 10,000

# JSON. Each of these characters brings a value, which takes far longer to make than to send. The
# largest config.json that was seen has 70,000.
VALUES = 200_000
BRING_VALUES = b",:[{&"
JSON_DEPTH = 64  # a config.json has 6
DIGITS = 400  # of one number: Python takes quadratic time to read more, then refuses

# Requests.
HEAD_BYTES = 1 << 15  # a request's line and headers, or what only looks like the rest of a body
QUERY_BYTES = 1 << 14  # after the "?": the flags of a server have up to 4,096 characters
QUERY_FIELDS = 200
FORM_FIELDS = 200
SMALL_BYTES = 1 << 12  # a body that is parsed in the event loop: a thread would take longer
# Requests with a larger body are worked on one at a time, and have a rate of their own: each keeps
# Python's lock for long. Without a key, none is read.
LARGE_BYTES = 1 << 16
