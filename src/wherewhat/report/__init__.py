"""What people see: terminal tables for now."""
