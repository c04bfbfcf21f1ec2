"""Replacements for existing systems, a module each, under the names that their users know."""
