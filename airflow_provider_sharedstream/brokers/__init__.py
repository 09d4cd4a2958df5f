"""How to talk to one broker, one file each: its limits, its configuration, its consumer, its producer."""
