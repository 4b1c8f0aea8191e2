"""The page on which heads are explored, and figures for print."""
