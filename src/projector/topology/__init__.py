"""Nodes and clusters as graphs of links: routes, rates, contention."""
