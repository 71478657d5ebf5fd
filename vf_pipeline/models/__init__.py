"""Model names to weights: a name known here, a local folder, a hub id; and conversion."""
