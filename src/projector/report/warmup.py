"""Compiling every kernel by projecting small jobs that reach each of them."""

from projector.projection.api import project_jobs
