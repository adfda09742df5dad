"""Which cluster, in which layout, trains a model by a deadline or within a budget."""
