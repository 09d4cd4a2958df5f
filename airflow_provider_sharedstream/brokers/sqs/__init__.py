"""Amazon SQS. ``adapter`` is what the common machine drives; the rest is its parts."""
