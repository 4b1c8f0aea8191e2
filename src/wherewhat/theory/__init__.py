"""Heads whose weights are set by hand, so that theory says where they must land."""
