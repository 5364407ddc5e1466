"""Figures: every table and figure of the five papers as rows, and the page that shows them."""
