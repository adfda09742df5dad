"""The arguments that a launch script passes, found without running it.

`words` and `syntax` make commands of a text, `values` fills in what the script itself sets,
`conditions` judges its conditions, and `script` follows its commands. Nothing is executed: what a
program would print stays ``$(...)``, and what the environment would set stays ``${NAME}``.
"""
