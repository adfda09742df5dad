"""The arguments that a launch script passes, found without running it.

`syntax` makes commands (`nodes`) of a text, `values` fills in what the script itself sets and
judges its conditions, and `script` follows its commands. Nothing is executed: what a
program would print stays ``$(...)``, and what the environment would set stays ``${NAME}``.
"""
