"""What is kept of a class: results on the disk, points in nbgrader's gradebook."""
