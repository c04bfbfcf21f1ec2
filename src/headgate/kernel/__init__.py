"""PURE. What decides: limits, plans, the line, commands, flows. It knows no clock, lock, socket, thread or loop."""
