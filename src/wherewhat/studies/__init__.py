"""Studies, one folder per topic."""
