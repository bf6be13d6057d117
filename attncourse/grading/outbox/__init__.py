"""What goes out: notebooks, feedback, the report of a class, points for a course system."""
