"""The live page: a server on this machine that measures the prompts that a reader types."""
