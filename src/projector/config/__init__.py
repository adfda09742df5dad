"""What the user says: closed, frozen, documented configuration, and the readers of it."""
