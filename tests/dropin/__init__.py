"""Replacements for existing systems."""
