"""Diagnose: questions about the whole. What is here changes nothing, apart from `audit`'s mending."""
