"""Projects memory and performance of large language model training on GPU clusters."""
