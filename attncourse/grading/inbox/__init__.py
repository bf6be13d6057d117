"""What students sent: whose it is, which assignment, which of it is code. Nothing runs it here."""
