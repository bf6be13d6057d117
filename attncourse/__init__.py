"""attncourse: attention from the bottleneck up. Reference code, a judge, and the course's tools."""
