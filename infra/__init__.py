"""Where servers and folders are: on one machine (local/), and later in containers."""
