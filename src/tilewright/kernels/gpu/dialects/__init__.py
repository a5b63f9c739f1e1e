"""Dialects of CUCL: what one is, and how to add one, is said in table.py; these are ours."""
