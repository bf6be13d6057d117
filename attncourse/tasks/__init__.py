"""The tasks of the course, one folder a chapter or lab, one file a task."""
