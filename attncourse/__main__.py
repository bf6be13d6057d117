"""`python -m attncourse` is the command `attncourse`."""

from attncourse.cli import main

main()
