"""Configuration: `headgate.toml` read, checked and turned into policies.

file.py        gates and their limits        serve.py     how a guard serves them
toml_table.py  a table that knows its place  sources.py   values of limits that come from outside
"""
