"""Inference: prefill and decode steps, the KV cache, one rank's experts."""
