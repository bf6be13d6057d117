"""What the chapters trained and measured, once by `make curves`: a module for each chapter.

A page loads what is stored; each module, run as a program, trains and measures again.
"""
