"""Profiles as files that other programs read."""
