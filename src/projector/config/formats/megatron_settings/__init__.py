"""What each Megatron-LM setting means here: one set of tables for scripts and Primus.

A setting is known by the name Megatron gives it in code (``args.tensor_model_parallel_size``).
It is either taken over (a row of `fields.FIELDS`, or a rule that reads several settings together),
or a table of `fields` says why not: warned about because it changes the result and is not
modelled, refused, or of no consequence.
"""
