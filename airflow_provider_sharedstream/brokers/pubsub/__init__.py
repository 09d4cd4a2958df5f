"""Google Cloud Pub/Sub. ``adapter`` is what the common machine drives; the rest is its parts."""
