"""A REST endpoint. ``adapter`` is what the common machine drives; the rest is its parts."""
