"""Pictures of numbers, without a library: charts become shapes, and shapes become SVG or PNG.

Nothing here knows what the numbers mean. A PNG needs Pillow, the extra `pictures`.
"""
