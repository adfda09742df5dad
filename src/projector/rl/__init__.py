"""Steps of reinforcement learning: what serving and training take of one, and on which devices."""
