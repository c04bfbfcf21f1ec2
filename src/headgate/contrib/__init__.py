"""Headgate in frameworks of others, a package each. Nothing is imported here."""
