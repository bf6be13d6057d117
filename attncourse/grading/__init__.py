"""What an instructor does: release, make a sample class, read the results. Needs `[grader]`."""
