"""`rolloutlog demo`: a reinforcement learning loop that is small enough to watch, and complete."""
