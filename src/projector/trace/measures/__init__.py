"""What activities of devices say about a run: one file a question, each a function of the table.

Every measure is a function of `projector.trace.activity.Activities`. What is shown is a dataclass
with ``to_dict``, whose keys are those of JSON.
"""
