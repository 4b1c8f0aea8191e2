"""Experiments that a user would name, one file each."""
