"""What a Dag author writes: one typed, documented constructor per source."""
